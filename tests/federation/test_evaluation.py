"""Evaluation from counts: the same numbers as pooling the test rows, without pooling them."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.federation import Fault, Policy, TooFewReplies
from kernfed.federation.evaluation import BINS, Evaluation, Outcome, count_outcomes, evaluate_rows


@pytest.fixture
def sites(rng):
    centres = 3 * rng.standard_normal((4, 5))
    labels = rng.integers(0, 4, (3, 60))
    return {f"site-{i}": (centres[y] + rng.standard_normal((60, 5)), y) for i, y in enumerate(labels)}


def naive_counts(classes, truth, probabilities):
    confusion = np.zeros((len(classes) + 1, len(classes)), dtype=int)
    calibration = np.zeros((BINS, 3))
    for label, row in zip(truth, probabilities, strict=True):
        guess = int(np.argmax(row))
        known = [number for number, name in enumerate(classes) if name == label]
        confusion[known[0] if known else len(classes), guess] += 1
        place = min(int(row[guess] * BINS), BINS - 1)
        calibration[place] += [1, bool(known) and known[0] == guess, row[guess]]
    return confusion, calibration


def test_counts_are_the_naive_ones(rng):
    classes = np.array(["a", "b", "c"])
    probabilities = rng.dirichlet([1, 1, 1], 200)
    probabilities[:3] = np.eye(3)  # confidence 1 belongs to the last bin
    truth = np.array(["a", "b", "c", "unknown"])[rng.integers(0, 4, 200)]
    confusion, calibration = naive_counts(classes, truth, probabilities)
    found = count_outcomes(classes, truth, probabilities)
    assert (found.confusion == confusion).all()
    np.testing.assert_allclose(found.calibration, calibration)
    assert found.rows == 200
    assert found.correct == np.trace(confusion)


def test_perfectly_calibrated_counts_have_no_error():
    calibration = np.zeros((BINS, 3))
    calibration[7] = [100, 75, 75.0]
    assert Outcome(np.array([[75, 25], [0, 0], [0, 0]]), calibration).calibration_error == 0.0


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_sites_count_what_the_caller_would_count(sites, hold):
    with kf.Federation.local(sites, holdout=0.3) as federation:
        model = kf.FoldingLearner(measure="distance", hold=hold).fit(federation)
        found = kf.evaluate(model, federation)
        kept = {name: federation.engine.site(name).held_out() for name in federation.sites}
        expected = evaluate_rows(model, {name: (rows.X, rows.y) for name, rows in kept.items()})
        information = {entry.information for entry in federation.traffic if entry.task.startswith("evaluate")}
    assert set(found.sites) == set(sites)
    for name, outcome in found.sites.items():
        assert (outcome.confusion == expected.sites[name].confusion).all()
        assert (outcome.calibration == expected.sites[name].calibration).all()
    assert found.accuracy > 0.8
    assert information == {"counts"}


def test_held_out_rows_are_not_learned_from_and_stay_the_same(sites):
    with kf.Federation.local(sites, holdout=0.25, seed=4) as federation:
        site = federation.engine.site("site-1")
        kept, learned = site.held_out(), site.rows()
        assert len(np.intersect1d(kept.ids, learned.ids)) == 0
        assert len(kept.ids) + len(learned.ids) == 60
        assert 5 <= len(kept.ids) <= 28
        model = kf.FoldingLearner().fit(federation)
        assert model.members["site-1"].rows == len(learned.ids)
        site.forget_rows(learned.ids[:3])
        assert (site.held_out().ids == kept.ids).all()  # a row's part never changes


def test_a_site_without_held_out_rows_counts_nothing(sites):
    with kf.Federation.local(sites) as federation:
        for hold in ("sites", "machines"):
            found = kf.evaluate(kf.FoldingLearner(hold=hold).fit(federation), federation)
            assert found.pooled.rows == 0
            assert np.isnan(found.accuracy)
            assert found.to_json()["pooled"]["accuracy"] is None


def test_given_rows_and_unknown_labels(sites):
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner().fit(federation)
        X, y = sites["site-0"]
        found = kf.evaluate(model, federation, holdout={"new": (X, np.where(y == 0, 99, y))})
    assert found.pooled.confusion[-1].sum() == (y == 0).sum()
    assert found.accuracy < 1


def test_policy_and_missing_sites(sites):
    policies = {name: Policy(tasks=("describe", "scores", "machines")) for name in sites}
    with kf.Federation.local(sites, holdout=0.3, policies=policies) as federation:
        model = kf.FoldingLearner(hold="machines").fit(federation)
        with pytest.raises(TooFewReplies, match="allows describe, scores, machines, not 'evaluate'"):
            kf.evaluate(model, federation)
    with kf.Federation.local(sites, holdout=0.3) as federation:
        model = kf.FoldingLearner(hold="machines").fit(federation)
        federation.engine.faults["site-2"] = Fault("dead")
        found = kf.evaluate(model, federation, min_replies=1)
    assert set(found.sites) == {"site-0", "site-1"}
    assert "cannot be reached" in found.missing["site-2"]
    assert "site-2" in str(found)


def test_other_models_are_evaluated_too(sites):
    X = np.concatenate([rows for rows, _ in sites.values()])
    y = np.concatenate([labels for _, labels in sites.values()])
    model = kf.KAHMClassifier().fit(X, y)
    with kf.Federation.local(sites, holdout=0.5) as federation:
        assert kf.evaluate(model, federation).accuracy > 0.9


def test_evaluation_prints_one_line_per_site():
    outcome = count_outcomes(np.array([0, 1]), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    lines = str(Evaluation(np.array([0, 1]), {"a": outcome, "b": outcome})).splitlines()
    assert lines[0].split() == ["site", "rows", "accuracy", "calibration", "error"]
    assert lines[-1].startswith("all sites")
    assert "66.67%" in lines[-1]
