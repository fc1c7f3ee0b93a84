"""Rows in bounded memory: fixed blocks, two working precisions and a mean that survives a large offset."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_rows
from kernfed.errors import InputError

Float64Array = npt.NDArray[np.float64]
FeatureMap = Callable[[FloatArray], FloatArray]

BLOCK_ROWS = 4096


def row_blocks(n: int, block_rows: int = BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of at most ``block_rows`` that cover ``range(n)``; no rows give one empty slice.

    >>> list(row_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = check_count(block_rows, "block_rows")
    return (slice(start, min(start + step, n)) for start in range(0, max(n, 1), step))


def working_rows(values: npt.ArrayLike, name: str = "X", *, width: int | None = None, min_rows: int = 0) -> FloatArray:
    """Checked rows (n, p): float32 stays float32, every other number becomes float64."""
    rows = check_rows(values, name, width=width, min_rows=min_rows)
    return rows if rows.dtype == np.float32 else rows.astype(np.float64, copy=False)


def working_vector(values: Any, name: str, *, length: int) -> Float64Array:
    """Checked vector (length,) of finite numbers in float64."""
    array = np.asarray(values)
    if array.shape != (length,):
        raise InputError(f"{name} must be a vector of length {length}, got shape {array.shape}")
    # An empty vector has no column for check_rows to look at, and nothing that could be wrong.
    return check_rows(array[:, None], name)[:, 0].astype(np.float64) if length else np.zeros(0)


def feature_rows(rows: FloatArray, features: FeatureMap | None) -> FloatArray:
    """Features (b, M) of checked rows (b, p), or the rows themselves without a map."""
    if features is None:
        return rows
    mapped = working_rows(features(rows), "features(X)")
    if len(mapped) != len(rows):
        raise InputError(f"features must return a row for each of the {len(rows)} given, got {len(mapped)}")
    return mapped


def plain_scalar(value: Any) -> Any:
    """A scalar as Python has it from an array of one entry, as messages hold it; anything else unchanged."""
    array = np.asarray(value)
    return array.item() if array.size == 1 else value


def stable_mean(rows: FloatArray) -> Float64Array:
    """Column means (p,) of ``rows`` (n, p) in float64, zero for no rows.

    The mean of the residuals is added: a plain sum over 1e6 rows at offset 1e6 is wrong in the digits that
    centring needs, and identical rows must have exactly themselves as mean.
    """
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    mean = rows.mean(axis=0, dtype=np.float64)
    correction: Float64Array = (rows - mean).mean(axis=0)
    return np.asarray(mean + correction, dtype=np.float64)
