"""Sums without rounding, and the sensitivities on which the noise on them rests."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize

from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.noisy_sum import Budget, add_noise
from kernfed.statistics.bounds import BITS, clip_rows, exact_product, unit_grid
from kernfed.statistics.classes import MEAN_SENSITIVITY, PAIR_SENSITIVITY, SECOND_SENSITIVITY
from kernfed.statistics.statistic import Part


def test_rows_become_integers_in_the_ball(rng):
    rows = rng.standard_normal((300, 5)) * 10.0 ** rng.uniform(-3, 3, (300, 1))
    grid = unit_grid(rows, 2.0)
    assert np.array_equal(grid, np.trunc(grid))
    norms = [sum(int(v) ** 2 for v in row) for row in grid]
    assert max(norms) <= 4**BITS
    assert np.abs(grid / 2**BITS * 2.0 - clip_rows(rows, 2.0)).max() < 2.0 * 2**-BITS


@pytest.mark.parametrize("n", [1, 3, 500])
def test_products_are_exact_whatever_the_order(rng, n):
    rows, other = unit_grid(rng.standard_normal((n, 4)), 1.0), unit_grid(rng.standard_normal((n, 2)), 1.0)
    exact = [[sum(int(r[i]) * int(o[j]) for r, o in zip(rows, other, strict=True)) for j in range(2)] for i in range(4)]
    assert exact_product(rows, other).tolist() == exact
    order = rng.permutation(n)
    assert np.array_equal(exact_product(rows[order], other[order]), exact_product(rows, other))


def test_long_products_are_added_in_parts(rng, monkeypatch):
    rows = unit_grid(rng.standard_normal((100, 3)), 1.0)
    whole = exact_product(rows, rows)
    monkeypatch.setattr("kernfed.statistics.bounds._ROWS", 7)
    assert np.array_equal(exact_product(rows, rows), whole)


def movement(x, z):
    """How far replacing x by z moves (sum, second moment): squared, the two parts."""
    return ((x - z) ** 2).sum(), ((np.outer(x, x) - np.outer(z, z)) ** 2).sum()


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_no_replacement_moves_the_moments_further_than_stated(k):
    rng = np.random.default_rng(k)
    for _ in range(3000):
        x, z = clip_rows(rng.standard_normal((2, k)) * rng.uniform(0, 3), 1.0)
        first, second = movement(x, z)
        assert first <= MEAN_SENSITIVITY**2
        assert second <= SECOND_SENSITIVITY**2
        assert first + second <= PAIR_SENSITIVITY**2


@pytest.mark.parametrize(
    ("parts", "bound"),
    [((1, 0), MEAN_SENSITIVITY), ((0, 1), SECOND_SENSITIVITY), ((1, 1), PAIR_SENSITIVITY)],
)
def test_an_adversary_reaches_the_sensitivity_and_not_more(parts, bound):
    """Steepest ascent from many starts, rows kept in the ball: the bounds are tight, in two dimensions and in four."""
    best = 0.0
    for seed in range(20):
        k = 2 + 2 * (seed % 2)
        start = np.random.default_rng(seed).standard_normal(2 * k)

        def loss(v, k=k):
            x, z = clip_rows(v.reshape(2, k), 1.0)
            return -float(np.dot(parts, movement(x, z)))

        best = max(best, -minimize(loss, start).fun)
    assert best <= bound**2
    assert math.isclose(best, bound**2, rel_tol=1e-6)


@pytest.mark.parametrize(("sensitivity", "mu"), [(2.0, 0.5), (math.sqrt(4.5), 3.0)])
def test_noise_has_the_stated_deviation(sensitivity, mu):
    total = np.zeros(40_000, dtype=np.int64)
    noise = add_noise(Part(total.shape, sensitivity, sensitivity), total, mu, NoiseGenerator(1))
    assert math.isclose(noise.std(), sensitivity / mu, rel_tol=0.02)
    assert np.array_equal(noise * 2.0**BITS, np.rint(noise * 2.0**BITS))


def test_symmetric_noise_is_isotropic_in_the_frobenius_norm():
    noise = np.array(
        [
            add_noise(
                Part((3, 3), 1.0, 1.0, 1.0, 2, symmetric=True), np.zeros((3, 3), np.int64), 0.5, NoiseGenerator(seed)
            )
            for seed in range(3000)
        ]
    )
    assert np.array_equal(noise, noise.transpose(0, 2, 1))
    deviations = noise.std(axis=0)
    assert np.allclose(np.diag(deviations), 2.0, rtol=0.06)
    assert np.allclose(deviations[np.triu_indices(3, 1)], math.sqrt(2.0), rtol=0.06)


def test_budget_as_noise():
    event = Budget(1.0, 1e-5).event(100)
    assert math.isclose(1 / event.mu, 3.7306, rel_tol=1e-4)
    assert 0 < event.slack < 1e-25
    assert Fraction(event.slack) > 0


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [(0.0, 1e-5, "epsilon must be > 0"), (1.0, 0.0, "delta must be >= 1e-20"), (1.0, 2.0, "delta must be < 1")],
)
def test_bad_budgets(epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        Budget(epsilon, delta)


def test_a_budget_too_small_for_any_use_is_refused():
    with pytest.raises(ValueError, match="epsilon and delta must allow noise of less than"):
        Budget(1e-6, 1e-20).event(1)
