"""A site's journal: who asked what kind of question when, what left, under which policy, refused or answered.

It is a chain of lines (``base.chain``) in the folder ``journal`` of the site's store. A line is on disk before its
reply leaves, of refusals too; it holds names, kinds and numbers, and nothing of the data.

event          "asked", "owner" (a command at the site), "approved", "withdrawn", "policy" (the settings behind a
               digest), or of the chain itself: "begun", "continued", "torn", "cut"
asked_by       who asked, as the connection says; null where the engine does not know
on_behalf_of   who asked, as the question says: a gateway's customer, or a name that a caller gives itself
rows           rows of the question: queries, rows to add, ids to forget
leaves         kind of information that left; bytes_in, bytes_out and numbers say how much
policy         digest of the policy; budget is its cap (epsilon, delta) or null, charges the length of the ledger

``check_journal`` finds without anything else: a line that was changed, removed from the middle, put in or moved, for
the hashes do not fit; and a last line that is gone, where ``head`` is still that of then. Only a head that was noted
elsewhere (``kernfed journal check`` prints it) shows an end that was cut off together with ``head``, and a journal that
was written anew from some line on by somebody who computed all hashes again. Lines after the noted head can be neither
told from true ones nor missed.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernfed.base.chain import (
    BEGUN,
    CONTINUED,
    CUT,
    TORN,
    ChainedLines,
    Place,
    chained,
    line_files,
    parsed,
    read_head,
)
from kernfed.errors import InputError, StoreError
from kernfed.files import atomic_path
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, Reply
from kernfed.site.protocol.task import shown_name
from kernfed.site.store import SiteStore

#: The folder of the journal in a store, and the file of its privacy ledger.
FOLDER, LEDGER = "journal", "ledger.jsonl"
#: Characters of a name that somebody outside chose, at most.
LONGEST = 200
#: Characters of a policy that is written out, at most.
_LONGEST_POLICY = 30_000
#: Code and sentence of the refusal in place of a reply that cannot be written down.
UNWRITTEN = ("journal", "the site's journal cannot be written, so that it answers nothing; its operator has to look")


class Journal:
    """The journal of site ``name`` in its store. A ``durable`` one waits for the disk."""

    def __init__(self, store: SiteStore, name: str, *, durable: bool = True) -> None:
        self._store = store
        self._lines = ChainedLines(store.path / FOLDER, {"site": name[:LONGEST]}, durable=durable)
        self._policy: str | None = None

    def asked(
        self, question: Question | None, connected: str | None, sizes: tuple[int, int], reply: Reply, policy: Policy
    ) -> None:
        """Write down a question, None where it cannot be read, and its reply; ``sizes`` are the bytes of the two."""
        given = Question("", "", "", Payload(), "") if question is None else question
        refusal = reply.refusal
        line = {
            "event": "asked",
            "asked_by": None if connected is None else connected[:LONGEST],
            "on_behalf_of": given.caller[:LONGEST],
            "task": shown_name(given.task, given.payload)[:LONGEST],
            "run": given.run[:LONGEST],
            "id": given.id[:LONGEST],
            "rows": rows_in(given.payload),
            "outcome": "answered" if refusal is None else "refused",
            "code": None if refusal is None else refusal.code,
            "leaves": "none" if refusal is not None else reply.information,
            "numbers": 0 if refusal is not None else reply.payload.scalars,
            "bytes_in": sizes[0],
            "bytes_out": sizes[1],
        }
        self._lines.append({**line, **self._under(policy)})

    def owner(self, what: str, rows: int, outcome: str, policy: Policy) -> None:
        """Write down a command at the site, of whoever holds its rows."""
        line = {"event": "owner", "asked_by": "owner", "on_behalf_of": "", "task": what[:LONGEST], "rows": rows}
        self._lines.append({**line, "outcome": outcome, **self._under(policy)})

    def approval(self, event: str, about: Mapping[str, Any]) -> None:
        """Write down that questions were approved, or are no more."""
        self._lines.append({"event": event, **about})

    def _under(self, policy: Policy) -> dict[str, Any]:
        """Policy and budget of a line. The settings behind a digest are a line of their own, before the first."""
        if self._policy is None:
            self._policy = str(self._lines.last().get("policy", ""))
        if self._policy != policy.digest:
            settings = asdict(policy)
            known = settings if len(str(settings)) < _LONGEST_POLICY else None
            self._lines.append({"event": "policy", "policy": policy.digest, "settings": known})
            self._policy = policy.digest
        limit = policy.max_record_epsilon
        budget = None if limit is None else [limit, policy.record_delta]
        return {"policy": policy.digest, "budget": budget, "charges": self._charges()}

    def _charges(self) -> int | None:
        """Charges of the privacy ledger, by what the site remembers of it; None where that cannot be read."""
        if not (self._store.path / LEDGER).exists():
            return 0
        try:
            return int((self._store.read_state().get("ledger") or {}).get("count", 0))
        except StoreError:
            return None


def rows_in(payload: Payload) -> int:
    """Rows that a question brings: queries or rows X, or ids."""
    named = next((payload.arrays[name] for name in ("X", "ids") if name in payload.arrays), None)
    return 0 if named is None or named.ndim == 0 else len(named)


# Reading ----------------------------------------------------------------------------------------------------------

#: Problems that are listed, at most.
_MOST_PROBLEMS = 20


@dataclass
class Verdict:
    """What a check found: ``problems`` in words, none where all is well.

    ``lines`` were read, numbered ``first`` to ``last``; ``head`` stands for the last one. ``torn`` lines were being
    written when a process was killed: no reply has left for them.
    """

    lines: int = 0
    first: int = 0
    last: int = 0
    chain: str = ""
    torn: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Number and hash of the last line: whoever notes them finds whatever is changed up to it."""
        return f"{self.last}:{self.chain}"

    def add(self, problem: str) -> None:
        """Note a problem; the first few are enough to look at."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def journal_place(place: str | os.PathLike[str], name: str | None = None) -> Path:
    """Where the journal is: an exported file, the folder itself, the one of a store, or of site ``name`` in stores."""
    given = Path(place)
    folders = [given] if given.is_file() or line_files(given) else []
    folders += [given / FOLDER, *sorted(given.glob(f"site-*/{FOLDER}"))]
    if name is not None:
        folders = [given / f"site-{quote(name, safe='')}" / FOLDER]
    journals = [folder for folder in folders if folder.is_file() or line_files(folder)]
    if not journals:
        raise InputError(f"there is no journal in {given}; name a site's store, in which it has answered something")
    if len(journals) > 1:
        sites = ", ".join(folder.parent.name.removeprefix("site-") for folder in journals[:20])
        raise InputError(f"{given} holds the journals of several sites, {sites}; name one with --name")
    return journals[0]


@dataclass(frozen=True)
class Snapshot:
    """A journal at a moment at which nobody writes: its files with their lengths, and its own note of its end."""

    files: tuple[tuple[Path, int], ...]
    head: Place | None

    @classmethod
    def of(cls, place: Path) -> "Snapshot":
        """The journal as it is now, and no line of which only a part is written yet."""
        if place.is_file():
            return cls(((place, place.stat().st_size),), None)
        with _nobody_writing(place):
            return cls(tuple((file, file.stat().st_size) for file in line_files(place)), read_head(place))

    def lines(self) -> Iterator[bytes]:
        """All lines as they are."""
        for file, size in self.files:
            with file.open("rb") as content:
                while content.tell() < size and (line := content.readline()):
                    yield line


@contextmanager
def _nobody_writing(folder: Path) -> Iterator[None]:
    """With the lock of the journal, if whoever reads may have it."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a copy of the files alone, which nobody writes
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def read_journal(place: Path) -> Iterator[dict[str, Any]]:
    """Lines that can be read; ``check_journal`` says what of the others."""
    return (line for line in map(parsed, Snapshot.of(place).lines()) if line is not None)


