"""A site: its rows, its memory, its policy, and the way it answers.

Tasks are functions declared beside the learners that ask for them. A site runs a task only if its policy allows it, and
whatever happens it answers: with a payload, or with a refusal that says why.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError, MessageError, Refused
from kernfed.files import Record
from kernfed.site.approval import Approvals
from kernfed.site.authorise import (
    Caller,
    caller_of,
    check_policy,
    check_privacy,
    check_repetition,
    check_work,
    count_queries,
    privacy_refusal,
    question_digest,
    repetition_key,
    told_refusal,
)
from kernfed.site.data import SiteData
from kernfed.site.journal import UNWRITTEN, Journal, rows_in
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import (
    Payload,
    Question,
    Refusal,
    Reply,
    decode_bundle,
    decode_question,
    digest,
    encode_bundle,
    encode_reply,
    error_refusal,
)
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.task import Task, find_task, forgetters, task, task_names
from kernfed.site.protocol.traffic import INFORMATION
from kernfed.site.quota import DailyQueries
from kernfed.site.rows import Rows
from kernfed.site.store import SiteStore

#: What the outside is not told is told here, to whoever runs the site.
_log = logging.getLogger("kernfed.site")


@dataclass
class Visit:
    """One question while it is answered: its id, whether rows are guarded, when it must end, and the rows read once.

    ``asked_by`` is who asks, for what the site keeps of it.
    """

    question: str
    guarded: bool
    ends: float = math.inf
    rows: dict[bool, Rows] = field(default_factory=dict)
    asked_by: str = "owner"


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
        **about: Any,
    ) -> None:
        self.name = name
        self.temporary = store is None
        self.store = store if store is not None else SiteStore()
        self.policy = policy if policy is not None else Policy()
        #: columns, scaling, encoder, holdout and seed: see ``SiteData``.
        private = self.policy.require_privacy
        about |= {
            "labels": self.policy.labels if private else "",
            "counts_stay": private,
            "secret_labels": self.policy.private_labels or self.policy.labels == "targets",
        }
        self.data = SiteData(name, X, y, ids, self.store, **about)
        self._journal = Journal(self.store, name, durable=not self.temporary)
        self._approvals = Approvals(self.store)
        self._queries = DailyQueries(self.store, durable=not self.temporary)
        self._lock = threading.Lock()
        self._visit: Visit | None = None
        #: Working memory of tasks (assembled banks); rebuilt from the store at will.
        self.cache: dict[str, Any] = {}

    # Rows, for tasks --------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Columns of the site's rows."""
        return self.data.width

    def rows(self, *, every_class: bool = False) -> Rows:
        """Rows to learn from: given and added, without those forgotten, kept aside, or of classes too small.

        ``every_class`` includes small ones, for whoever leaves them out later. Where privacy is required there are
        none outside ``releasing``.
        """
        self.check_unguarded()
        known = {} if self._visit is None else self._visit.rows
        if every_class not in known:
            with self._reading():
                rows = self.data.learning()
            known[every_class] = rows if every_class else self.without_small_classes(rows)
        return known[every_class]

    def some_rows(self) -> Rows:
        """Rows to learn from, or a refusal where there are none."""
        rows = self.rows()
        if not len(rows.y):
            raise Refused("empty", f"site {self.name!r} has no rows that it may speak of")
        return rows

    def held_out(self) -> Rows:
        """Rows that the site keeps aside to test models on; nothing is learned from them."""
        self.check_unguarded()
        with self._reading():
            return self.data.held_out()

    def _reading(self) -> AbstractContextManager[None]:
        """The store's lock for whoever owns the site; a task has it, or has declared that it does without rows."""
        return self.store.locked() if self._visit is None else nullcontext()

    def without_small_classes(self, rows: Rows) -> Rows:
        """Rows of the classes that the policy lets the site speak of."""
        if self.policy.min_rows_per_class == 1 or not len(rows.y) or self._targets_are_secret:
            return rows
        labels, counts = np.unique(rows.y, return_counts=True)
        return rows.take(np.isin(rows.y, labels[counts >= self.policy.min_rows_per_class]))

    @property
    def _targets_are_secret(self) -> bool:
        """Whether labels are targets of which nothing may be told, not even which of them are equal."""
        return self.policy.require_privacy and self.policy.labels == "targets"

    def check_labels_are_classes(self) -> None:
        """Refuse to take secret targets for classes; it follows from the policy alone."""
        if self._targets_are_secret:
            raise privacy_refusal(self.name, "its labels are targets, of which none is told; ask with task='regress'")

    def schema(self, rows: Rows | None = None) -> Schema:
        """Description of the site's data, or of ``rows`` made of them; labels are told where the policy lets them be.

        Whoever gives ``rows`` has seen to their labels.
        """
        if rows is not None:
            return self.data.schema(rows)
        if self.policy.private_labels:
            raise Refused(
                "policy",
                f"the policy of site {self.name!r} requires randomised labels, this learner takes them as public",
                public=True,
            )
        if self._targets_are_secret:
            return self.data.schema(None)
        return self.data.schema(self.rows())

    @property
    def question(self) -> str:
        """Id of the question that is being answered."""
        return "" if self._visit is None else self._visit.question

    @property
    def asked_by(self) -> str:
        """Who asks the question that is being answered; "(said)" marks a name that the caller gives itself."""
        return "owner" if self._visit is None else self._visit.asked_by

    def add_rows(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        persons: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.int64]:
        """Keep further rows in the store; returns their ids. A question that brought rows before brings none again."""
        self._read_again()
        return self.data.add(X, y, ids, persons, self.question)

    def forget_rows(self, ids: npt.NDArray[np.int64], retired: Sequence[str] = ()) -> None:
        """Never use these rows again, and delete whatever the site's store holds of them, for every method.

        ``retired`` names the handles that held them: what was made for these is out of date from the same moment on.
        """
        with self.store.locked():
            self.data.check_known(ids)
            leaving = frozenset(ids.tolist())
            for discard in forgetters():
                discard(self, leaving)
            self.store.sweep()
            self._read_again()
            self.data.forget(ids, retired)

    def _read_again(self) -> None:
        """Rows have changed, or may not be seen any more: nobody gets those that were read before."""
        if self._visit is not None:
            self._visit.rows.clear()

    # Limits -----------------------------------------------------------------------------------------------------

    def allow(self, *, features: int = 0, steps: int = 0, numbers: int = 0) -> None:
        """Refuse, before it starts, work that is larger than the site's policy allows."""
        check_work(self.policy, self.name, features=features, steps=steps, numbers=numbers)

    def check_time(self) -> None:
        """Refuse to go on with a question that has taken longer than the policy allows; for loops of tasks."""
        if self._visit is not None and time.monotonic() > self._visit.ends:
            raise Refused("limit", f"site {self.name!r} computes at most {self.policy.task_seconds:g} s for a question")

    # Privacy ----------------------------------------------------------------------------------------------------

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Rows may be read inside: for ``federation.release``, once it knows that the policy allows a release."""
        visit = self._visit
        if visit is None or not visit.guarded:
            yield
            return
        visit.guarded = False
        try:
            yield
        finally:
            visit.guarded = True
            self._read_again()

    def check_unguarded(self) -> None:
        """Refuse what is made of rows as they are, where privacy is required and nothing is being released."""
        if self._visit is not None and self._visit.guarded:
            raise privacy_refusal(self.name, "this learner offers none")

    def as_owner(self, name: str, payload: Payload) -> Payload:
        """What a task does for whoever holds the site and its rows anyway: no policy, no guard, errors are raised."""
        known = find_task(name)
        if known is None:
            raise InputError(f"no task {name!r}; there are {', '.join(task_names())}")
        with self._written_down(name, rows_in(payload)), self._visiting(known, Visit("", False)):
            return known.run(self, payload)

    def publish(self) -> None:
        """Let the numbers of rows that others see be what they are now; see ``SiteData.publish``."""
        with self._written_down("publish", 0):
            self.data.publish()

    @contextmanager
    def _written_down(self, what: str, rows: int) -> Iterator[None]:
        """The journal has a line of what the owner does inside, also where it fails."""
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._journal.owner(what, rows, outcome, self.policy)

    # Answers ----------------------------------------------------------------------------------------------------

    def answer(self, data: bytes, caller: str | None = None) -> bytes:
        """Reply to a question, both as bytes. Never raises: what goes wrong is a refusal.

        A bundle of questions is answered part by part, each as if it had come alone: judged by the policy, written into
        the journal, and refused by itself. ``caller`` is who asks, where the engine knows it from the connection.
        """
        try:
            parts = decode_bundle(data, "the question")
        except Exception:  # not readable as a whole: the refusal says why
            parts = [data]
        return encode_bundle([self._answer_one(part, caller) for part in parts])

    def _answer_one(self, data: bytes, caller: str | None) -> bytes:
        """Reply to one question."""
        question, reply = self._considered(data, caller)
        reply, sent = _encoded(reply)
        try:
            self._journal.asked(question, caller, (len(data), len(sent)), reply, self.policy)
        except Exception:  # nothing leaves that is not written down
            _log.exception("site %s cannot write its journal", self.name)
            unwritten = replace(reply, information="none", payload=Payload(), refusal=Refusal(*UNWRITTEN))
            return encode_reply(unwritten)
        return sent

    def _considered(self, data: bytes, caller: str | None) -> tuple[Question | None, Reply]:
        """The question in ``data``, None where there is none, and the reply to it."""
        try:
            question = decode_question(data)
        except Exception as error:  # also one that memory does not suffice for
            reason = str(error) if isinstance(error, MessageError) else type(error).__name__
            return None, Reply(self.name, "", "", "", "", refusal=Refusal("bad question", reason))
        return question, self._reply(question, caller_of(question, caller))

    def _reply(self, question: Question, caller: Caller) -> Reply:
        """Identity, policy, privacy, approval, repetition, limits, the task: the one way through a site."""
        payload, leaves, refusal = Payload(), "none", None
        try:
            known = check_policy(self.policy, self.name, question, caller)
            guarded = check_privacy(self.policy, self.name, known, question.payload)
            parts = known.asked(question.payload)
            for part in parts:
                if self.policy.holds(part.name):
                    self._approvals.check(question, part.name, caller)
            payload = self._carry_out(known, question, caller, guarded)
            leaves = max((part.leaves for part in parts), key=INFORMATION.index)
        except Refused as refused:
            refusal = Refusal(refused.code, refused.reason)
        except Exception as error:  # the operator must see it, and the other sites must go on
            refusal = error_refusal(error)
        about = (question.run, question.id, question.task, digest(question.payload.values))
        return Reply(self.name, *about, leaves, payload, refusal)

    def _carry_out(self, known: Task, question: Question, caller: Caller, guarded: bool) -> Payload:
        """What a task that is allowed answers. Where privacy is required, why it does not stays in the site's log."""
        ends = time.monotonic() + self.policy.task_seconds
        visit = Visit(question.id, guarded, ends, asked_by=caller.name if caller.known else f"{caller.name} (said)")
        if not self.policy.require_privacy:
            with self._visiting(known, visit):
                return self._remembered(known, question, caller)
        try:
            with self._visiting(known, visit):
                return self._remembered(known, question, caller)
        except Exception as error:
            _log.warning("site %s does not answer %s: %s", self.name, question.task, error, exc_info=True)
            raise told_refusal(error) from None

    @contextmanager
    def _visiting(self, known: Task, visit: Visit) -> Iterator[None]:
        """One question at a time; sites work in parallel, a site does not."""
        with self._lock, self.store.locked() if known.locked else nullcontext():
            self._visit = visit
            try:
                yield
            finally:
                self._visit = None

    def _remembered(self, known: Task, question: Question, caller: Caller) -> Payload:
        """What the task answers; a question that changes something and was asked before is answered as it was then."""
        if not known.changes:
            self._limit(known, question, caller)
            return known.run(self, question.payload)
        key = repetition_key(question, caller)
        earlier = self.store.read_answer(key)
        if earlier is not None and check_repetition(question, earlier.values["question"]):
            return Payload(earlier.arrays, earlier.values["values"])
        self._limit(known, question, caller)
        payload = known.run(self, question.payload)
        about = {"question": question_digest(question), "values": dict(payload.values)}
        self.store.write_answer(key, Record(payload.arrays, about))
        return payload

    def _limit(self, known: Task, question: Question, caller: Caller) -> None:
        if known.queries and self.policy.queries_per_day is not None:
            with self.store.locked():
                count_queries(self.policy, self.name, self._queries, question, caller)


def _encoded(reply: Reply) -> tuple[Reply, bytes]:
    """A reply and its bytes, or a refusal and its bytes where its payload cannot travel."""
    try:
        return reply, encode_reply(reply)
    except Exception as error:
        refused = replace(reply, information="none", payload=Payload(), refusal=error_refusal(error))
        return refused, encode_reply(refused)


@task(
    "describe",
    leaves="schema",
    under_privacy="public",
    reason="columns, and the classes with their rows, are public unless the policy wants private labels",
)
def describe(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """The site's schema."""
    return Payload(values=site.schema().to_values())
