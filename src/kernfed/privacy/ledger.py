"""A site's privacy ledger: an append-only file of what was released, and the budget it must not exceed.

One JSON line per charge, written and synced to disk before the noise is drawn: a crash in between loses budget, never
privacy. Each line carries a hash over itself and the line before, so a line that was changed or lost from
the middle is noticed. The file is the site's own and holds hashes of its persons' ids: keep it where the data are.

A charge names the persons it concerns by ``ids``. Charges of the same person compose, charges of different persons do
not add up. Without ids a charge concerns everyone, which is always safe: the same persons may stand behind rows that
look different, after another scaling for example. A person with several rows in one release pays for each of them.

A ledger with a ``secret`` keeps keyed hashes (HMAC-SHA256), which nobody without the secret can try names against. They
stay when rows are forgotten: who comes back under another number is the same person, and has paid already.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.chain import ChainFile
from kernfed.base.checks import check_choice, check_number
from kernfed.errors import BudgetExceeded, InputError
from kernfed.files import sync_folder
from kernfed.privacy.accounting import Event, epsilon_for, event_from_dict, event_to_dict, repeated
from kernfed.promise import Guarantee, round_up

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Ids = Sequence[Any] | npt.NDArray[Any]
#: Called with the number of charges and the hash of the last line, once a charge is on disk and before it returns.
Anchor = Callable[[int, str], None]
#: What a ledger begins with, and what is said of one that does not fit its hashes.
FORMAT = "kernfed privacy ledger 1"
_DAMAGED = (
    "the ledger {path} is damaged at line {line}: what was spent is not known. "
    "Restore it from a copy; nothing is released until then"
)


@dataclass(frozen=True, eq=False)
class LedgerLine:
    """One charge: what each person concerned pays, who they are (None: everyone), which data, when, and a note.

    ``by`` says what the persons were known by: "row", the id of their one row, or "person".
    """

    events: tuple[Event, ...]
    persons: Keys | None
    data: str
    time: str
    note: str
    by: str = "row"

    def concerns(self, people: Keys) -> Mask:
        """Which of ``people`` pay."""
        return np.ones(len(people), dtype=np.bool_) if self.persons is None else np.isin(people, self.persons)


class Ledger:
    """The ledger in the file ``path``, with a budget of (epsilon, delta) for each person.

    A new file needs both numbers. An existing one keeps its budget: numbers that differ from it are refused.

    secret : key of the persons' hashes, for a file that was begun with one; the file of an earlier version goes on
    without. by : what ids stand for, "row" or "person"; charges that were made by the other concern everyone, as nobody
    can tell whom. anchor : told of every charge. leave_out : whether a release goes on without persons who cannot pay
    it; otherwise it is refused. file : opens the file for one use; by default it is locked and read every time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        secret: bytes | None = None,
        by: str = "row",
        anchor: Anchor | None = None,
        leave_out: bool = False,
        file: Callable[[], AbstractContextManager[ChainFile]] | None = None,
    ) -> None:
        self.path = Path(path)
        self._file = partial(open_file, self.path) if file is None else file
        self.by, self.anchor, self.leave_out = check_choice(by, "by", ("row", "person")), anchor, leave_out
        given = {"epsilon": epsilon, "delta": delta}
        if epsilon is not None:
            check_number(epsilon, "epsilon", above=0)
        if delta is not None:
            check_number(delta, "delta", above=0, below=1)
        if not self.path.exists():
            self._need(given)
        with self._file() as begun:
            if not begun.lines:
                self._need(given)
                begun.append({"format": FORMAT, **given, **({} if secret is None else {"keyed": True})})
                sync_folder(self.path.parent)
            kept: dict[str, Any] = begun.lines[0]
        if kept.get("keyed") and secret is None:
            raise InputError(f"the ledger {path} has keyed names: secret must be the key it was begun with")
        self._secret = secret if kept.get("keyed") else None
        for name, value in given.items():
            if value is not None and value != kept[name]:
                raise InputError(f"{name} must be {kept[name]!r} as the ledger at {path} has it, got {value!r}")
        self.epsilon, self.delta = float(kept["epsilon"]), float(kept["delta"])

    def _need(self, budget: dict[str, float | None]) -> None:
        if None in budget.values():
            raise InputError(f"epsilon and delta must be given for a new ledger, there is none at {self.path}")

    def charge(
        self,
        events: Sequence[Event],
        *,
        data: str,
        ids: Ids | None = None,
        private: bool = True,
        note: str = "",
        together: bool = False,
    ) -> Mask | None:
        """Write a charge to disk, or raise ``BudgetExceeded`` and write nothing.

        ``data`` is the ``data_hash`` of the rows. What is not ``private`` is refused: noise from a seed, a choice made
        by looking at the data. ``together`` says that rows of one person move the same noisy numbers (a sum), and not
        each its own. Returns who of ``ids`` (n,) has paid: all, unless the ledger leaves out those who cannot; it
        refuses where nobody can, and persons are known by their one row.
        """
        if not private:
            raise InputError("a ledger takes private releases only, got one marked not private (seeded noise?)")
        keys = None if ids is None else self.keys(ids)
        with self._file() as file:
            entries = _entries(file.lines)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            if keys is None:
                made = [LedgerLine(tuple(events), None, data, now, note, self.by)]
                pays, spent = None, self._worst([*entries, *made], None)
                refused = not spent <= self.epsilon
            else:
                shares = _shares(events, keys, together=together)
                costs = self._costs(entries, shares)
                pays, spent = np.isin(keys, _payers(shares, costs, self.epsilon)), max(cost.max() for cost in costs)
                # Whether nobody can pay depends on whose rows are whose, where persons are named: then nobody is told.
                refused = not (pays.any() or self.by == "person" if self.leave_out else pays.all())
                made = [
                    LedgerLine(paid, people[cost <= self.epsilon], data, now, note, self.by)
                    for (paid, people), cost in zip(shares, costs, strict=True)
                ]
            if refused:
                again = sum(data == old.data for old in entries)
                twice = f"; these very rows were charged {again} time(s) before" if again else ""
                raise BudgetExceeded(
                    f"the release would bring some person to epsilon {round_up(spent):g} at delta {self.delta:g}, "
                    f"over the budget of {self.epsilon:g} in {self.path}{twice}; answer from what was released before, "
                    "or add more noise"
                )
            each = {} if self.by == "row" else {"each": [event_to_dict(event) for event in events]}
            last = file.append({**_line(made), **each})
            if self.anchor is not None:
                self.anchor(len(file.lines) - 1, last["chain"])
        return pays

    def keys(self, ids: Ids) -> Keys:
        """Hashes (n,) of the persons behind ``ids`` (n,), in their order: keyed ones where the ledger has a secret."""
        return person_keys(ids, self._secret)

    def affordable(self, events: Sequence[Event], ids: Ids, *, together: bool = False) -> Mask:
        """Who of ``ids`` (n,) can still pay ``events``, for each of their rows among ``ids``."""
        keys, entries = self.keys(ids), self.entries()
        shares = _shares(events, keys, together=together)
        return np.isin(keys, _payers(shares, self._costs(entries, shares), self.epsilon))

    def chain(self) -> tuple[str, ...]:
        """Hashes of all lines: the first belongs to no charge, the last is the head."""
        with self._file() as file:
            return tuple(line["chain"] for line in file.lines)

    def _costs(self, entries: Sequence[LedgerLine], shares: "Shares") -> "list[npt.NDArray[np.float64]]":
        """Epsilon that each person of each share has come to once it has paid, with all that was charged before."""
        return [self._person_costs(entries, people, paid) for paid, people in shares]

    def _person_costs(
        self, entries: Sequence[LedgerLine], people: Keys, paid: tuple[Event, ...]
    ) -> npt.NDArray[np.float64]:
        concerned = np.array([self._concerned(entry, people) for entry in entries], dtype=np.bool_)
        patterns, place = np.unique(concerned.reshape(len(entries), len(people)), axis=1, return_inverse=True)
        earlier = [[e for i in np.flatnonzero(column).tolist() for e in entries[i].events] for column in patterns.T]
        return np.array([epsilon_for([*events, *paid], self.delta) for events in earlier])[place.ravel()]

    def _concerned(self, entry: LedgerLine, people: Keys) -> Mask:
        """Which of ``people`` pay a charge; one that knew them by something else may have meant anybody."""
        return entry.concerns(people) if entry.by == self.by else np.ones(len(people), dtype=np.bool_)

    def entries(self) -> tuple[LedgerLine, ...]:
        """Everything charged so far."""
        with self._file() as file:
            return tuple(_entries(file.lines))

    def spent(self, ids: Ids | None = None) -> Guarantee:
        """What the releases so far cost together: the person who paid most, of ``ids`` or of all."""
        entries = self.entries()
        worst = self._worst(entries, None if ids is None else self.keys(ids))
        words = f"one person's records replaced, over {len(entries)} release(s)"
        return Guarantee(worst, self.delta, "record", words)

    def tally(self) -> float | None:
        """Epsilon of somebody who has one row in every release, where persons are named; None where they are not.

        It follows from what was asked. What the person who paid most has paid would tell whose rows are whose.
        """
        with self._file() as file:
            charges = file.lines[1:]
        if not any("each" in charge for charge in charges):
            return None
        events = [event_from_dict(event) for charge in charges for event in charge.get("each", charge["events"])]
        return epsilon_for(events, self.delta)

    def _worst(self, entries: Sequence[LedgerLine], persons: Keys | None) -> float:
        known = [entry if entry.by == self.by else replace(entry, persons=None) for entry in entries]
        groups = _groups(known, persons)
        costs = (epsilon_for([e for i in group for e in entries[i].events], self.delta) for group in groups)
        return max(costs, default=0.0)


