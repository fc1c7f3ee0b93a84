"""Columns as a file or a data frame has them, before anything is made of them: numbers, flags, times, words, lists.

A column can be read as another kind than it is stored as (the words of a CSV file as numbers), for sites must agree on
the kind and not on the file. Reading never fails on a cell: what is none of the wanted kind counts as missing, so that
nothing a site says depends on one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import DataError

#: How a column is stored.
STORED = ("number", "boolean", "time", "text", "list", "other")
#: Words that stand for a missing value, in lower case and without blanks around.
MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "nat", "?", "-", ".", "missing"})
#: Words of a flag, in lower case.
TRUE_WORDS, FALSE_WORDS = frozenset({"true", "yes", "y", "t"}), frozenset({"false", "no", "n", "f"})
#: Larger numbers are no measurements; their squares could not be added up.
LARGEST = 1e100
#: Microseconds from 1970 that 64 bits hold, as the nearest float.
_LAST_MOMENT = 2.0**63 - 1024
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_CLOCK = r"([ T](?P<clock>\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?)(Z|[+-]00:?00)?)?"
_TIMES = (
    re.compile(r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})" + _CLOCK),
    re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})" + _CLOCK),
)


@dataclass(frozen=True, eq=False)
class RawColumn:
    """One column of n rows.

    values : numbers, flags (0, 1) and times (days since 1970) as float64 (n,) with NaN where missing; of text the place
    of each row's word among ``words`` (n,), -1 where missing; of lists (n, w). ``words`` are distinct and sorted.
    ``order`` are the words in the order that the file declares for them, where it does.
    """

    name: str
    stored: str
    values: npt.NDArray[Any]
    words: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: npt.NDArray[Any] | slice) -> "RawColumn":
        """The column of the chosen rows, without the words that are gone with the others."""
        values = self.values[rows]
        if self.stored != "text":
            return replace(self, values=values)
        used = np.unique(values[values >= 0])
        places = np.full(len(self.words) + 1, -1, dtype=np.int64)
        places[used] = np.arange(len(used))
        return replace(self, values=places[values], words=tuple(self.words[place] for place in used))

    @cached_property
    def numbers(self) -> FloatArray:
        """The rows as numbers (n,), NaN where there is none; flags as 0 and 1."""
        if self.stored in ("number", "boolean"):
            return np.where(np.abs(self.values) <= LARGEST, self.values, np.nan)
        return self._by_word(_number)

    @cached_property
    def days(self) -> FloatArray:
        """The rows as times (n,) in days since 1970, NaN where there is none."""
        return self.values if self.stored == "time" else self._by_word(_days)

    @cached_property
    def flags(self) -> FloatArray:
        """The rows as 0 and 1 (n,), NaN where there is none."""
        if self.stored in ("number", "boolean"):
            return np.where(np.isin(self.values, (0.0, 1.0)), self.values, np.nan)
        return self._by_word(_flag)

    @cached_property
    def named(self) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """The place (n,) of each row's word, -1 where missing, and the distinct words; numbers as they are written."""
        if self.stored == "text":
            return self.values, self.words
        if self.stored in ("list", "other"):
            return np.full(len(self), -1, dtype=np.int64), ()
        present = np.isfinite(self.values)
        distinct, places = np.unique(self.values[present], return_inverse=True)
        codes = np.full(len(self), -1, dtype=np.int64)
        codes[present] = places
        return codes, tuple(_written(value, self.stored) for value in distinct.tolist())

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Which rows have no value at all, (n,)."""
        if self.stored == "list":
            return np.zeros(len(self), dtype=bool)
        return self.values < 0 if self.stored == "text" else ~np.isfinite(self.values)

    def _by_word(self, read: Callable[[str], float]) -> FloatArray:
        """Values (n,) that a function gives for each distinct word."""
        if self.stored != "text":
            return np.full(len(self), np.nan)
        known = np.array([*(read(word) for word in self.words), np.nan])
        return np.asarray(known[self.values])


@dataclass(frozen=True, eq=False)
class RawTable:
    """Columns of equal length by name, in the order of the file, and what describes the rows, where it was named.

    y, ids, site, persons (n,) : as in ``Table``. ``source`` is for messages.
    """

    columns: Mapping[str, RawColumn]
    y: npt.NDArray[Any] | None = None
    site: npt.NDArray[np.str_] | None = None
    ids: npt.NDArray[Any] | None = None
    persons: npt.NDArray[np.str_] | None = None
    label: str | None = None
    source: str = "the table"

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) != 1:
            told = "columns of different lengths" if lengths else "no column to learn from"
            raise DataError(f"{self.source}: expected columns of one length, got {told}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[RawColumn]:
        return iter(self.columns.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.columns)

    def take(self, rows: npt.NDArray[Any]) -> "RawTable":
        """The chosen rows, by mask or position."""
        y, site, ids, persons = (
            None if values is None else values[rows] for values in (self.y, self.site, self.ids, self.persons)
        )
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, y=y, site=site, ids=ids, persons=persons)

    def select(self, names: Sequence[str]) -> "RawTable":
        """These columns only, in this order; one that is missing is refused by name."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            listed = ", ".join(map(repr, absent[:5])) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
            raise DataError(
                f"{self.source}: column{'s' if len(absent) > 1 else ''} {listed} missing, needed as at training; "
                f"there are {', '.join(map(repr, self.names[:20]))}"
            )
        return replace(self, columns={name: self.columns[name] for name in names})


