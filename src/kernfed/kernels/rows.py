"""Rows in bounded memory and in one unit.

Rows in bounded memory: fixed blocks, two working precisions and a mean that survives a large offset.

Rows brought to one unit by statistics that can be added over sites.

A machine's regulariser grows with the square of the unit of its rows while its kernel does not (SFM (149)), so that
the unit is a hidden parameter of whatever looks at distances. A ``Scaling`` takes it away.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number, check_rows
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


#: What is brought to one unit: each column by itself, or all entries by one constant.
SCALES = ("columns", "entries")
#: A column whose spread is so little of its mean is constant: what is left is rounding.
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """Count ``n`` of rows, ``mean`` (p,) and ``squares`` (p,), the sum of squares around the mean, per column.

    ``a + b`` are those of both sets of rows (Chan, Golub and LeVeque 1983): columns at offset 1e6 keep their digits.
    """

    n: int
    mean: Float64Array
    squares: Float64Array

    @classmethod
    def of(cls, rows: FloatArray) -> "ColumnStatistics":
        """Statistics of rows (n, p), block by block."""
        return reduce(lambda a, b: a + b, (cls._of_block(rows[block]) for block in row_blocks(len(rows))))

    @classmethod
    def _of_block(cls, rows: FloatArray) -> "ColumnStatistics":
        with np.errstate(over="ignore", invalid="ignore"):
            mean = stable_mean(rows)
            centred = rows - mean
            squares = np.einsum("ij,ij->j", centred, centred)
        if not (np.isfinite(mean).all() and np.isfinite(squares).all()):
            raise InputError("the squares of the rows must fit float64, got an overflow; rescale the rows")
        return cls(len(rows), mean, squares)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for a message, the number of rows among them."""
        return {"mean": self.mean, "squares": self.squares, "rows": np.array([self.n], dtype=np.int64)}

    @classmethod
    def from_arrays(cls, n: Any, arrays: Mapping[str, npt.NDArray[Any]], *, width: int) -> "ColumnStatistics":
        """Statistics from a message, which are checked and refused with the reason."""
        count = check_count(n, "n")
        mean = working_vector(arrays["mean"], "mean", length=width)
        squares = working_vector(arrays["squares"], "squares", length=width)
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(mean**2 + squares).all())
        if (squares < 0).any() or not fits:
            raise InputError("squares must be >= 0 and the mean's must fit float64")
        return cls(count, mean, squares)

    def __add__(self, other: "ColumnStatistics") -> "ColumnStatistics":
        if self.n == 0 or other.n == 0:
            return self if other.n == 0 else other
        n, step = self.n + other.n, other.mean - self.mean
        between = step**2 * (self.n * other.n / n)
        return ColumnStatistics(n, self.mean + step * (other.n / n), self.squares + other.squares + between)

    @property
    def deviation(self) -> Float64Array:
        """Deviation of each column (p,); zero where what is left of it is rounding."""
        deviation = np.sqrt(self.squares / self.n)
        return np.where(deviation > _ROUNDING * np.abs(self.mean), deviation, 0.0)

    @property
    def spread(self) -> Float64Array:
        """The deviation; one where a column is constant, which centring makes zero."""
        deviation = self.deviation
        return np.where(deviation > 0, deviation, 1.0)

    @property
    def size(self) -> float:
        """Root mean square of all entries; one where all are zero."""
        return float(np.sqrt(np.mean(self.squares / self.n + self.mean**2))) or 1.0


def typical_statistics(parts: Iterable[ColumnStatistics]) -> ColumnStatistics:
    """Medians over sites of mean and mean square of each column, as if of their rows together.

    A sum is whatever one wrong site likes; the median is what most sites say.
    """
    several = list(parts)
    n = sum(part.n for part in several)
    mean = np.median([part.mean for part in several], axis=0)
    squares = np.median([part.squares / part.n for part in several], axis=0)
    return ColumnStatistics(n, mean, squares * n)


@dataclass(frozen=True)
class Scaling:
    """Rows x become ``(x - centre) * unit / spread``, and come back by ``restore``.

    ``kind`` "columns": each column to mean 0 and root mean square ``unit``; ``centre`` and ``spread`` have an entry per
    column. "entries": all entries by one constant to root mean square ``unit``, none moved; they have one entry, and
    rows may have any width.
    """

    kind: str
    unit: float
    centre: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", SCALES)
        check_number(self.unit, "unit", above=0)
        if len(self.centre) != len(self.spread) or not self.spread or (self.kind == "entries" and len(self.spread) > 1):
            raise InputError(
                f"a scaling by {self.kind} must have as many centres as spreads, one per column or one for all, got "
                f"{len(self.centre)} and {len(self.spread)}"
            )
        for value in self.centre:
            check_number(value, "centre")
        for value in self.spread:
            check_number(value, "spread", above=0)

    @classmethod
    def of(cls, statistics: ColumnStatistics, kind: str, unit: float) -> "Scaling":
        """The scaling that brings rows with these statistics to ``unit``."""
        if kind == "entries":
            return cls.by(statistics.size, unit)
        return cls(kind, float(unit), tuple(statistics.mean.tolist()), tuple(statistics.spread.tolist()))

    @classmethod
    def by(cls, size: float, unit: float) -> "Scaling":
        """One constant for all entries: ``size`` becomes ``unit``."""
        return cls("entries", float(unit), (0.0,), (float(size),))

    @cached_property
    def _arrays(self) -> tuple[Float64Array, Float64Array]:
        return np.array(self.centre), self.unit / np.array(self.spread)

    @property
    def width(self) -> int | None:
        """Columns that rows must have; None where any will do."""
        return len(self.spread) if self.kind == "columns" else None

    def apply(self, rows: FloatArray) -> Float64Array:
        """Rows (n, p) in the unit, float64. Entry by entry: no bit depends on how many rows there are."""
        centre, factor = self._arrays
        scaled: Float64Array = (rows - centre) * factor
        return scaled

    def restore(self, rows: FloatArray) -> Float64Array:
        """Rows (n, p) back in the units of the input."""
        centre, factor = self._arrays
        restored: Float64Array = rows / factor + centre
        return restored

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {"kind": self.kind, "unit": self.unit, "centre": list(self.centre), "spread": list(self.spread)}

    @classmethod
    def from_values(cls, values: Any) -> "Scaling":
        """Scaling from ``to_values``; anything else raises ``InputError``."""
        names = ("kind", "unit", "centre", "spread")
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise InputError(f"a scaling must be described by {', '.join(names)}, got {values!r:.100}")
        if not all(isinstance(values[name], list) for name in ("centre", "spread")):
            raise InputError("centre and spread of a scaling must be lists of numbers")
        return cls(values["kind"], values["unit"], tuple(values["centre"]), tuple(values["spread"]))
