"""Noise in shares: sums of shares have the law, the cost and the sensitivities that are stated."""

import math
from fractions import Fraction

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.privacy import RecordMoments
from kernfed.privacy.accounting import epsilon_for, gaussian_delta
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.noise import DiscreteGaussian
from kernfed.privacy.noisy_sum import share_law, sum_deviation
from kernfed.privacy.shared import SharedMoments
from kernfed.statistics.bounds import BITS


def masses(law: DiscreteGaussian, reach: int) -> np.ndarray:
    return law.pmf(np.arange(-reach, reach + 1))


def law_of_sum(law: DiscreteGaussian, count: int, reach: int = 120) -> np.ndarray:
    """Masses of the sum of independent draws, by convolution."""
    one = whole = masses(law, reach)
    for _ in range(count - 1):
        whole = np.convolve(whole, one)
    return whole


@pytest.mark.parametrize(("deviation", "honest"), [(9.0, 2), (20.0, 5), (12.0, 20)])
def test_shares_add_up_to_a_discrete_gaussian(deviation, honest):
    law = share_law(deviation, honest)
    whole = law_of_sum(law, honest)
    reach = len(whole) // 2
    expected = masses(DiscreteGaussian(law.variance * honest), reach)
    np.testing.assert_allclose(whole, expected, rtol=1e-9, atol=1e-15)
    assert law.variance * honest >= deviation**2 + 16
    assert law.variance >= 16


@pytest.mark.parametrize(("deviation", "honest", "extra", "shift"), [(9.0, 3, 0, 7), (14.0, 5, 2, 20), (3.0, 8, 0, 5)])
def test_the_stated_cost_is_not_below_the_exact_divergence(deviation, honest, extra, shift):
    """Hockey-stick divergence of the sum of all shares and itself shifted, against the curve that is charged."""
    whole = law_of_sum(share_law(deviation, honest), honest + extra)
    P, Q = np.pad(whole, (0, shift)), np.pad(whole, (shift, 0))
    for epsilon in [0.0, 0.3, 1.0, 2.0]:
        for left, right in [(P, Q), (Q, P)]:
            exact = np.maximum(left - math.exp(epsilon) * right, 0.0).sum()
            assert exact <= float(gaussian_delta(shift / deviation, epsilon)) + 1e-12


def test_in_two_dimensions_too():
    """A shift in two coordinates costs what its L2 norm says."""
    one = law_of_sum(share_law(6.0, 2), 2, reach=60)
    P = np.pad(np.outer(one, one), ((0, 3), (0, 4)))
    Q = np.pad(np.outer(one, one), ((3, 0), (4, 0)))
    for epsilon in [0.0, 0.5, 1.5]:
        exact = np.maximum(P - math.exp(epsilon) * Q, 0.0).sum()
        assert exact <= float(gaussian_delta(5.0 / 6.0, epsilon)) + 1e-12


def shared(**changes) -> SharedMoments:
    about = {"method": "centred", "honest": 5, "adjacency": "replace", **changes}
    mechanism = RecordMoments(2.0, 1e-5, 3, radius=2.0, spread=1.0, method=about.pop("method"))
    return SharedMoments.of(mechanism, (0, 1, 2), about["honest"], about["adjacency"])


def privacy_loss(one: SharedMoments, before: dict, after: dict, part: str) -> float:
    """Squared distance of two exact sums in units of the noise: the squared mu that a record has paid for it."""
    return sum(
        float(np.square((before[name] - after[name]) / array.deviation).sum())
        for name, array in one.arrays(part).items()
    )


