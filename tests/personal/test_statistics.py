"""Statistics that stand for rows, common coordinates, and the weighted ridge against transcriptions on rows."""

import numpy as np
import pytest

from kernfed.kernels import FourierFeatures, Moments
from kernfed.personal.prior import common_regularization, effective_rows, own_penalty, weighted_ridge
from kernfed.personal.statistics import Coordinates, SiteStatistics
from oracles import personal as oracle


def site_rows(rng, n, p=4, q=2):
    return rng.standard_normal((n, p)) + 3, rng.standard_normal((n, q)) - 1


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 40])
@pytest.mark.parametrize("through_message", [False, True])
def test_statistics_have_the_moments_of_the_rows(rng, n, through_message):
    X, Y = site_rows(rng, n)
    found = SiteStatistics.from_rows(X, Y)
    if through_message:
        arrays = found.to_arrays()
        assert sum(array.size for array in arrays.values()) <= 2 + 6 + min(6 * (n - 1), 21)
        found = SiteStatistics.from_arrays(arrays)
    joint = np.hstack([X, Y])
    np.testing.assert_allclose(found.rows().T @ found.rows(), joint.T @ joint, atol=1e-10)
    np.testing.assert_allclose(found.mean, joint.mean(axis=0))
    assert (found.n, found.width, found.targets) == (n, 4, 2)
    assert len(found.factor) <= n - 1
    other = SiteStatistics.from_moments(Moments.from_rows(X, Y))
    np.testing.assert_allclose(other.rows().T @ other.rows(), joint.T @ joint, atol=1e-10)


def test_features_and_single_targets(rng):
    X, Y = site_rows(rng, 9, q=1)
    features = FourierFeatures(4, 6, seed=3, kind="paired")
    a = SiteStatistics.from_rows(X, Y[:, 0], features=features.transform)
    b = SiteStatistics.from_rows(features.transform(X), Y)
    np.testing.assert_allclose(a.rows().T @ a.rows(), b.rows().T @ b.rows(), atol=1e-12)


def test_constant_rows_have_no_factor():
    found = SiteStatistics.from_rows(np.full((3, 2), 7.0), np.ones(3))
    assert found.factor.shape[0] == 0
    np.testing.assert_allclose(found.rows(), [[np.sqrt(3) * 7, np.sqrt(3) * 7, np.sqrt(3)]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.array([2.5, 4.0])}, "whole numbers"),
        ({"counts": np.array([0.0, 4.0])}, "n must be >= 1"),
        ({"counts": np.array([2.0, 4.0])}, "at most 1"),
        ({"mean": np.zeros(4)}, "columns"),
        ({"mean": np.full(6, np.nan)}, "finite"),
        ({"factor": np.zeros((2, 6), dtype=np.float32)}, "float64"),
        ({"extra": np.zeros(1)}, "must have counts"),
    ],
)
def test_messages_that_no_rows_have_are_refused(rng, change, message):
    arrays = SiteStatistics.from_rows(*site_rows(rng, 3)).to_arrays()
    with pytest.raises(ValueError, match=message):
        SiteStatistics.from_arrays({**arrays, **change})


def test_wrong_targets_are_refused(rng):
    X, Y = site_rows(rng, 5)
    with pytest.raises(ValueError, match="y must have"):
        SiteStatistics.from_rows(X, Y[:3])
    with pytest.raises(ValueError, match="finite"):
        SiteStatistics.from_rows(X, np.full(5, np.nan))


# Coordinates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
def test_compressed_rows_stand_for_the_design(rng, intercept):
    rows = [site_rows(rng, n) for n in (1, 3, 20)]
    sites = [SiteStatistics.from_rows(X, Y) for X, Y in rows]
    common = Coordinates.pooled(sites, intercept=intercept)
    assert common.dimension == 4 + intercept
    for (X, Y), site in zip(rows, sites, strict=True):
        A, B = common.design(X), Y - common.target_centre
        small, targets = common.compress(site)
        np.testing.assert_allclose(small.T @ small, A.T @ A, atol=1e-9)
        np.testing.assert_allclose(small.T @ targets, A.T @ B, atol=1e-9)
        np.testing.assert_allclose(targets.T @ targets, B.T @ B, atol=1e-9)
    again = Coordinates.from_arrays(common.to_arrays())
    assert again.constant == common.constant


