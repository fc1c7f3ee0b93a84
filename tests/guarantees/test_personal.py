"""KME Lemma 4.3 and Corollary 4.6 against risks that can be computed, and the rate of Theorem 4.4."""

import numpy as np
import pytest

from kernfed.guarantees.personal import (
    Spread,
    aggregation_rate,
    excess_risk,
    feature_spread,
    ridge_radius,
    transfer_error,
)
from kernfed.kernels import MeanEmbedding, mmd_squared, quadratic_features


def distance(a, b):
    """MMD of two finite distributions under (z'z' + 1)^2."""
    return np.sqrt(mmd_squared(*(MeanEmbedding.from_rows(z, features=quadratic_features) for z in (a, b))))


def risk(z, a, b):
    return float(np.square(z[:, :-1] @ a + b - z[:, -1]).mean())


@pytest.mark.parametrize("shift", [0.0, 0.3, 2.0])
def test_risks_differ_by_at_most_the_radius_times_the_distance(rng, shift):
    population, rows = rng.standard_normal((50, 3)), rng.standard_normal((8, 3)) + shift
    bound = transfer_error(distance(population, rows), ridge_radius(1.5, 0.5))
    assert bound.reliable
    for _ in range(200):
        a, b = rng.standard_normal(2), rng.uniform(-0.5, 0.5)
        a *= 1.5 * rng.uniform() / np.linalg.norm(a)
        assert abs(risk(population, a, b) - risk(rows, a, b)) <= bound.value + 1e-12


def test_the_radius_is_the_norm_of_the_loss_and_is_attained(rng):
    """The loss is <u u', features>, so some pair of distributions has a ratio close to the radius."""
    a, b = rng.standard_normal(2), 0.7
    u = np.concatenate([a, [-1.0], [b]])
    z = rng.standard_normal((5, 3))
    loss = np.square(np.hstack([z, np.ones((5, 1))]) @ u)
    np.testing.assert_allclose(loss, [risk(row[None], a, b) for row in z])
    assert ridge_radius(np.linalg.norm(a), b) == pytest.approx(u @ u)


def test_the_minimiser_of_the_weighted_risk_is_within_twice_that(rng):
    population, rows = rng.standard_normal((60, 3)), rng.standard_normal((6, 3)) + 0.2
    draws = rng.standard_normal((300, 2))
    candidates = [(1.5 * v / max(1.5, np.linalg.norm(v)), rng.uniform(-0.5, 0.5)) for v in draws]
    chosen = min(candidates, key=lambda c: risk(rows, *c))
    best = min(candidates, key=lambda c: risk(population, *c))
    bound = excess_risk(distance(population, rows), ridge_radius(1.5, 0.5))
    assert 0 <= risk(population, *chosen) - risk(population, *best) <= bound.value
    assert bound.value == 2 * transfer_error(distance(population, rows), ridge_radius(1.5, 0.5)).value
    assert "Corollary 4.6" in str(bound)


def test_effective_dimension(rng):
    assert feature_spread(rng.standard_normal((4000, 5))).dimension == pytest.approx(5, rel=0.15)
    line = rng.standard_normal((50, 1)) * np.ones((1, 4))
    assert feature_spread(line).dimension == pytest.approx(1.0)
    assert feature_spread(np.ones((3, 2))).dimension == 1.0
    with pytest.raises(ValueError, match="at least 2 row"):
        feature_spread([[1.0]])


def naive_rate(distances, counts, spread, target, C):
    """(14) minimised over all sets that contain the target."""
    B, n = len(counts), counts[target]
    u = 2 * np.log(B * n)
    best = np.inf
    for mask in range(2**B):
        V = [k for k in range(B) if mask >> k & 1 or k == target]
        reach, total = max(0.0 if k == target else distances[k] for k in V), sum(counts[k] for k in V)
        bias = reach**2 + (spread.trace + 2 * reach) / total
        price = max(np.sqrt((len(V) - 1) / total), 1 / np.sqrt(n))
        price *= max(spread.trace / np.sqrt(spread.dimension), u / np.sqrt(n))
        best = min(best, bias + C * u / np.sqrt(n) * price)
    return best


@pytest.mark.parametrize("constant", [1e-4, 1.0])
def test_the_nearest_sites_are_the_best_sets(rng, constant):
    spread = Spread(0.8, 0.1)
    for _ in range(5):
        distances, target = rng.uniform(0, 0.5, 6), int(rng.integers(6))
        found = aggregation_rate(distances, [50] * 6, spread, target=target, constant=constant)
        assert found.value == pytest.approx(naive_rate(distances, [50] * 6, spread, target, constant))
        assert found.kind == "rate only"
        assert not found.reliable


def test_identical_sites_are_worth_their_rows_and_features_cost():
    spread = Spread(0.8, 0.01)
    alone = aggregation_rate([0.0], [1000], spread, constant=1e-6).value
    many = aggregation_rate([0.0] * 10, [1000] * 10, spread, constant=1e-6).value
    assert many == pytest.approx(alone / 10, rel=0.1)
    few, more = (aggregation_rate([0.0] * 10, [1000] * 10, spread, components=D).value for D in (100, 10000))
    assert few > more
    assert "5.2" in aggregation_rate([0.0, 0.1], [10, 10], spread, components=50).source


def test_input_that_cannot_be():
    with pytest.raises(ValueError, match="one per site"):
        aggregation_rate([0.0, 1.0], [5], Spread(1.0, 1.0))
    with pytest.raises(ValueError, match="target"):
        aggregation_rate([0.0], [5], Spread(1.0, 1.0), target=1)
    with pytest.raises(ValueError, match="distance must be >= 0"):
        excess_risk(-1.0, 1.0)
