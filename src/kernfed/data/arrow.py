"""Parquet and Arrow tables as streams of record batches, written straight into one array.

Only one batch is in memory beside the result, whatever the size of the file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kernfed.base.checks import FloatArray
from kernfed.base.plain import read_json
from kernfed.data.table import LONGEST_NAME, NUMBER, NUMBERS, Roles, Table, check_block, check_finite_labels, place
from kernfed.errors import DataError

_BATCH_ROWS = 4096
_PAGE_BUFFER = 1 << 16
#: Numpy's names of Arrow's numbers, by Arrow's.
_BUFFERS = {
    "halffloat": "=f2",
    "float": "=f4",
    "double": "=f8",
    **{f"{sign}int{8 * size}": f"={kind}{size}" for size in (1, 2, 4, 8) for sign, kind in (("", "i"), ("u", "u"))},
}


@dataclass(frozen=True)
class ArrowSource:
    """A table on disk, opened: columns and types are known, values are not read yet.

    ``max_rows`` bounds the number of rows from above. ``batches`` yields the columns of the roles in any
    order. ``untyped`` says that any column may be read as numbers or as text: the role decides.
    """

    path: Path
    schema: pa.Schema
    max_rows: int
    batches: Callable[[Roles], Iterator[pa.RecordBatch]]
    untyped: bool = False

    @property
    def kinds(self) -> list[str]:
        """What each column holds; row numbers that pandas announces are an ``index``."""
        index = pandas_index(self.schema)
        return ["index" if field.name in index else _kind(field.type) for field in self.schema]


@contextmanager
def open_parquet(path: Path) -> Iterator[ArrowSource]:
    """A Parquet file, decoded a few thousand rows at a time."""
    import pyarrow.parquet  # here, for the other kinds do without

    # By default whole row groups are held while they are decoded, in the worst case the file.
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BUFFER) as file:

        def batches(roles: Roles) -> Iterator[pa.RecordBatch]:
            yield from file.iter_batches(_BATCH_ROWS, columns=[*roles.features, *roles.described])

        yield ArrowSource(path, file.schema_arrow, file.metadata.num_rows, batches)


@contextmanager
def open_ipc(path: Path) -> Iterator[ArrowSource]:
    """An Arrow file (Feather version 2) or an Arrow stream, mapped into memory."""
    with pa.memory_map(str(path)) as mapped:
        is_file = mapped.read(6) == b"ARROW1"

        def stored_batches() -> Iterator[pa.RecordBatch]:
            mapped.seek(0)
            if is_file:
                reader = pa.ipc.open_file(mapped)
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from pa.ipc.open_stream(mapped)

        def batches(roles: Roles) -> Iterator[pa.RecordBatch]:
            for stored in stored_batches():
                batch = stored.select([*roles.features, *roles.described])
                # The file may come from anywhere: offsets that point outside of it must not be followed.
                batch.validate(full=True)
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS)

        mapped.seek(0)
        schema = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped).schema
        yield ArrowSource(path, schema, sum(batch.num_rows for batch in stored_batches()), batches)


def read_rows(source: ArrowSource, roles: Roles, dtype: str) -> Table:
    """All rows of an opened table, batch by batch into a matrix (n, p) that is allocated once."""
    dtype = _feature_dtype(source, roles, dtype)
    X: FloatArray | None = None
    widths: dict[str, int] = {}
    columns: list[str] = []
    described: dict[str, list[pa.Array]] = {name: [] for name in roles.described}
    row = 0
    for batch in source.batches(roles):
        if not batch.num_rows:
            continue
        if row + batch.num_rows > source.max_rows:
            raise DataError(f"{source.path}: the table holds more rows than the {source.max_rows} it announces")
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        if X is None:
            widths = {name: _width(arrays[name]) for name in roles.features}
            columns = [column for name in roles.features for column in _column_names(name, widths[name])]
            X = np.empty((source.max_rows, len(columns)), dtype)
        block, start = X[row : row + batch.num_rows], 0
        for name in (*roles.features, *roles.described):
            array = _checked_present(source.path, name, arrays[name], row)
            if name in described:
                described[name].append(_described(source.path, name, array, row))
                continue
            part = _numbers(source.path, name, array, row, widths[name])
            with np.errstate(over="ignore"):  # too large for the type becomes infinity, which is refused later
                block[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        check_block(source.path, block, row, columns)
        row += batch.num_rows
    if X is None:
        raise DataError(f"{source.path}: the table has no rows")
    values = {name: _as_numpy(source.path, name, chunks, source.untyped) for name, chunks in described.items()}
    named = (roles.label, roles.site, roles.ids, roles.persons)
    y, site, ids, persons = (None if name is None else values[name] for name in named)
    site, persons = (None if words is None else words.astype(np.str_) for words in (site, persons))
    return Table(X[:row], y, site, ids, tuple(columns), source.path, roles.label, roles.left_out, persons)


def _feature_dtype(source: ArrowSource, roles: Roles, dtype: str) -> str:
    """The type of X: for "auto" float32 where it holds every feature type exactly, otherwise float64."""
    exact = not source.untyped
    for name in () if source.untyped else roles.features:
        kind = source.schema.field(name).type
        element = _element_type(kind)
        if not _is_number(element):
            raise DataError(f"{source.path}: column {name!r} must hold numbers or lists of numbers, got {kind}")
        # Arrow's own conversion to a numpy type needs pandas in some versions.
        exact = exact and element.bit_width <= (32 if pa.types.is_floating(element) else 16)
    return dtype if dtype != "auto" else "float32" if exact else "float64"


def _width(array: pa.Array) -> int:
    """0 for a plain column, otherwise the length of the first list that there is."""
    if not _is_list(array.type):
        return 0
    lengths = pc.list_value_length(array).drop_null()
    return int(lengths[0].as_py()) if len(lengths) else 1


def _column_names(name: str, width: int) -> list[str]:
    return [f"{name}[{i}]" for i in range(width)] if width else [name]


def _numbers(path: Path, name: str, array: pa.Array, first_row: int, width: int) -> npt.NDArray[Any]:
    """Values of one feature column without gaps: (m, 1) of a plain column, (m, width) of a list column."""
    if not _is_list(array.type):
        return _plain_numbers(array).reshape(-1, 1)
    lengths = _to_numpy(pc.list_value_length(array))
    odd = lengths != width
    if odd.any() or not width:
        row = int(np.argmax(odd))
        wanted = f"{width} numbers as in row 1" if width else "at least 1 number"
        raise DataError(f"{place(path, name, first_row + row)}: expected a list of {wanted}, got {lengths[row]}")
    values = array.flatten()
    if values.null_count:
        row = _first_null(values) // width
        raise DataError(f"{place(path, name, first_row + row)}: expected {width} numbers, one is missing in the list")
    return _plain_numbers(values).reshape(-1, width)


def list_column(path: Path, name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers (n, w) of a column of lists that was read whole, all of one length and none missing."""
    if not _is_number(_element_type(column.type)):
        raise DataError(f"{path}: column {name!r} must hold lists of numbers, got {column.type}")
    width, parts, row = 0, [], 0
    for chunk in column.chunks:
        width = width or _width(chunk)
        parts.append(_numbers(path, name, _checked_present(path, name, chunk, row), row, width))
        row += len(chunk)
    return np.concatenate(parts).astype(np.float64)