@pytest.mark.parametrize("method", ["centred", "joint"])
@pytest.mark.parametrize("adjacency", ["replace", "add-or-remove"])
def test_no_record_moves_the_sums_further_than_it_pays_for(rng, method, adjacency):
    one = shared(method=method, adjacency=adjacency)
    centres = rng.normal(size=(3, 3)) * 0.3
    worst = dict.fromkeys(one.parts, 0.0)
    X, y = rng.normal(size=(20, 6)), rng.integers(0, 3, 20)
    directions = [*rng.normal(size=(40, 6)) * 10, *(10 * one.mechanism.public_basis(6).T)]
    for x in directions:
        for label in range(3):
            X2, y2 = X.copy(), y.copy()
            X[0], y[0] = -x if label else x, 0
            X2[0], y2[0] = x if label < 2 else -x / 2, label
            if adjacency == "add-or-remove":
                X2, y2 = X[1:], y[1:]
            for part in one.parts:
                before, after = one.integers(part, X, y, centres), one.integers(part, X2, y2, centres)
                worst[part] = max(worst[part], privacy_loss(one, before, after, part))
    for part in one.parts:
        assert worst[part] <= one.event(part).mu ** 2
        assert worst[part] >= 0.1 * one.event(part).mu ** 2, "the bound is far from what can be reached"


@pytest.mark.parametrize("method", ["centred", "joint"])
def test_all_parts_together_cost_what_was_asked(method):
    one = shared(method=method)
    events = [one.event(part) for part in one.parts]
    assert epsilon_for(events, one.delta) <= one.epsilon
    assert epsilon_for(events, one.delta) > 0.999 * one.epsilon
    assert one.alone > one.epsilon
    assert "at least 5 honest sites" in one.words


@pytest.mark.parametrize("method", ["centred", "joint"])
def test_moments_come_back(rng, method):
    """With next to no noise the moments are those of the rows."""
    X, y = rng.normal(size=(300, 3)) * 0.2, rng.integers(0, 2, 300)
    mechanism = RecordMoments(100.0, 0.5, 3, radius=4.0, spread=4.0, method=method)
    one = SharedMoments.of(mechanism, (0, 1), 1)
    totals, centres, source = {}, None, NoiseGenerator(3)
    for part in one.parts:
        totals[part] = one.share(part, one.integers(part, X, y, centres), source)
        centres = one.centres(totals[part]) if part == "means" else None
    projected = mechanism.project(X)
    for label, part in enumerate(one.moments(totals)):
        rows = projected[y == label]
        np.testing.assert_allclose(part.moments.n, len(rows), atol=3)
        np.testing.assert_allclose(part.moments.mean, rows.mean(axis=0), atol=0.05)
        np.testing.assert_allclose(part.covariance, np.cov(rows.T, bias=True), atol=0.1)


def test_matrices_in_two_parts(rng):
    matrices = rng.integers(-9, 9, size=(3, 3, 3))
    matrices += matrices.transpose(0, 2, 1)
    one = shared()
    arrays = one.split("spreads", {"second": matrices})
    assert {name: array.shape for name, array in arrays.items()} == {
        name: array.shape for name, array in one.arrays("spreads").items()
    }
    np.testing.assert_array_equal(one.full("spreads", arrays)["second"] * 4.0**BITS, matrices)


def test_more_sites_add_more_noise():
    assert sum_deviation(100.0, 50, 50) == pytest.approx(100.0, rel=1e-3)
    assert sum_deviation(100.0, 50, 100) == pytest.approx(100.0 * math.sqrt(2), rel=1e-3)
    assert share_law(1.0, 1000).variance == Fraction(16)


@pytest.mark.parametrize("method", ["centred", "joint"])
def test_the_noise_that_a_site_adds_has_the_stated_deviation(method):
    one, source = shared(method=method), NoiseGenerator(7)
    for part in one.parts:
        known = one.arrays(part)
        zeros = {name: np.zeros(array.shape, dtype=np.int64) for name, array in known.items()}
        drawn = [one.share(part, zeros, source) for _ in range(400)]
        for name, array in known.items():
            deviation = np.stack([share[name] for share in drawn]).std()
            assert math.isclose(deviation, sum_deviation(array.deviation, one.honest, 1), rel_tol=0.15)


def test_what_cannot_be_asked():
    for changes in [{"honest": 0}, {"adjacency": "swap"}]:
        with pytest.raises(InputError):
            shared(**changes)
    with pytest.raises(InputError, match="different labels"):
        SharedMoments.of(RecordMoments(1.0, 1e-5, 2, radius=1.0), (1, 1), 2)
    with pytest.raises(InputError, match="centres"):
        shared().integers("spreads", np.zeros((1, 6)), np.zeros(1, dtype=np.intp))
