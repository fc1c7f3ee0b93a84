"""A site's part of the system against explicit matrices."""

import numpy as np
import pytest

from kernfed.ridge.local import DualFactor, LocalRidge, PrimalFactor, SpectralFactor, fit_local
from kernfed.ridge.parameters import RidgeParameters, check_path
from kernfed.ridge.solvers import minimise
from kernfed.ridge.sums import weighted_moments
from oracles import ridge as oracle

PRIMAL, DUAL = 40, 7


def rows_of(rng, n, width=10):
    return rng.standard_normal((n, width)), rng.standard_normal(n)


def given(width=10, **options):
    return RidgeParameters(width, features="given", task="regress", **options)


def explicit(X, weights=None):
    c = np.ones(len(X)) if weights is None else weights
    return (X * c[:, None]).T @ X / c.sum()


@pytest.mark.parametrize("path", [(1e-3,), (1e-3, 0.1)], ids=["one", "several"])
@pytest.mark.parametrize("n", [PRIMAL, DUAL, 1, 10])
def test_products_and_solves_are_those_of_the_explicit_hessian(rng, n, path):
    X, y = rows_of(rng, n)
    local = fit_local(X, y, given(regularization=path))
    kind = SpectralFactor if len(path) > 1 else DualFactor if n < 10 else PrimalFactor
    assert isinstance(local.factor, kind)
    V = rng.standard_normal((10, 3))
    for place, value in enumerate(path):
        H = oracle.hessian(X, value)
        np.testing.assert_allclose(local.apply(V, value), H @ V, atol=1e-13)
        np.testing.assert_allclose(local.solve(V, value), np.linalg.solve(H, V), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(local.solutions[place], oracle.closed_form(X, y[:, None], value), atol=1e-11)
        dimension = np.trace(explicit(X) @ np.linalg.inv(H))
        assert local.effective_dimension(value) == pytest.approx(dimension, rel=1e-9)
    np.testing.assert_allclose(local.linear, X.T @ y[:, None] / n, atol=1e-15)
    assert local.constant == pytest.approx(np.mean(y**2))
    assert local.trace == pytest.approx(np.trace(explicit(X)))
    assert local.mass == n


def test_single_precision_rows_are_summed_in_double(rng):
    X, y = rng.standard_normal((9000, 3)).astype(np.float32) + 100, rng.standard_normal(9000)
    local = fit_local(X, y, given(3))
    np.testing.assert_allclose(local.apply(np.eye(3), 1e-3), oracle.hessian(X.astype(np.float64), 1e-3), rtol=1e-13)


@pytest.mark.parametrize("n", [PRIMAL, DUAL])
def test_a_class_weight_of_two_is_every_row_of_it_twice(rng, n):
    X, y = rng.standard_normal((n, 10)), rng.integers(0, 2, n)
    y[:2] = 0, 1
    weighted = RidgeParameters(10, features="given", classes=(0, 1), class_weights=(1.0, 2.0))
    plain = RidgeParameters(10, features="given", classes=(0, 1))
    twice = np.concatenate([np.arange(n), np.flatnonzero(y == 1)])
    found, expected = fit_local(X, y, weighted), fit_local(X[twice], y[twice], plain)
    V = rng.standard_normal((10, 2))
    assert found.mass == expected.mass == len(twice)
    np.testing.assert_allclose(found.apply(V, 1e-3), expected.apply(V, 1e-3), atol=1e-13)
    np.testing.assert_allclose(found.solutions, expected.solutions, atol=1e-10)
    assert found.constant == pytest.approx(expected.constant)


@pytest.mark.parametrize("n", [PRIMAL, DUAL, 1])
def test_without_regularisation_a_singular_site_has_its_smallest_least_squares_solution(rng, n):
    X, y = rows_of(rng, n)
    X[:, 3] = X[:, 4]
    local = fit_local(X, y, given(regularization=(0.0,)))
    assert isinstance(local.factor, SpectralFactor)
    np.testing.assert_allclose(local.solutions[0][:, 0], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-9)
    V = rng.standard_normal((10, 2))
    np.testing.assert_allclose(local.solve(V, 0.0), np.linalg.pinv(explicit(X), rcond=1e-10) @ V, rtol=1e-6, atol=1e-8)
    assert local.effective_dimension(0.0) == np.linalg.matrix_rank(X)


@pytest.mark.parametrize("X", [np.zeros((3, 4)), np.ones((3, 4)), np.zeros((9, 4))], ids=["zero", "constant", "tall"])
@pytest.mark.parametrize("value", [0.0, 1e-3])
def test_rows_without_variation_do_no_harm(X, value):
    y = np.arange(len(X), dtype=float)
    local = fit_local(X, y, given(4, regularization=(value,)))
    expected = np.linalg.pinv(explicit(X) + value * np.eye(4)) @ X.T @ y / len(X)
    np.testing.assert_allclose(local.solutions[0][:, 0], expected, atol=1e-12)
    assert np.isfinite(local.solve(np.ones((4, 1)), value)).all()


@pytest.mark.parametrize(("n", "path"), [(PRIMAL, (1e-3,)), (DUAL, (1e-3,)), (DUAL, (0.0, 1.0))])
def test_a_site_keeps_its_part_as_arrays(rng, n, path):
    local = fit_local(*rows_of(rng, n), given(regularization=path))
    again = LocalRidge.from_arrays(local.to_arrays())
    assert type(again.factor) is type(local.factor)
    assert (again.mass, again.constant, again.trace) == (local.mass, local.constant, local.trace)
    V = rng.standard_normal((10, 2))
    np.testing.assert_array_equal(again.solve(V, path[-1]), local.solve(V, path[-1]))
    np.testing.assert_array_equal(again.solutions, local.solutions)


def test_blocks_and_fourier_features_stream_to_the_same_hessian(rng):
    X, y = rng.standard_normal((5000, 3)), rng.standard_normal(5000)
    parameters = RidgeParameters(3, n_components=6, bandwidth=2.0, seed=5, task="regress")
    phi = parameters.feature_map().transform(X)
    assert np.abs(phi).max() <= 1 / np.sqrt(6)
    V = rng.standard_normal((6, 2))
    local = fit_local(X, y, parameters)
    np.testing.assert_allclose(local.apply(V, 1e-3), oracle.hessian(phi, 1e-3) @ V, atol=1e-13)
    moments = weighted_moments(X, y[:, None], None, parameters.feature_map().transform)
    found = minimise(moments, 5000.0, 1e-3)
    np.testing.assert_allclose(found.weights, oracle.closed_form(phi, y[:, None], 1e-3), atol=1e-11)
    assert found.objective == pytest.approx(oracle.objective(phi, y[:, None], found.weights, 1e-3), rel=1e-12)


def test_pooled_minimiser_of_a_singular_matrix_is_the_smallest(rng):
    X, y = rows_of(rng, 6)
    found = minimise(weighted_moments(X, y[:, None], None, None), 6.0, 0.0)
    np.testing.assert_allclose(found.weights[:, 0], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-9)


def test_targets_are_one_for_the_label_and_unknown_labels_are_refused():
    parameters = RidgeParameters(2, classes=("a", "b", "c"), class_weights=(1.0, 2.0, 3.0))
    np.testing.assert_array_equal(parameters.targets(np.array(["c", "a"])), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(parameters.row_weights(np.array(["c", "a"])), [3, 1])
    for unknown in ("bb", "d", "A"):
        with pytest.raises(ValueError, match=f"label '{unknown}' is not among the 3 classes"):
            parameters.targets(np.array([unknown]))


def test_parameters_travel_as_plain_values():
    parameters = RidgeParameters(2, bandwidth=(1.0, 2.0), classes=(1, 5), class_weights=(1.0, 0.5), seed=3)
    assert RidgeParameters.from_values(parameters.to_values()) == parameters
    given_ones = RidgeParameters(2, features="given", task="regress", regularization=(0.0, 1.0))
    assert RidgeParameters.from_values(given_ones.to_values()) == given_ones


def test_parameters_of_0_1_have_another_name_for_fit_intercept():
    parameters = RidgeParameters(2, features="given", task="regress", fit_intercept=True)
    values = parameters.to_values()
    assert values.pop("fit_intercept") is True
    assert RidgeParameters.from_values(values).fit_intercept is False
    assert RidgeParameters.from_values({**values, "intercept": True}) == parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be >= 1"),
        ({"features": "sift"}, "features must be one of"),
        ({"bandwidth": [1.0, 2.0, 3.0]}, "bandwidth must be a vector of length 2"),
        ({"bandwidth": -1.0}, "bandwidth must be > 0"),
        ({"classes": None}, "classes must be sorted labels"),
        ({"classes": {"dtype": "<i8", "labels": [5, 1]}}, "classes must be sorted labels"),
        ({"class_weights": [1.0]}, "class_weights must be one per class"),
        ({"class_weights": [1.0, 0.0]}, "weight must be > 0"),
        ({"regularization": []}, "regularization must be a number or different numbers"),
    ],
)
def test_parameters_that_cannot_be_are_refused(change, message):
    values = {**RidgeParameters(2, classes=(1, 5)).to_values(), **change}
    with pytest.raises(ValueError, match=message):
        RidgeParameters.from_values(values)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "small", [], [1.0, 1.0], [1.0, -2.0], None])
def test_regularisations_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="regularization must be"):
        check_path(wrong)
