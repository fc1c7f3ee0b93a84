"""Counts of all sites together: the same as the sum of the counts that are seen, and nobody sees those."""

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Federation, FoldingLearner, RidgeLearner, calibrate, evaluate
from kernfed.federation.testing.evaluation import TOGETHER
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
    assert (told["sum_masked"], told["evaluate"]) == ("masked", "counts")


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
