"""A site: its rows, its memory, its policy, and the way it answers.

Tasks are functions registered beside the learners that ask for them. A site runs a task only if its policy allows it,
and whatever happens it answers: with a payload, or with a refusal that says why.
"""

import datetime
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, check_column_names, check_number, check_rows, column_names
from kernfed.errors import InputError, MessageError, Refused, StoreError
from kernfed.federation.protocol.message import (
    Payload,
    Question,
    Refusal,
    Reply,
    decode_question,
    digest,
    encode_reply,
    error_refusal,
)
from kernfed.federation.protocol.schema import Schema, label_kind
from kernfed.federation.protocol.task import Task, find_task, forgetters, task
from kernfed.federation.site.policy import Policy
from kernfed.federation.site.store import SiteStore
from kernfed.files import Record, labels_from_values, labels_to_values


@dataclass(frozen=True)
class Rows:
    """Rows of a site: X (n, p), labels y (n,), ids (n,) that are never given to another row."""

    X: FloatArray
    y: npt.NDArray[Any]
    ids: npt.NDArray[np.int64]

    def take(self, chosen: npt.NDArray[Any]) -> "Rows":
        """The chosen rows, by mask or position."""
        return Rows(self.X[chosen], self.y[chosen], self.ids[chosen])

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


#: Information about single rows: where privacy is required, it leaves only by tasks that see to it.
_RAW = ("rows", "counts")


def check_site_rows(X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None, name: str) -> Rows:
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
    return Rows(rows, labels, numbers.astype(np.int64))


