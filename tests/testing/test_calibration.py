"""One temperature for all sites: most likely on the rows kept aside, the same wherever the machines are."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from sklearn.metrics import log_loss

import kernfed as kf
from kernfed.kahm.left_out import softmin, temperature_losses
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload
from kernfed.testing.evaluation import evaluate_rows
from kernfed.testing.statistics import FACTORS, Temperatures
from oracles.federation import sites_data


@pytest.fixture(scope="module")
def digits():
    return kf.data.load_dataset("digits", scaling="unit")


@pytest.fixture(scope="module")
def sites(digits):
    parts = kf.data.partition_label_skew(digits.y_train, n_sites=6, share=0.3, seed=0)
    return {f"site-{number}": (digits.x_train[rows], digits.y_train[rows]) for number, rows in enumerate(parts)}


def fitted(sites, hold="sites", **options):
    federation = kf.Federation.local(sites, holdout=0.25, **options)
    return federation, kf.FoldingLearner(
        measure="distance", hold=hold, batch_size=100, partition="order", scale=None
    ).fit(federation)


def error(model, digits):
    return evaluate_rows(model, {"test": (digits.x_test, digits.y_test)}).pooled


def test_losses_are_negative_log_likelihoods(rng):
    scores, labels = rng.uniform(size=(40, 3)), rng.integers(3, size=40)
    temperatures = np.array([0.1, 1.0, 7.0])
    found = temperature_losses(scores, labels, temperatures)
    for value, T in zip(found, temperatures, strict=True):
        expected = -np.log(softmin(scores, T)[np.arange(40), labels]).sum()
        assert value == pytest.approx(expected, rel=1e-12)
    scores[5, labels[5]] = np.inf  # an absent class says nothing
    rest = np.arange(40) != 5
    np.testing.assert_allclose(
        temperature_losses(scores, labels, temperatures), temperature_losses(scores[rest], labels[rest], temperatures)
    )
    assert temperature_losses(scores[:0], labels[:0], temperatures).tolist() == [0.0, 0.0, 0.0]


def test_rows_with_labels_that_the_model_does_not_know_do_not_count(rng):
    scores, labels = rng.uniform(size=(30, 2)), rng.integers(3, size=30)  # label 2 is none of the model's
    made = Temperatures(2, FACTORS).sums(scores, labels)
    known = labels < 2
    np.testing.assert_array_equal(made["losses"], temperature_losses(scores[known], labels[known], FACTORS))
    assert made["rows"] == known.sum() < 30


def test_calibration_makes_held_out_labels_most_likely_and_helps_on_others(digits, sites):
    federation, model = fitted(sites)
    with federation:
        found = kf.calibrate(model, federation)
        kept = [federation.engine._sites[name].held_out() for name in model.sites]
        X, y = (np.concatenate([getattr(rows, part) for rows in kept]) for part in ("X", "y"))
        scores, numbers = model.scores(X), np.searchsorted(model.classes_, y)
        best = scipy.optimize.minimize_scalar(
            lambda log: temperature_losses(scores, numbers, np.exp([log]))[0], bounds=(-8, 3), method="bounded"
        ).x
        assert abs(np.log(found.temperature_) - best) <= np.log(2) / 16 + 1e-6  # half a step of the grid
        np.testing.assert_array_equal(found.predict(digits.x_test), model.predict(digits.x_test))
        assert error(found, digits).calibration_error < 0.02
        wrong = replace(model, calibrated_=8 * found.temperature_)
        assert error(wrong, digits).calibration_error > 0.2
        assert kf.calibrate(wrong, federation).temperature_ == found.temperature_
        np.testing.assert_allclose(found.predict_proba(digits.x_test[:5]).sum(axis=1), 1)


@pytest.mark.parametrize("measure", ["distance", "rms"])
def test_sites_of_one_class_know_how_much_their_scores_vary(digits, measure):
    parts = kf.data.partition_one_class(digits.y_train)
    sites = {f"site-{number}": (digits.x_train[rows], digits.y_train[rows]) for number, rows in enumerate(parts)}
    with kf.Federation.local(sites) as federation:
        found = (
            kf.FoldingLearner(measure=measure, batch_size=100, partition="order", scale=None)
            .fit(federation)
            .predict_proba(digits.x_test)
        )
    assert log_loss(digits.y_test, found) < 0.1


@pytest.mark.parametrize("measure", ["distance", "rms"])
def test_the_median_of_the_sites_is_near(digits, sites, measure):
    """Without anything kept aside: confidence and accuracy on unseen rows differ by less than two points."""
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure=measure, batch_size=100, partition="order", scale=None).fit(federation)
        found = model.predict_proba(digits.x_test)
        assert abs(found.max(axis=1).mean() - (model.predict(digits.x_test) == digits.y_test).mean()) < 0.02


def test_machines_here_or_at_the_sites_give_the_same_temperature(sites):
    federation, model = fitted(sites)
    other, whole = fitted(sites, "machines")
    with federation, other:
        assert kf.calibrate(whole, other).calibrated_ == kf.calibrate(model, federation).calibrated_


def test_the_temperature_is_kept_in_files_and_goes_with_changes(sites, tmp_path):
    federation, model = fitted(sites, "machines")
    with federation:
        found = kf.calibrate(model, federation)
    found.save(tmp_path / "model.kfd")
    assert kf.load(tmp_path / "model.kfd").temperature_ == found.calibrated_
    for changed in (found.forget("site-0"), found.local("site-1")):
        assert changed.calibrated_ is None
    federation, model = fitted(sites)
    with federation:
        found = kf.calibrate(model, federation)
        grown = found.add_rows("site-2", *(values[:3] for values in sites["site-2"]))
        assert grown.calibrated_ is None
        grown = kf.calibrate(grown, federation).forget("site-3")
        assert grown.calibrated_ is None
        again = kf.calibrate(grown, federation)
        assert kf.calibrate(again, federation).calibrated_ == again.calibrated_  # starts from the sites' own each time


def test_nothing_kept_aside_is_said(sites):
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(ValueError, match=r"holdout=0\.2"):
            kf.calibrate(model, federation)


def test_other_models_are_refused(sites):
    with kf.Federation.local(sites, holdout=0.2) as federation:
        ridge = kf.RidgeLearner("exact", n_components=10).fit(federation)
        with pytest.raises(ValueError, match="only the probabilities of a FoldingModel"):
            kf.calibrate(ridge, federation)


def test_a_site_that_does_not_allow_it_is_left_out(sites):
    allowed = ("describe", "folding_fit", "scores", "held_out_queries")
    policies = {"site-1": Policy(tasks=allowed)}
    federation, model = fitted(sites, policies=policies)
    with federation:
        with pytest.raises(kf.errors.TooFewReplies):
            kf.calibrate(model, federation)
        assert kf.calibrate(model, federation, min_replies=5).calibrated_ > 0


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("test_scores", {"scores": np.zeros((2, 3)), "temperatures": FACTORS}),
        ("test_scores", {"scores": np.full((0, 3), np.nan), "temperatures": -FACTORS}),
        ("test_scores", {"scores": np.zeros((0, 3)), "temperatures": FACTORS[1:]}),
        ("test_scores", {"scores": np.zeros((0, 3))}),
        ("test_model", {"temperatures": FACTORS}),
    ],
)
def test_bad_questions_are_refused(sites, name, payload):
    about = {"model": {"type": "nothing"}, "classes": {"dtype": "<i8", "labels": [0, 1, 2]}}
    arrays = {f"temperatures.{array}": values for array, values in payload.items()}
    with kf.Federation.local({"a": sites["site-0"]}) as federation:
        question = Payload(arrays, {**about, "statistics": {"temperatures": {}}})
        replies = federation.ask(name, question, min_replies=0)
    assert list(replies.missing) == ["a"]


@pytest.mark.parametrize(
    "arrays",
    [
        {"losses": np.zeros(3), "rows": np.asarray(4)},
        {"losses": np.full(len(FACTORS), np.nan), "rows": np.asarray(4)},
        {"losses": -np.ones(len(FACTORS)), "rows": np.asarray(4)},
        {"losses": np.ones(len(FACTORS)), "rows": np.asarray(-1)},
        {"losses": np.ones(len(FACTORS)), "rows": np.asarray(1.5)},
    ],
)
def test_answers_that_cannot_be_right_are_not_used(arrays):
    with pytest.raises(ValueError, match=r"(losses|rows) must be"):
        Temperatures(3, FACTORS).check(arrays)


def test_a_private_model_gets_no_temperature_of_raw_rows(rng: np.random.Generator) -> None:
    data = sites_data(rng, "ab", rows=60)
    mechanism = kf.privacy.RecordGaussian(3.0, 1e-5, 4.0)
    with kf.Federation.local(data, holdout=0.3) as federation, warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.errors.LedgerNotKept)
        model = kf.FoldingLearner(privacy=mechanism, measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        before = len(federation.traffic)
        with pytest.raises(kf.errors.InputError, match="found on raw rows is not covered by it"):
            kf.calibrate(model, federation)
        assert len(federation.traffic) == before
