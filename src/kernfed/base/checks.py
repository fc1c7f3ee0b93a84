"""Checks at the edges: shapes, ranges, finiteness, each with one message form.

Every message says what was expected, what came and, where it is not obvious, what to do. Code behind the
edge trusts its input.
"""

from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]


def check_rows(
    values: npt.ArrayLike, name: str = "X", *, width: int | None = None, min_rows: int = 1, columns: Sequence[str] = ()
) -> FloatArray:
    """Real finite matrix, one row per sample. Floating input is returned as it is, other numbers as float64.

    A table must have the ``columns`` named, in their order; arrays have no names and pass.
    """
    check_column_names(values, columns, name)
    if hasattr(values, "toarray"):  # of scipy.sparse, which need not be imported for this
        raise InputError(f"{name} is sparse; use {name.split()[0]}.toarray()")
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name} must hold real numbers, got dtype {array.dtype}") from None
    if array.ndim != 2:
        hint = "; a single sample is X.reshape(1, -1)" if array.ndim == 1 else ""
        raise InputError(f"{name} must be a matrix (rows, columns), got shape {array.shape}{hint}")
    if array.shape[0] < min_rows:
        raise InputError(f"{name} must have at least {min_rows} row(s), got {array.shape[0]}")
    if array.shape[1] < 1:
        raise InputError(f"{name} must have at least 1 column, got shape {array.shape}")
    if width is not None and array.shape[1] != width:
        raise InputError(f"{name} must have {width} columns as at training, got {array.shape[1]}")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    check_finite(array, name)
    return array


def column_names(values: Any) -> tuple[str, ...]:
    """Names of a table's columns (pandas, polars, Arrow) as text; () of an array, and of columns numbered 0, 1, ..."""
    kind = type(values)  # asked of the type, for a table's own columns may be called anything
    attribute = "column_names" if hasattr(kind, "column_names") else "columns"
    names = list(getattr(values, attribute)) if hasattr(kind, attribute) else []
    return () if names == list(range(len(names))) else tuple(map(str, names))


def check_column_names(values: Any, known: Sequence[str], name: str = "X") -> None:
    """Refuse a table whose columns are not the ``known`` ones in their order; what has no names passes."""
    given = column_names(values)
    numbers = tuple(map(str, range(len(given))))
    if not known and sorted(given) == sorted(numbers):  # numbered at first, and put in another order
        known = numbers
    if given and known and given != tuple(known):
        listed = ", ".join(map(repr, known[:5])) + (", ..." if len(known) > 5 else "")
        raise InputError(
            f"{name} must have the {len(known)} columns {listed} in this order, and "
            f"{name_differences(given, known)}; choose them by name, as X[list(model.feature_names_in_)] does "
            "where there is a model"
        )


def name_differences(given: Sequence[str], known: Sequence[str]) -> str:
    """In which way names of columns differ from the known ones, in words."""
    if not given or not known:
        return "has no names" if known else "has names"
    if sorted(given) == sorted(known):
        place = next(i for i, (one, other) in enumerate(zip(given, known, strict=True)) if one != other)
        return f"has them in another order: column {place} is {given[place]!r} and not {known[place]!r}"
    had, wanted = set(given), set(known)
    missing, strange = [n for n in known if n not in had], [n for n in given if n not in wanted]
    differences = [
        f"{verb} {', '.join(map(repr, names[:5]))}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for verb, names in (("lacks", missing), ("has unknown", strange))
        if names
    ]
    return " and ".join(differences) or "names some columns twice"


def check_finite(array: FloatArray, name: str) -> None:
    """Refuse NaN and infinity, and say where the first one is."""
    with np.errstate(over="ignore", invalid="ignore"):  # the sum only decides whether to look closer
        total = array.sum()
    if not np.isfinite(total) and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{name} must be finite, got {array[place]} at index {place}; impute or drop such rows")


def check_number(
    value: Any,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """A finite real number inside the stated bounds, as float."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    except OverflowError:  # a whole number of more than 308 digits
        number = np.inf
    if not np.isfinite(number):
        raise InputError(f"{name} must be a finite number, got {value!r:.60}")
    _check_bounds(number, value, name, above=above, at_least=at_least, below=below, at_most=at_most)
    return number


def check_confidence(confidence: Any) -> float:
    """A probability between 0 and 1, and neither."""
    return check_number(confidence, "confidence", above=0, below=1)


def check_vector(values: npt.ArrayLike, name: str, *, at_most: float | None = None) -> FloatArray:
    """Finite numbers (n,) of at least 0, and of no more than ``at_most`` where that is given."""
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be a vector of at least one number, got shape {array.shape}")
    vector: FloatArray = check_rows(array[None], name)[0]
    for extreme in (float(vector.min()), float(vector.max())):
        check_number(extreme, name, at_least=0, at_most=at_most)
    return vector


def check_count(value: Any, name: str, *, at_least: int = 1, at_most: int | None = None) -> int:
    """An integer of at least ``at_least``, as int."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise InputError(f"{name} must be an integer, got {value!r}")
    _check_bounds(int(value), value, name, at_least=at_least, at_most=at_most)
    return int(value)


def check_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """One of a fixed set of words."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def _check_bounds(
    number: float,
    shown: Any,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    rules = (
        (above, ">", number.__gt__),
        (at_least, ">=", number.__ge__),
        (below, "<", number.__lt__),
        (at_most, "<=", number.__le__),
    )
    for bound, sign, holds in rules:
        if bound is not None and not holds(bound):
            raise InputError(f"{name} must be {sign} {bound}, got {shown!r}")
