"""A site's rows as they were given: a matrix, or a raw table that becomes one by the preparation the sites agree on."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import column_names
from kernfed.data.columns import RawColumn, RawTable, is_table, raw_table
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, Refused
from kernfed.site.rows import Rows, check_site_rows

#: How the schema of prepared rows begins what it says of their scaling; the digest of the preparation follows.
PREPARED = "preparation "


@dataclass(frozen=True)
class Source:
    """Rows as they were given. Of a raw table X has no columns until it is prepared; a matrix may have ``names``."""

    rows: Rows
    names: tuple[str, ...] = ()
    table: RawTable | None = None

    @classmethod
    def of(cls, name: str, X: Any, y: Any, ids: Any, persons: Any, names: tuple[str, ...] = ()) -> "Source":
        """Rows of site ``name`` from hostile input; a data frame is a raw table unless all of it is numbers."""
        if not _is_raw(X):
            return cls(check_site_rows(X, y, ids, name, persons), tuple(names or column_names(X)))
        table = raw_table(X, source=f"X of site {name!r}")
        # One column of zeros is checked in the place of what is no numbers yet.
        rows = check_site_rows(np.zeros((len(table), 1)), y, ids, name, persons)
        return cls(replace(rows, X=rows.X[:, :0]), (), table)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the rows, of a raw table with all of its cells."""
        whole = hashlib.sha256(self.rows.digest.encode())
        for column in () if self.table is None else self.table:
            whole.update(repr((column.name, column.stored, column.values.dtype.str, column.words)).encode())
            whole.update(np.ascontiguousarray(column.values).tobytes())
        return whole.hexdigest()

    def take(self, chosen: npt.NDArray[Any]) -> "Source":
        """The chosen rows, by mask or position."""
        return replace(self, rows=self.rows.take(chosen), table=None if self.table is None else self.table.take(chosen))

    def raw(self, site: str) -> RawTable:
        """The rows as a raw table, a matrix as columns of numbers."""
        return self.table if self.table is not None else raw_matrix(site, self.rows.X, self.names)

    def prepared(self, site: str, preparation: Preparation | None) -> Rows:
        """The rows as learners see them."""
        if preparation is not None:
            return replace(self.rows, X=preparation.apply(self.raw(site))[0])
        if self.table is not None:
            told = (
                f"site {site!r} has a raw table: the sites must agree on a preparation first, as kernfed train does; "
                "in Python with agree(federation) of federation.preparing. Its policy must name the tasks "
                "'column_statistics' and 'prepare', of which neither is allowed by default"
            )
            raise Refused("unprepared", told, public=True)
        return self.rows


def without_columns(rows: Rows) -> Rows:
    """Ids, labels and persons of rows, and no column of X."""
    return replace(rows, X=rows.X[:, :0])


def raw_matrix(site: str, X: npt.NDArray[Any], names: tuple[str, ...]) -> RawTable:
    """Rows X (n, p) as a raw table of numbers; columns without names are called 0, 1, ..."""
    values = np.asarray(X, dtype=np.float64)
    called = names or tuple(map(str, range(values.shape[1])))
    columns = {name: RawColumn(name, "number", values[:, place]) for place, name in enumerate(called)}
    return RawTable(columns, source=f"X of site {site!r}")


def check_columns(site: str, table: RawTable, preparation: Preparation) -> None:
    """Refuse a preparation of columns that a raw table does not have; which it has is public, its cells are not."""
    try:
        preparation.apply(table.take(np.arange(0)))
    except InputError as error:
        raise Refused("bad question", f"site {site!r} cannot be prepared so: {error}") from None


def _is_raw(X: Any) -> bool:
    """Whether rows need a preparation: a raw table, or a data frame with words, times, flags or gaps in it."""
    if isinstance(X, RawTable):
        return True
    if not is_table(X):
        return False
    try:
        values = np.asarray(X)
        return values.dtype.kind not in "fiub" or not bool(np.isfinite(values).all())
    except (TypeError, ValueError):
        return True
