"""A site's journal: who asked what kind of question when, what left, under which policy, refused or answered.

It is a chain of lines (``chained``) in the folder ``journal`` of the site's store. A line is on disk before its reply
leaves, of refusals too; it holds names, kinds and numbers, and nothing of the data.

event          "asked", "owner" (a command at the site), "approved", "withdrawn", "policy" (the settings behind a
               digest), or of the chain itself: "begun", "continued", "torn", "cut"
asked_by       who asked, as the connection says; null where the engine does not know
on_behalf_of   who asked, as the question says: a gateway's customer, or a name that a caller gives itself
rows           rows of the question: queries, rows to add, ids to forget
leaves         kind of information that left; bytes_in, bytes_out and numbers say how much
policy         digest of the policy; budget is its cap (epsilon, delta) or null, charges the length of the ledger
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernfed.base.chain import ChainedLines
from kernfed.errors import StoreError
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, Reply
from kernfed.site.protocol.task import shown_name
from kernfed.site.store import SiteStore

#: The folder of the journal in a store, and the file of its privacy ledger.
FOLDER, LEDGER = "journal", "ledger.jsonl"
#: Characters of a name that somebody outside chose, at most.
_LONGEST = 200
#: Characters of a policy that is written out, at most.
_LONGEST_POLICY = 30_000
#: Code and sentence of the refusal in place of a reply that cannot be written down.
UNWRITTEN = ("journal", "the site's journal cannot be written, so that it answers nothing; its operator has to look")


class Journal:
    """The journal of site ``name`` in its store. A ``durable`` one waits for the disk."""

    def __init__(self, store: SiteStore, name: str, *, durable: bool = True) -> None:
        self._store = store
        self._lines = ChainedLines(store.path / FOLDER, {"site": name[:_LONGEST]}, durable=durable)
        self._policy: str | None = None

    def asked(
        self, question: Question | None, connected: str | None, sizes: tuple[int, int], reply: Reply, policy: Policy
    ) -> None:
        """Write down a question, None where it cannot be read, and its reply; ``sizes`` are the bytes of the two."""
        given = Question("", "", "", Payload(), "") if question is None else question
        refusal = reply.refusal
        line = {
            "event": "asked",
            "asked_by": None if connected is None else connected[:_LONGEST],
            "on_behalf_of": given.caller[:_LONGEST],
            "task": shown_name(given.task, given.payload)[:_LONGEST],
            "run": given.run[:_LONGEST],
            "id": given.id[:_LONGEST],
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
        line = {"event": "owner", "asked_by": "owner", "on_behalf_of": "", "task": what[:_LONGEST], "rows": rows}
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
