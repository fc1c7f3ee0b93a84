"""Limits of what mechanisms take: public parameters inside a sane range, rows brought into it before anything else.

A question chooses the parameters, so one that makes a sum overflow or a cosine undefined for *some* rows would tell
which rows these are. Parameters are therefore bounded where a mechanism is made, and rows are cut to a public range
before any transform: after that nothing a row holds can raise, warn or become infinite.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number, check_rows
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy.noise import Floats

#: Radii, bounds, bandwidths and the like: products of a few of them stay far inside float64.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
#: Values of rows beyond this are cut to it. It is far outside every ball and box that a mechanism clips to.
LARGEST_VALUE = 1e100
#: More features, coordinates or columns than this are a mistake or a trap.
MOST_NUMBERS = 1 << 20
#: Seeds of public draws fit a word.
LARGEST_SEED = (1 << 64) - 1
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
    """Rows (n, p) in float64, values beyond ``LARGEST_VALUE`` cut to it: what every transform of raw rows begins with.

    >>> saturate(np.array([[1e300, -2.0]])).tolist()
    [[1e+100, -2.0]]
    """
    wide = rows if rows.dtype.itemsize >= 8 else rows.astype(np.float64)
    return np.clip(wide, -LARGEST_VALUE, LARGEST_VALUE).astype(np.float64, copy=False)


def in_basis(rows: FloatArray, basis: FloatArray) -> Floats:
    """Rows (n, p) in a public basis (p, k): finite whatever the rows are."""
    return np.asarray(saturate(rows) @ basis)
