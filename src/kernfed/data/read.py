"""Tables on disk into arrays and back: Parquet, Arrow, CSV, npz and npy, by suffix.

Pickled objects inside npz and npy files are refused.
"""

import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice
from kernfed.data.table import (
    LONGEST_NAME,
    NUMBER,
    Table,
    Wanted,
    check_block,
    check_finite_labels,
    select_columns,
    unreadable,
    warn_of_identifiers,
)
from kernfed.errors import DataError, InputError

if TYPE_CHECKING:
    import pyarrow as pa

# Names under which a matrix of features is taken without being asked for, in this order.
FEATURE_KEYS = ("X", "x", "features")

_CHECK_ROWS = 4096


class Arrays(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an npz file, each read when it is asked for."""

    def __init__(self, path: Path, file: Mapping[str, npt.NDArray[Any]]) -> None:
        self.path = path
        self._file = file

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        if key not in self._file:
            raise KeyError(key)
        with _damage_explained(self.path, "npz"):
            return self._file[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


@contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """The arrays of an npz file."""
    with path.open("rb") as stream:  # opened here, since numpy leaves it open when the archive is damaged
        with _damage_explained(path, "npz"):
            if not zipfile.is_zipfile(stream):
                raise InputError("it is no zip archive")
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
        with file:
            yield Arrays(path, file)


def read_npz(path: Path, wanted: Wanted, dtype: str) -> Table:
    """A table of the arrays of an npz file; features (n, ...) are flattened to (n, p)."""
    with open_npz(path) as file:
        usual = [key for key in FEATURE_KEYS if key in file][:1]
        kinds = [NUMBER if key in usual else "another array" for key in file]
        roles = select_columns(path, list(file), kinds, wanted)
        matrices = {key: _matrix(path, key, file[key]) for key in roles.features}
        described = {key: _described(path, key, file[key]) for key in roles.described}
    rows = {key: len(array) for key, array in (matrices | described).items()}
    if len(set(rows.values())) > 1:
        raise DataError(f"{path}: arrays must have equal numbers of rows, got {rows}")
    columns = tuple(f"{key}[{i}]" for key, matrix in matrices.items() for i in range(matrix.shape[1]))
    X = _as_float(list(matrices.values()), dtype)
    _check_finite(path, X, columns)
    keys = (roles.label, roles.site, roles.ids, roles.persons)
    y, sites, names, persons = (None if key is None else described[key] for key in keys)
    sites, persons = (None if words is None else words.astype(np.str_) for words in (sites, persons))
    return Table(X, y, sites, names, columns, path, roles.label, roles.left_out, persons)


def read_npy(path: Path, dtype: str) -> Table:
    """A table of one bare matrix (n, ...), flattened to (n, p)."""
    with _damage_explained(path, "npy"):
        stored = np.lib.format.open_memmap(path, mode="r")  # refuses objects
    matrix = _matrix(path, "array", stored)
    # Mapped, then copied: the values are in memory once, in the type asked for.
    X = _as_float([matrix], dtype)
    X = X.copy() if np.may_share_memory(X, stored) else X
    columns = tuple(f"array[{i}]" for i in range(matrix.shape[1]))
    _check_finite(path, X, columns)
    return Table(X, None, None, None, columns, path)


@contextmanager
def _damage_explained(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise a dozen types on damaged files
        raise unreadable(path, kind, error) from None


def _matrix(path: Path, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {key!r} must hold real numbers, got dtype {array.dtype}")
    if array.ndim < 2 or not array.size:
        raise DataError(f"{path}: array {key!r} must be a matrix (rows, columns), got shape {array.shape}")
    return array.reshape(len(array), -1)


def _as_float(matrices: list[npt.NDArray[Any]], dtype: str) -> FloatArray:
    """Matrices side by side, in C order; auto is float32 where it holds every stored type exactly."""
    if dtype == "auto":
        common = np.result_type(np.float32, *(matrix.dtype for matrix in matrices))
        dtype = "float32" if common == np.float32 else "float64"
    joined = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    with np.errstate(over="ignore"):  # too large for the type becomes infinity, which is refused
        return np.asarray(joined, dtype=dtype, order="C")


def _check_finite(path: Path, X: FloatArray, columns: Sequence[str]) -> None:
    for start in range(0, len(X), _CHECK_ROWS):
        check_block(path, X[start : start + _CHECK_ROWS], start, columns)


def _described(path: Path, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels, sites or ids (n,): numbers or text."""
    if array.ndim != 1 or array.dtype.kind not in "biufSU":
        raise DataError(
            f"{path}: array {key!r} must hold one number or text per row, got shape {array.shape}, dtype {array.dtype}"
        )
    if array.dtype.kind == "S":
        with _damage_explained(path, "UTF-8 text"):
            array = np.char.decode(array, "utf-8")
    if array.dtype.kind == "U" and array.dtype.itemsize > 4 * LONGEST_NAME:
        raise DataError(f"{path}: array {key!r} must hold at most {LONGEST_NAME} characters per row")
    check_finite_labels(path, key, array)
    return array


_KINDS = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".csv": "CSV",
    ".npz": "npz",
    ".npy": "npy",
}


