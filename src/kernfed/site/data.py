"""A site's rows over time: those it was given and those that came later, without those it was asked to forget.

All of it needs the site's store locked: another process may forget a row while this one reads, and a row that was read
before must not be used after.

Where privacy is required the number of rows is a public fact, which forgetting and adding must not change: a forgotten
row leaves a blank one of zeros in its place, and an added one waits, until the site ``publish``es its rows anew.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_column_names, check_number, check_rows
from kernfed.data.columns import RawTable
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, Refused, StoreError
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.site.protocol.schema import Schema, fraction_reason, label_kind
from kernfed.site.rows import PREPARED, Rows, Source, check_columns, check_site_rows, without_columns
from kernfed.site.store import SiteStore

#: Characters of a preparation's digest that a schema shows: models keep schemas, and earlier ones have so many.
_SHOWN = 16


class SiteData:
    """Rows X (n, p) and y (n,) of site ``name``, and what its ``store`` says has come and gone since.

    X may be a raw table, or a data frame that is not all numbers: ``prepare`` says how it becomes a matrix, and until
    then there are no rows. In the place of X there may be a function without arguments that returns a table (``X``,
    ``y``, ``ids``, ``columns``, or a raw one); it is called when the rows are first needed. ``holdout`` is the share of
    rows kept aside. ``labels``: "classes" or "targets", where they must be that. ``persons`` (n,): whose rows they are.
    ``counts_stay``: whether the number of rows changes only by ``publish``, and ``secret_labels`` whether blank rows
    have a label of nobody.
    """

    def __init__(
        self,
        name: str,
        X: npt.ArrayLike | Callable[[], Any],
        y: npt.ArrayLike,
        ids: npt.ArrayLike | None,
        store: SiteStore,
        *,
        columns: tuple[str, ...] = (),
        scaling: str = "",
        encoder: str = "",
        holdout: float = 0.0,
        seed: int = 0,
        labels: str = "",
        persons: npt.ArrayLike | None = None,
        counts_stay: bool = False,
        secret_labels: bool = False,
    ) -> None:
        self.name, self.seed, self._store, self._labels = name, seed, store, labels
        self.counts_stay, self._secret_labels = counts_stay, secret_labels
        self.holdout = check_number(holdout, "holdout", at_least=0, below=1)
        self._read: Callable[[], Any] | None = X if callable(X) else None
        self._names, self._scaling, self._encoder = tuple(columns), scaling, encoder
        self._preparation: Preparation | None = None
        self._prepared_as: str | None = None
        if not callable(X):
            source = Source.of(name, X, y, ids, persons, self._names)
            if source.table is None:
                check_column_names(X, columns, f"X of site {name!r}")
                width = source.rows.X.shape[1]
                if len(source.names) not in (0, width):
                    raise InputError(f"columns of site {name!r} must name {width} columns, got {len(source.names)}")
            self._check_labels(source.rows.y)
            self._source = source

    @cached_property
    def _source(self) -> Source:
        """Rows of the table that the site reads; others are set from the start."""
        assert self._read is not None
        table = self._read()
        raw = isinstance(table, RawTable)
        names = () if raw else tuple(table.columns)
        persons = getattr(table, "persons", None)
        source = Source.of(self.name, table if raw else table.X, table.y, table.ids, persons, names)
        self._check_labels(source.rows.y)
        return source

    @cached_property
    def _given(self) -> Rows:
        """The source's rows, prepared where sites agreed on a preparation."""
        return self._source.prepared(self.name, self._preparation)

    @property
    def width(self) -> int:
        """Columns of the rows."""
        if self._store.is_locked or "_given" not in self.__dict__:
            self._look_for_preparation()
        return int(self._given.X.shape[1])

    # Preparation ------------------------------------------------------------------------------------------------

    def prepare(self, preparation: Preparation) -> None:
        """Let learners see the rows by this preparation from now on, in this process and in others."""
        with self._store.locked():
            check_columns(self.name, self._source.raw(self.name), preparation)
            self._store.write(Record({}, {"columns": preparation.to_values()}), "preparation")
            self._store.write_state({**self._store.read_state(), "preparation": preparation.digest})
            self._look_for_preparation()

    def raw_learning(self, small: Callable[[Rows], Rows]) -> RawTable:
        """The raw table of the rows to learn from, without those that ``small`` leaves out, kept aside or forgotten."""
        forgotten = self._store.read_state()["forgotten"]
        rows = self._source.rows
        kept = small(rows.take(~self._kept_aside(rows) & ~np.isin(rows.ids, forgotten)))
        return self._source.raw(self.name).take(np.isin(rows.ids, kept.ids))

    def _look_for_preparation(self) -> None:
        """Take up the preparation that the store names, if it is another one than before."""
        digest = self._store.read_state().get("preparation")
        if digest == self._prepared_as:
            return
        record = self._store.read("preparation")
        if record is None:
            raise StoreError(f"site {self.name!r} lost its preparation; agree on one again")
        self._preparation, self._prepared_as = Preparation.from_values(record.values["columns"]), digest
        self.__dict__.pop("_given", None)

    def learning(self) -> Rows:
        """Rows to learn from: all but those kept aside."""
        rows = self._all()
        return rows.take(~self._kept_aside(rows)) if self.holdout else rows

    def digest(self) -> str:
        """Fingerprint of all rows as they came, kept aside or not: the same under every preparation."""
        rows, added = self._all(prepared=False), self._store.read("rows")
        whole = hashlib.sha256(f"{rows.digest} {self._source.digest}".encode())
        if added is not None:
            later = _rows_of(added)
            whole.update(later.take(np.isin(later.ids, rows.ids)).digest.encode())
        return whole.hexdigest()

    def held_out(self) -> Rows:
        """Rows that the site keeps aside to test models on; nothing is learned from them."""
        rows = self._all()
        return rows.take(self._kept_aside(rows))

    def schema(self, rows: Rows | None) -> Schema:
        """Description of the site's data, with the classes of ``rows`` and how many each has, where they are given."""
        classes: tuple[Any, ...] = ()
        counts: tuple[int, ...] = ()
        if rows is not None and len(rows.y):
            labels, numbers = np.unique(rows.y, return_counts=True)
            classes, counts = tuple(labels.tolist()), tuple(numbers.tolist())
        width, preparation = self.width, self._preparation
        names = self._source.names if preparation is None else preparation.columns
        scaling = self._scaling if preparation is None else f"{PREPARED}{preparation.digest[:_SHOWN]}"
        return Schema(width, classes, counts, names, scaling, self._encoder)

    def _check_labels(self, labels: npt.NDArray[Any]) -> None:
        """Refuse labels that are not what the site declares, when it gets them: later no label causes a refusal."""
        if self._labels == "targets" and labels.dtype.kind not in "fiub":
            raise InputError(f"y of site {self.name!r} must be numbers to be targets, got {labels.dtype}")
        if self._labels == "classes" and fraction_reason(labels) is not None:
            raise InputError(
                f"y of site {self.name!r} holds fractions, which are no classes; say labels = 'targets' in its policy"
            )

    def _kept_aside(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are kept aside: a share chosen by seed, site and id, so that a row's part never changes."""
        if self.holdout == 0:
            return np.zeros(len(rows.ids), dtype=bool)
        prefix = f"{self.seed}|{self.name}|holdout|".encode()
        draws = [hashlib.blake2b(prefix + str(number).encode(), digest_size=4).digest() for number in rows.ids.tolist()]
        return np.frombuffer(b"".join(draws), dtype="<u4") < self.holdout * 2**32

    def _all(self, *, prepared: bool = True) -> Rows:
        """Rows that there are; not ``prepared`` they have ids and labels only, of a raw table at any time."""
        if not self._store.is_locked:
            raise RuntimeError("rows are read with the store locked: use `with site.store.locked():`")
        self._look_for_preparation()
        forgotten = self._store.read_state()["forgotten"]
        if forgotten and (gone := np.isin(self._source.rows.ids, forgotten)).any():  # they leave memory too
            self._source = self._source.take(~gone)
            self.__dict__.pop("_given", None)
        rows = self._given if prepared else without_columns(self._source.rows)
        added = self._store.read("rows")
        if added is None:
            return self._as_published(rows)
        later = self._added(added) if prepared else without_columns(_rows_of(added))
        if np.isin(later.ids, rows.ids).any():
            raise StoreError(
                f"rows given to site {self.name!r} have ids of rows that were added to its store; "
                "give every row an id of its own"
            )
        rows = rows.plus(later)
        return self._as_published(rows.take(~np.isin(rows.ids, forgotten)) if forgotten else rows)

    def _as_published(self, rows: Rows) -> Rows:
        """Rows in the number that is public: without those that wait, and with a blank one for each forgotten one."""
        if not self.counts_stay:
            return rows
        state = self._store.read_state()
        if state.get("waiting"):
            rows = rows.take(~np.isin(rows.ids, state["waiting"]))
        blank = state.get("blank", [])
        if not blank:
            return rows
        nobody = "" if rows.y.dtype.kind == "U" else 0
        labels = np.array([nobody if label is None else label for _, label in blank], dtype=rows.y.dtype)
        ids = np.array([number for number, _ in blank], dtype=np.int64)
        persons = None if rows.persons is None else np.array([f"blank {number}" for number, _ in blank])
        return rows.plus(Rows(np.zeros((len(blank), rows.X.shape[1]), rows.X.dtype), labels, ids, persons))

    def publish(self) -> None:
        """Let the rows be as many as there are: blank ones go, and those that waited take part.

        It begins another edition of the data, of which everything is released, and charged, anew.
        """
        with self._store.locked():
            state = self._store.read_state()
            state["blank"], state["waiting"] = [], []
            state["edition"] = state.get("edition", 0) + 1
            self._store.write_state(state)

    # Rows that come and go --------------------------------------------------------------------------------------

    def add(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        ids: npt.ArrayLike | None,
        persons: npt.ArrayLike | None,
        question: str,
    ) -> npt.NDArray[np.int64]:
        """Keep further rows in the store; returns their ids. A question that brought rows before brings none again."""
        asked = _mark(question)
        with self._store.locked():
            added = self._store.read("rows")
            if asked and added is not None and (added.arrays["asked"] == asked).any():
                earlier: npt.NDArray[np.int64] = added.arrays["ids"][added.arrays["asked"] == asked]
                return earlier
            new = self._check_new(X, y, ids, persons, added)
            marks = np.full(len(new.ids), asked)
            every = new if added is None else _rows_of(added).plus(new)
            every_mark = marks if added is None else np.concatenate([added.arrays["asked"], marks])
            self._store.write(_record_of(every, every_mark), "rows")
            if self.counts_stay:
                state = self._store.read_state()
                state["waiting"] = [*state.get("waiting", []), *new.ids.tolist()]
                self._store.write_state(state)
            return new.ids

    def _added(self, record: Record) -> Rows:
        """Rows that were added, as learners see them; the store has them as they came."""
        rows = _rows_of(record)
        if self._preparation is None:
            return rows
        return Source(rows, self._source.names).prepared(self.name, self._preparation)

    def _check_new(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        ids: npt.ArrayLike | None,
        persons: npt.ArrayLike | None,
        added: Record | None,
    ) -> Rows:
        """New rows of the site's width and type of labels, under ids that no row ever had."""
        if self._source.table is not None:
            raise InputError("rows of a raw table are added to the site's table, under ids of their own, and not here")
        used = [self._given.ids, *([added.arrays["ids"]] if added is not None else [])]
        used.append(np.asarray(self._store.read_state()["forgotten"], dtype=np.int64))
        taken = np.concatenate(used)
        check_column_names(X, self._source.names)
        fresh = np.arange(len(np.asarray(X))) + (int(taken.max()) + 1 if taken.size else 0) if ids is None else ids
        new = check_site_rows(X, y, fresh, self.name, persons)
        with np.errstate(over="ignore"):  # what does not fit is refused here, and not when somebody asks
            new = replace(new, X=check_rows(new.X.astype(self._source.rows.X.dtype), "X"))
        width = self._source.rows.X.shape[1]
        if new.X.shape[1] != width:
            raise InputError(f"X must have {width} columns as the site has, got {new.X.shape[1]}")
        if np.isin(new.ids, taken).any():
            raise InputError(f"ids {new.ids[np.isin(new.ids, taken)][:5].tolist()} are taken; an id is never reused")
        if label_kind(self._given.y) != label_kind(new.y):
            raise InputError(f"labels must be of the site's type {self._given.y.dtype}, got {new.y.dtype}")
        self._check_labels(new.y)
        return new

    def check_known(self, ids: npt.NDArray[np.int64]) -> None:
        """Refuse ids of no row. Those forgotten already pass, so that an interrupted forgetting can be completed."""
        state = self._store.read_state()
        others = np.array([*state["forgotten"], *state.get("waiting", [])], dtype=np.int64)
        known = np.concatenate([self._all(prepared=False).ids, others])
        missing = ids[~np.isin(ids, known)]
        if len(missing):
            raise Refused("unknown rows", f"site {self.name!r} has no rows with ids {missing[:5].tolist()}")

    def forget(self, ids: npt.NDArray[np.int64], retired: Sequence[str]) -> None:
        """Never use these rows again, and delete the copies the store holds of them.

        ``retired`` names the handles that held them: what was made for these is out of date from the same moment on.
        """
        with self._store.locked():
            state = self._store.read_state()
            if self.counts_stay:
                state["blank"] = [*state.get("blank", []), *self._blanks(ids, state)]
                state["waiting"] = [number for number in state.get("waiting", []) if number not in ids]
            state["forgotten"] = sorted({*state["forgotten"], *ids.tolist()})
            for handle in retired:
                state["generations"][handle] = state["generations"].get(handle, 0) + 1
            self._store.write_state(state)
            added = self._store.read("rows")
            if added is not None:
                kept = ~np.isin(added.arrays["ids"], state["forgotten"])
                self._store.write(_record_of(_rows_of(added).take(kept), added.arrays["asked"][kept]), "rows")

    def _blanks(self, ids: npt.NDArray[np.int64], state: dict[str, Any]) -> list[list[Any]]:
        """Id and label of the blank rows that stand for ``ids``; labels that are nobody's business are left out."""
        rows = self._all(prepared=False)
        gone = np.isin(rows.ids, ids) & ~np.isin(rows.ids, state["forgotten"])
        labels = [None] * int(gone.sum()) if self._secret_labels else rows.y[gone].tolist()
        return [[number, label] for number, label in zip(rows.ids[gone].tolist(), labels, strict=True)]


def _mark(question: str) -> int:
    """Number by which rows remember the question that brought them; 0 for none."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:7], "little") if question else 0


def _rows_of(record: Record) -> Rows:
    """Rows that were added, from the store."""
    arrays, values = record.arrays, record.values
    persons = None if values.get("persons") is None else np.array(values["persons"], dtype=np.str_)
    return Rows(arrays["X"], labels_from_values(values["y"]), arrays["ids"], persons)


def _record_of(rows: Rows, asked: npt.NDArray[Any]) -> Record:
    """Rows that were added, for the store; ``asked`` marks the question that brought each."""
    persons = None if rows.persons is None else rows.persons.tolist()
    values = {"y": labels_to_values(rows.y), "persons": persons}
    return Record({"X": rows.X, "ids": rows.ids, "asked": asked}, values)
