"""What ``RecordRidge`` draws is what it charges: noise for ``X'X`` and ``X'y``, and for nothing else."""

import math
from typing import Any

import numpy as np
import pytest

from kernfed.kernels import FourierFeatures
from kernfed.privacy import NoiseGenerator, RecordRidge
from kernfed.privacy.noise import SAMPLING_ERROR, SMOOTHING, DiscreteGaussian
from kernfed.privacy.shared import SharedRidge
from kernfed.statistics.bounds import BITS
from kernfed.statistics.features import noise_regularization

P, Q = 4, 2
MECHANISM = RecordRidge(1.0, 1e-5, 1.0, 1.0)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """How many numbers each draw of noise has, and its standard deviation for continuous noise, in grid steps."""
    draws: list[tuple[int, float]] = []
    honest = DiscreteGaussian.sample

    def note(self: DiscreteGaussian, shape: Any, generator: NoiseGenerator) -> Any:
        draws.append((math.prod(shape), math.sqrt(self.variance - SMOOTHING)))
        return honest(self, shape, generator)

    monkeypatch.setattr(DiscreteGaussian, "sample", note)
    return draws


def test_noise_is_drawn_for_the_sums_and_for_nothing_else(
    rng: np.random.Generator, drawn: list[tuple[int, float]]
) -> None:
    release = MECHANISM.release(rng.standard_normal((30, P)), rng.standard_normal((30, Q)), generator=NoiseGenerator(1))
    numbers = P * (P + 1) // 2 + P * Q
    assert sorted(size for size, _ in drawn) == sorted([P * (P - 1) // 2, P, P * Q])
    (event,) = release.events
    assert event.slack >= numbers * SAMPLING_ERROR * (1 - 1e-12)


def test_the_charge_covers_the_worst_replaced_row(rng: np.random.Generator, drawn: list[tuple[int, float]]) -> None:
    """The shift of all noisy numbers, each over its deviation, is at most mu in L2, and reaches it."""
    release = MECHANISM.release(rng.standard_normal((30, P)), rng.standard_normal((30, Q)), generator=NoiseGenerator(1))
    (event,) = release.events
    above, diagonal, cross = (deviation / 4.0**BITS for _, deviation in drawn)

    def shift(x: Any, z: Any, y: Any, t: Any) -> float:
        """What replacing (x, y) by (z, t) moves, in units of mu."""
        second, upper = np.outer(x, x) - np.outer(z, z), np.triu_indices(P, 1)
        moved = [np.diag(second) / diagonal, second[upper] / above, (np.outer(x, y) - np.outer(z, t)).ravel() / cross]
        return float(np.linalg.norm(np.concatenate(moved))) / event.mu

    def unit(size: int) -> Any:
        row = rng.standard_normal(size)
        return row / max(1.0, float(np.linalg.norm(row)))

    assert max(shift(unit(P), unit(P), unit(Q), unit(Q)) for _ in range(2000)) <= 1.0
    # Each of the two bounds is reached: X'X by orthogonal rows, X'y by a target of the other sign.
    e, f, up = np.eye(P)[0], np.eye(P)[1], np.eye(Q)[0]
    assert shift(e, f, 0 * up, 0 * up) == pytest.approx(math.sqrt(0.5), rel=1e-6)
    assert shift(e, e, up, -up) == pytest.approx(math.sqrt(0.5), rel=1e-6)


def test_the_regularisation_follows_from_the_noisy_sums(rng: np.random.Generator) -> None:
    """Rows of other spectra, to which the noise adds up to the same sums, get the same regularisation."""
    release = MECHANISM.release(rng.standard_normal((30, P)), rng.standard_normal((30, Q)), generator=NoiseGenerator(1))
    (event,) = release.events
    deviation = math.sqrt(2.0) / (event.mu / math.sqrt(2.0))
    assert release.regularization > 0
    assert release.regularization == pytest.approx(noise_regularization(release.moments.second, deviation), rel=1e-6)


def test_one_site_gets_the_noise_and_regularisation_of_a_sum_with_one_share(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((30, P)), rng.standard_normal((30, Q))
    shared = SharedRidge.of(MECHANISM, P, Q, 1)
    (event,) = MECHANISM.release(X, y).events
    assert shared.mu == pytest.approx(event.mu, rel=1e-6)
    total = shared.share("ridge", shared.integers(X, y), NoiseGenerator(3))
    moments = shared.moments(total, 30)
    deviation = shared.arrays("ridge")["diagonal"].deviation
    assert shared.regularization(moments, deviation) == noise_regularization(moments.second, deviation / 4.0**BITS)


def test_the_noise_of_a_release_is_that_of_half_the_budget(rng: np.random.Generator) -> None:
    """A third went to an eigenvalue before: noise was larger by sqrt(3/2), and digits at epsilon 1 lost 5 points."""
    features = FourierFeatures(width=3, n_components=400, bandwidth=1.0, kind="paired", seed=1)
    Z = features.transform(rng.standard_normal((50, 3)))
    release = MECHANISM.release(Z, np.zeros(50), generator=NoiseGenerator(2))
    (event,) = release.events
    noise = np.diag(release.moments.second) - np.diag(Z.T @ Z)
    expected = math.sqrt(2.0) * math.sqrt(2.0) / event.mu
    assert float(np.std(noise)) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(noise)))
    cross = release.moments.cross.ravel()
    assert float(np.std(cross)) == pytest.approx(math.sqrt(2.0) * expected, rel=4 / math.sqrt(2 * len(cross)))
