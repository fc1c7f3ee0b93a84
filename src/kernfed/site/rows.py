"""Rows of a site: features, labels and ids, checked once when the site gets them.

A ``Source`` has them as they were given: a matrix, or a raw table that becomes one by the preparation the sites agree
on.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_rows, column_names
from kernfed.data.columns import RawColumn, RawTable, is_table, raw_table
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, Refused


@dataclass(frozen=True)
class Rows:
    """Rows of a site: X (n, p), labels y (n,), ids (n,) that are never given to another row.

    ``persons`` (n,) says in words whose rows they are, where a person may have several, or the same under another id.
    """

    X: FloatArray
    y: npt.NDArray[Any]
    ids: npt.NDArray[np.int64]
    persons: npt.NDArray[np.str_] | None = None

    def take(self, chosen: npt.NDArray[Any]) -> "Rows":
        """The chosen rows, by mask or position."""
        persons = None if self.persons is None else self.persons[chosen]
        return Rows(self.X[chosen], self.y[chosen], self.ids[chosen], persons)

    def plus(self, other: "Rows") -> "Rows":
        """These rows, then the others."""
        persons = None
        if self.persons is not None or other.persons is not None:
            persons = np.concatenate([self.people, other.people])
        return Rows(
            np.concatenate([self.X, other.X.astype(self.X.dtype)]),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.ids, other.ids]),
            persons,
        )

    @property
    def people(self) -> npt.NDArray[np.str_]:
        """Who pays for a release of each row (n,): its person, or else whoever has its id."""
        return self.ids.astype(np.str_) if self.persons is None else self.persons

    @cached_property
    def digest(self) -> str:
        """Fingerprint of rows, labels and ids, in their order."""
        labels = "\n".join(map(repr, self.y.tolist())).encode()
        parts = (np.ascontiguousarray(self.X), np.ascontiguousarray(self.ids), np.frombuffer(labels, dtype=np.uint8))
        whole = hashlib.sha256()
        for part in parts:
            whole.update(str((part.dtype.str, part.shape)).encode())
            whole.update(part.tobytes())
        return whole.hexdigest()[:16]


def check_site_rows(
    X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None, name: str, persons: npt.ArrayLike | None = None
) -> Rows:
    """Rows of a site from hostile input; without ids they are numbered from 0."""
    rows = check_rows(X, f"X of site {name!r}")
    labels = np.asarray(y)
    if labels.shape != (len(rows),):
        raise InputError(
            f"y of site {name!r} must have one label per row, got shape {labels.shape} for {len(rows)} rows"
        )
    if labels.dtype.kind == "O":
        labels = _plain_labels(labels, name)
    if labels.dtype.kind not in "biufU":
        raise InputError(f"y of site {name!r} must be numbers, booleans or text, got dtype {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError(f"y of site {name!r} must be finite; drop rows without a label")
    numbers = np.arange(len(rows), dtype=np.int64) if ids is None else np.asarray(ids)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(rows),) or len(np.unique(numbers)) != len(rows):
        raise InputError(f"ids of site {name!r} must be {len(rows)} different integers")
    people = None if persons is None else np.asarray(persons)
    if people is not None and (people.shape != (len(rows),) or people.dtype.kind not in "iuUO"):
        raise InputError(f"persons of site {name!r} must be a number or a word for each of {len(rows)} rows")
    if people is not None and not all(_can_be_written(person) for person in set(people.astype(np.str_).tolist())):
        raise InputError(f"persons of site {name!r} must be words that can be written as UTF-8")
    return Rows(rows, labels, numbers.astype(np.int64), None if people is None else people.astype(np.str_))


def _can_be_written(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_labels(labels: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Labels out of an array of Python objects, as tables give them."""
    truths = sum(isinstance(label, (bool, np.bool_)) for label in labels)
    texts, numbers = (all(isinstance(label, kind) for label in labels) for kind in (str, (Real, np.bool_)))
    if not (texts or numbers) or truths not in (0, len(labels)):
        kinds = sorted({type(label).__name__ for label in labels})
        raise InputError(f"y of site {name!r} must be all text, all numbers or all booleans, got {', '.join(kinds)}")
    return np.array(labels.tolist())


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
            reason = (
                f"site {site!r} has a raw table: the sites must agree on a preparation first, as kernfed train does; "
                "in Python with agree(federation) of federation.preparing. Its policy must name the tasks "
                "'column_statistics' and 'prepare', of which neither is allowed by default"
            )
            raise Refused("unprepared", reason, public=True)
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
