"""Tables that jobs read: which columns mean what, rows by site, and rows with the columns of a model."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernfed.data import Preparation, RawTable, Table, partition_by_column, read_raw_table, read_table
from kernfed.data.columns import RAW_SUFFIXES
from kernfed.data.read import column_kinds
from kernfed.data.table import NUMBER, NUMBERS, shortened
from kernfed.errors import DataError, InputError

#: Name of the only site where no column names sites.
ONE_SITE = "all"
T = TypeVar("T", Table, RawTable)
_NUMBER_AT_END = re.compile(r"(\d{1,9})(\]?)\Z")


@dataclass(frozen=True)
class TableFile:
    """A table on disk, and the columns of it that mean something.

    features : columns to learn from, as ``kernfed.data.read_table`` takes them. label, site, ids, persons : columns of
    the label, of each row's site, of the names of rows, and of whose row it is.
    """

    path: Path
    features: str | None = None
    label: str | None = None
    site: str | None = None
    ids: str | None = None
    persons: str | None = None

    def read(self, features: str | Sequence[str] | None = None) -> Table:
        """The table as numbers, of ``features`` in place of those declared, where they are given."""
        return read_table(self.path, features=features or self.features, **self._roles)

    def read_raw(self, features: Sequence[str] | None = None) -> RawTable:
        """The table with columns of all kinds."""
        return read_raw_table(self.path, features=features or self.features, **self._roles)

    def read_to_learn(self, preparation: str = "none", *, private: bool = False) -> Table | RawTable:
        """The table to learn from: as numbers where all of it is, otherwise raw, for sites to agree on a preparation.

        Under privacy there is no raw table without a preparation, for statistics are no release. Ids name every row of
        a site once.
        """
        named_columns = self.path.suffix.lower() in RAW_SUFFIXES
        is_file = preparation not in ("auto", "none")
        if is_file and not named_columns:
            raise InputError(f"--preparation is for tables with named columns, {self.path} has none")
        if not named_columns or preparation == "none" or (private and not is_file):
            return _with_checked_ids(self.read())
        if not is_file and self._looks_numeric():
            try:
                return _with_checked_ids(self.read())
            except DataError:  # a gap, or words below numbers; what is wrong with names is said again below
                pass
        return _with_checked_ids(self.read_raw())

    def read_for(self, model: Any) -> Table:
        """The table with the columns of a model, or of another table, in their order, unless ``features`` names any."""
        suffix = self.path.suffix.lower()
        preparation = getattr(model, "preparation", None)
        if preparation is not None and suffix in RAW_SUFFIXES:
            if self.features is not None:
                raise InputError("--features is for models of numbers, this one prepares the columns it was trained on")
            return prepared_table(self.read_raw(list(preparation.used)), preparation)
        columns = list(getattr(model, "feature_names_in_", ()) or getattr(model, "columns", ()))
        lists = list(dict.fromkeys(name.rsplit("[", 1)[0] for name in columns if "[" in name))
        if self.features is None and columns and suffix not in (".npz", ".npy") and not lists:
            return self.read(columns)
        table = self.read(self.features or ",".join(lists) or None)
        width = getattr(model, "n_features_in_", table.X.shape[1])
        if table.X.shape[1] != width:
            raise InputError(
                f"{self.path}: the model has {width} features, the table has {table.X.shape[1]}; see --features"
            )
        return table

    @property
    def _roles(self) -> dict[str, Any]:
        return {"label": self.label, "site": self.site, "ids": self.ids, "persons": self.persons}

    def _looks_numeric(self) -> bool:
        """Whether every column to learn from is a number or a list, as far as types, or the first row, say."""
        roles = {"label": self.label, "site": self.site, "ids": self.ids}
        kinds = column_kinds(self.path, features=self.features, **roles)
        return all(kind in (NUMBER, NUMBERS) for kind in kinds.values())


def _with_checked_ids(table: T) -> T:
    """The table, unless an id names two rows of a site."""
    if table.ids is None:
        return table
    for name, rows in site_places(table.site).items():
        named, counts = np.unique(table.ids[rows], return_counts=True)
        if counts.max() > 1:
            raise InputError(
                f"--id must name every row of a site once, {str(named[counts.argmax()])!r} names "
                f"{counts.max()} rows of site {name!r}"
            )
    return table


def rows_by_site(table: Table | RawTable, *, with_ids: bool = False) -> dict[str, Any]:
    """``{site: (X, y)}`` of a table with labels, X an array or a raw table; ``(X, y, ids)`` where it has wanted ids."""
    assert table.y is not None
    numbers = row_numbers(table.ids) if with_ids and table.ids is not None else None
    every = np.arange(len(table))
    parts: dict[str, Any] = {}
    for name, rows in site_places(table.site).items():
        X = table.take(every[rows]) if isinstance(table, RawTable) else table.X[rows]
        parts[name] = (X, table.y[rows]) if numbers is None else (X, table.y[rows], numbers[rows])
    return parts


def site_places(site: npt.NDArray[Any] | None) -> dict[str, Any]:
    """Which rows are each site's, of the names (n,) of their sites, or None where there is one."""
    if site is None:
        return {ONE_SITE: slice(None)}
    return {str(name): rows for name, rows in partition_by_column(site).items()}


def row_numbers(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Integers for the names of rows (n,): themselves, or 63 bits of a hash, so that the same name is the same row."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    digests = (hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in ids.tolist())
    return np.frombuffer(b"".join(digests), dtype="<i8") & 0x7FFFFFFFFFFFFFFF


def prepared_table(table: RawTable, preparation: Preparation) -> Table:
    """The matrix of a raw table, with all that describes its rows."""
    X, columns = preparation.apply(table)
    described = (table.y, table.site, table.ids)
    return Table(X, *described, columns, Path(table.source), table.label, preparation.left_out, table.persons)


def columns_line(table: Table) -> str:
    """Which columns are learned from and which were left out, on one line; numbered neighbours as first ... last."""
    runs: list[list[str]] = []
    for name in table.columns:
        if runs and name == _next_name(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    named = [f"{run[0]!r} ... {run[-1]!r}" if len(run) > 2 else ", ".join(map(repr, run)) for run in runs]
    left_out = [f"{name!r} ({why})" for name, why in table.left_out.items()]
    line = f"{len(table.columns):,} feature{'' if len(table.columns) == 1 else 's'}: {shortened(named, 10)}"
    return f"{line}; left out: {shortened(left_out, 10)}" if left_out else line


def _next_name(name: str) -> str | None:
    """The name that counts on from this one: f10 after f9, emb[10] after emb[9]."""
    number = _NUMBER_AT_END.search(name)
    if number is None:
        return None
    return f"{name[: number.start()]}{int(number[1]) + 1:0{len(number[1])}}{number[2]}"
