"""Rows of a request, in JSON, CSV or an Arrow stream, as the matrix that a model computes with.

Every size is checked before anything is made of it: what is kept of a body is a small multiple of its bytes.
"""

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.plain import NotFinite, read_json
from kernfed.data.columns import LARGEST, RawColumn, RawTable, text_column
from kernfed.errors import InputError
from kernfed.serve.requests import Columns, RequestError, check_words, prepared

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
KINDS = (JSON, CSV, ARROW)
_NUMBERS = {int, float, bool}
_NUMBERED = re.compile(r"(.*)\[\d+\]")


def content_kind(header: str) -> str:
    """The content type in a header of a request, one of JSON, CSV and ARROW; others are refused."""
    kind = header.partition(";")[0].strip().lower()
    if kind not in KINDS:
        raise RequestError(415, f"the content type must be one of {', '.join(KINDS)}, got {kind!r:.80}")
    return kind


def read_rows(body: bytes, kind: str, wanted: Columns, most: int) -> FloatArray:
    """Rows (n, p) of a body of this kind, prepared, 1 <= n <= ``most``, of finite numbers; refused in one sentence."""
    if not body:
        raise RequestError(422, "the request has no body; send rows")
    if kind == ARROW:
        from kernfed.serve.arrow_rows import read_arrow  # pyarrow takes a while to load

        rows = read_arrow(body, wanted, most)
    else:
        rows = _rows_of(_from_json(body, most) if kind == JSON else _from_csv(body, wanted, most), wanted)
    largest = np.abs(rows).max()
    if not largest <= LARGEST:  # also where it is no number
        raise RequestError(422, f"numbers must be finite and at most {LARGEST:g} in size, got {largest:.3g}")
    return rows


# JSON and CSV -----------------------------------------------------------------------------------------------------


def _from_json(body: bytes, most: int) -> list[Any]:
    """The list of rows: ``{"rows": [...]}`` or the list itself."""
    try:
        given = read_json(body, "the body")
    except InputError as error:
        raise RequestError(422 if isinstance(error, NotFinite) else 400, str(error)) from None
    rows = given.get("rows") if isinstance(given, dict) else given
    if not isinstance(rows, list) or not rows:
        raise RequestError(422, 'expected {"rows": [...]} with at least one row')
    _check_count(len(rows), most)
    return rows


