"""Arrays into tables on disk."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernfed.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


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
