"""Histograms over bins that are fixed beforehand for every column, so that those of sites can be added.

A bin is a sign, a power of two and one of 32 equal parts of the octave above it: bounds are 1.6 to 3.1 % apart whatever
the unit, and no bin says a value more exactly than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.data.columns import LARGEST

PARTS = 32
#: Values below 2^-40 in size are zero.
_SMALLEST = -40
#: The largest number of a bin: that of the largest value.
LAST_BIN = 1 + PARTS * (int(np.ceil(np.log2(LARGEST))) - _SMALLEST)


def bins_of(values: FloatArray) -> npt.NDArray[np.int64]:
    """Bin of each value: 0 for zero, otherwise its sign times ``1 + 32 (exponent + 40) + part``."""
    fraction, exponent = np.frexp(np.abs(values))
    part = np.minimum((fraction - 0.5) * 2 * PARTS, PARTS - 1).astype(np.int64)
    number = 1 + PARTS * (exponent.astype(np.int64) - 1 - _SMALLEST) + part
    return np.where(number < 1, 0, number) * np.sign(values).astype(np.int64)


def bin_bounds(bins: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest value (m,) of bins (m,)."""
    octave, part = np.divmod(np.abs(bins) - 1, PARTS)
    near = np.ldexp(1 + part / PARTS, octave + _SMALLEST)
    far = np.ldexp(1 + (part + 1) / PARTS, octave + _SMALLEST)
    low, high = np.where(bins < 0, -far, near), np.where(bins < 0, -near, far)
    return np.where(bins == 0, 0.0, low), np.where(bins == 0, 0.0, high)


@dataclass(frozen=True)
class Histogram:
    """How many values each bin has; bins without any are left out."""

    counts: Mapping[int, int]

    @classmethod
    def of(cls, values: FloatArray) -> "Histogram":
        """Histogram of finite values (n,)."""
        bins, counts = np.unique(bins_of(values), return_counts=True)
        return cls(dict(zip(bins.tolist(), counts.tolist(), strict=True)))

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = dict(self.counts)
        for number, count in other.counts.items():
            counts[number] = counts.get(number, 0) + count
        return Histogram(dict(sorted(counts.items())))

    @property
    def total(self) -> int:
        """Values in all bins."""
        return sum(self.counts.values())

    def middles(self) -> tuple[FloatArray, FloatArray]:
        """Middle and count (m,) of each bin, in order."""
        bins = np.array(sorted(self.counts), dtype=np.int64)
        low, high = bin_bounds(bins)
        return (low + high) / 2, np.array([self.counts[number] for number in bins.tolist()], dtype=np.float64)

    def quantile(self, share: float) -> float:
        """Value below which this share lies: straight between the bounds of a bin; NaN where there are no values."""
        if not self.counts:
            return float("nan")
        bins = np.array(sorted(self.counts), dtype=np.int64)
        low, high = bin_bounds(bins)
        counts = np.array([self.counts[number] for number in bins.tolist()], dtype=np.float64)
        ends = np.cumsum(counts)
        place = int(np.searchsorted(ends, share * ends[-1]))
        place = min(place, len(bins) - 1)
        inside = (share * ends[-1] - (ends[place] - counts[place])) / counts[place]
        return float(low[place] + min(max(inside, 0.0), 1.0) * (high[place] - low[place]))

    def bins_between(self, low: float, high: float) -> int:
        """Bins with values whose middle lies between two values."""
        middles, _ = self.middles()
        return int(((middles >= low) & (middles <= high)).sum())
