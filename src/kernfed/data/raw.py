"""Raw tables from files, data frames, Arrow tables and mappings of columns: every column with its own kind."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_rows
from kernfed.data.columns import RawColumn, RawTable, text_column
from kernfed.data.table import NUMBER, Wanted, select_columns, unreadable
from kernfed.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

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
