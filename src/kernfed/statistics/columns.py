"""What a preparation needs to know of columns of numbers: counts, sums, squares and histograms over public bins."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count
from kernfed.data.columns import LARGEST
from kernfed.data.preparation_statistics import LAST_BIN, Histogram, bins_of
from kernfed.statistics.bounds import Floats, check_scale
from kernfed.statistics.statistic import MOST_CLASSES, Numbers, Part, Statistic, cell_counts


@dataclass(frozen=True, eq=False)
class ColumnTotals:
    """Of each column (p,): values that are there, their mean, and their mean square."""

    present: Floats
    mean: Floats
    square: Floats


@dataclass(frozen=True)
class ColumnMoments(Statistic[ColumnTotals]):
    """Counts, sums and squares of the values of each column; NaN is a value that is missing.

    width : columns p. largest : absolute value to which all are cut.
    """

    name: ClassVar[str] = "column_moments"

    width: int
    largest: float = LARGEST

    def __post_init__(self) -> None:
        check_count(self.width, "width", at_most=MOST_CLASSES)
        check_scale(self.largest, "largest")

    @property
    def parts(self) -> Mapping[str, Part]:
        """``present``, ``sums`` and ``squares`` (p,), values in units of the largest."""
        length = math.sqrt(self.width)
        return {
            "present": Part((self.width,), length, length, 1 / 3, 0),
            "sums": Part((self.width,), 2 * length, length, 1 / 3),
            "squares": Part((self.width,), length, length, 1 / 3, 2),
        }

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Whether each value is there (n, p), and the value over the largest, 0 where it is not."""
        values = np.asarray(X, dtype=np.float64).reshape(len(X), self.width)
        there = ~np.isnan(values)
        units = np.clip(np.where(there, values, 0.0) / self.largest, -1.0, 1.0)
        return there.astype(np.int64), units

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Sums (p,) over rows of what is there, of values and of their squares."""
        there, units = factors
        return {"present": there.sum(axis=0), "sums": units.sum(axis=0), "squares": (units * units).sum(axis=0)}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> ColumnTotals:
        """Means over the values that are there; 0 where there is none."""
        count = np.maximum(sums["present"], 1.0)
        mean = self.largest * sums["sums"] / count
        return ColumnTotals(sums["present"], mean, self.largest**2 * sums["squares"] / count)


@dataclass(frozen=True)
class ColumnHistogram(Statistic[tuple[Histogram, ...]]):
    """Values of each column by bin: those of ``data.preparation_histogram``, 32 in an octave.

    width : columns p. Missing values are in no bin; values beyond the largest are in its bin.
    """

    name: ClassVar[str] = "column_histogram"

    width: int

    def __post_init__(self) -> None:
        check_count(self.width, "width", at_most=MOST_CLASSES)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``bins`` (p, 2 LAST_BIN + 1), the middle one for 0: a row has one cell of each column."""
        length = math.sqrt(self.width)
        return {"bins": Part((self.width, 2 * LAST_BIN + 1), math.sqrt(2.0) * length, length, 1.0, 0)}

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Bins (n, p) from 0 to 2 LAST_BIN, and one more for a value that is missing."""
        values = np.asarray(X, dtype=np.float64).reshape(len(X), self.width)
        bins = bins_of(np.clip(np.where(np.isnan(values), 0.0, values), -LARGEST, LARGEST))
        return (np.where(np.isnan(values), 2 * LAST_BIN + 1, np.clip(bins, -LAST_BIN, LAST_BIN) + LAST_BIN),)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Values (p, 2 LAST_BIN + 1) in each bin, without those that are missing."""
        columns = np.broadcast_to(np.arange(self.width), factors[0].shape)
        return {"bins": cell_counts((self.width, 2 * LAST_BIN + 2), columns.ravel(), factors[0].ravel())[:, :-1]}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> tuple[Histogram, ...]:
        """A histogram of each column, noisy counts rounded, those below 1 left out."""
        counts = np.rint(sums["bins"]).astype(np.int64)
        return tuple(
            Histogram({int(bin) - LAST_BIN: int(line[bin]) for bin in np.flatnonzero(line > 0)}) for line in counts
        )
