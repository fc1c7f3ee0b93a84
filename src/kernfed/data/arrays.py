"""npz and npy files as tables. Pickled objects inside them are refused."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.data.table import (
    LONGEST_NAME,
    NUMBER,
    Table,
    Wanted,
    check_block,
    check_finite_labels,
    select_columns,
    unreadable,
)
from kernfed.errors import DataError, InputError

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
