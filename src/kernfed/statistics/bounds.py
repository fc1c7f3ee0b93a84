"""Public bounds: what parameters may be, and how rows are cut, projected and put onto a grid."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number, check_rows
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Radii, bounds, bandwidths and the like: products of a few of them stay far inside float64.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
#: Values of rows beyond this are cut to it. It is far outside every ball and box that a mechanism clips to.
LARGEST_VALUE = 1e100
#: More features, coordinates or columns than this are a mistake or a trap.
MOST_NUMBERS = 1 << 20
#: Seeds of public draws fit a word.
LARGEST_SEED = (1 << 64) - 1
#: A row in the unit ball is rounded towards zero to multiples of 2^-BITS.
BITS = 16
# Products of two such integers, 2^32 each, added over this many rows stay below 2^53.
_ROWS = 1 << 20
# Entries of orthonormal columns are at most 1, and their products those of the identity, but for rounding.
_ROUNDING = 1e-6


def check_scale(value: Any, name: str) -> float:
    """A positive public number in the range of sane units; NaN, infinity and subnormal numbers are none."""
    return check_number(value, name, above=0, at_least=SMALLEST_SCALE, at_most=LARGEST_SCALE)


def check_bound(value: Any, name: str, *, above: float | None = None) -> float:
    """A public bound of values, of either sign."""
    return check_number(value, name, at_least=-LARGEST_SCALE, at_most=LARGEST_SCALE, above=above)


def check_seed(seed: Any) -> int:
    """A seed of public draws."""
    return check_count(seed, "seed", at_least=0, at_most=LARGEST_SEED)


def check_basis(basis: Any) -> Floats:
    """A matrix (p, k) with orthonormal columns; ``not <=`` refuses what is not a number as well."""
    matrix = check_rows(basis, "basis").astype(np.float64)
    if not np.abs(matrix).max() <= 1 + _ROUNDING:
        raise InputError("basis must have orthonormal columns, whose entries are at most 1; numpy.linalg.qr(basis)[0]")
    if not np.abs(matrix.T @ matrix - np.eye(matrix.shape[1])).max() <= _ROUNDING:
        raise InputError("basis must have orthonormal columns; numpy.linalg.qr(basis)[0] has")
    return matrix


def check_features(features: FourierFeatures) -> FourierFeatures:
    """Fourier features whose angles are finite for every row that was cut to the public range."""
    check_count(features.width, "width", at_most=MOST_NUMBERS)
    check_count(features.n_components, "n_components", at_most=MOST_NUMBERS)
    check_bandwidth(features.bandwidth)
    return features


def check_bandwidth(bandwidth: npt.ArrayLike) -> None:
    """Bandwidths, one or several, each in the range of sane units."""
    for scale in np.atleast_1d(np.asarray(bandwidth, dtype=np.float64)).ravel().tolist():
        check_scale(scale, "bandwidth")


def saturate(rows: FloatArray) -> Floats:
    """Rows (n, p) in float64, cut at ``LARGEST_VALUE``, NaN as 0: what every transform of raw rows begins with.

    >>> saturate(np.array([[1e300, -2.0, np.nan]])).tolist()
    [[1e+100, -2.0, 0.0]]
    """
    wide = rows if rows.dtype.itemsize >= 8 else rows.astype(np.float64)
    cut = np.clip(wide, -LARGEST_VALUE, LARGEST_VALUE).astype(np.float64, copy=False)
    return np.where(np.isnan(cut), 0.0, cut) if np.isnan(cut).any() else cut


def in_basis(rows: FloatArray, basis: FloatArray) -> Floats:
    """Rows (n, p) in a public basis (p, k): finite whatever the rows are."""
    return np.asarray(saturate(rows) @ basis)


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


BASES = ("random", "dct")


def public_basis(
    basis: str | npt.ArrayLike, width: int, dimension: int, *, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Floats:
    """Orthonormal columns (width, dimension).

    ``"random"``: uniform on all subspaces, from ``seed``. ``"dct"``: cosines of the lowest frequencies on a grid of
    ``shape``; without one a square if ``width`` is a square number, else a line. A matrix (width, dimension) with
    orthonormal columns is taken as it is: that it is public, the caller declares.

    >>> public_basis("dct", 4, 1).round(3).ravel().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    check_count(dimension, "dimension", at_most=width)
    if not isinstance(basis, str):
        return _fitting_basis(basis, width, dimension)
    check_choice(basis, "basis", BASES)
    if basis == "random":
        return _random_basis(width, dimension, check_seed(seed))
    return _cosine_basis(_check_shape(shape, width), dimension)


