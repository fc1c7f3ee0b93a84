"""Sums of sites of which a few may be wrong: against literal twins, and where they must be the sum."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from kernfed.kernels import Moments
from kernfed.ridge.leave_one_out import TEMPERATURES, LeftOut
from kernfed.ridge.robust import (
    CAP,
    capped,
    clipped_mean,
    geometric_median,
    products,
    robust_sums,
    typical,
    typical_errors,
    weighted_median,
)
from kernfed.ridge.sums import Means, moved
from oracles import robust as oracle

TOLERANCE = 1e-9


def part_of(phi, targets, weights=None, *, intercept=True):
    """What a site with these features and targets says."""
    c = np.ones(len(phi)) if weights is None else weights
    mass, root = float(c.sum()), np.sqrt(c)[:, None]
    means = Means(mass, c @ phi / mass, c @ targets / mass) if intercept else None
    if means is not None:
        phi, targets = phi - means.features, targets - means.targets
    return Moments.from_rows(phi * root, targets * root), mass, means


def class_rows(rng, sizes=(40, 25, 90, 30, 33), classes=3, width=4):
    rows = []
    for size in sizes:
        y = rng.integers(classes, size=size)
        rows.append((rng.standard_normal((size, width)) + 0.5 * y[:, None], np.eye(classes)[y]))
    return rows


def value_rows(rng, sizes=(40, 25, 90, 30, 33), width=4):
    rows = []
    for size in sizes:
        X = rng.standard_normal((size, width)) + rng.standard_normal(width)
        rows.append((X, X @ rng.standard_normal((width, 1)) + 100))
    return rows


def summed(parts):
    """What the sum of the sites says."""
    moments, masses, own = zip(*parts, strict=True)
    if own[0] is None:
        return sum(moments, Moments.zero(moments[0].width, moments[0].targets)), sum(masses), None
    means = reduce(add, own)
    around = [moved(part, mean, means) for part, mean in zip(moments, own, strict=True)]
    return sum(around, Moments.zero(moments[0].width, moments[0].targets)), sum(masses), means


def assert_same(found, expected, tolerance=TOLERANCE):
    (moments, mass, means), (other, other_mass, other_means) = found, expected
    for name in ("second", "cross", "y_second"):
        np.testing.assert_allclose(
            getattr(moments, name) / mass, getattr(other, name) / other_mass, atol=tolerance, rtol=tolerance
        )
    assert (means is None) == (other_means is None)
    if means is not None:
        np.testing.assert_allclose(means.features, other_means.features, atol=tolerance)
        np.testing.assert_allclose(means.targets, other_means.targets, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_clipped_means_and_medians_are_the_literal_ones(rng, count):
    points = rng.standard_normal((count, 6, 2)) * np.array([1.0] * (count - 1) + [50.0])[:, None, None]
    weights = rng.uniform(0.5, 2.0, size=count)
    flat = points.reshape(count, -1)
    shares = geometric_median(products(list(points), weights), weights)
    if count != 2:  # every point between two of them is a median, if they weigh the same
        np.testing.assert_allclose(shares @ flat, oracle.geometric_median(flat, weights), atol=1e-6)
    assert clipped_mean(list(points), weights) == pytest.approx(oracle.clipped_mean(points, weights), abs=1e-5)
    assert weighted_median(flat, weights)[0] == pytest.approx(oracle.middle(flat[:, 0], weights))
    np.testing.assert_array_equal(weighted_median(flat, np.ones(count)), np.median(flat, axis=0))


def test_a_point_without_weight_does_not_count(rng):
    points = list(rng.standard_normal((4, 3)))
    weights = np.array([1.0, 2.0, 1.0, 0.0])
    np.testing.assert_array_equal(clipped_mean(points, weights), clipped_mean(points[:3], weights[:3]))


def test_a_far_point_moves_a_clipped_mean_no_farther_than_a_near_one(rng):
    near = rng.standard_normal((9, 5))
    honest = near.mean(axis=0)
    spread = np.linalg.norm(near - honest, axis=1).max()
    for far in (10.0, 1e3, 1e6):
        found = clipped_mean([*near, np.full(5, far)], np.ones(10))
        assert np.linalg.norm(found - honest) < 0.5 * spread


def test_no_weight_is_above_the_cap_of_the_median():
    np.testing.assert_array_equal(capped(np.array([1.0, 0.0, 2.0, 90.0])), [1.0, 0.0, 2.0, 2.0 * CAP])
    np.testing.assert_array_equal(capped(np.zeros(2)), np.zeros(2))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("class_weights", [None, (1.0, 3.0, 0.5)])
def test_classes_are_those_of_the_literal_rows(rng, intercept, class_weights):
    rows = class_rows(rng)
    rows[1] = (rows[1][0], np.eye(3)[np.minimum(rows[1][1].argmax(axis=1), 1)])  # a site without the third class
    weights = np.ones(3) if class_weights is None else np.array(class_weights)
    parts = [part_of(phi, y, weights[y.argmax(axis=1)], intercept=intercept) for phi, y in rows]
    (moments, mass, means), _ = robust_sums(parts, classify=True)
    second, cross, middle, shares = oracle.classes(rows, CAP, weights, intercept=intercept)
    np.testing.assert_allclose(moments.second / mass, second, atol=1e-6)
    np.testing.assert_allclose(moments.cross / mass, cross, atol=1e-6)
    expected = np.diag(shares) - (np.outer(shares, shares) if intercept else 0.0)
    np.testing.assert_allclose(moments.y_second / mass, expected, atol=1e-12)
    if means is not None:
        np.testing.assert_allclose(means.features, middle, atol=1e-6)
        np.testing.assert_allclose(means.targets, shares, atol=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_values_are_those_of_the_literal_rows(rng, intercept):
    rows = value_rows(rng)
    (moments, mass, means), _ = robust_sums([part_of(*own, intercept=intercept) for own in rows], classify=False)
    second, cross, middle, constant = oracle.values(rows, CAP, intercept=intercept)
    np.testing.assert_allclose(moments.second / mass, second, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moments.cross / mass, cross, rtol=1e-5, atol=1e-4)
    if means is not None:
        np.testing.assert_allclose(means.features, middle, atol=1e-5)
        np.testing.assert_allclose(means.targets, constant, atol=1e-4)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("classify", [True, False])
@pytest.mark.parametrize("sites", [1, 2, 5])
def test_one_site_and_sites_alike_are_the_sum(rng, classify, intercept, sites):
    own = (class_rows if classify else value_rows)(rng, sizes=(60,))[0]
    parts = [part_of(*own, intercept=intercept)] * sites
    found, shares = robust_sums(parts, classify=classify)
    assert_same(found, summed(parts), 1e-8)
    assert shares.sum() == pytest.approx(1.0)


def test_a_matrix_of_wrong_sites_has_no_negative_eigenvalue(rng):
    """However sites differ, the result is that of rows: what is learned from it is never wild."""
    for _ in range(20):
        rows = [(phi * rng.uniform(0.01, 30), y) for phi, y in class_rows(rng, sizes=rng.integers(3, 60, size=6))]
        (moments, mass, _), _ = robust_sums([part_of(*own) for own in rows], classify=True)
        values = np.linalg.eigvalsh(moments.joint_scatter / mass)
        assert values.min() >= -1e-9 * values.max()


def test_classes_of_one_holder_take_part_as_they_are(rng):
    rows = class_rows(rng)
    rows = [(phi[y[:, 2] == 0], y[y[:, 2] == 0]) if place else (phi, y) for place, (phi, y) in enumerate(rows)]
    (moments, mass, means), _ = robust_sums([part_of(*own) for own in rows], classify=True)
    phi, y = rows[0]
    centre = means.features + moments.cross[:, 2] / mass / means.targets[2]
    np.testing.assert_allclose(centre, phi[y[:, 2] == 1].mean(axis=0), atol=1e-12)


def losses(sites, candidates=4):
    curve = np.linspace(1.0, 2.0, candidates)
    parts = [
        LeftOut(m * curve, m * curve / 4, np.outer(m * curve, np.ones(len(TEMPERATURES))), m) for m in sites.tolist()
    ]
    return parts, sites


def test_choices_are_those_of_typical_sites():
    parts, masses = losses(np.array([10.0, 20.0, 30.0, 15.0]))
    found, total = typical_errors(parts, masses, 60.0), reduce(add, parts)
    np.testing.assert_allclose(found.losses(60.0, True), total.losses(masses.sum(), True))
    np.testing.assert_allclose(found.squares / 60.0, total.squares / masses.sum())
    liar = LeftOut(np.array([1e9, 1e9, 1e9, 0.0]), np.zeros(4), np.full((4, len(TEMPERATURES)), 1e9), 1e6)
    found = typical_errors([*parts, liar], np.append(masses, 1e6), 60.0)
    np.testing.assert_allclose(found.squares / 60.0, total.squares / masses.sum())
    assert found.losses(60.0, True).argmin() == 0


def test_sites_that_tell_nothing_do_not_count():
    np.testing.assert_array_equal(typical([np.ones(2), np.zeros(2)], np.array([2.0, 0.0])), [0.5, 0.5])
    np.testing.assert_array_equal(typical([np.ones(2)], np.zeros(1)), [0.0, 0.0])


def test_no_third_of_the_weight_decides_what_is_typical(rng):
    each = list(rng.uniform(1.0, 2.0, size=(6, 3)))
    ones = np.ones(6)
    np.testing.assert_allclose(typical([np.ones(3)] * 6, ones), 1.0)
    for wrong in (0.0, 1e9):
        found = typical([*each, np.full(3, wrong), np.full(3, wrong)], np.ones(8))
        assert ((found >= np.min(each, axis=0)) & (found <= np.max(each, axis=0))).all()
    three = typical([np.array([1.0]), np.array([1.5]), np.array([1e9])], np.ones(3))
    assert three == pytest.approx(1.5)  # of three sites the middle one
