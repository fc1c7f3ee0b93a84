import numpy as np
import pytest

from kernfed import KAHMClassifier
from kernfed.data import partition_dirichlet
from kernfed.federation import FoldingLearner
from kernfed_papers.baselines import pooled
from kernfed_papers.baselines.pooled import (
    Answers,
    _vote,
    accuracy,
    averaging_answers,
    baseline_rows,
    exact_ridge,
    mean_row,
    pooled_answers,
    repetition_seeds,
    ridge_answers,
    run_folding,
    site_rows,
    tuning_rows,
)
from kernfed_papers.rows import load_rows, slice_rows, take_rows


@pytest.fixture(scope="module")
def digits():
    return slice_rows(load_rows("digits", "unit"), 300, 100, 0)


@pytest.fixture(scope="module")
def sites(digits):
    return site_rows(digits, partition_dirichlet(digits.y_train, 4, 1.0, 0))


def test_accuracy_is_a_weighted_share_in_percent():
    predicted, labels = np.array([1, 2, 3, 4]), np.array([1, 0, 3, 0])
    assert accuracy(predicted, labels) == 50
    assert accuracy(predicted, labels, np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx(40)


def test_means_have_a_deviation_where_there_were_repetitions():
    row = mean_row("a", 3.0, [1.0, 2.0, 6.0])
    assert (row.ours, row.published) == (3.0, 3.0)
    assert row.deviation == pytest.approx(np.sqrt(7))
    assert mean_row("a", None, [1.0]).deviation is None


def test_repetitions_of_different_seeds_share_nothing():
    assert list(repetition_seeds(0, 3)) == [0, 1, 2]
    assert not set(repetition_seeds(1, 3)) & {*repetition_seeds(0, 3), *repetition_seeds(2, 3)}


def test_votes_are_those_of_the_nearest_and_ties_go_to_the_smallest():
    labels = np.array([[5, 2, 2, 5], [7, 2, 7, 2]])
    assert _vote(labels, 1).tolist() == [5, 7]
    assert _vote(labels, 3).tolist() == [2, 7]
    assert _vote(labels, 4).tolist() == [2, 2]


def test_tuning_rows_are_disjoint_training_rows(digits):
    fitted, aside = tuning_rows(digits, 0)
    assert not set(fitted) & set(aside)
    assert len(fitted) + len(aside) == len(digits.y_train)
    assert set(digits.y_train[aside]) == set(range(10))


def test_folding_answers_are_those_of_the_model(digits, sites):
    run = run_folding(
        FoldingLearner(measure="distance", batch_size=100, partition="order", scale=None), digits, sites, 0
    )
    assert run.scores.shape == (4, len(digits.y_test), 10)
    own = [np.flatnonzero(held).tolist() for held in run.holds]
    assert own == [np.unique(y).tolist() for _, y in sites.values()]
    assert accuracy(run.predicted, digits.y_test) > 90
    naive = np.mean([(scores.argmin(axis=1) == digits.y_test).mean() for scores in run.scores])
    assert run.alone(digits.y_test) == pytest.approx(100 * naive)
    rows = run.traffic("x")
    assert [row.unit for row in rows] == ["bytes up", "bytes down"] * 2
    assert all(row.ours > 0 for row in rows)


def test_pooled_classifiers_know_digits(digits):
    answers = pooled_answers(digits, 0, machines=KAHMClassifier(batch_size=1000, partition="kmeans", scale=None))
    assert [answer.label for answer in answers] == [
        "pooled rows, KAHM",
        "pooled rows, nearest neighbours",
        "pooled rows, logistic regression",
    ]
    assert all(accuracy(answer.predicted, digits.y_test) > 85 for answer in answers)
    assert "k = " in answers[1].note
    assert "penalty " in answers[2].note


def test_exact_ridge_is_least_squares_with_an_intercept(digits, sites):
    answer = exact_ridge(digits, sites, 0, 0.01)
    x = np.hstack([digits.x_train, np.ones((len(digits.x_train), 1))]).astype(float)
    targets = np.eye(10)[digits.y_train]
    weights = np.linalg.solve(x.T @ x / len(x) + 0.01 * np.eye(x.shape[1]), x.T @ targets / len(x))
    tested = np.hstack([digits.x_test, np.ones((len(digits.x_test), 1))])
    assert answer.predicted.tolist() == (tested @ weights).argmax(axis=1).tolist()
    assert answer.bytes_up > answer.bytes_down > 0
    assert answer.label == "exact ridge, 1 round"
    assert accuracy(ridge_answers(digits, sites, 0).predicted, digits.y_test) > 85


def test_averaging_is_looked_at_after_some_rounds_of_one_run(digits, sites):
    answers = averaging_answers(digits, sites, 0, "linear", (1, 4))
    assert [answer.label for answer in answers] == ["FedAvg, linear, 1 round", "FedAvg, linear, 4 rounds"]
    right = [accuracy(answer.predicted, digits.y_test) for answer in answers]
    assert right[1] > right[0] > 20
    assert answers[1].bytes_up > 3 * answers[0].bytes_up / 2
    assert "learning rate" in answers[0].note


def test_only_methods_with_rounds_are_on_a_curve():
    labels = np.arange(4)
    answers = [
        Answers("exact ridge", labels, 5_000_000, 600_000, 1, "set so"),
        Answers("pooled rows, KAHM", labels[::-1]),
    ]
    one, other = baseline_rows("data", answers, labels, series="alpha = 1")
    assert (one.label, one.series, one.x, one.ours) == ("data: exact ridge, 1 round", "exact ridge, alpha = 1", 1, 100)
    assert (other.label, other.series, other.x, other.ours) == ("data: pooled rows, KAHM", "", None, 0)
    assert (one.note, other.note) == ("set so; 5.0 MB up, 0.6 MB down", "")
    assert baseline_rows("data", answers, labels)[0].series == ""


def test_the_regularisation_goes_on_where_the_best_is_at_an_end(digits, sites, monkeypatch):
    monkeypatch.setattr(pooled, "REGULARIZATIONS", (0.1, 1.0))
    answer = ridge_answers(digits, sites, 0)
    chosen = float(answer.note.split()[1])
    assert chosen < 0.1
    assert accuracy(answer.predicted, digits.y_test) > 85


def test_logit_adjustment_helps_where_a_class_is_rare(digits):
    rare = np.flatnonzero((digits.y_train != 8) | (np.cumsum(digits.y_train == 8) <= 3))
    answers = pooled_answers(
        take_rows(digits, rare),
        0,
        machines=KAHMClassifier(batch_size=1000, partition="kmeans", scale=None),
        balanced=True,
    )
    assert answers[2].label == "pooled rows, logit-adjusted logistic regression"
    plain = pooled_answers(
        take_rows(digits, rare), 0, machines=KAHMClassifier(batch_size=1000, partition="kmeans", scale=None)
    )
    eights = digits.y_test == 8
    assert (answers[2].predicted[eights] == 8).sum() > (plain[2].predicted[eights] == 8).sum()
