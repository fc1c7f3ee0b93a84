"""Exact leave-one-out of the pooled solution, and the formulas of balanced classes, against literal refits."""

import numpy as np
import pytest

from kernfed.kernels import Moments
from kernfed.ridge.leave_one_out import (
    TEMPERATURES,
    TRIAL_STEPS,
    LeftOut,
    Spectrum,
    column_penalty,
    effective_rows,
    grid,
    left_out,
    rule,
)
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import centred_features, centred_targets, row_means, weighted_moments
from oracles import ridge as oracle

PATH = (1e-4, 1e-2, 1.0)


def problem(rng, *, balanced, intercept, features="given", rows=40):
    """Rows (n, 3) of 3 unlike classes, their parameters, pooled spectrum and means."""
    y = np.sort(rng.choice(3, rows, p=[0.6, 0.3, 0.1]))
    y[:3] = 0, 1, 2
    X = rng.standard_normal((rows, 3)) + y[:, None] * [1.0, 0.5, 0.0]
    counts = np.bincount(y)
    weights = tuple(rows / (3 * counts)) if balanced else None
    parameters = RidgeParameters(
        3, features, 8, 2.0, 5, "classify", (0, 1, 2), weights, (1.0,), fit_intercept=intercept
    )
    return X, y, parameters


def pooled(X, y, parameters, penalty=None):
    means = None
    weights = parameters.row_weights(y)
    if parameters.fit_intercept:
        means = row_means(X, parameters.targets(y), weights, centred_features(parameters, None))
    targets, features = centred_targets(parameters, y, means), centred_features(parameters, means)
    moments = weighted_moments(X, targets, weights, features)
    mass = float(len(y) if weights is None else weights.sum())
    return moments, mass, means, Spectrum.of(moments, mass, penalty)


