"""Grids of a power-of-two step: data as integers, so that sums with integer noise are exact.

Only public numbers choose a step. Both ways to the grid keep distances: ``nearest`` maps values that differ by at most
m steps (m an integer) to integers that differ by at most m, ``toward_zero`` never makes a vector longer.
"""

import math

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.privacy.generator import Ints
from kernfed.privacy.noise import Floats

#: Largest integer a grid may need: sums with noise and products with the step stay exact in float64.
_LARGEST = 2**50


def grid_step(limit: float) -> float:
    """The largest power of two that is at most ``limit``.

    >>> grid_step(0.3)
    0.25
    """
    return math.ldexp(1.0, math.frexp(limit)[1] - 1)


def check_grid(largest: float, step: float, what: str) -> None:
    """Refuse a grid too fine for the largest value on it."""
    if largest / step > _LARGEST:
        raise InputError(
            f"{what} must fit a grid of 2^50 steps, got {largest:g} at a step of {step:g}; "
            "narrow the bounds or raise the noise (a larger d, radius or a smaller epsilon)"
        )


def nearest(values: FloatArray, step: float) -> Ints:
    """Integers nearest to ``values / step``, halves rounded up.

    Half to even, NumPy's rule, would map 0.5 and 1.5 to 0 and 2: two steps apart for values one step apart.
    """
    return (np.floor(np.asarray(values, dtype=np.float64) * (2.0 / step)).astype(np.int64) + 1) >> 1


def toward_zero(values: FloatArray, step: float) -> Ints:
    """Integers ``values / step`` without their fraction."""
    return np.trunc(np.asarray(values, dtype=np.float64) / step).astype(np.int64)


def clip_rows(rows: FloatArray, radius: float) -> Floats:
    """Rows (n, p) moved along their direction into the L2 ball of ``radius``, in float64.

    A billionth less than the radius, so that rounding cannot carry a row outside.
    """
    rows = np.asarray(rows, dtype=np.float64)
    # In units of the largest entry: the squares of huge entries overflow.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    units = rows / np.where(largest > 0, largest, 1.0)
    inside = radius * (1 - 1e-9) / np.sqrt(np.maximum(np.square(units).sum(axis=1, keepdims=True), 1.0))
    return np.where(largest > inside, units * inside, rows)
