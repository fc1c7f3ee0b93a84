"""Where the sum of memberships vanishes the printed image is unbounded; the rule keeps it finite and counts it."""

import numpy as np
import pytest
from scipy.optimize import brentq

from kernfed import KAHM
from oracles.kahm import WIDE, literal_kahm


def zero_of_the_sum(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows ~ N(0, I) (100 x 20) and a query where the sum of memberships is zero.

    The sum is u'k with u = (K + lambda I)^-1 1. Far out along a row whose entry of u is negative the kernel sees little
    but that row, so the sum changes its sign on the way.
    """
    rows = np.random.default_rng(seed).standard_normal((100, 20))
    literal = literal_kahm(rows)
    lowest = rows[int(np.argmin(literal.inverse.sum(axis=1)))]

    def total(length: float) -> float:
        weights = literal.memberships(length * lowest[None])[0]
        return float(weights.sum() / np.abs(weights).sum())

    return rows, lowest * brentq(total, 0.0, 30.0, xtol=1e-16, rtol=1e-15)


@pytest.mark.parametrize("seed", [0, 1])
def test_counterexample_to_boundedness(seed):
    """DP-KAHM Theorem 2 (46) claims |A(y)| < bound; at a zero of the sum the printed image breaks it, ours does not."""
    rows, query = zero_of_the_sum(seed)
    literal = literal_kahm(rows)
    spectral = np.linalg.norm(rows, 2)
    eigenvalues = np.linalg.eigvalsh(literal.kernel(rows, rows).astype(float))
    bound = spectral * (literal.lam + eigenvalues.max()) / (literal.lam + eigenvalues.min())
    memberships = literal.memberships(query[None])[0]
    printed = np.linalg.norm((memberships @ rows.astype(WIDE) / memberships.sum()).astype(float))
    assert printed > 10 * bound

    machine = KAHM(scale=None).fit(rows)
    assert np.linalg.norm(machine.image(query[None])) < np.linalg.norm(rows, axis=1).max()
    assert machine.fallback_share(query[None]) == 1.0
    kernel = np.exp(
        -np.square((query - rows) @ machine.encoding_.T / (rows @ machine.encoding_.T).std(axis=0, ddof=1)).sum(axis=1)
        / (2 * machine.subspace_dim_)
    )
    np.testing.assert_allclose(machine.image(query[None])[0], kernel @ rows / kernel.sum(), atol=1e-9)
    expected = np.linalg.norm(query - kernel @ rows / kernel.sum())
    for dtype in ("float64", "float32"):
        assert KAHM(dtype=dtype, scale=None).fit(rows).distance(query[None])[0] == pytest.approx(expected, rel=1e-5)


def test_negative_sums_fall_back_too():
    """Beyond the zero the sum is negative and the printed image lies on the wrong side; the rule applies there."""
    rows, query = zero_of_the_sum(0)
    machine = KAHM(scale=None).fit(rows)
    beyond = np.stack([query * factor for factor in np.linspace(0.8, 1.3, 41)])
    sums = machine.memberships(beyond).sum(axis=1)
    assert (sums < 0).any()
    assert (sums > 0).any()
    for sign in (-1, 1):
        part = beyond[np.sign(sums) == sign]
        assert machine.fallback_share(part) == (1.0 if sign < 0 else pytest.approx(0.0, abs=0.2))
    assert np.linalg.norm(machine.image(beyond), axis=1).max() < 1e8


def test_ordinary_queries_do_not_fall_back(rng):
    rows = rng.standard_normal((100, 5))
    assert KAHM(scale=None).fit(rows).fallback_share(rows) == 0.0
