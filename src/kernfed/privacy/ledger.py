"""A site's privacy ledger: an append-only file of what was released, and the budget it must not exceed.

One JSON line per charge, written and synced to disk before the noise is drawn: a crash in between loses budget, never
privacy. Each line carries a hash over itself and the line before, so a line that was changed or lost from
the middle is noticed. The file is the site's own and holds hashes of its persons' ids: keep it where the data are.

A charge names the persons it concerns by ``ids``. Charges of the same person compose, charges of different persons do
not add up. Without ids a charge concerns everyone, which is always safe: the same persons may stand behind rows that
look different, after another scaling for example.
"""

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import check_number
from kernfed.errors import BudgetExceeded, InputError
from kernfed.privacy.accounting import Event, epsilon_for, event_from_dict, event_to_dict
from kernfed.promise import Guarantee, round_up

_FORMAT = "kernfed privacy ledger 1"

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class LedgerLine:
    """One charge: what each person concerned pays, who they are (None: everyone), which data, when, and a note."""

    events: tuple[Event, ...]
    persons: Keys | None
    data: str
    time: str
    note: str

    def concerns(self, people: Keys) -> npt.NDArray[np.bool_]:
        """Which of ``people`` pay."""
        return np.ones(len(people), dtype=np.bool_) if self.persons is None else np.isin(people, self.persons)


class Ledger:
    """The ledger in the file ``path``, with a budget of (epsilon, delta) for each person.

    A new file needs both numbers. An existing one keeps its budget: numbers that differ from it are refused.
    """

    def __init__(self, path: str | os.PathLike[str], epsilon: float | None = None, delta: float | None = None) -> None:
        self.path = Path(path)
        given = {"epsilon": epsilon, "delta": delta}
        if epsilon is not None:
            check_number(epsilon, "epsilon", above=0)
        if delta is not None:
            check_number(delta, "delta", above=0, below=1)
        if not self.path.exists():
            self._need(given)
        with _locked(self.path) as descriptor:
            lines = _read(descriptor, self.path)
            if not lines:
                self._need(given)
                _append(descriptor, "", {"format": _FORMAT, **given})
                _sync_folder(self.path.parent)
        kept: dict[str, Any] = lines[0] if lines else given
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
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
        private: bool = True,
        note: str = "",
    ) -> LedgerLine:
        """Write a charge to disk, or raise ``BudgetExceeded`` and write nothing.

        ``data`` is the ``data_hash`` of the rows. What is not ``private`` is refused: noise from a seed, a choice made
        by looking at the data.
        """
        if not private:
            raise InputError("a ledger takes private releases only, got one marked not private (seeded noise?)")
        persons = None if ids is None else person_keys(ids)
        with _locked(self.path) as descriptor:
            lines = _read(descriptor, self.path)
            entries = [_entry(line) for line in lines[1:]]
            entry = LedgerLine(tuple(events), persons, data, datetime.now(UTC).isoformat(timespec="seconds"), note)
            spent = self._worst([*entries, entry], persons)
            if not spent <= self.epsilon:
                again = sum(data == old.data for old in entries)
                twice = f"; these very rows were charged {again} time(s) before" if again else ""
                raise BudgetExceeded(
                    f"the release would bring some person to epsilon {round_up(spent):g} at delta {self.delta:g}, "
                    f"over the budget of {self.epsilon:g} in {self.path}{twice}; answer from what was released before, "
                    "or add more noise"
                )
            _append(descriptor, lines[-1]["chain"], _line(entry))
        return entry

    def entries(self) -> tuple[LedgerLine, ...]:
        """Everything charged so far."""
        with _locked(self.path) as descriptor:
            return tuple(_entry(line) for line in _read(descriptor, self.path)[1:])

    def spent(self, ids: Sequence[Any] | npt.NDArray[Any] | None = None) -> Guarantee:
        """What the releases so far cost together: the person who paid most, of ``ids`` or of all."""
        entries = self.entries()
        worst = self._worst(entries, None if ids is None else person_keys(ids))
        words = f"one person's records replaced, over {len(entries)} release(s)"
        return Guarantee(worst, self.delta, "record", words)

    def _worst(self, entries: Sequence[LedgerLine], persons: Keys | None) -> float:
        groups = _groups(entries, persons)
        costs = (epsilon_for([e for i in group for e in entries[i].events], self.delta) for group in groups)
        return max(costs, default=0.0)


def data_hash(rows: npt.NDArray[Any]) -> str:
    """Hash of a matrix: its shape and its values in float64."""
    values = np.ascontiguousarray(rows, dtype="<f8")
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()


def person_keys(ids: Sequence[Any] | npt.NDArray[Any]) -> Keys:
    """Sorted 64-bit hashes of the distinct ``ids``, strings or integers.

    Two persons who share a hash are charged as one: too much, never too little.
    """
    values = np.asarray(ids)
    if values.ndim != 1 or values.dtype.kind not in "iuUS" or not len(values):
        raise InputError(f"ids must be a list of strings or integers, got shape {values.shape} of {values.dtype}")
    digests = (hashlib.blake2b(str(value).encode(), digest_size=8).digest() for value in values.tolist())
    return np.unique(np.frombuffer(b"".join(digests), dtype="<u8"))


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


def _line(entry: LedgerLine) -> dict[str, Any]:
    persons = None if entry.persons is None else base64.b64encode(entry.persons.astype("<u8").tobytes()).decode()
    events = [event_to_dict(event) for event in entry.events]
    return {"time": entry.time, "note": entry.note, "data": entry.data, "persons": persons, "events": events}


def _entry(line: dict[str, Any]) -> LedgerLine:
    persons = None if line["persons"] is None else np.frombuffer(base64.b64decode(line["persons"]), dtype="<u8")
    events = tuple(event_from_dict(event) for event in line["events"])
    return LedgerLine(events, persons, line["data"], line["time"], line["note"])


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Descriptor of the file, created for its owner only, with a lock that the system drops when a process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path) -> list[dict[str, Any]]:
    """All lines, checked. A last line without its end was being written when a process died: it is cut off.

    Its release never left, since the noise is drawn after the line is on disk.
    """
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        content = file.read()
    complete, _, torn = content.rpartition(b"\n")
    if torn:
        os.ftruncate(descriptor, len(content) - len(torn))
        os.fsync(descriptor)
    lines, chain = [], ""
    for number, raw in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            line = json.loads(raw)
            body = {name: value for name, value in line.items() if name != "chain"}
            chain = _chain(chain, body)
            if line["chain"] != chain or (number == 1 and line["format"] != _FORMAT):
                raise ValueError
        except (ValueError, KeyError, AttributeError):
            raise InputError(
                f"the ledger {path} is damaged at line {number}: what was spent is not known. "
                "Restore it from a copy; nothing is released until then"
            ) from None
        lines.append(line)
    return lines


def _append(descriptor: int, previous: str, body: dict[str, Any]) -> None:
    """One line, whole and on disk, before this returns."""
    line = (json.dumps({**body, "chain": _chain(previous, body)}) + "\n").encode()
    while line:
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)


def _chain(previous: str, body: dict[str, Any]) -> str:
    return hashlib.sha256((previous + json.dumps(body, sort_keys=True)).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
