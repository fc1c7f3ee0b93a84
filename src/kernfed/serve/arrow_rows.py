"""Rows of an Arrow stream that somebody else sent: nothing is decompressed, and no offset is followed unchecked."""

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernfed.base.checks import FloatArray
from kernfed.data.arrow import list_column
from kernfed.errors import InputError
from kernfed.serve.requests import Columns, RequestError, check_words, prepared

_PLACE = Path("the stream")


def read_arrow(body: bytes, wanted: Columns, most: int) -> FloatArray:
    """Rows (n, p) of a stream of record batches; by the names of columns, where the model has names."""
    try:
        table = _read_table(body, most)
    except (pa.ArrowException, OSError, ValueError, struct.error, KeyError) as error:
        raise RequestError(400, f"the body must be an Arrow stream: {str(error).partition(chr(10))[0][:200]}") from None
    if not table.num_rows:
        raise RequestError(422, "the stream has no rows")
    if len(set(table.column_names)) != len(table.column_names):
        raise RequestError(422, "the stream must name every column once")
    if wanted.preparation is not None:
        kept = [name for name in wanted.names if name in table.column_names]
        for name in kept:
            _check_words(name, table.column(name))
        try:
            return prepared(table.select(kept), wanted.preparation)
        except (pa.ArrowException, OverflowError) as error:
            raise RequestError(422, f"the stream cannot be used: {str(error).partition(chr(10))[0][:200]}") from None
    return _matrix(table, wanted)


def _read_table(body: bytes, most: int) -> pa.Table:
    """The whole stream, checked batch by batch before it is read."""
    rows = 0
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    for message in messages:
        if message.type in ("record batch", "dictionary"):
            length, compressed = _about(message.metadata.to_pybytes(), message.type == "dictionary")
            if compressed:
                raise RequestError(415, "the stream must not be compressed")
            if length < 0 or length > len(body):
                raise RequestError(400, f"a batch of the stream claims {length:,} rows")
            rows += length if message.type == "record batch" else 0
    if rows > most:
        raise RequestError(413, f"a request may have at most {most:,} rows, this one has {rows:,}")
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    table.validate(full=True)  # offsets that point outside of the body must not be followed
    return table


def _about(metadata: bytes, dictionary: bool) -> tuple[int, bool]:
    """Rows of a batch, and whether its buffers are compressed, from the flatbuffer that describes it.

    Format: https://arrow.apache.org/docs/format/Columnar.html; ``Message`` has the batch as its third field, a
    ``DictionaryBatch`` its values as the second, a ``RecordBatch`` its length as the first, compression as the fourth.
    """
    message = struct.unpack_from("<I", metadata)[0]
    batch = _child(metadata, message, 2)
    if dictionary:
        batch = _child(metadata, batch, 1)
    length = _field(metadata, batch, 0)
    rows = 0 if length is None else struct.unpack_from("<q", metadata, length)[0]
    return rows, _field(metadata, batch, 3) is not None


def _child(metadata: bytes, table: int, field: int) -> int:
    place = _field(metadata, table, field)
    if place is None:
        raise ValueError("a message describes no batch")
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _field(metadata: bytes, table: int, field: int) -> int | None:
    """Where a field of a flatbuffer table is, None where it has its default."""
    described = table - struct.unpack_from("<i", metadata, table)[0]
    if described < 0:
        raise ValueError("a message is damaged")
    size = struct.unpack_from("<H", metadata, described)[0]
    if 4 + 2 * field >= size:
        return None
    offset = struct.unpack_from("<H", metadata, described + 4 + 2 * field)[0]
    return table + offset if offset else None


def _matrix(table: pa.Table, wanted: Columns) -> FloatArray:
    """The model's columns as numbers; a column of lists is several."""
    names = table.column_names
    plain = wanted.names and set(wanted.names) <= set(names)
    lists = list(dict.fromkeys(name.rpartition("[")[0] for name in wanted.names if "[" in name))
    if plain:
        chosen = list(wanted.names)
    elif lists and set(lists) <= set(names):
        alone = [name for name in wanted.names if "[" not in name]
        absent = [name for name in alone if name not in names]
        if absent:
            raise RequestError(422, f"the stream has no column {absent[0]!r:.80}")
        chosen = list(dict.fromkeys(name if "[" not in name else name.rpartition("[")[0] for name in wanted.names))
    elif wanted.names:
        absent = [name for name in wanted.names if name not in names]
        raise RequestError(422, f"the stream has no column {absent[0]!r:.80}; it has {', '.join(names[:10]):.200}")
    else:
        chosen = names
    columns = [_column(name, table.column(name)) for name in chosen]
    width = sum(1 if column.ndim == 1 else column.shape[1] for column in columns)
    if width != wanted.width:
        raise RequestError(422, f"the stream has {width} columns, the model has {wanted.width}")
    return np.column_stack(columns)


def _column(name: str, column: pa.ChunkedArray) -> FloatArray:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        try:
            return np.asarray(list_column(_PLACE, name, column), dtype=np.float64)
        except InputError as error:
            raise RequestError(422, str(error)[:300]) from None
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise RequestError(422, f"column {name!r:.80} must hold numbers or lists of them, got {kind!s:.60}")
    if column.null_count:
        raise RequestError(422, f"column {name!r:.80} has {column.null_count:,} missing values; this model needs all")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())


def _check_words(name: str, column: pa.ChunkedArray) -> None:
    kind = column.type
    for chunk in column.chunks:
        words = chunk.dictionary if pa.types.is_dictionary(kind) else chunk
        if pa.types.is_string(words.type) or pa.types.is_large_string(words.type):
            check_words(name, pc.max(pc.utf8_length(words)).as_py() or 0)
        elif pa.types.is_dictionary(kind):
            raise RequestError(422, f"column {name!r:.80} must be numbers or words, got {kind!s:.60}")
