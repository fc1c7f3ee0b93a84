"""Scores and kernels that the papers build on distances and measures."""

import numpy as np
import pytest

from kernfed.kahm.folding import (
    cosine_folding,
    euclidean_folding,
    folding_feature,
    folding_kernel,
    hull_kernel,
    matching_score,
    membership_probability,
)


def test_matching_score_is_the_printed_one(rng):
    """DP-KAHM (63)."""
    distances = rng.exponential(size=(6, 4))
    expected = [[np.exp(-(d**2) / np.square(row).sum()) for d in row] for row in distances]
    np.testing.assert_allclose(matching_score(distances), expected)


def test_matching_score_leaves_absent_classes_out():
    present = matching_score(np.array([[1.0, 2.0]]))
    assert (matching_score(np.array([[1.0, 2.0, np.inf]])) == [[*present[0], 0.0]]).all()
    assert (matching_score(np.zeros((1, 3))) == 1).all()


def test_membership_and_hull_kernel(rng):
    """GIKM (44) and (19); a kernel of rank one is positive semi-definite."""
    first, second = rng.exponential(size=5), rng.exponential(size=3)
    np.testing.assert_allclose(membership_probability(first, 7), np.exp(-first / 7))
    kernel = hull_kernel(first, second, 7)
    assert kernel.shape == (5, 3)
    assert kernel[2, 1] == pytest.approx(np.exp(-(first[2] + second[1]) / 7))
    assert np.linalg.eigvalsh(hull_kernel(first, first, 7)).min() > -1e-15


def test_folding_feature_and_kernel():
    """SFM (106): one where a class attains the smallest measure, ties included; SFM (29) is their product."""
    feature = folding_feature(np.array([[0.1, 0.2, 0.1], [0.9, 0.3, 0.5]]))
    assert feature.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert folding_kernel(feature[:, 0], feature[:, 2]).tolist() == [[1, 0], [0, 0]]


def test_foldings_keep_small_and_opposite_values():
    assert euclidean_folding(np.array([1e-20]))[0] == 1e-20
    two, one = np.array([2.0]), np.array([1.0])
    assert cosine_folding(np.array([9.0]), two, one)[0] == pytest.approx(1.0)  # opposite directions
    assert cosine_folding(np.array([1.0 - 1e-18]), two, one)[0] == 0.0  # rounding below zero is no angle
