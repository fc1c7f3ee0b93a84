"""Ridge regression from masked sums: the model of the clear sums, and with noise in shares that of one release."""

import warnings

import numpy as np
import pytest

from kernfed.errors import InputError, LedgerNotKept, TooFewReplies
from kernfed.federation import Fault, Federation, Payload, RidgeLearner
from kernfed.privacy import RecordRidge
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.shared import SharedRidge
from kernfed.secure import Committee
from kernfed.secure.committee.fixed import fit_layout
from kernfed.site.release.permit import charges


@pytest.fixture
def data(rng):
    weights = rng.normal(size=(4, 3))
    rows = {f"s{i}": rng.normal(size=(40 + 3 * i, 4)) for i in range(4)}
    return {site: (X, (X @ weights + 0.2 * rng.normal(size=(len(X), 3))).argmax(axis=1)) for site, X in rows.items()}


def fitted(data, **settings):
    with Federation.local(data) as federation:
        model = RidgeLearner("exact", n_components=60, bandwidth=2.0, **settings).fit(federation)
        return model, {entry.task: entry.information for entry in federation.traffic}


@pytest.mark.parametrize("settings", [{}, {"class_weight": "balanced"}, {"fit_intercept": False}])
def test_the_model_is_that_of_the_clear_sums(data, settings):
    clear, _ = fitted(data, regularization=0.01, **settings)
    masked, told = fitted(data, regularization=0.01, sum="secure", **settings)
    np.testing.assert_allclose(masked.weights_, clear.weights_, rtol=1e-6, atol=1e-8)
    assert told["sum_masked"] == "masked"
    assert "ridge_moments" not in told
    assert {task: kind for task, kind in told.items() if kind == "statistics"} == {}


def test_given_features_and_targets(data):
    targets = {site: (X * 100, X @ [1.0, 2.0, 0.0, -1.0] * 1e3) for site, (X, _) in data.items()}
    settings = {"features": "given", "task": "regress", "regularization": 1e-3, "scale": None}
    clear, _ = fitted(targets, **settings)
    masked, told = fitted(targets, sum=Committee(corrupt=True), **settings)
    np.testing.assert_allclose(masked.weights_, clear.weights_, rtol=1e-6, atol=1e-9)
    assert told["ridge_range"] == "statistics"


def test_what_is_not_given_comes_from_the_sums(data):
    with Federation.local(data) as federation:
        model = RidgeLearner(n_components=60, sum="secure").fit(federation)
    assert (model.choices_.regularization, model.choices_.bandwidth) == ("sums", "median")
    X, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    assert (model.predict(X) == y).mean() > 0.8


def test_masked_or_not_the_integers_are_the_same(data):
    with Federation.local(data) as federation:
        learner = RidgeLearner("exact", n_components=20, bandwidth=2.0, regularization=0.1)
        parameters = learner.fit(federation).parameters
        question = Payload(values={"parameters": parameters.to_values()})
        size = 20 + 3
        arrays = {"products": ((size * (size + 1) // 2,), 500.0), "sums": ((size,), 500.0), "mass": ((1,), 500.0)}
        clear = federation.sum("ridge_sums", question, arrays)
        masked = federation.sum("ridge_sums", question, arrays, committee="secure")
    for name in arrays:
        np.testing.assert_array_equal(clear.integers[name], masked.integers[name])
    assert fit_layout(arrays, 4).size == sum(part.size for part in clear.integers.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "conjugate"},
        {"head": "logistic"},
        {"regularization": [0.1, 1.0]},
        {"diagnose": True},
        {"scale": "columns"},
        {"sum": "open"},
    ],
)
def test_what_sites_would_tell_each_for_itself(data, settings):
    with Federation.local(data) as federation, pytest.raises(InputError):
        RidgeLearner(**{"sum": "secure", **settings}).fit(federation)


def test_a_site_that_is_lost_ends_the_sum(data):
    with Federation.local(data) as federation:
        learner = RidgeLearner(n_components=20, sum=Committee(("s0", "s1", "s2")))
        learner.fit(federation)
        federation.engine.faults = {"s3": Fault("dead")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(TooFewReplies, match="the difference would tell of 1"):
                learner.fit(federation, min_replies=3)


# Noise in shares ---------------------------------------------------------------------------------------------------


def test_with_noise_every_site_pays_once(data):
    mechanism = RecordRidge(50.0, 1e-5, radius=1.0, target_radius=1.0)
    with Federation.local(data) as federation:
        with pytest.warns(LedgerNotKept):
            model = RidgeLearner(n_components=10, bandwidth=3.0, privacy=mechanism, sum="secure").fit(federation)
        paid = [charges(federation.engine.site(site)) for site in federation.sites]
        told = {entry.task: entry.information for entry in federation.traffic}
    assert paid == [1] * 4
    assert told["ridge_shares"] == "masked"
    assert "at least 4 honest sites" in str(model.privacy)
    X, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    assert (model.predict(X) == y).mean() > 0.6


def test_no_row_moves_the_sums_further_than_it_pays_for(rng):
    one = SharedRidge.of(RecordRidge(1.0, 1e-5, 2.0, 3.0), 4, 2, 7)
    X, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 2))
    worst = 0.0
    for _ in range(60):
        x, z, target = rng.normal(size=4) * 9, rng.normal(size=4) * 9, rng.normal(size=2) * 9
        sums = [one.integers(np.vstack([X, row]), np.vstack([y, goal])) for row, goal in [(x, target), (z, -target)]]
        moved = [
            np.square((sums[0][name] - sums[1][name]) / array.deviation).sum()
            for name, array in one.arrays("ridge").items()
        ]
        worst = max(worst, float(sum(moved)))
    assert 0.3 * one.event("ridge").mu ** 2 < worst <= one.event("ridge").mu ** 2


def test_sums_come_back(rng):
    X, y = rng.normal(size=(200, 3)) * 0.3, rng.normal(size=(200, 1)) * 0.2
    one = SharedRidge.of(RecordRidge(100.0, 0.5, 3.0, 3.0), 3, 1, 1)
    moments = one.moments(one.share("ridge", one.integers(X, y), NoiseGenerator(1)), 200)
    np.testing.assert_allclose(moments.second, X.T @ X, atol=8)
    np.testing.assert_allclose(moments.cross, X.T @ y, atol=8)
    assert one.regularization(moments, one.arrays("ridge")["diagonal"].deviation) >= 0
