"""Figures beside accuracy, from counts that sites add up: those of scikit-learn on the rows themselves."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from kernfed.errors import InputError
from kernfed.testing.outcomes import MOST_RANKED, Evaluation, count_outcomes
from kernfed.testing.statistics import Outcomes


def answers(rng, rows, classes, skill=1.5):
    truth = rng.integers(0, classes, rows)
    logits = rng.standard_normal((rows, classes)) + skill * np.eye(classes)[truth]
    likely = np.exp(logits)
    return truth, likely / likely.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 5])
def test_figures_are_those_of_the_rows(rng, classes):
    truth, likely = answers(rng, 2000, classes)
    outcome = count_outcomes(np.arange(classes), truth, likely)
    predicted = likely.argmax(axis=1)
    np.testing.assert_allclose(outcome.recall, recall_score(truth, predicted, average=None))
    np.testing.assert_allclose(outcome.f1, f1_score(truth, predicted, average=None))
    assert outcome.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, predicted))
    areas = [roc_auc_score(truth == number, likely[:, number]) for number in range(classes)]
    np.testing.assert_allclose(outcome.auc, areas, atol=1e-3)
    assert outcome.mean_auc == pytest.approx(np.mean(areas), abs=1e-3)
    largest = np.bincount(truth).argmax()
    assert outcome.majority == (largest, (truth == largest).mean())
    assert outcome.confidence == pytest.approx(likely.max(axis=1).mean())


def test_sites_add_up_to_the_rows_of_all(rng):
    truth, likely = answers(rng, 300, 3)
    classes = np.arange(3)
    parts = {str(part): count_outcomes(classes, truth[part::2], likely[part::2]) for part in (0, 1)}
    whole = count_outcomes(classes, truth, likely)
    pooled = Evaluation(classes, parts).pooled
    assert (pooled.ranking == whole.ranking).all()
    told = Evaluation(classes, parts).to_json()["pooled"]
    assert (told["auc"], told["recall"]) == (whole.mean_auc, whole.recall.tolist())


def test_what_was_not_met_is_not_defined(rng):
    truth, likely = answers(rng, 50, 3)
    outcome = count_outcomes(np.arange(3), np.where(truth == 2, 9, truth), likely)
    assert np.isnan(outcome.recall[2])
    assert np.isnan(outcome.auc[2])
    assert np.isfinite(outcome.mean_auc)
    assert outcome.majority[0] == np.bincount(np.where(truth == 2, 3, truth)).argmax()
    nothing = count_outcomes(np.arange(3), truth[:0], likely[:0])
    assert np.isnan([nothing.balanced_accuracy, nothing.mean_auc, nothing.majority[1], nothing.confidence]).all()
    assert nothing.alarm is None
    many = MOST_RANKED + 1
    assert np.isnan(count_outcomes(np.arange(many), truth, np.full((50, many), 1 / many)).mean_auc)


def test_the_alarm_is_for_probabilities_that_nobody_should_rely_on(rng):
    truth = rng.integers(0, 2, 1000)
    right = rng.random(1000) < 0.7
    predicted = np.where(right, truth, 1 - truth)

    def outcome(confidence, rows=1000):
        likely = np.where(predicted[:, None] == np.arange(2), confidence, 1 - confidence)
        return count_outcomes(np.arange(2), truth[:rows], likely[:rows])

    assert outcome(0.7).alarm is None
    assert "too sure" in outcome(0.95).alarm
    assert "not sure enough" in outcome(0.55).alarm
    assert outcome(0.8, rows=10).alarm is None  # ten rows say little


def test_counts_that_contradict_each_other_are_refused(rng):
    truth, likely = answers(rng, 40, 3)
    counts = vars(count_outcomes(np.arange(3), truth, likely))
    Outcomes(3).check(counts)
    counts["ranking"][0, 0, 5] += 1
    with pytest.raises(InputError, match="same rows"):
        Outcomes(3).check(counts)
    counts["ranking"][0, 0, 5] = -1
    with pytest.raises(InputError, match="ranking must be integers from 0"):
        Outcomes(3).check(counts)
