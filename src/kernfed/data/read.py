"""Tables on disk into arrays: Parquet, Arrow, CSV, npz and npy, by suffix."""

import os
from collections.abc import Sequence
from pathlib import Path

from kernfed.base.checks import check_choice
from kernfed.data.arrays import read_npy, read_npz
from kernfed.data.table import NUMBER, Table, Wanted, select_columns, unreadable, warn_of_identifiers
from kernfed.errors import DataError

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