def text_column(name: str, cells: Sequence[Any], order: tuple[str, ...] = ()) -> RawColumn:
    """Column of words; None, NaN and words that stand for a missing value are none."""
    plain = ["" if cell is None or cell != cell else str(cell).strip() for cell in cells]
    # A dictionary and no array of text: in one every cell takes as much room as the longest.
    words = sorted(word for word in set(plain) if word.lower() not in MISSING_WORDS)
    places = {word: place for place, word in enumerate(words)}
    codes = np.fromiter((places.get(word, -1) for word in plain), dtype=np.int64, count=len(plain))
    return RawColumn(name, "text", codes, tuple(words), order)


def is_numeric_column(column: RawColumn) -> bool:
    """Whether a column is numbers, or words all of which are."""
    if column.stored == "text":
        return bool(column.words) and all(_NUMBER.fullmatch(word) for word in column.words)
    return column.stored == "number"


def _number(word: str) -> float:
    value = float(word) if _NUMBER.fullmatch(word) else np.nan
    return value if abs(value) <= LARGEST else np.nan


def _flag(word: str) -> float:
    lower = word.lower()
    if lower in TRUE_WORDS or word == "1":
        return 1.0
    return 0.0 if lower in FALSE_WORDS or word == "0" else np.nan


def _days(word: str) -> float:
    """Days since 1970 of a date as 2026-11-17, 2026/11/17 or 17.11.2026, with or without a time of day; else NaN."""
    for pattern in _TIMES:
        if parts := pattern.fullmatch(word):
            date = f"{parts['year']}-{int(parts['month']):02}-{int(parts['day']):02}"
            try:
                moment = np.datetime64(f"{date}T{parts['clock'] or '00:00'}", "us")
            except ValueError:  # the 31st of February
                return np.nan
            return float(moment.astype(np.int64) / 86_400e6)
    return np.nan


def _written(value: float, stored: str) -> str:
    """A value as a word: 3 and not 3.0, true, 2026-11-17."""
    if stored == "boolean":
        return "true" if value else "false"
    if stored == "time":
        moment = np.datetime64(round(min(max(value * 86_400_000_000, -_LAST_MOMENT), _LAST_MOMENT)), "us")
        return str(moment.astype("datetime64[D]") if value == int(value) else moment.astype("datetime64[s]"))
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
