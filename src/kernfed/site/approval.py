"""Questions that wait for a person: a policy may hold tasks until the site's operator approves them, at the site.

``approvals.json`` in the store has what waits, the newest of every caller, and what is approved: a task, for a caller,
until some time, and for one question alone where the operator wants it so. Whether a question is held follows from the
policy, from what was asked and from what was approved; the sentence is always the same.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from kernfed.base.fields import from_values
from kernfed.base.plain import read_json_file
from kernfed.errors import InputError, Refused, StoreError
from kernfed.files import atomic_path
from kernfed.site.authorise import FIXED_REASONS, Caller, question_digest
from kernfed.site.journal import LONGEST, Journal, rows_in
from kernfed.site.protocol.message import Question, digest
from kernfed.site.store import SiteStore

FILE = "approvals.json"
#: Questions that wait, at most: of one caller, where all that name themselves are one, and of all.
_MOST_OF_ONE, _MOST = 50, 500
_log = logging.getLogger("kernfed.site")


@dataclass(frozen=True)
class Held:
    """A question that waits. ``known`` is whether the connection says who asks; ``question`` is its digest."""

    task: str
    caller: str
    known: bool
    question: str
    since: str
    rows: int

    @property
    def key(self) -> str:
        """Short name, by which the operator approves it."""
        return _key(self.task, self.caller, self.known, self.question)


@dataclass(frozen=True)
class Approval:
    """What is approved: ``task`` for ``caller`` before ``until``, and for one ``question`` alone unless it is empty."""

    task: str
    caller: str
    known: bool
    until: str
    question: str = ""

    @property
    def key(self) -> str:
        """Short name, by which the operator withdraws it."""
        return _key(self.task, self.caller, self.known, self.question)

    def covers(self, asked: Held) -> bool:
        """Whether a question of this kind goes through, for as long as the approval lasts."""
        task = self.task in (asked.task, asked.task.partition(":")[0])
        same = task and (self.caller, self.known) == (asked.caller, asked.known)
        return same and self.question in ("", asked.question)

    @property
    def lasts(self) -> bool:
        """Whether it has not expired."""
        return datetime.now(UTC) < datetime.fromisoformat(self.until)


Entry = TypeVar("Entry", Held, Approval)


class Approvals:
    """What waits and what is approved at the site that has ``store``."""

    def __init__(self, store: SiteStore) -> None:
        self._store = store

    def check(self, question: Question, part: str, caller: Caller) -> None:
        """Refuse a question whose ``part``, or task, is not approved, and let it wait under that name."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        name, rows = caller.name[:LONGEST], rows_in(question.payload)
        asked = Held(part, name, caller.known, question_digest(question), now, rows)
        try:
            if any(approval.covers(asked) for approval in self.read()[1]):
                return
            self._hold(asked)
        except Exception:  # who cannot tell what is approved takes it that nothing is
            _log.exception("what is approved at the site cannot be read or written")
        raise Refused("held", FIXED_REASONS["held"], public=True)

    def read(self) -> tuple[list[Held], list[Approval]]:
        """What waits, the oldest first, and what is approved and has not expired."""
        place = self._store.path / FILE
        if not place.exists():
            return [], []
        try:
            content = read_json_file(place)
            held = [from_values(Held, entry) for entry in content["held"]]
            approved = [from_values(Approval, entry) for entry in content["approved"]]
            return held, [approval for approval in approved if approval.lasts]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{place} is damaged ({error}); delete it, and approve again what shall be") from None

    def approve(self, about: Held, lasting: timedelta, *, identical: bool, journal: Journal) -> Approval:
        """Let ``about`` through, and whatever else its caller asks of its task unless ``identical``."""
        until = (datetime.now(UTC) + lasting).isoformat(timespec="seconds")
        approval = Approval(about.task, about.caller, about.known, until, about.question if identical else "")
        journal.approval("approved", _line(approval))
        with self._store.locked():
            held, approved = self.read()
            kept = [other for other in approved if other.key != approval.key]
            self._write([other for other in held if not approval.covers(other)], [*kept, approval])
        return approval

    def withdraw(self, key: str, *, journal: Journal) -> Approval:
        """Approve something no longer, from now on."""
        with self._store.locked():
            held, approved = self.read()
            ended = _named(key, approved, "approved")
            self._write(held, [other for other in approved if other != ended])
        journal.approval("withdrawn", _line(ended))
        return ended

    def waiting(self, key: str) -> Held:
        """The question that waits under a short name."""
        return _named(key, self.read()[0], "waiting")

    def _hold(self, asked: Held) -> None:
        with self._store.locked():
            held, approved = self.read()
            if asked.key in {other.key for other in held}:
                return
            mine = [other for other in held if _quota(other) == _quota(asked)]
            crowd = set(map(id, mine[: max(0, len(mine) + 1 - _MOST_OF_ONE)]))
            self._write([*(other for other in held if id(other) not in crowd), asked][-_MOST:], approved)

    def _write(self, held: list[Held], approved: list[Approval]) -> None:
        content = {"held": [asdict(entry) for entry in held], "approved": [asdict(entry) for entry in approved]}
        with atomic_path(self._store.path / FILE, private=True) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _quota(held: Held) -> str:
    return Caller(held.caller, held.known).quota


def _line(approval: Approval) -> Mapping[str, Any]:
    return {**asdict(approval), "outcome": f"until {approval.until}"}


def _key(task: str, caller: str, known: bool, question: str) -> str:
    return digest({"task": task, "caller": caller, "known": known, "question": question})[:8]


def _named(key: str, entries: list[Entry], state: str) -> Entry:
    chosen = [entry for entry in entries if entry.key == key]
    if not chosen:
        keys = ", ".join(entry.key for entry in entries[:20]) or "none"
        raise InputError(f"{key!r:.40} is not {state}; there are {keys}: see kernfed approve list")
    return chosen[0]
