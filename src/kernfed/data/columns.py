"""Raw tables, every column with its kind: from files, data frames, Arrow tables and mappings of columns.

A column can be read as another kind than it is stored as (the words of a CSV file as numbers), for sites must agree on
the kind and not on the file. Reading never fails on a cell: what is none of the wanted kind counts as missing, so that
nothing a site says depends on one.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_rows
from kernfed.data.table import NUMBER, Wanted, select_columns, unreadable
from kernfed.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

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
            problem = "columns of different lengths" if lengths else "no column to learn from"
            raise DataError(f"{self.source}: expected columns of one length, got {problem}")

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


#: Files that have columns of their own kinds; npz and npy hold matrices.
RAW_SUFFIXES = (".csv", ".parquet", ".pq", ".arrow", ".feather", ".ipc")


def read_raw_table(
    path: str | os.PathLike[str],
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    site: str | None = None,
    ids: str | None = None,
    persons: str | None = None,
) -> RawTable:
    """All columns of a CSV, Parquet or Arrow file without another role, or those that ``features`` names.

    Missing values are allowed but for labels, sites, ids and persons; row numbers that programs wrote are left out.
    """
    import pyarrow as pa

    from kernfed.data.arrow import pandas_index

    path = Path(path)
    wanted = Wanted(features, label, site, ids, persons)
    try:
        table = read_arrow(path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file") from None
        raise unreadable(path, path.suffix.lstrip(".").upper(), error) from None
    if not table.num_rows:
        raise DataError(f"{path}: the table has no rows")
    # As numbers all of them, for the choice of columns: here every kind is one to learn from.
    index = pandas_index(table.schema)
    kinds = ["index" if name in index else NUMBER for name in table.column_names]
    roles = select_columns(path, table.column_names, kinds, wanted)
    columns = {name: _column(path, name, table.column(name)) for name in roles.features}
    described: dict[str, Any] = {
        role: None if name is None else _described(path, name, table.column(name), path.suffix.lower() == ".csv")
        for role, name in (("y", label), ("site", site), ("ids", ids), ("persons", persons))
    }
    for role in ("site", "persons"):
        if described[role] is not None:
            described[role] = described[role].astype(np.str_)
    return RawTable(columns, label=label, source=str(path), **described)


def raw_table(values: Any, *, source: str = "the table", **described: npt.ArrayLike | None) -> RawTable:
    """Raw table of a data frame (pandas, polars), an Arrow table, or a mapping ``{column: values (n,) or (n, w)}``.

    ``described`` are y, ids, site and persons (n,), as arrays.
    """
    if isinstance(values, RawTable):
        return values
    import pyarrow as pa

    known: dict[str, Any] = {name: None if given is None else np.asarray(given) for name, given in described.items()}
    if isinstance(values, Mapping):
        columns = {str(name): _of_values(source, str(name), cells) for name, cells in values.items()}
        return RawTable(columns, source=source, **known)
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    elif not isinstance(values, pa.Table):
        if not hasattr(values, "columns"):
            raise DataError(f"{source}: expected a data frame, an Arrow table or columns by name, got {type(values)}")
        values = pa.Table.from_pandas(values, preserve_index=False)
    columns = {name: _column(Path(source), name, values.column(name)) for name in values.column_names}
    return RawTable(columns, source=source, **known)


def is_table(values: Any) -> bool:
    """Whether rows are a table of columns with names and kinds, and no array of numbers."""
    if isinstance(values, (RawTable, Mapping)):
        return True
    return not isinstance(values, np.ndarray) and (hasattr(type(values), "columns") or hasattr(values, "column_names"))


def read_arrow(path: Path) -> "pa.Table":
    """The file as an Arrow table; every column of a CSV file as text."""
    import pyarrow as pa

    suffix = path.suffix.lower()
    if suffix == ".csv":
        import pyarrow.csv

        from kernfed.data.delimited import read_text_columns

        return read_text_columns(path)
    if suffix in (".parquet", ".pq"):
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path)
    if suffix not in RAW_SUFFIXES:
        raise DataError(f"{path}: expected one of {', '.join(RAW_SUFFIXES)}, got suffix {path.suffix!r}")
    with pa.memory_map(str(path)) as mapped:
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped).read_all()
        table.validate(full=True)  # offsets that point outside of the file must not be followed
        return table.combine_chunks() if table.num_rows else table


def _column(path: Path, name: str, column: "pa.ChunkedArray") -> RawColumn:
    """One column of an Arrow table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t, kind = pa.types, column.type
    order: tuple[str, ...] = ()
    if t.is_dictionary(kind):
        if kind.ordered and column.num_chunks:
            order = tuple(str(word) for word in column.chunk(0).dictionary.to_pylist())
        column, kind = column.cast(kind.value_type), kind.value_type
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _lists(path, name, column)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_null(kind):
        return text_column(name, column.to_pylist(), order)
    if t.is_boolean(kind):
        return RawColumn(name, "boolean", _floats(column.cast(pa.int8())))
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return RawColumn(name, "number", _floats(column.cast(pa.float64(), safe=False)))
    if t.is_date(kind) or t.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return RawColumn(name, "time", _floats(pc.divide(moments.cast(pa.float64(), safe=False), 86_400e6)))
    return RawColumn(name, "other", np.full(len(column), np.nan))


def _lists(path: Path, name: str, column: "pa.ChunkedArray") -> RawColumn:
    """A column of lists of numbers, all of one length and none missing: embeddings."""
    from kernfed.data.arrow import list_column

    return RawColumn(name, "list", check_rows(list_column(path, name, column), f"{path}: column {name!r}"))


def _floats(column: "pa.ChunkedArray") -> npt.NDArray[np.float64]:
    """Values (n,) as float64; missing ones, and infinity, as NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    filled = pc.fill_null(column.cast(pa.float64()), float("nan"))
    parts = [np.frombuffer(c.buffers()[1], "=f8", len(c), c.offset * 8) for c in filled.chunks if len(c)]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return np.where(np.isfinite(values), values, np.nan)


def _of_values(source: str, name: str, cells: Any) -> RawColumn:
    """A column from an array or a list of cells."""
    array = np.asarray(cells)
    if array.ndim == 2:
        return RawColumn(name, "list", check_rows(array, f"{source}: column {name!r}").astype(np.float64))
    if array.ndim != 1:
        raise DataError(f"{source}: column {name!r} must have one value per row, got shape {array.shape}")
    if array.dtype.kind == "b":
        return RawColumn(name, "boolean", array.astype(np.float64))
    if array.dtype.kind in "iuf":
        values = array.astype(np.float64)
        return RawColumn(name, "number", np.where(np.isfinite(values), values, np.nan))
    if array.dtype.kind == "M":
        moments = array.astype("datetime64[us]")
        days = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 86_400e6)
        return RawColumn(name, "time", days)
    return text_column(name, array.tolist())


def _described(path: Path, name: str, column: "pa.ChunkedArray", untyped: bool) -> npt.NDArray[Any]:
    """Labels, sites, ids or persons (n,), none of which may be missing."""
    from kernfed.data.arrow import described_column

    return described_column(path, name, column, untyped=untyped)
