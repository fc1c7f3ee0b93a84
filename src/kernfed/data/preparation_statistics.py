"""What is counted of a raw table so that sites can agree on a preparation: sums of counts, and no row.

Everything is additive but the width of lists: statistics of two sites, added, are those of their rows together. Words
that fewer rows than ``min_rows`` share are only counted, never named.

Histograms are over bins that are fixed beforehand for every column, so that those of sites can be added. A bin is a
sign, a power of two and one of 32 equal parts of the octave above it: bounds are 1.6 to 3.1 % apart whatever the unit,
and no bin says a value more exactly than that.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count
from kernfed.data.columns import LARGEST, RawColumn, RawTable
from kernfed.errors import InputError

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


#: Rows that must share a word before a site names it, unless its policy says otherwise.
MIN_ROWS = 5
#: Words of a column that a site names at most, those of most rows; and characters of a word.
MOST_WORDS, LONGEST_WORD = 200, 60
#: Columns, and characters of all words, that statistics may have: they travel in the head of a message.
MOST_COLUMNS, _MOST_CHARACTERS = 5000, 400_000
#: Rows from which it is no accident that every value is another one.
_ENOUGH_ROWS = 20
_MOST_ROWS = 2**40


@dataclass(frozen=True)
class ColumnStatistics:
    """Counts of rows of one column, and sums over those that are numbers or times.

    missing : without a value. numbers, times : that can be read as one; timed : times with a time of day; whole :
    whole numbers; flags : 0, 1, true, false, yes, no; words : neither number nor time. different : at sites
    where every value is another one; counting : at sites where whole numbers leave no gap, as those of rows do. rare :
    whose word is not named. characters : of all words. total, square : sum and sum of squares of the numbers;
    days, days_square : the same of times. width : of lists, 0 for none.
    """

    rows: int
    missing: int = 0
    numbers: int = 0
    times: int = 0
    timed: int = 0
    whole: int = 0
    flags: int = 0
    words: int = 0
    different: int = 0
    counting: int = 0
    rare: int = 0
    characters: int = 0
    total: float = 0.0
    square: float = 0.0
    days: float = 0.0
    days_square: float = 0.0
    width: int = 0
    histogram: Histogram = field(default_factory=lambda: Histogram({}))
    named: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.rows - self.missing

    def __add__(self, other: "ColumnStatistics") -> "ColumnStatistics":
        sums = {name: getattr(self, name) + getattr(other, name) for name in (*COUNTS, *SUMS, "histogram")}
        named = {word: self.named.get(word, 0) + other.named.get(word, 0) for word in {*self.named, *other.named}}
        width = self.width if self.width == other.width else -1  # lists of different lengths: no column at all
        return ColumnStatistics(**sums, width=width, named=dict(sorted(named.items())), order=self.order or other.order)


#: Names of the counts and of the sums, in the order in which they travel.
COUNTS = tuple(entry.name for entry in fields(ColumnStatistics) if entry.type is int and entry.name != "width")
SUMS = tuple(entry.name for entry in fields(ColumnStatistics) if entry.type is float)


@dataclass(frozen=True)
class TableStatistics:
    """Statistics by column, in the order of the table; ``partial`` are columns that not all sites have."""

    columns: Mapping[str, ColumnStatistics]
    partial: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: RawTable, *, min_rows: int = MIN_ROWS, categories: Collection[str] = ()) -> "TableStatistics":
        """Statistics of a raw table; of columns among ``categories`` words are counted also where all are numbers."""
        declared = frozenset(categories)
        return cls({column.name: _statistics(column, min_rows, column.name in declared) for column in table})

    @property
    def rows(self) -> int:
        """Rows that were counted."""
        return max((column.rows for column in self.columns.values()), default=0)

    def __add__(self, other: "TableStatistics") -> "TableStatistics":
        both = {name: col + other.columns[name] for name, col in self.columns.items() if name in other.columns}
        one = [name for name in (*self.columns, *other.columns) if name not in both]
        return TableStatistics(both, tuple(dict.fromkeys([*self.partial, *other.partial, *one])))

    def to_message(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values; ``from_message`` makes them statistics again."""
        every = list(self.columns.values())
        bins = [(place, *pair) for place, col in enumerate(every) for pair in col.histogram.counts.items()]
        arrays = {
            "counts": np.array([[getattr(col, name) for name in COUNTS] for col in every], dtype=np.int64),
            "sums": np.array([[getattr(col, name) for name in SUMS] for col in every], dtype=np.float64),
            "bins": np.array(bins, dtype=np.int64).reshape(-1, 3),
        }
        values = {
            "columns": list(self.columns),
            "widths": [col.width for col in every],
            "words": {name: dict(col.named) for name, col in self.columns.items() if col.named},
            "orders": {name: list(col.order) for name, col in self.columns.items() if col.order},
        }
        return arrays, values

    @classmethod
    def from_message(cls, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> "TableStatistics":
        """Statistics that somebody sent; those that no rows can have are refused."""
        names, widths = values["columns"], values["widths"]
        if not isinstance(names, list) or not 0 < len(names) <= MOST_COLUMNS or len(set(map(str, names))) != len(names):
            raise InputError(f"statistics must be of 1 to {MOST_COLUMNS:,} columns, each once")
        counts, sums, bins = (arrays[name] for name in ("counts", "sums", "bins"))
        expected = {"counts": (len(names), len(COUNTS)), "sums": (len(names), len(SUMS)), "bins": (len(bins), 3)}
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise InputError(f"{name} must have shape {shape}, got {arrays[name].shape}")
        if counts.dtype != np.int64 or bins.dtype != np.int64 or not np.isfinite(sums.astype(np.float64)).all():
            raise InputError("counts must be integers, and sums finite")
        histograms: list[dict[int, int]] = [{} for _ in names]
        for place, number, count in bins.tolist():
            if not 0 <= place < len(names) or abs(number) > LAST_BIN or count < 1:
                raise InputError("a bin must be one of a column, and have values")
            histograms[place][number] = count
        words, orders = values["words"], values["orders"]
        columns = {
            str(name): replace(
                ColumnStatistics(**dict(zip(COUNTS, counts[place].tolist(), strict=True))),
                **dict(zip(SUMS, sums[place].tolist(), strict=True)),
                width=check_count(widths[place], "width", at_least=0),
                histogram=Histogram(histograms[place]),
                named=_read_words(words.get(name, {})),
                order=tuple(map(str, orders.get(name, ()))),
            )
            for place, name in enumerate(names)
        }
        for name, col in columns.items():
            _check(name, col)
        return cls(columns)


def _statistics(column: RawColumn, min_rows: int, declared: bool) -> ColumnStatistics:
    """Statistics of one column; ``declared`` is whether the asker takes it as a category."""
    rows = len(column)
    if column.stored == "list":
        return ColumnStatistics(rows, width=int(column.values.shape[1]))
    numbers, days = column.numbers, column.days
    is_number, is_time, present = np.isfinite(numbers), np.isfinite(days), int((~column.missing).sum())
    number, day = numbers[is_number], days[is_time]
    distinct = len(column.words) if column.stored == "text" else len(np.unique(column.values[~column.missing]))
    # A column of numbers or times is one of words, too, only where it has few of them, or where somebody says so.
    worded = declared or distinct <= _ENOUGH_ROWS or not (is_number.any() or is_time.any())
    codes, words = column.named if worded or column.stored == "text" else (np.full(rows, -1, dtype=np.int64), ())
    named = _named_words(codes, words, min_rows) if worded or not is_number.all() else {}
    different = present >= _ENOUGH_ROWS and distinct == present
    whole = int((number == np.rint(number)).sum())
    counting = different and whole == present and number.max() - number.min() == present - 1
    in_words = (codes >= 0) & ~is_number & ~is_time
    lengths = np.array([*map(len, words), 0])
    return ColumnStatistics(
        rows,
        missing=rows - present,
        numbers=len(number),
        times=len(day),
        timed=int((day != np.floor(day)).sum()),
        whole=whole,
        flags=int(np.isfinite(column.flags).sum()),
        words=int(in_words.sum()),
        different=rows if different else 0,
        counting=rows if counting else 0,
        rare=present - sum(named.values()),
        characters=int(lengths[codes[in_words]].sum()),
        total=float(number.sum()),
        square=float((number**2).sum()),
        days=float(day.sum()),
        days_square=float((day**2).sum()),
        histogram=Histogram.of(number),
        named=named,
        order=column.order,
    )


def _named_words(codes: npt.NDArray[np.int64], words: tuple[str, ...], min_rows: int) -> dict[str, int]:
    """Words that enough rows share, with their rows: those of most rows."""
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    enough = [
        place
        for place in np.argsort(-counts, kind="stable").tolist()
        if counts[place] >= min_rows and len(words[place]) <= LONGEST_WORD
    ]
    return {words[place]: int(counts[place]) for place in sorted(enough[:MOST_WORDS])}


def _read_words(words: Any) -> dict[str, int]:
    if not isinstance(words, dict) or len(words) > MOST_WORDS:
        raise InputError(f"a column may have {MOST_WORDS} words with their rows")
    if any(not isinstance(word, str) or len(word) > LONGEST_WORD for word in words):
        raise InputError(f"a word must have at most {LONGEST_WORD} characters")
    return {word: check_count(count, "rows of a word", at_most=_MOST_ROWS) for word, count in words.items()}


def _check(name: str, col: ColumnStatistics) -> None:
    """Refuse statistics of a column that no rows can have."""
    if any(getattr(col, count) < 0 for count in COUNTS) or not 1 <= col.rows <= _MOST_ROWS:
        raise InputError(f"column {name!r:.60}: counts must be at least 0, and rows at least 1")
    if col.numbers + col.times + col.words > col.present or col.whole > col.numbers or col.timed > col.times:
        raise InputError(f"column {name!r:.60}: parts must not be more than the whole")
    if col.histogram.total != col.numbers or sum(col.named.values()) + col.rare > col.present:
        raise InputError(f"column {name!r:.60}: counts of values must be those of its rows")
    bins = np.array(sorted(col.histogram.counts), dtype=np.int64)
    counts = np.array([col.histogram.counts[number] for number in bins.tolist()], dtype=np.float64)
    low, high = bin_bounds(bins)
    slack = 1e-6 * float(np.abs(counts * high).sum() + np.abs(counts * low).sum()) + 1e-6
    if not (counts * low).sum() - slack <= col.total <= (counts * high).sum() + slack:
        raise InputError(f"column {name!r:.60}: the sum of the numbers must be one of their histogram")
    if col.total**2 > col.numbers * col.square * (1 + 1e-6) + 1e-6 or col.days**2 > (
        col.times * col.days_square * (1 + 1e-6) + 1e-6
    ):
        raise InputError(f"column {name!r:.60}: no numbers have these sums and squares")


def check_size(statistics: TableStatistics) -> None:
    """Refuse statistics that are too large to travel."""
    characters = sum(len(word) for col in statistics.columns.values() for word in col.named)
    if len(statistics.columns) > MOST_COLUMNS or characters > _MOST_CHARACTERS:
        raise InputError(
            f"the table has {len(statistics.columns):,} columns with {characters:,} characters of words, at most "
            f"{MOST_COLUMNS:,} and {_MOST_CHARACTERS:,} travel; name fewer columns with features"
        )