def check_journal(place: Path, pinned: str | None = None) -> Verdict:
    """Whether every line follows from the one before, and the line of the ``pinned`` head, "number:hash", is there."""
    wanted = None if pinned is None else read_pin(pinned)
    verdict, torn, met = Verdict(), b"", False
    journal = Snapshot.of(place)
    for raw in journal.lines():
        line = parsed(raw)
        if line is None:
            if torn:
                verdict.add(_damaged(verdict, torn))
            torn = raw.removesuffix(b"\n")
            continue
        _check_torn(verdict, line, torn)
        torn = b""
        _check_link(verdict, line)
        if wanted is not None and line["n"] == wanted[0]:
            met = True
            if line["chain"] != wanted[1]:
                verdict.add(f"line {line['n']} is not the one that was noted: it was replaced, or one before it")
        verdict.lines += 1
        verdict.last, verdict.chain = line["n"], line["chain"]
    if torn:
        verdict.add(f"after line {verdict.last} there is a line that is torn; the site closes it when it next answers")
    if wanted is not None and not met:
        verdict.add(f"line {wanted[0]}, which was noted, is not here: the journal ends with line {verdict.last}")
    _check_head(verdict, journal.head)
    return verdict


def read_pin(pinned: str) -> tuple[int, str]:
    """Number and hash of a head that was noted."""
    number, _, chain = pinned.strip().partition(":")
    if not number.isdigit() or len(chain) != 64 or set(chain) - set("0123456789abcdef"):
        raise InputError(f"a head must be number:hash as `kernfed journal check` prints it, got {pinned!r:.100}")
    return int(number), chain