def _fitting_basis(basis: npt.ArrayLike, width: int, dimension: int) -> Floats:
    if np.shape(basis) != (width, dimension):
        raise InputError(f"basis must have shape {(width, dimension)} (columns of X, dimension), got {np.shape(basis)}")
    return check_basis(basis)


def check_shape(shape: Any) -> tuple[int, ...] | None:
    """A shape of one or more axes as a tuple, or None."""
    if shape is None:
        return None
    if not isinstance(shape, (tuple, list)) or not shape:
        raise InputError(f"shape must be a tuple such as (28, 28), got {shape!r}")
    return tuple(check_count(side, "shape") for side in shape)


def _check_shape(shape: Any, width: int) -> tuple[int, ...]:
    sides = check_shape(shape)
    if sides is None:
        side = math.isqrt(width)
        return (side, side) if side**2 == width else (width,)
    if math.prod(sides) != width:
        raise InputError(f"shape must hold the {width} columns of X, got {sides}")
    return sides


@lru_cache(maxsize=8)
def _random_basis(width: int, dimension: int, seed: int) -> Floats:
    normals = generator(seed, "privacy", "basis").standard_normal((dimension, width)).T
    basis, upper = np.linalg.qr(normals)
    # With the signs of the diagonal the factorisation is unique, so every machine has the same basis, to rounding.
    return _frozen(basis * np.where(np.diag(upper) < 0, -1.0, 1.0))


@lru_cache(maxsize=8)
def _cosine_basis(shape: tuple[int, ...], dimension: int) -> Floats:
    frequencies = np.indices(shape).reshape(len(shape), -1)
    # In units of each axis's highest frequency, by length, then by index.
    squared = np.square(frequencies / np.array(shape)[:, None]).sum(axis=0).round(12)
    lowest = np.argsort(squared, kind="stable")[:dimension]
    axes = [scipy.fft.idct(np.eye(side), axis=0, norm="ortho") for side in shape]
    columns = np.ones((1, dimension))
    for axis, index in zip(axes, frequencies[:, lowest], strict=True):
        columns = (columns[:, None, :] * axis[None, :, index]).reshape(-1, dimension)
    return _frozen(columns)


def _frozen(matrix: Floats) -> Floats:
    matrix.setflags(write=False)
    return matrix


def unit_grid(rows: FloatArray, radius: float) -> Floats:
    """Rows (n, p) over ``radius``, clipped to the unit ball, as integers of L2 norm at most 2^BITS held in float64."""
    return toward_zero(clip_rows(rows, radius) / radius, 2.0**-BITS).astype(np.float64)


def exact_product(left: Floats, right: Floats) -> Ints:
    """``left' right`` of integer matrices (n, p), (n, q) from ``unit_grid``, without rounding."""
    blocks = (slice(start, start + _ROWS) for start in range(0, len(left), _ROWS))
    total = np.zeros((left.shape[1], right.shape[1]), dtype=np.int64)
    for block in blocks:
        total += (left[block].T @ right[block]).astype(np.int64)
    return total


def product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``left' right`` of matrices (n, p), (n, q): in float64, or exact where both are integers of at most 2^BITS."""
    if left.dtype.kind == "f":
        return np.asarray(left.T @ right)
    return exact_product(left.astype(np.float64), right.astype(np.float64))