@pytest.mark.parametrize("features", ["given", "fourier"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("balanced", [False, True])
def test_every_row_is_left_out_literally(rng, balanced, intercept, features):
    X, y, parameters = problem(rng, balanced=balanced, intercept=intercept, features=features)
    _, mass, means, spectrum = pooled(X, y, parameters)
    halves = [left_out(X[part], y[part], parameters, spectrum, PATH, means) for part in (slice(0, 25), slice(25, 40))]
    told = halves[0] + halves[1]
    mapped = parameters.feature_map()
    phi = X if mapped is None else mapped.transform(X)
    weights = parameters.row_weights(y)
    for place, value in enumerate(PATH):
        expected = oracle.pooled_leave_one_out(phi, parameters.targets(y), value, weights, intercept=intercept)
        np.testing.assert_allclose([told.squares[place] / mass, told.wrong[place] / mass], expected, rtol=1e-8)


def test_with_a_penalty_of_its_own_every_column_is_scaled(rng):
    X, y, parameters = problem(rng, balanced=True, intercept=True)
    X = X * [1.0, 1e3, 1e-3]
    moments, mass, means, _ = pooled(X, y, parameters)
    penalty = column_penalty(moments, mass)
    told = left_out(X, y, parameters, Spectrum.of(moments, mass, penalty), PATH, means)
    for place, value in enumerate(PATH):
        literal = oracle.pooled_leave_one_out(
            X / np.sqrt(penalty), parameters.targets(y), value, parameters.row_weights(y)
        )
        np.testing.assert_allclose([told.squares[place] / mass, told.wrong[place] / mass], literal, rtol=1e-7)


def test_the_sums_of_balanced_classes_are_those_of_the_formulas(rng):
    """``S = (1/C) sum_c S_c/n_c - m m'``, ``W = (S + lambda I)^-1 (M - m)'/C``, intercept ``1/C - m'W``."""
    X, y, parameters = problem(rng, balanced=True, intercept=True)
    moments, mass, means, _ = pooled(X, y, parameters)
    own = np.array([X[y == c].mean(axis=0) for c in range(3)])
    m = own.mean(axis=0)
    S = sum(X[y == c].T @ X[y == c] / (y == c).sum() for c in range(3)) / 3 - np.outer(m, m)
    np.testing.assert_allclose(moments.second / mass, S, atol=1e-12)
    W = np.linalg.solve(S + 0.1 * np.eye(3), (own - m).T / 3)
    literal, a = oracle.weighted_ridge(X, parameters.targets(y), parameters.row_weights(y), 0.1 * mass, True)
    np.testing.assert_allclose(W, literal, atol=1e-12)
    np.testing.assert_allclose(1 / 3 - m @ W, a, atol=1e-12)
    np.testing.assert_allclose(means.intercept(W), a, atol=1e-12)
    counts = np.bincount(y)
    assert effective_rows(tuple(counts), parameters.class_weights, 40) == pytest.approx(9 / (1 / counts).sum())
    assert effective_rows(tuple(counts), None, 40) == 40


def test_the_temperature_is_the_most_likely_one(rng):
    X, y, parameters = problem(rng, balanced=False, intercept=True)
    _, mass, means, spectrum = pooled(X, y, parameters)
    told = left_out(X, y, parameters, spectrum, (0.1,), means)
    phi, targets = X, parameters.targets(y)
    values = []
    for row in range(len(X)):
        rest = np.arange(len(X)) != row
        W, a = oracle.weighted_ridge(phi[rest], targets[rest], np.ones(len(X) - 1), 0.1 * mass, True)
        values.append(phi[row] @ W + a)
    values = np.array(values)
    scaled = values / TEMPERATURES[:, None, None]
    loss = (np.log(np.exp(scaled).sum(axis=2)) - scaled[:, np.arange(len(y)), y]).sum(axis=1)
    np.testing.assert_allclose(told.surprise[0], loss, rtol=1e-8)
    fine = 2.0 ** np.linspace(-7, 0.5, 2001)
    scaled = values / fine[:, None, None]
    exact = (np.log(np.exp(scaled).sum(axis=2)) - scaled[:, np.arange(len(y)), y]).sum(axis=1)
    assert told.temperature(0) == pytest.approx(fine[exact.argmin()], rel=0.1)
    assert told.losses(mass, True)[0] * told.some == pytest.approx(exact.min(), rel=0.01)


def test_candidates_are_relative_and_reach_far_beyond_those_of_trials():
    path, trial = grid(rule(2.0, 100.0)), grid(rule(2.0, 100.0), TRIAL_STEPS)
    assert trial[10] == path[22] == pytest.approx(0.02)
    assert np.allclose(np.diff(np.log10(path)), 0.5)
    assert path[0] == pytest.approx(1e-6 * trial[0])
    assert path[-1] == pytest.approx(1e6 * trial[-1])
    assert set(trial) <= set(path)
    assert grid(0.02, least=0.019)[0] == pytest.approx(0.02)


def test_the_likelihood_decides_for_labels_and_squares_for_values():
    surprise = (np.arange(len(TEMPERATURES)) - 4.0) ** 2 + np.array([4.0, 2.0, 6.0])[:, None]
    told = LeftOut(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0]), surprise, 2.0)
    np.testing.assert_allclose(told.losses(10.0, True), [2.0, 1.0, 3.0])
    np.testing.assert_allclose(told.losses(10.0, False), [0.3, 0.2, 0.1])
    assert told.temperature(0) == pytest.approx(TEMPERATURES[4])
    assert LeftOut(told.squares, told.wrong, surprise * 0, 0.0).temperature(0) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:1], "of shape"),
        (lambda a: a * np.nan, "finite"),
        (lambda a: -a, "at least 0"),
        (lambda a: a + np.eye(*a.shape, k=1) * 100, "weigh at most 40"),
        (lambda a: a.astype(np.float32), "float64"),
    ],
)
def test_sums_that_no_rows_have_are_refused(rng, change, message):
    X, y, parameters = problem(rng, balanced=False, intercept=True)
    _, mass, means, spectrum = pooled(X, y, parameters)
    array = left_out(X, y, parameters, spectrum, (0.1, 1.0), means).to_array()
    LeftOut.from_array(array, 2, mass)
    with pytest.raises(ValueError, match=message):
        LeftOut.from_array(change(array), 2, mass)


def test_no_spectrum_of_a_constant_column(rng):
    X, y, parameters = problem(rng, balanced=False, intercept=True)
    X[:, 1] = 7.0
    moments, mass, means, spectrum = pooled(X, y, parameters)
    assert spectrum.basis.shape == (3, 2)
    assert column_penalty(moments, mass)[1] > 0
    assert np.isfinite(left_out(X, y, parameters, spectrum, (0.0, 1.0), means).squares).all()
    assert isinstance(moments, Moments)