def _plain_numbers(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return _to_numpy(array)


def _to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Values (m,) of numbers none of which is missing, read-only.

    Integers and floats are taken from Arrow's buffer: its own conversion imports pandas wherever that is installed,
    which takes longer than reading most tables.
    """
    kind = _BUFFERS.get(str(array.type))
    if kind is None or array.null_count or not len(array):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * np.dtype(kind).itemsize)


def _checked_present(path: Path, name: str, array: pa.Array, first_row: int) -> pa.Array:
    """The array with dictionary codes resolved; a missing value is an error."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        where = place(path, name, first_row + _first_null(array))
        raise DataError(f"{where}: the value is missing; impute or drop such rows")
    return array


def _first_null(array: pa.Array) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _described(path: Path, name: str, array: pa.Array, first_row: int) -> pa.Array:
    """One batch of labels, sites or ids, none of them missing."""
    if _is_text(array.type):
        lengths = _to_numpy(pc.utf8_length(array))
        if lengths.max() > LONGEST_NAME:
            where = place(path, name, first_row + int(np.argmax(lengths)))
            raise DataError(f"{where}: expected at most {LONGEST_NAME} characters, got {lengths.max()}")
    elif not _is_number(array.type) or pa.types.is_decimal(array.type):
        raise DataError(f"{path}: column {name!r} must hold text, numbers or booleans, got {array.type}")
    return array


def described_column(path: Path, name: str, column: pa.ChunkedArray, *, untyped: bool) -> npt.NDArray[Any]:
    """One column of labels, sites or ids (n,) that was read whole; ``untyped`` text may be numbers."""
    checked: list[pa.Array] = []
    for chunk in column.chunks:
        row = sum(map(len, checked))
        checked.append(_described(path, name, _checked_present(path, name, chunk, row), row))
    return _as_numpy(path, name, checked, untyped)


def _as_numpy(path: Path, name: str, chunks: list[pa.Array], untyped: bool) -> npt.NDArray[Any]:
    """One column of labels, sites or ids (n,)."""
    column = pa.chunked_array(chunks)
    if untyped:
        column = _typed(column)
    if _is_text(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    values = np.concatenate([_to_numpy(chunk) for chunk in column.chunks])
    check_finite_labels(path, name, values)
    return values


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as integers or floats if all of it is; leading zeros mean something, so they stay text."""
    try:
        integers = column.cast(pa.int64())
        if pc.all(pc.equal(integers.cast(pa.string()), column)).as_py():
            return integers
    except pa.ArrowInvalid:
        pass
    if pc.any(pc.match_substring_regex(column, r"^[+-]?0[0-9]")).as_py():
        return column
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def pandas_index(schema: pa.Schema) -> set[str]:
    """Columns that pandas made of an index when it wrote the file, by what it says there about itself."""
    try:
        columns = read_json((schema.metadata or {})[b"pandas"])["index_columns"]
        return {name for name in columns if isinstance(name, str)}  # numbers without a column are described by a dict
    except (KeyError, TypeError, ValueError):  # none, or none of pandas: files come from anywhere
        return set()


def _kind(column: pa.DataType) -> str:
    """What a column holds, in a word or two; booleans are no numbers, in CSV they are text."""
    if _is_text(column):
        return "text"
    if pa.types.is_boolean(column):
        return "boolean"
    if _is_number(column):
        return NUMBER
    if _is_list(column) and _is_number(column.value_type):
        return NUMBERS
    return str(column).partition("<")[0]


def _element_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if _is_list(kind) or pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