def test_the_constant_is_the_size_of_a_centred_row(rng):
    X, Y = site_rows(rng, 50)
    sites = [SiteStatistics.from_rows(X[:20], Y[:20]), SiteStatistics.from_rows(X[20:], Y[20:])]
    common = Coordinates.pooled(sites)
    assert common.constant == pytest.approx(np.sqrt(np.square(X - X.mean(axis=0)).sum(axis=1).mean()))
    np.testing.assert_allclose(common.centre, X.mean(axis=0))


def test_sites_that_differ_in_shape_are_refused(rng):
    a, b = SiteStatistics.from_rows(*site_rows(rng, 3)), SiteStatistics.from_rows(*site_rows(rng, 3, p=5))
    with pytest.raises(ValueError, match="same numbers of features"):
        Coordinates.pooled([a, b])
    with pytest.raises(ValueError, match="at least 1 site"):
        Coordinates.pooled([])


# Weighted ridge -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1e-3, 0.5])
@pytest.mark.parametrize("sizes", [(1, 2, 3), (10, 30, 5), (50, 50, 50)])
def test_weighted_ridge_is_the_minimiser_on_the_rows(rng, sizes, ridge):
    rows = [site_rows(rng, n) for n in sizes]
    sites = [SiteStatistics.from_rows(X, Y) for X, Y in rows]
    W = np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.9, 0.1]])
    for intercept in (False, True):
        common = Coordinates.pooled(sites, intercept=intercept)
        found = weighted_ridge(sites, W, ridge, common)
        designs = [(common.design(X), Y - common.target_centre) for X, Y in rows]
        for t in range(3):
            np.testing.assert_allclose(found[t], oracle.weighted_ridge(designs, W[t], ridge), rtol=1e-6, atol=1e-8)


def test_one_site_is_ridge_regression_and_grand_mean_is_pooled(rng):
    rows = [site_rows(rng, 12) for _ in range(3)]
    sites = [SiteStatistics.from_rows(X, Y) for X, Y in rows]
    plain = Coordinates.pooled(sites, intercept=False)
    X, Y = (np.concatenate(part) for part in zip(*rows, strict=True))
    pooled = np.linalg.solve(X.T @ X / 36 + 0.1 * np.eye(4), X.T @ Y / 36)
    np.testing.assert_allclose(weighted_ridge(sites, np.full((1, 3), 1 / 3), 0.1, plain)[0], pooled, atol=1e-10)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.4, 0.0]], "sum to 1"),
        ([[1.5, -0.5, 0.0]], ">= 0"),
        ([[0.5, 0.5]], "column for each of the 3"),
        ([[np.nan, 0.5, 0.5]], "finite"),
    ],
)
def test_weights_that_are_not_on_the_simplex_are_refused(rng, weights, message):
    sites = [SiteStatistics.from_rows(*site_rows(rng, 5)) for _ in range(3)]
    with pytest.raises(ValueError, match=message):
        weighted_ridge(sites, weights, 0.1, Coordinates.pooled(sites))
    with pytest.raises(ValueError, match="regularization must be at least 0"):
        weighted_ridge(sites, np.eye(3), -0.1, Coordinates.pooled(sites))


def test_the_own_penalty_leaves_rows_out_one_by_one(rng):
    from kernfed.personal.prior import PENALTIES

    X, Y = site_rows(rng, 8, p=3)
    unit = np.square(X).sum() / 8
    losses = []
    for penalty in unit * PENALTIES:
        total = 0.0
        for i in range(8):
            kept = np.arange(8) != i
            b = np.linalg.solve(X[kept].T @ X[kept] + penalty * np.eye(3), X[kept].T @ Y[kept])
            total += np.square(Y[i] - X[i] @ b).sum()
        losses.append(total)
    assert own_penalty(X, Y) == pytest.approx(unit * PENALTIES[int(np.argmin(losses))])
    assert own_penalty(X[:1], Y[:1]) > 0
    assert own_penalty(np.zeros((3, 2)), Y[:3]) > 0


def test_regularisation_by_the_rows_a_risk_is_worth():
    W = np.array([[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(effective_rows(W, [10, 10]), [10, 20])
    np.testing.assert_allclose(common_regularization(W, [10, 10], [7.0, 8.0], 3.0), [0.7, 3.0 / 20])
