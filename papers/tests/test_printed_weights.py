"""KME Algorithm 3 at the printed rates, beside the minimum on the simplex."""

import numpy as np
import pytest

from kernfed.personal.weights import minimise_on_simplex
from kernfed_papers.baselines.printed_weights import exponentiated_gradient, printed_rates


@pytest.mark.parametrize("seed", range(3))
def test_algorithm_3_reaches_the_minimum_on_the_simplex(seed):
    rng = np.random.default_rng(seed)
    vectors, penalties = rng.standard_normal((6, 3)), rng.uniform(0, 1, (6, 6))
    G = vectors @ vectors.T
    linear, rates = penalties - 2 * G, printed_rates(G, penalties)

    def above(W):  # the minimum, in units of the largest inner product
        least = minimise_on_simplex(G, linear).weights
        values = [np.einsum("tk,kl,tl->t", w, G, w) + (linear * w).sum(axis=1) for w in (W, least)]
        return (values[0] - values[1]) / G.max()

    W = exponentiated_gradient(G, linear, rates, steps=5000)
    np.testing.assert_allclose(W.sum(axis=1), 1)
    assert above(W).max() < 0.003
    assert above(exponentiated_gradient(G, linear, rates, steps=10)).max() > 0.03


def test_printed_rates_are_the_norms_of_the_differences(rng):
    vectors, penalties = rng.standard_normal((5, 4)) + 3, rng.uniform(0, 1, (5, 5))
    found = printed_rates(vectors @ vectors.T, penalties, c=0.25)
    for t, rate in enumerate(found):
        steps = vectors - vectors[t]
        assert rate == pytest.approx(0.25 / (2 * np.linalg.norm(steps @ steps.T, 2) + penalties[t].max()), rel=1e-6)
    assert printed_rates(np.zeros((2, 2)), np.zeros((2, 2))).tolist() == [1.0, 1.0]


def test_algorithm_3_as_printed_leaves_the_simplex_and_ours_does_not():
    G, w = np.diag([1.0, 2.0, 3.0]), np.full(3, 1 / 3)
    printed = w * np.exp(-0.1 * 2 * G @ w) / np.exp(-0.1 * 2 * G @ w).sum()
    assert printed.sum() == pytest.approx(1 / 3)
    found = exponentiated_gradient(G, np.zeros((1, 3)), [0.1])
    np.testing.assert_allclose(found, [np.array([6, 3, 2]) / 11], atol=1e-6)


def test_degenerate_programmes():
    assert exponentiated_gradient(np.zeros((2, 2)), np.zeros((1, 2)), [1.0]).tolist() == [[0.5, 0.5]]
    assert exponentiated_gradient([[3.0]], [[1.0]], [1.0]).tolist() == [[1.0]]
    with pytest.raises(ValueError, match="square and of one shape"):
        printed_rates(np.eye(2), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="3 columns"):
        exponentiated_gradient(np.eye(2), np.zeros((1, 3)), [1.0])
    with pytest.raises(ValueError, match="rates must have at least 2"):
        exponentiated_gradient(np.eye(2), np.zeros((2, 2)), [1.0])