def _plain_labels(labels: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Labels out of an array of Python objects, as tables give them."""
    truths = sum(isinstance(label, (bool, np.bool_)) for label in labels)
    texts, numbers = (all(isinstance(label, kind) for label in labels) for kind in (str, (Real, np.bool_)))
    if not (texts or numbers) or truths not in (0, len(labels)):
        kinds = sorted({type(label).__name__ for label in labels})
        raise InputError(f"y of site {name!r} must be all text, all numbers or all booleans, got {', '.join(kinds)}")
    return np.array(labels.tolist())


class Site:
    """One participant. ``answer`` is all that the outside reaches.

    Rows are X (n, p) and y (n,), or a function without arguments in the place of X that returns a table (``X``, ``y``,
    ``ids``, ``columns``) and is called when a question first needs the rows: scores of models that exist do not.
    Without ``columns`` their names are those of X, where it is a table that has some. Without ``store`` the site
    remembers nothing after this process: it is ``temporary``.
    """

    def __init__(
        self,
        name: str,
        X: npt.ArrayLike | Callable[[], Any],
        y: npt.ArrayLike = (),
        *,
        ids: npt.ArrayLike | None = None,
        store: SiteStore | None = None,
        policy: Policy | None = None,
        columns: tuple[str, ...] = (),
        scaling: str = "",
        encoder: str = "",
        holdout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.seed = seed
        self.holdout = check_number(holdout, "holdout", at_least=0, below=1)
        self.temporary = store is None
        self.store = store if store is not None else SiteStore()
        self.policy = policy if policy is not None else Policy()
        self._read: Callable[[], Any] | None = X if callable(X) else None
        if not callable(X):
            check_column_names(X, columns, f"X of site {name!r}")
            columns = columns or column_names(X)
            self._given = check_site_rows(X, y, ids, name)
            if len(columns) not in (0, self._given.X.shape[1]):
                raise InputError(
                    f"columns of site {name!r} must name {self._given.X.shape[1]} columns, got {len(columns)}"
                )
        self._about = (tuple(columns), scaling, encoder)
        self._lock = threading.Lock()
        #: Id of the question that is being answered.
        self.question = ""
        #: Ids of the rows that are being forgotten.
        self.leaving: tuple[int, ...] = ()
        #: Working memory of tasks (assembled banks); rebuilt from the store at will.
        self.cache: dict[str, Any] = {}

    # Rows -----------------------------------------------------------------------------------------------------

    @cached_property
    def _given(self) -> Rows:
        """Rows of the table that the site was given; others are set from the start."""
        assert self._read is not None
        table = self._read()
        self._about = (tuple(table.columns), *self._about[1:])
        return check_site_rows(table.X, table.y, table.ids, self.name)

    @property
    def width(self) -> int:
        """Columns of the site's rows."""
        return int(self._given.X.shape[1])

    def rows(self, *, every_class: bool = False) -> Rows:
        """Rows to learn from: given and added, without those forgotten, kept aside, or of classes too small.

        ``every_class`` includes small ones, for whoever leaves them out later.
        """
        rows = self._all_rows()
        if self.holdout:
            rows = rows.take(~self._kept_aside(rows))
        return rows if every_class else self.without_small_classes(rows)

    def without_small_classes(self, rows: Rows) -> Rows:
        """Rows of the classes that the policy lets the site speak of."""
        if self.policy.min_rows_per_class == 1 or not len(rows.y):
            return rows
        labels, counts = np.unique(rows.y, return_counts=True)
        return rows.take(np.isin(rows.y, labels[counts >= self.policy.min_rows_per_class]))

    def held_out(self) -> Rows:
        """Rows that the site keeps aside to test models on; nothing is learned from them."""
        rows = self._all_rows()
        return rows.take(self._kept_aside(rows))

    def _kept_aside(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are kept aside: a share chosen by seed, site and id, so that a row's part never changes."""
        if self.holdout == 0:
            return np.zeros(len(rows.ids), dtype=bool)
        prefix = f"{self.seed}|{self.name}|holdout|".encode()
        draws = [hashlib.blake2b(prefix + str(number).encode(), digest_size=4).digest() for number in rows.ids.tolist()]
        return np.frombuffer(b"".join(draws), dtype="<u4") < self.holdout * 2**32

    def _all_rows(self) -> Rows:
        forgotten = self.store.read_state()["forgotten"]
        if forgotten and np.isin(self._given.ids, forgotten).any():  # they leave memory too
            self._given = self._given.take(~np.isin(self._given.ids, forgotten))
        rows = self._given
        added = self.store.read("rows")
        if added is not None:
            labels = labels_from_values(added.values["y"])
            if np.isin(added.arrays["ids"], rows.ids).any():
                raise StoreError(
                    f"rows given to site {self.name!r} have ids of rows that were added to its store; "
                    "give every row an id of its own"
                )
            rows = Rows(
                np.concatenate([rows.X, added.arrays["X"].astype(rows.X.dtype)]),
                np.concatenate([rows.y, labels]),
                np.concatenate([rows.ids, added.arrays["ids"]]),
            )
            if np.isin(added.arrays["ids"], forgotten).any():  # of a forgetting that was interrupted
                rows = rows.take(~np.isin(rows.ids, forgotten))
        return rows

    def add_rows(
        self, X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None = None, *, question: str = ""
    ) -> npt.NDArray[np.int64]:
        """Keep further rows in the store; returns their ids. A question that brought rows before brings none again."""
        asked = _mark(question)
        with self.store.locked():
            added = self.store.read("rows")
            if asked and added is not None and (added.arrays["asked"] == asked).any():
                found: npt.NDArray[np.int64] = added.arrays["ids"][added.arrays["asked"] == asked]
                return found
            used = [self._given.ids, *([added.arrays["ids"]] if added is not None else [])]
            used.append(np.asarray(self.store.read_state()["forgotten"], dtype=np.int64))
            taken = np.concatenate(used)
            check_column_names(X, self._about[0])
            count = len(np.asarray(X))
            fresh = np.arange(count) + (int(taken.max()) + 1 if taken.size else 0) if ids is None else ids
            new = check_site_rows(X, y, fresh, self.name)
            if new.X.shape[1] != self._given.X.shape[1]:
                raise InputError(f"X must have {self._given.X.shape[1]} columns as the site has, got {new.X.shape[1]}")
            if np.isin(new.ids, taken).any():
                raise InputError(
                    f"ids {new.ids[np.isin(new.ids, taken)][:5].tolist()} are taken; an id is never reused"
                )
            if label_kind(self._given.y) != label_kind(new.y):
                raise InputError(f"labels must be of the site's type {self._given.y.dtype}, got {new.y.dtype}")
            marks = np.full(count, asked)
            if added is not None:
                old = labels_from_values(added.values["y"])
                new = Rows(
                    np.concatenate([added.arrays["X"], new.X]),
                    np.concatenate([old, new.y]),
                    np.concatenate([added.arrays["ids"], new.ids]),
                )
                marks = np.concatenate([added.arrays["asked"], marks])
            arrays = {"X": new.X, "ids": new.ids, "asked": marks}
            self.store.write(Record(arrays, {"y": labels_to_values(new.y)}), "rows")
            return new.ids[-count:]

    def check_known(self, ids: npt.NDArray[np.int64]) -> None:
        """Refuse ids of no row. Those forgotten already pass, so that an interrupted forgetting can be completed."""
        known = np.concatenate([self._all_rows().ids, np.array(self.store.read_state()["forgotten"], dtype=np.int64)])
        missing = ids[~np.isin(ids, known)]
        if len(missing):
            raise Refused("unknown rows", f"site {self.name!r} has no rows with ids {missing[:5].tolist()}")

    def forget_rows(self, ids: npt.NDArray[np.int64], retired: Sequence[str] = ()) -> None:
        """Never use these rows again, and delete the copies the site's store holds of them.

        ``retired`` names the handles that held them: what was made for these is out of date from the same moment on.
        """
        self.check_known(ids)
        with self.store.locked():
            self.leaving = tuple(ids.tolist())
            for discard in forgetters():
                discard(self)
            self.leaving = ()
            state = self.store.read_state()
            state["forgotten"] = sorted({*state["forgotten"], *ids.tolist()})
            for handle in retired:
                state["generations"][handle] = state["generations"].get(handle, 0) + 1
            self.store.write_state(state)
            added = self.store.read("rows")
            if added is not None:
                kept = ~np.isin(added.arrays["ids"], state["forgotten"])
                arrays = {name: array[kept] for name, array in added.arrays.items()}
                labels = labels_from_values(added.values["y"])[kept]
                self.store.write(Record(arrays, {"y": labels_to_values(labels)}), "rows")

    def schema(self, rows: Rows | None = None) -> Schema:
        """Description of the site's data, or of ``rows`` made of them."""
        rows = self.rows() if rows is None else rows
        labels, counts = np.unique(rows.y, return_counts=True) if len(rows.y) else (np.array([]), np.array([]))
        columns, scaling, encoder = self._about
        return Schema(self._given.X.shape[1], tuple(labels.tolist()), tuple(counts.tolist()), columns, scaling, encoder)

    # Answers --------------------------------------------------------------------------------------------------

    def answer(self, data: bytes) -> bytes:
        """Reply to a question, both as bytes. Never raises: what goes wrong is a refusal."""
        try:
            question = decode_question(data)
        except MessageError as error:
            return encode_reply(Reply(self.name, "", "", "", "", refusal=Refusal("bad question", str(error))))
        try:
            return self._answer(question)
        except Refused as refused:
            return self._reply(question, refusal=refused.refusal)
        except Exception as error:  # the operator must see it, and the other sites must go on
            return self._reply(question, refusal=error_refusal(error))

    def _answer(self, question: Question) -> bytes:
        known = find_task(question.task)
        if known is None:
            raise Refused("unknown task", f"site {self.name!r} knows no task {question.task!r}")
        if not self.policy.allows(question.task):
            allowed = ", ".join(self.policy.tasks)
            raise Refused("policy", f"the policy of site {self.name!r} allows {allowed}, not {question.task!r}")
        if not self.policy.welcomes(question.caller):
            raise Refused("policy", f"the policy of site {self.name!r} does not answer caller {question.caller!r}")
        if self.policy.require_privacy and known.information in _RAW and not known.private:
            raise Refused(
                "policy",
                f"the policy of site {self.name!r} requires privacy, and {question.task!r} would "
                f"send {known.information} without any",
            )
        with self._lock:  # one question at a time; sites work in parallel, a site does not
            self.question = question.id
            if known.changes:
                earlier = self.store.read_answer(question.id)
                if earlier is not None:
                    return self._repeat(question, earlier, known)
            self._charge_queries(question)
            found = known.run(self, question.payload)
            reply = self._reply(question, found, known.information)
            if known.changes:
                about = {"question": question_digest(question), "values": dict(found.values)}
                self.store.write_answer(question.id, Record(found.arrays, about))
        return reply

    def _repeat(self, question: Question, earlier: Record, known: Task) -> bytes:
        """The answer given earlier to this very question; another one must not hide behind its id."""
        if earlier.values["question"] != question_digest(question):
            raise Refused("repeated id", f"question {question.id!r} was another one before; give each its own id")
        return self._reply(question, Payload(earlier.arrays, earlier.values["values"]), known.information)

    def _charge_queries(self, question: Question) -> None:
        limit, queries = self.policy.queries_per_day, question.payload.arrays.get("X")
        if limit is None or queries is None or question.task not in ("scores", "secure_scores"):
            return
        with self.store.locked():
            state = self.store.read_state()
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            counts = state["queries"].get(today, {})
            asked = counts.get(question.caller, 0) + len(queries)
            if asked > limit:
                raise Refused(
                    "policy",
                    f"site {self.name!r} scores {limit} queries a day for {question.caller!r}, "
                    f"this would be number {asked}; ask again tomorrow",
                )
            state["queries"] = {today: {**counts, question.caller: asked}}
            self.store.write_state(state)

    def _reply(
        self,
        question: Question,
        payload: Payload | None = None,
        information: str = "none",
        refusal: Refusal | None = None,
    ) -> bytes:
        found = payload if payload is not None else Payload()
        parameters = digest(question.payload.values)
        return encode_reply(
            Reply(self.name, question.run, question.id, question.task, parameters, information, found, refusal)
        )


def _mark(question: str) -> int:
    """Number by which rows remember the question that brought them; 0 for none."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:7], "little") if question else 0


def question_digest(question: Question) -> str:
    """Fingerprint of what is asked: task, values and arrays, whoever asks and in whichever run."""
    whole = hashlib.sha256(f"{question.task} {digest(question.payload.values)}".encode())
    for name, array in sorted(question.payload.arrays.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def data_digest(rows: Rows) -> str:
    """Fingerprint of rows, labels and ids, in their order; computed once for the same rows."""
    return rows.digest


@task("describe", "schema")
def describe(site: Site, payload: Payload) -> Payload:
    """The site's schema; where ``privacy`` is asked that randomises labels, by randomised labels."""
    if "privacy" in payload.values:
        from kernfed.federation.folding.released import released_schema  # it builds on this module

        return Payload(values=released_schema(site, payload.values["privacy"]).to_values())
    if site.policy.private_labels:
        raise Refused(
            "policy", f"the policy of site {site.name!r} requires randomised labels, this learner takes them as public"
        )
    return Payload(values=site.schema().to_values())