def _from_csv(body: bytes, wanted: Columns, most: int) -> list[Any]:
    """Rows of a table with names in its first line, as mappings; without names, as lists."""
    try:
        text = body.decode("utf-8-sig")
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text))
        table = list(itertools.islice(filter(None, lines), most + 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestError(400, f"the body must be CSV in UTF-8: {str(error)[:200]}") from None
    if not table:
        raise RequestError(422, "the table has no rows")
    named = not all(map(_is_number, table[0]))
    rows = table[1:] if named else table
    if not rows:
        raise RequestError(422, "the table has names and no rows")
    _check_count(len(rows), most)
    uneven = next((place for place, row in enumerate(rows) if len(row) != len(table[0])), None)
    if uneven is not None:
        raise RequestError(
            422, f"row {uneven + 1} of the table has {len(rows[uneven])} cells, expected {len(table[0])}"
        )
    if not (named and wanted.names):  # a model without names takes the columns as they come
        return [_numbers(row) for row in rows] if wanted.preparation is None else rows
    places = {name.strip(): place for place, name in enumerate(table[0])}
    absent = next((name for name in wanted.names if name not in places), None)
    if absent is not None:
        raise RequestError(422, f"the table has no column {absent!r:.80}; it has {', '.join(table[0][:10]):.200}")
    chosen = [[row[places[name]] for name in wanted.names] for row in rows]
    return [_numbers(row) for row in chosen] if wanted.preparation is None else chosen


def _separator(text: str) -> str:
    """Comma, semicolon or tab, whichever the first line has most of."""
    first = text[:10_000].partition("\n")[0]
    return max(",;\t", key=first.count)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(cells: Sequence[str]) -> list[float]:
    try:
        return list(map(float, cells))
    except ValueError:
        wrong = next(cell for cell in cells if not _is_number(cell))
        raise RequestError(422, f"expected numbers, got {wrong!r:.80}") from None


def _check_count(rows: int, most: int) -> None:
    if rows > most:
        raise RequestError(413, f"a request may have at most {most:,} rows, this one has {rows:,} or more")


def _rows_of(rows: list[Any], wanted: Columns) -> FloatArray:
    """The matrix of rows that are lists in the order of the columns, or mappings by name."""
    if all(isinstance(row, dict) for row in rows):
        rows = [_in_order(number, _spread(row, wanted), wanted) for number, row in enumerate(rows, 1)]
    elif not all(isinstance(row, list) for row in rows):
        raise RequestError(422, "rows must be all lists of values, or all objects by the name of the column")
    wrong = next((place for place, row in enumerate(rows) if len(row) != wanted.width), None)
    if wrong is not None:
        raise RequestError(422, f"row {wrong + 1} has {len(rows[wrong])} values, the model has {wanted.width} columns")
    if wanted.preparation is not None:
        cells = zip(*rows, strict=True)
        columns = {name: _raw_column(name, column) for name, column in zip(wanted.names, cells, strict=True)}
        return prepared(RawTable(columns, source="the request"), wanted.preparation)
    for number, row in enumerate(rows, 1):
        if not set(map(type, row)) <= _NUMBERS:
            place = next(place for place, cell in enumerate(row) if type(cell) not in _NUMBERS)
            raise RequestError(422, f"row {number}, value {place + 1} must be a number, got {_shown(row[place])}")
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        raise RequestError(422, "numbers must fit 64 bits, one is too large") from None


def _in_order(number: int, row: Mapping[str, Any], wanted: Columns) -> list[Any]:
    if not wanted.names:
        raise RequestError(422, f"the columns of this model have no names: send rows as lists of {wanted.width} values")
    try:
        return [row[name] for name in wanted.names]
    except KeyError as error:
        raise RequestError(422, f"row {number} has no column {error.args[0]!r:.80}") from None


def _spread(row: Mapping[str, Any], wanted: Columns) -> Mapping[str, Any]:
    """A row whose lists are several columns, ``emb[0]``, ``emb[1]``, where the model has such columns."""
    if wanted.preparation is not None or not any(isinstance(cell, list) for cell in row.values()):
        return row
    lists = {match[1] for match in map(_NUMBERED.fullmatch, wanted.names) if match}
    alone = {name: cell for name, cell in row.items() if name not in lists or not isinstance(cell, list)}
    spread = {
        f"{name}[{place}]": one for name in lists & row.keys() - alone.keys() for place, one in enumerate(row[name])
    }
    return {**alone, **spread}


def _raw_column(name: str, cells: Sequence[Any]) -> RawColumn:
    """A column of cells as JSON or CSV has them: numbers, flags, lists of numbers, or words; None where missing."""
    kinds = set(map(type, cells))
    if kinds <= {list}:
        widths = {len(cell) for cell in cells}
        if len(widths) != 1 or not all(set(map(type, cell)) <= {int, float} for cell in cells):
            raise RequestError(422, f"column {name!r:.80} must hold lists of numbers, all of one length")
        return RawColumn(name, "list", np.array(cells, dtype=np.float64))
    if not kinds <= {int, float, bool, str, type(None)}:
        raise RequestError(422, f"column {name!r:.80} must hold numbers, words or null, got {_shown(cells[0])}")
    if kinds <= {int, float, type(None)}:
        return RawColumn(name, "number", np.array([_number(cell) for cell in cells]))
    if kinds <= {bool, type(None)}:
        return RawColumn(name, "boolean", np.array([_number(cell) for cell in cells]))
    check_words(name, max(len(str(cell)) for cell in cells))
    return text_column(name, cells)


def _number(cell: float | bool | None) -> float:
    """A number, NaN where it is none that can be computed with."""
    return float(cell) if cell is not None and abs(cell) <= LARGEST else np.nan


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return "null" if value is None else f"{value!r:.80}"


_CELL = {"type": ["number", "string", "boolean", "array", "null"]}
_ROW = {
    "oneOf": [
        {"type": "array", "items": _CELL, "description": "Values in the order of /about's columns."},
        {"type": "object", "additionalProperties": _CELL, "description": "Values by the name of the column."},
    ]
}
_ANSWER = {
    "type": "object",
    "required": ["label"],
    "properties": {
        "label": {"description": "The label, or the value of a regression."},
        "probabilities": {"type": "object", "additionalProperties": {"type": "number"}, "description": "By class."},
        "abstained": {
            "type": "boolean",
            "description": "With --abstain: whether the label is null for want of certainty.",
        },
        "set": {"type": "array", "description": "With --abstain: the classes among which the true one is."},
        "p_value": {"type": ["number", "null"], "description": "With --abstain: small where nothing like it was seen."},
        "site": {"type": ["string", "null"], "description": "The site that came nearest in the label's class."},
        "batch": {"type": ["integer", "null"], "description": "Which of its batches."},
        "part": {"type": ["string", "null"], "description": "Of machines and a head together: which part decided."},
        "score": {"type": ["number", "null"], "description": "The score that decided; smaller is better."},
        "distance": {
            "type": ["number", "null"],
            "description": "Of models with machines: how far the row is from everything known; /about has the unit.",
        },
    },
}
_ERROR = {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}}
_REFUSALS = {
    "400": "The body is not what its content type says.",
    "401": "No token, or one that is not known.",
    "408": "The body did not arrive in time.",
    "413": "More rows or bytes than one request may have.",
    "415": "Another content type.",
    "422": "Rows that the model cannot take.",
    "429": "Too many requests; Retry-After says when.",
    "503": "Too few sites answer, or too many rows wait.",
}

PREDICT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["rows"],
                    "properties": {"rows": {"type": "array", "minItems": 1, "items": _ROW}},
                }
            },
            CSV: {"schema": {"type": "string"}},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        "200": {
            "description": "One answer per row, in order.",
            "content": {
                JSON: {
                    "schema": {
                        "type": "object",
                        "required": ["answers", "sites", "missing"],
                        "properties": {
                            "answers": {"type": "array", "items": _ANSWER},
                            "sites": {"type": "array", "items": {"type": "string"}, "description": "Who answered."},
                            "missing": {
                                "type": "object",
                                "additionalProperties": {"type": "string"},
                                "description": "Sites that did not, with the reason.",
                            },
                        },
                    }
                }
            },
        },
        **{status: {"description": words, "content": _ERROR} for status, words in _REFUSALS.items()},
    },
}
