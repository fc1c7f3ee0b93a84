"""Smoothing and fabrication: the papers' maps, and a number of steps that does not look at the raw rows."""

import numpy as np
import pytest

from kernfed.kahm.machine import explicit_images, fit_machine
from kernfed.privacy.smoothing import MAX_STEPS, fabricate, modelling_error, smooth, smooth_once


def literal_smoother(rows: np.ndarray, dim: int | None = None) -> np.ndarray:
    """SFM (131)-(135) with explicit matrices."""
    machine = fit_machine(rows, subspace_dim=dim)
    scores = (rows - rows.mean(axis=0)) @ machine.directions[: machine.subspace_dim].T
    whitened = scores / scores.std(axis=0, ddof=1)
    kernel = np.exp(-np.square(whitened[:, None] - whitened).sum(axis=2) / (2 * machine.subspace_dim))
    hat = np.linalg.solve(kernel + machine.layers[0].regularization * np.eye(len(rows)), kernel)
    return hat.T @ rows


@pytest.mark.parametrize("shape", [(30, 60), (80, 5), (25, 25), (3, 2)])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_smoother_is_the_printed_one(shape, offset, rng):
    rows = rng.standard_normal(shape) + offset
    np.testing.assert_allclose(smooth_once(rows), literal_smoother(rows), atol=1e-10)


def test_smoother_is_the_scaled_image(rng):
    """DP-KAHM (81): the sum of memberships times the image."""
    rows = rng.standard_normal((40, 6))
    found = explicit_images(fit_machine(rows), rows)
    np.testing.assert_allclose(
        smooth_once(rows), found.memberships.sum(axis=1, keepdims=True) * found.image, atol=1e-10
    )


@pytest.mark.parametrize("shape", [(30, 60), (80, 5)])
def test_smoothing_lowers_the_spectral_norm(shape, rng):
    """SFM Proposition 3."""
    rows = rng.standard_normal(shape) + 1
    for _ in range(5):
        smoothed = smooth_once(rows)
        assert np.linalg.norm(smoothed, 2) < np.linalg.norm(rows, 2)
        rows = smoothed


def test_rows_without_a_usable_dimension(rng):
    rows = np.full((4, 3), 2.0)
    machine = fit_machine(rows)
    expected = 2.0 * 4 / (4 + machine.layers[0].regularization)
    np.testing.assert_allclose(smooth_once(rows), expected)
    assert fabricate(rows, noise=0.1, steps=1).values.shape == (4, 3)
    assert np.isfinite(smooth(rng.standard_normal((1, 3)), noise=1.0).values).all()


@pytest.fixture
def curve(rng):
    t = rng.uniform(0, 2 * np.pi, 200)
    clean = np.outer(np.cos(t), rng.standard_normal(20)) + np.outer(np.sin(t), rng.standard_normal(20))
    return clean, clean + 0.7 * rng.standard_normal(clean.shape)


def test_coupled_bootstrap_comes_close_to_the_oracle(curve):
    clean, noisy = curve
    errors = [
        np.linalg.norm(smooth(noisy, noise=0.7, steps=m, subspace_dim=4).values - clean) for m in range(MAX_STEPS)
    ]
    chosen = smooth(noisy, noise=0.7, subspace_dim=4)
    assert chosen.private
    assert chosen.steps[0] >= 1
    assert np.linalg.norm(chosen.values - clean) <= 1.02 * min(errors)
    assert min(errors) < 0.9 * errors[0]  # otherwise smoothing would show nothing


def test_oracle_is_the_papers_rule_and_not_private(curve):
    clean, noisy = curve
    found = smooth(noisy, noise=0.7, steps="oracle", clean=clean, subspace_dim=4)
    errors = [np.linalg.norm(smooth(noisy, noise=0.7, steps=m, subspace_dim=4).values - clean) for m in range(1, 9)]
    first_rise = next((m for m in range(1, 8) if errors[m] >= errors[m - 1]), 8)
    assert found.steps == (first_rise,)
    assert not found.private


def test_later_steps_do_not_depend_on_the_raw_rows(curve):
    """Given the noisy rows and a seed, everything after is the same whatever the raw rows were."""
    _, noisy = curve
    for function in (smooth, fabricate):
        one, two = (function(noisy.copy(), noise=0.7, seed=5, batch_size=60) for _ in range(2))
        assert (one.values == two.values).all()
        assert one.steps == two.steps
        assert len(one.steps) == 3


def test_fabricated_rows_are_images_of_the_smoothed_rows(curve):
    clean, noisy = curve
    smoothed = smooth(noisy, noise=0.7, steps=2).values
    expected = explicit_images(fit_machine(smoothed), smoothed).image
    np.testing.assert_allclose(fabricate(noisy, noise=0.7, steps=2).values, expected, atol=1e-11)
    oracle = fabricate(noisy, noise=0.7, steps="oracle", clean=clean)
    assert not oracle.private
    target = modelling_error(clean)
    assert modelling_error(smooth(noisy, noise=0.7, steps=oracle.steps[0]).values) <= target
    if oracle.steps[0]:
        assert modelling_error(smooth(noisy, noise=0.7, steps=oracle.steps[0] - 1).values) > target


def test_modelling_error_vanishes_with_smoothing(curve):
    """DP-KAHM Theorem 6, as a trend."""
    _, noisy = curve
    errors = [modelling_error(smooth(noisy, noise=0.7, steps=m).values) for m in (0, 3, 9)]
    assert errors[2] < 0.6 * errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1.0}, "noise must be >= 0"),
        ({"noise": 1.0, "steps": -1}, "steps must be >= 0"),
        ({"noise": 1.0, "steps": "best"}, "steps must be a number or one of"),
        ({"noise": 1.0, "steps": "oracle"}, "needs clean="),
        ({"noise": 1.0, "clean": np.zeros((5, 2))}, "no other rule may see them"),
        ({"noise": 1.0, "steps": "oracle", "clean": np.zeros((4, 2))}, "clean must have 5 rows"),
        ({"noise": 1.0, "batch_size": 0}, "batch_size must be >= 1"),
    ],
)
def test_bad_input(options, message):
    for function in (smooth, fabricate):
        with pytest.raises(ValueError, match=message):
            function(np.zeros((5, 2)), **options)
