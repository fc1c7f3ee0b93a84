"""CSV tables as a :class:`~kernfed.data.arrow.ArrowSource`: types are decided by role, not guessed from values."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from kernfed.data.arrow import ArrowSource
from kernfed.data.table import Roles, place, unreadable
from kernfed.errors import DataError

_BLOCK = 1 << 24

# Arrow's messages when it reads without threads; it counts the header as row 1.
_BAD_CELL = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): (.*)", re.DOTALL)
_BAD_VALUE = re.compile(r"invalid value '(.*)'$", re.DOTALL)
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")


@contextmanager
def open_csv(path: Path) -> Iterator[ArrowSource]:
    """A CSV file in UTF-8 with a header and commas; features are read as float64, the rest as text.

    A column counts as numeric if its first value is a number or empty. One that later turns out to hold
    text is an error with its row, where a guess from many rows would drop the column without a word.
    """
    names, first = _head(path)
    types = [pa.float64() if _looks_numeric(cell) else pa.string() for cell in first]

    def batches(roles: Roles) -> Iterator[pa.RecordBatch]:
        by_role = dict.fromkeys(roles.described, pa.string()) | dict.fromkeys(roles.features, pa.float64())
        try:
            with pa.csv.open_csv(
                path,
                read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
                parse_options=_parse_options(names),
                convert_options=pa.csv.ConvertOptions(
                    column_types=by_role,
                    include_columns=list(by_role),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            ) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            raise _explained(path, names, error) from None

    schema = pa.schema(list(zip(names, types, strict=True)))
    yield ArrowSource(path, schema, _count_lines(path), batches, untyped=True)


def read_text_columns(path: Path) -> pa.Table:
    """All columns of a CSV file as text, with missing values where cells are empty."""
    names, _ = _head(path)
    try:
        return pa.csv.read_csv(
            path,
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=_parse_options(names),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
            ),
        )
    except pa.ArrowInvalid as error:
        raise _explained(path, names, error) from None


def _parse_options(names: list[str]) -> pa.csv.ParseOptions:
    # In a table of one column an empty line is a missing value.
    return pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)


def _head(path: Path) -> tuple[list[str], list[str]]:
    """Names in the header and cells of the first row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = (row for row in csv.reader(file) if row)
            names, first = next(rows, []), next(rows, [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, "CSV in UTF-8", error) from None
    if not first:
        raise DataError(f"{path}: a CSV table needs a header and at least 1 row")
    if len(first) != len(names):
        raise DataError(f"{path}: row 1 has {len(first)} values, the header has {len(names)}")
    return names, first


def _looks_numeric(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True


def _count_lines(path: Path) -> int:
    """An upper bound of the number of lines, ended by LF, CR or both."""
    lines = 1
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            lines += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
    return lines


def _explained(path: Path, names: list[str], error: Exception) -> DataError:
    """Arrow's message as one sentence with column and row."""
    message = str(error)
    if cell := _BAD_CELL.match(message):
        where = place(path, names[int(cell[1])], int(cell[2]) - 2)
        value = _BAD_VALUE.match(cell[4])
        if value:
            shown = value[1] if len(value[1]) <= 40 else value[1][:40] + "..."
            return DataError(f"{where}: expected a number, got {shown!r}")
        return DataError(f"{where}: expected UTF-8 text, got {cell[4]}")
    if row := _BAD_ROW.match(message):
        return DataError(f"{path}: row {int(row[1]) - 1} has {row[3]} values, the header has {row[2]}")
    return unreadable(path, "CSV", error)