def read_table(
    path: str | os.PathLike[str],
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    site: str | None = None,
    ids: str | None = None,
    persons: str | None = None,
    dtype: str = "auto",
) -> Table:
    """Features X (n, p) of a file and, where columns for them are named, labels, sites, ids and persons (n,).

    ``features`` is one column (of numbers, or of lists of numbers of equal length), a range ``f0:f127`` in
    file order with both ends, or several of these separated by commas; by default every numeric column that
    has no other role, or the list columns where there is none. Booleans and row numbers (an index that pandas or R
    wrote: a column without a name, ``Unnamed: 0``, ``__index_level_0__`` and what Parquet says of itself) are features
    only when named; ``left_out`` of the result says what was left out and why. A column that numbers the rows under
    another name is a feature all the same, with a warning (:class:`IdentifierAmongFeatures`) unless it was named.
    In an npz file the columns are its arrays, by default the first of X, x and features; an npy file is a bare matrix.
    ``dtype`` is float32, float64 or auto: float32 where it holds the stored types exactly.

    Names of sites and persons are text. Labels and ids keep their type; in CSV they are integers or floats where every
    value is one, otherwise text. Missing values, NaN and infinity are refused. Every error is one sentence
    (:class:`DataError`) with file, column and row; rows count from 1, without the header.
    """
    path = Path(path)
    check_choice(dtype, "dtype", ("auto", "float32", "float64"))
    if not path.is_file():
        raise DataError(f"{path}: {'a folder, expected a file' if path.is_dir() else 'there is no such file'}")
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known, expected one of {', '.join(_KINDS)}")
    wanted = Wanted(features, label, site, ids, persons)
    try:
        if kind == "npz":
            return read_npz(path, wanted, dtype)
        if kind == "npy":
            if any(name is not None for name in (features, label, site, ids, persons)):
                raise DataError(f"{path}: an npy file is a bare matrix without named columns; use npz for labels")
            return read_npy(path, dtype)
        return _read_columns(path, kind, wanted, dtype)
    except (OSError, MemoryError, UnicodeDecodeError) as error:
        raise unreadable(path, kind, error) from None


def column_kinds(
    path: Path,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    site: str | None = None,
    ids: str | None = None,
) -> dict[str, str]:
    """What the columns to learn from hold, by name: ``number``, ``list of numbers``, ``text``, ``boolean``, ...

    All without another role, or those that ``features`` names; in CSV as far as the first row tells.
    """
    import pyarrow as pa

    from kernfed.data.arrow import open_ipc, open_parquet
    from kernfed.data.delimited import open_csv

    kind = _KINDS.get(path.suffix.lower(), "")
    openers = {"Parquet": open_parquet, "Arrow": open_ipc, "CSV": open_csv}
    try:
        with openers[kind](path) as source:
            names, kinds = source.schema.names, dict(zip(source.schema.names, source.kinds, strict=True))
            numbers = ["index" if kinds[name] == "index" else NUMBER for name in names]
            roles = select_columns(path, names, numbers, Wanted(features, label, site, ids))
    except (OSError, pa.ArrowException) as error:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file") from None
        raise unreadable(path, kind, error) from None
    return {name: kinds[name] for name in roles.features}


def _read_columns(path: Path, kind: str, wanted: Wanted, dtype: str) -> Table:
    """Table of a file that Arrow reads; Arrow is imported only here."""
    import pyarrow as pa

    from kernfed.data.arrow import open_ipc, open_parquet, read_rows
    from kernfed.data.delimited import open_csv

    openers = {"Parquet": open_parquet, "Arrow": open_ipc, "CSV": open_csv}
    try:
        with openers[kind](path) as source:
            roles = select_columns(path, source.schema.names, source.kinds, wanted)
            table = read_rows(source, roles, dtype)
    except pa.ArrowException as error:
        raise unreadable(path, kind, error) from None
    if wanted.features is None:
        warn_of_identifiers(table, roles.features)
    return table


def write_table(path: str | os.PathLike[str], columns: Mapping[str, npt.ArrayLike]) -> Path:
    """Write columns (n,) of equal length as ``.csv`` or ``.parquet``, by suffix.

    In Parquet a matrix (n, w) becomes a column of lists; CSV has no lists. The file appears whole or not at
    all: it is written beside its place and then moved there.
    """
    import pyarrow.csv  # here, so that whoever only reads arrays is spared it
    import pyarrow.parquet

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise DataError(f"{path}: a table is written as .csv or .parquet, got suffix {path.suffix!r}")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    table = _as_arrow(path, columns, lists=suffix == ".parquet")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with beside.open("xb") as file:
            if suffix == ".csv":
                pyarrow.csv.write_csv(table, file)
            else:
                pyarrow.parquet.write_table(table, file)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _as_arrow(path: Path, columns: Mapping[str, npt.ArrayLike], *, lists: bool) -> "pa.Table":
    import pyarrow as pa

    if not columns:
        raise DataError(f"{path}: a table needs at least 1 column, got none")
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        array = np.asarray(values)
        if array.ndim != 1 and not (lists and array.ndim == 2 and array.shape[1]):
            raise DataError(f"{path}: column {name!r} must be one-dimensional, got shape {array.shape}")
        try:
            flat = pa.array(array.ravel())
        except pa.ArrowException as error:
            raise DataError(f"{path}: column {name!r} must hold values of one type ({error})") from None
        arrays[name] = flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{path}: columns must have equal lengths, got {lengths}")
    return pa.table(arrays)