def open_file(path: Path) -> AbstractContextManager[ChainFile]:
    """The file of a ledger, locked and read once until the end of the block.

    Steps that belong together, such as checking the ledger, charging it and stating what was spent, see the same lines.
    """
    return ChainFile.opened(path, FORMAT, _DAMAGED)


def data_hash(rows: npt.NDArray[Any]) -> str:
    """Hash of a matrix: its shape and its values in float64."""
    values = np.ascontiguousarray(rows, dtype="<f8")
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()


def person_keys(ids: Ids, secret: bytes | None = None) -> Keys:
    """64-bit hashes (n,) of ``ids`` (n,), strings or integers, in their order; keyed where there is a ``secret``.

    Two persons who share a hash are charged as one: too much, never too little.
    """
    values = np.asarray(ids)
    if values.ndim != 1 or values.dtype.kind not in "iuUS" or not len(values):
        raise InputError(f"ids must be a list of strings or integers, got shape {values.shape} of {values.dtype}")
    texts = [str(value).encode() for value in values.tolist()]
    if secret is None:
        digests = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
    else:
        digests = [hmac.digest(secret, text, "sha256")[:8] for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


#: What persons pay who have equally many rows in a release: events, and who they are.
Shares = list[tuple[tuple[Event, ...], Keys]]


def _shares(events: Sequence[Event], keys: Keys, *, together: bool) -> Shares:
    people, rows = np.unique(keys, return_counts=True)
    return [
        (tuple(repeated(event, int(k), together=together) for event in events), people[rows == k])
        for k in np.unique(rows)
    ]


def _payers(shares: Shares, costs: Sequence[npt.NDArray[np.float64]], budget: float) -> Keys:
    """Who stays within the budget."""
    return np.concatenate([people[cost <= budget] for (_, people), cost in zip(shares, costs, strict=True)])


def _groups(entries: Sequence[LedgerLine], persons: Keys | None) -> list[tuple[int, ...]]:
    """Which entries concern the same person: each distinct combination among ``persons`` (None: anyone), once.

    A combination that is part of another costs less and is left out.
    """
    named = [entry.persons for entry in entries if entry.persons is not None]
    # Someone in no named list pays what concerns everyone.
    patterns = {tuple(i for i, entry in enumerate(entries) if entry.persons is None)} if persons is None else set()
    people = persons if persons is not None else np.unique(np.concatenate([*named, np.zeros(0, np.uint64)]))
    if len(people) and entries:
        concerned = np.array([entry.concerns(people) for entry in entries])
        patterns |= {tuple(np.flatnonzero(column).tolist()) for column in np.unique(concerned, axis=1).T}
    return [p for p in patterns if p and not any(set(p) < set(other) for other in patterns)]


def _line(charge: Sequence[LedgerLine]) -> dict[str, Any]:
    """One line of the file for one release: under "more" what persons pay who have other numbers of rows in it.

    However persons and rows belong together, a release is one line: the number of lines tells nothing of them.
    """
    first, *others = charge
    body = {"time": first.time, "note": first.note, "data": first.data, **_share(first)}
    by = {} if first.by == "row" else {"by": first.by}
    return {**body, **by, **({"more": [_share(other) for other in others]} if others else {})}


def _share(entry: LedgerLine) -> dict[str, Any]:
    persons = None if entry.persons is None else base64.b64encode(entry.persons.astype("<u8").tobytes()).decode()
    return {"persons": persons, "events": [event_to_dict(event) for event in entry.events]}


def _entries(lines: Sequence[dict[str, Any]]) -> list[LedgerLine]:
    """Charges of a ledger's lines, of which the first is none."""
    entries = []
    for line in lines[1:]:
        for share in (line, *line.get("more", ())):
            keys, events = share["persons"], tuple(event_from_dict(event) for event in share["events"])
            persons = None if keys is None else np.frombuffer(bytearray(base64.b64decode(keys)), dtype="<u8")
            entries.append(LedgerLine(events, persons, line["data"], line["time"], line["note"], line.get("by", "row")))
    return entries
