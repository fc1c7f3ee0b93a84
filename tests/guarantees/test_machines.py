"""Bounds on machines: they hold for every query tried, and the printed ones fail where the papers' proof does."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.exceptions import NotFittedError

from kernfed.guarantees import distance_ratio, fixed_point_error, image_norm, membership_loss, smoothing_factor
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.spectrum import regularization
from kernfed.privacy.smoothing import smooth_once


def rows_of(kind):
    draws = np.random.default_rng(3)
    return {
        "normal": draws.normal(size=(100, 20)),
        "circle": np.stack([np.cos(np.arange(60)), np.sin(np.arange(60))], axis=1),
        "few": draws.normal(size=(3, 8)),
        "tight": 5 + 0.01 * draws.normal(size=(40, 6)),
        "identical": np.full((5, 3), 2.0),
        "large": 30 * draws.normal(size=(50, 4)),
    }[kind]


def queries_for(rows):
    draws = np.random.default_rng(4)
    scale = rows.std() + 0.1
    near = rows[draws.integers(len(rows), size=300)] + scale * draws.normal(size=(300, rows.shape[1]))
    return np.concatenate([rows, near, 100 * near, np.zeros((1, rows.shape[1]))])


KINDS = ["normal", "circle", "few", "tight", "identical", "large"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_image_is_longer_than_the_sound_bound(kind):
    rows = rows_of(kind)
    machine = KAHM(scale=None).fit(rows)
    bound = image_norm(machine)
    assert bound.reliable
    assert np.linalg.norm(machine.image(queries_for(rows)), axis=1).max() <= bound.value * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make",
    [
        KAHM,
        lambda: DeepKAHM(layers=3, scale=None),
        lambda: WideKAHM(batch_size=25, random_state=0, partition="kmeans", scale=None),
    ],
)
def test_no_distance_ratio_is_above_the_sound_bound(kind, make):
    rows = rows_of(kind)
    machine, queries = make().fit(rows), queries_for(rows_of(kind))
    differences = queries[:, None] - rows
    order = "fro" if isinstance(machine, WideKAHM) else 2
    lengths = np.array([np.linalg.norm(difference, order) for difference in differences])
    seen = machine.distance(queries) <= distance_ratio(machine).value * lengths + 1e-9
    assert seen.all()


def test_the_repaired_factor_is_used_where_the_resolvent_of_ones_is_positive():
    machine = KAHM(scale=None).fit(rows_of("large"))
    assert "as checked" in image_norm(machine).status
    assert 1 <= distance_ratio(machine).value < 1e3


@pytest.mark.parametrize("form", ["printed", "printed-loose"])
def test_the_printed_bound_is_broken_where_memberships_nearly_cancel(form):
    """DP-KAHM Theorem 2: far out along a row whose entry of R 1 is negative the sum changes its sign."""
    rows = np.random.default_rng(0).normal(size=(100, 20))
    machine = KAHM(scale=None).fit(rows)
    found = machine.bank_.machines[0]
    lowest = rows[np.argmin(found.layers[0].image[-3])]

    def share(length):
        memberships = machine.memberships(length * lowest[None])[0]
        return memberships.sum() / np.abs(memberships).sum()

    query = lowest[None] * brentq(share, 0.0, 30.0, xtol=1e-13)
    memberships = machine.memberships(query)[0]
    literal = np.linalg.norm(memberships @ rows / memberships.sum())
    assert literal > image_norm(machine, form=form).value
    assert not image_norm(machine, form=form).reliable
    assert np.linalg.norm(machine.image(query)) <= image_norm(machine).value


def test_membership_cannot_fall_below_its_floor():
    rows = rows_of("large")
    machine = KAHM(scale=None).fit(rows)
    for query in queries_for(rows)[::40]:
        loss = -math.expm1(-machine.distance(query[None])[0] / rows.shape[1])
        assert loss <= membership_loss(machine, query).value + 1e-12


@pytest.mark.parametrize("kind", ["normal", "circle", "tight", "large"])
def test_a_smoothing_step_shrinks_the_spectral_norm_by_its_factor(kind):
    rows = rows_of(kind)
    factor = smoothing_factor(KAHM(scale=None).fit(rows)).value
    assert factor < 1
    assert np.linalg.norm(smooth_once(rows), 2) <= factor * np.linalg.norm(rows, 2) * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
def test_the_regulariser_converges_as_fast_as_promised(scale):
    draws = np.random.default_rng(5)
    spectrum = np.sort(draws.uniform(0, 20, size=30))
    energies = scale * draws.uniform(size=30)
    mean_square = energies.sum() / (6 * 30)

    def step(level):
        whole = level + 2 * mean_square
        return float((np.square(whole / (spectrum + whole)) * energies).sum() / (6 * 30))

    exact = regularization(spectrum, energies, 6) - 2 * mean_square
    level = 0.0
    for iterations in range(30):
        bound = fixed_point_error(mean_square, 30, iterations).value
        assert abs(level - exact) <= bound + 1e-12 * mean_square
        level = step(level)


def test_bad_arguments_are_refused():
    machine = WideKAHM(batch_size=10, random_state=0, partition="kmeans", scale=None).fit(rows_of("normal"))
    with pytest.raises(ValueError, match="one branch, got 10"):
        image_norm(machine)
    with pytest.raises(ValueError, match="form must be one of"):
        distance_ratio(machine, form="best")
    with pytest.raises(ValueError, match="query must have 20 columns"):
        membership_loss(KAHM(scale=None).fit(rows_of("normal")), np.zeros(3))
    with pytest.raises(ValueError, match="mean_square must be >= 0"):
        fixed_point_error(-1.0, 10, 1)


@pytest.mark.parametrize(
    "machine",
    [KAHM(scale=None), DeepKAHM(scale=None), WideKAHM(batch_size=1000, partition="kmeans", scale=None)],
    ids=lambda machine: type(machine).__name__,
)
def test_machines_that_are_not_fitted_say_so(machine):
    for bound in (image_norm, distance_ratio, smoothing_factor, lambda found: membership_loss(found, np.zeros(3))):
        with pytest.raises(NotFittedError, match=f"This {type(machine).__name__} instance is not fitted yet"):
            bound(machine)
        with pytest.raises(ValueError, match="machine must be a fitted KAHM, DeepKAHM or WideKAHM, got ndarray"):
            bound(np.zeros(3))
