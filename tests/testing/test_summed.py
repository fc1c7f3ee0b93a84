"""Counts of all sites together: the same as the sum of the counts that are seen, and nobody sees those."""

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Federation, FoldingLearner, RidgeLearner, calibrate, evaluate
from kernfed.privacy import RecordMoments
from kernfed.privacy.shared import SharedMoments, release_together
from kernfed.testing.audit import audit_mechanism
from kernfed.testing.evaluation import TOGETHER
from oracles.federation import sites_data


@pytest.fixture
def federation(rng):
    with Federation.local(sites_data(rng, ["a", "b", "c"]), holdout=0.4) as federation:
        yield federation


@pytest.fixture
def machines(federation):
    return FoldingLearner("distance", batch_size=10, hold="machines", partition="order", scale=None).fit(federation)


def test_counts(federation, machines):
    seen = evaluate(machines, federation).pooled
    together = evaluate(machines, federation, sum="secure")
    assert list(together.sites) == [TOGETHER]
    np.testing.assert_array_equal(together.pooled.confusion, seen.confusion)
    np.testing.assert_allclose(together.pooled.calibration, seen.calibration, atol=1e-3)
    assert together.pooled.rows > 0
    told = {entry.task: entry.information for entry in federation.traffic}
    assert (told["sum_masked"], told["test_model"]) == ("masked", "counts")


def test_of_a_ridge_model(federation):
    model = RidgeLearner(n_components=30, bandwidth=2.0, regularization=0.1).fit(federation)
    assert evaluate(model, federation, sum="secure").pooled.rows == evaluate(model, federation).pooled.rows


def test_temperature(federation, machines):
    assert calibrate(machines, federation, sum="secure").temperature_ == pytest.approx(
        calibrate(machines, federation).temperature_, rel=1.0
    )


def test_only_what_is_whole(federation, machines):
    at_sites = FoldingLearner("distance", batch_size=10, partition="order", scale=None).fit(federation)
    for model in [at_sites]:
        with pytest.raises(InputError, match="whole"):
            evaluate(model, federation, sum="secure")
        with pytest.raises(InputError, match="whole"):
            calibrate(model, federation, sum="secure")
    with pytest.raises(InputError, match="whole"):
        evaluate(machines, federation, {"a": (np.zeros((1, 3)), [0])}, sum="secure")


# Audits ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sum_of_a_few_sites_is_attacked_and_stands(rng):
    data = sites_data(rng, "ab", rows=120)
    mechanism = RecordMoments(3.0, 1e-5, 3, radius=3.0)
    learner = FoldingLearner("rms", privacy=mechanism, rows_per_class=30, batch_size=30, sum="secure")
    report, traffic = audit_mechanism(learner, data["a"], data["b"], trials=400, confidence=0.9999)
    assert report.verdict.startswith("not contradicted")
    assert {entry["task"] for entry in traffic} >= {"folding_shares", "sum_answer"}


@pytest.mark.slow
def test_too_few_honest_sites_are_found_out(rng):
    """Shares of one site in nine, where the statement counts on nine: the noise is a third, and the attack says so."""
    data = sites_data(rng, "ab", rows=120)
    mechanism = RecordMoments(3.0, 1e-5, 3, radius=3.0)

    def alone(X, y):
        shared = SharedMoments.of(mechanism, (0,), 9)
        return release_together(shared, [(X, y.astype(np.intp))])

    learner = FoldingLearner("rms", privacy=mechanism, rows_per_class=30, batch_size=30)
    report, _ = audit_mechanism(learner, data["a"], data["b"], release=alone, trials=1200)
    assert report.verdict.startswith("CONTRADICTED")
