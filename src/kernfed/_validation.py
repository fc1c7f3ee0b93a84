"""Checks at the edges: shapes, ranges, finiteness, each with one message form.

Every message says what was expected, what came and, where it is not obvious, what to do. Code behind the
edge trusts its input.
"""

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]


def check_rows(values: npt.ArrayLike, name: str = "X", *, width: int | None = None, min_rows: int = 1) -> FloatArray:
    """Real finite matrix, one row per sample. Floating input is returned as it is, other numbers as float64."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}") from None
    if array.ndim != 2:
        hint = "; a single sample is X.reshape(1, -1)" if array.ndim == 1 else ""
        raise ValueError(f"{name} must be a matrix (rows, columns), got shape {array.shape}{hint}")
    if array.shape[0] < min_rows:
        raise ValueError(f"{name} must have at least {min_rows} row(s), got {array.shape[0]}")
    if array.shape[1] < 1:
        raise ValueError(f"{name} must have at least 1 column, got shape {array.shape}")
    if width is not None and array.shape[1] != width:
        raise ValueError(f"{name} must have {width} columns as at training, got {array.shape[1]}")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    check_finite(array, name)
    return array


def check_finite(array: FloatArray, name: str) -> None:
    """Refuse NaN and infinity, and say where the first one is."""
    with np.errstate(over="ignore", invalid="ignore"):  # the sum only decides whether to look closer
        total = array.sum()
    if not np.isfinite(total) and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[place]} at index {place}; impute or drop such rows")


def check_number(value: Any, name: str, *, above: float | None = None, at_least: float | None = None,
                 below: float | None = None, at_most: float | None = None) -> float:  # fmt: skip
    """A finite real number inside the stated bounds, as float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    _check_bounds(float(value), value, name, above=above, at_least=at_least, below=below, at_most=at_most)
    return float(value)


def check_count(value: Any, name: str, *, at_least: int = 1, at_most: int | None = None) -> int:
    """An integer of at least ``at_least``, as int."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    _check_bounds(int(value), value, name, at_least=at_least, at_most=at_most)
    return int(value)


def check_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """One of a fixed set of words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def _check_bounds(number: float, shown: Any, name: str, *, above: float | None = None, at_least: float | None = None,
                  below: float | None = None, at_most: float | None = None) -> None:  # fmt: skip
    rules = ((above, ">", number.__gt__), (at_least, ">=", number.__ge__), (below, "<", number.__lt__),
             (at_most, "<=", number.__le__))  # fmt: skip
    for bound, sign, holds in rules:
        if bound is not None and not holds(bound):
            raise ValueError(f"{name} must be {sign} {bound}, got {shown!r}")


def class_numbers(y: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Place (n,) of every label among the sorted ``known`` ones; a label that is not among them is refused."""
    places = np.searchsorted(known, y)
    strange = (places == len(known)) | (known[np.minimum(places, len(known) - 1)] != y)
    if strange.any():
        raise ValueError(f"label {y[strange][0].item()!r} is not among the {len(known)} classes of this problem")
    return places
