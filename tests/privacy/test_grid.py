import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernfed.statistics.bounds import check_grid, clip_rows, grid_step, nearest, toward_zero

VALUES = st.floats(-1e6, 1e6)
STEPS = st.integers(-20, 5).map(lambda e: 2.0**e)


@given(VALUES, VALUES, STEPS)
def test_nearest_keeps_distances(a, b, step):
    """|a - b| <= m steps, m an integer, must give integers at most m apart; exact arithmetic decides m."""
    from fractions import Fraction

    distance = abs(Fraction(a) - Fraction(b)) / Fraction(step)
    m = -(-distance.numerator // distance.denominator)
    first, second = nearest(np.array([a, b]), step).tolist()
    assert abs(first - second) <= m


def test_halves_round_up_not_to_even():
    assert nearest(np.array([-1.5, -0.5, 0.5, 1.5, 2.5]), 1.0).tolist() == [-1, 0, 1, 2, 3]
    assert nearest(np.array([0.49999999999999994, -5e-324, 5e-324]), 1.0).tolist() == [0, 0, 0]


@given(VALUES, STEPS)
def test_toward_zero_never_lengthens(value, step):
    assert abs(float(toward_zero(np.array([value]), step)[0]) * step) <= abs(value)


@given(st.floats(1e-300, 1e300))
def test_grid_step_is_the_power_of_two_below(limit):
    step = grid_step(limit)
    assert step <= limit < 2 * step
    assert np.frexp(step)[0] == 0.5


@pytest.mark.parametrize("radius", [1e-3, 1.0, 50.0])
def test_clipped_rows_lie_in_the_ball_and_keep_their_direction(rng, radius):
    rows = rng.standard_normal((200, 7)) * 10.0 ** rng.uniform(-5, 5, (200, 1))
    rows[0], rows[1] = 0.0, 1.7e308
    clipped = clip_rows(rows, radius)
    norms = np.linalg.norm(clipped, axis=1)
    assert norms.max() <= radius * (1 - 1e-10)
    inside = np.linalg.norm(np.minimum(np.abs(rows), 1e100), axis=1) < radius * 0.999
    assert np.array_equal(clipped[inside], rows[inside])
    direction = rows[2:] / np.linalg.norm(rows[2:], axis=1, keepdims=True)
    assert np.allclose((clipped[2:] * direction).sum(axis=1), norms[2:], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_clipping_never_moves_neighbours_apart(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 1000, 3)) * rng.uniform(0, 3, (2, 1000, 1))
    before, after = (np.linalg.norm(x - y, axis=1) for x, y in ((a, b), (clip_rows(a, 1.0), clip_rows(b, 1.0))))
    assert (after <= np.minimum(before, 2.0) + 1e-8).all()


def test_a_grid_too_fine_is_refused():
    check_grid(1.0, 2.0**-50, "bounds")
    with pytest.raises(ValueError, match=r"bounds must fit a grid of 2\^50 steps, got 3"):
        check_grid(3.0, 2.0**-50, "bounds")