def export_journal(place: Path, out: Path) -> None:
    """All lines as they are, in one file that can be checked like the journal itself."""
    with atomic_path(out) as temporary, temporary.open("wb") as copy:
        copy.writelines(Snapshot.of(place).lines())


def _check_link(verdict: Verdict, line: Mapping[str, Any]) -> None:
    """Whether a line follows from the last one; the first may follow from one that is kept elsewhere."""
    number, event = line["n"], line.get("event")
    before = verdict.chain
    if not verdict.lines:
        verdict.first = number
        if number > 1 and event == CONTINUED and isinstance(line.get("after"), str):
            before = line["after"]
        elif number > 1:
            verdict.add(f"the journal begins with line {number}, which nothing begins: lines before it are gone")
            return
    elif number != verdict.last + 1:
        verdict.add(f"line {number} follows line {verdict.last}: lines were taken out, put in or moved")
        return
    elif event == BEGUN:
        verdict.add(f"line {number} begins a journal in the middle of one")
    if line["chain"] != chained(before, line):
        verdict.add(f"line {number} was changed, or the one before it: its hash does not fit")
    if event == CUT:
        had = line.get("had")
        verdict.add(f"line {number} says that lines are gone: there were {had[0] if isinstance(had, list) else 'more'}")


def _check_torn(verdict: Verdict, line: Mapping[str, Any], torn: bytes) -> None:
    """A line that cannot be read is one that was torn, if the next one says so of exactly it."""
    is_note = line.get("event") == TORN
    if torn and not (is_note and line.get("sha256") == hashlib.sha256(torn).hexdigest()):
        verdict.add(_damaged(verdict, torn))
    elif is_note and not torn:
        verdict.add(f"line {line['n']} speaks of a torn line that is not there")
    verdict.torn += is_note


def _damaged(verdict: Verdict, raw: bytes) -> str:
    return f"after line {verdict.last} there are {len(raw)} bytes that are no line: it was damaged"


def _check_head(verdict: Verdict, head: Place | None) -> None:
    if head is not None and head.number > verdict.last:
        verdict.add(f"the journal had {head.number} lines and ends with line {verdict.last}: its end is gone")
    elif head is not None and head.number == verdict.last and head.chain != verdict.chain:
        verdict.add(f"line {verdict.last} is not the one that was written: it was replaced")
