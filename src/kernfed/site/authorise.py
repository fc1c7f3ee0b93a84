"""Whether a site answers a question at all: who asks, what its policy allows, and what privacy it requires.

``Site.answer`` calls these in the order in which they stand here, and nothing else decides.
"""

import datetime
import hashlib
import math
from dataclasses import dataclass

import numpy as np

from kernfed.errors import Refused
from kernfed.promise import round_up
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, digest
from kernfed.site.protocol.task import Task, find_task
from kernfed.site.quota import DailyQueries


@dataclass(frozen=True)
class Caller:
    """Who asks. ``known`` is whether the engine knows it from the connection, or the question only says so."""

    name: str
    known: bool

    @property
    def quota(self) -> str:
        """Whose quota is used up: a name that a caller gives itself has none of its own, all such share one."""
        return self.name if self.known else "everybody"


def caller_of(question: Question, connected: str | None) -> Caller:
    """Who asks: as the engine knows from the connection, or else as the question says."""
    return Caller(question.caller, False) if connected is None else Caller(connected, True)


def check_policy(policy: Policy, site: str, question: Question, caller: Caller) -> Task:
    """The task that is asked for, if the site's policy allows all of it that is asked, and to this caller."""
    task = find_task(question.task)
    if task is None:
        raise Refused("unknown task", f"site {site!r} knows no task {question.task!r}")
    for part in task.asked(question.payload):
        if not policy.allows(part.name):
            allowed = ", ".join(policy.tasks)
            add = f"its operator allows it by adding {part.name!r} to tasks in the site's policy"
            raise Refused("policy", f"the policy of site {site!r} allows {allowed}, not {part.name!r}; {add}")
    if not policy.welcomes(caller.name):
        raise Refused("policy", f"the policy of site {site!r} does not answer caller {caller.name!r}")
    return task


def check_privacy(policy: Policy, site: str, task: Task, payload: Payload) -> bool:
    """Refuse what has no answer under required privacy; says whether rows are guarded while the task runs."""
    if not policy.require_privacy or task.under_privacy == "public":
        return False
    for part in task.asked(payload):
        if part.under_privacy == "refused":
            how = "is a command at the site" if task.changes else f"tells {part.leaves} without any"
            raise privacy_refusal(site, f"{part.name!r} {how}")
    return True


#: All that a site says when a question under required privacy cannot be answered: no value, no place, no count. Which
#: of them it is depends on public facts and on what was asked before, never on a row.
FIXED_REASONS = {
    "stale": "the site does not have what the question refers to; train again",
    "empty": "the site has no rows that it may speak of",
    "budget": "the site's privacy budget does not allow this release",
    "ledger": "the site's privacy ledger cannot be used; its operator has to look at it",
    "held": "the site's operator has to approve this question first; ask again when it is approved",
    "limit": "the question asks for more work than the site's policy allows",
    "bad question": "the question cannot be followed",
    "repeated id": "the id of the question was that of another one; give each its own",
}
_REFUSED = ("refused", "the site does not answer this question; its own log says why")


def told_refusal(error: Exception) -> Refused:
    """What a site that requires privacy says of an error within a task: a public sentence, or one of the fixed ones."""
    if isinstance(error, Refused):
        if error.public:
            return error
        if error.code in FIXED_REASONS:
            return Refused(error.code, FIXED_REASONS[error.code])
    return Refused(*_REFUSED)


def privacy_refusal(site: str, why: str) -> Refused:
    """The refusal of whatever the site's policy demands privacy for."""
    return Refused("policy", f"the policy of site {site!r} requires privacy, and {why}", public=True)


def repetition_key(question: Question, caller: Caller) -> str:
    """Name under which a site remembers a question: another caller's id is another question."""
    return digest({"caller": caller.name, "id": question.id})


def question_digest(question: Question) -> str:
    """Fingerprint of what is asked: task, values and arrays, whoever asks and in whichever run."""
    whole = hashlib.sha256(f"{question.task} {digest(question.payload.values)}".encode())
    for name, array in sorted(question.payload.arrays.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def check_repetition(question: Question, earlier: str | None) -> bool:
    """Whether this very question was asked before, by its digest; another one must not hide behind its id."""
    if earlier is not None and earlier != question_digest(question):
        raise Refused("repeated id", f"question {question.id!r} was another one before; give each its own id")
    return earlier is not None


def count_queries(policy: Policy, site: str, counted: DailyQueries, question: Question, caller: Caller) -> None:
    """Add the rows of a question to what the caller has asked today; above the policy's limit it is refused.

    A question asked again after a reply that was lost does not count again. The site's store is locked.
    """
    limit, queries = policy.queries_per_day, question.payload.arrays.get("X")
    if limit is None or queries is None:
        return
    day = counted.follow(datetime.datetime.now(datetime.UTC).date())
    key = repetition_key(question, caller)
    if check_repetition(question, counted.digest_of(key)):
        return
    asked = counted.asked(caller.quota) + len(queries)
    if asked > limit:
        raise Refused(
            "policy",
            f"site {site!r} scores {limit} queries a day for {caller.quota!r}, this would be number {asked} of {day} "
            "(UTC); ask again on a later day",
        )
    counted.count(key, question_digest(question), caller.quota, len(queries))


def check_work(policy: Policy, site: str, *, features: int = 0, steps: int = 0, numbers: int = 0) -> None:
    """Refuse, before it starts, work that is larger than the policy allows."""
    asked = {"max_features": features, "max_steps": steps, "max_numbers": numbers}
    for name, amount in asked.items():
        if not amount <= getattr(policy, name):  # also refuses what is not a number
            limit = getattr(policy, name)
            told = f"the policy of site {site!r} allows {name} = {limit:,}, not {amount:,}"
            raise Refused("limit", told, public=True)


def check_scheme(policy: Policy, site: str, scheme: str, key: str) -> None:
    """Refuse to encrypt by a scheme, or under a key (its SHA-256 digest), that the policy does not name.

    "plain" encrypts nothing: it is for sites whose scores may leave anyway.
    """
    if "*" not in policy.schemes and scheme not in policy.schemes:
        allowed = ", ".join(policy.schemes)
        raise Refused("policy", f"the policy of site {site!r} encrypts by {allowed}, not by {scheme!r}", public=True)
    if scheme == "plain" and not policy.allows("scores"):
        told = f"the policy of site {site!r} does not let scores leave, and the scheme 'plain' would show them"
        raise Refused("policy", told, public=True)
    if "*" not in policy.keys and key not in policy.keys:
        told = f"the policy of site {site!r} does not know the key {key}: add its digest to keys if it is to be trusted"
        raise Refused("policy", told, public=True)


def check_mechanism(policy: Policy, site: str, mechanism: str, *, private_labels: bool) -> None:
    """Refuse a mechanism that the policy does not name, or public labels where it wants private ones."""
    if "*" not in policy.mechanisms and mechanism not in policy.mechanisms:
        allowed = ", ".join(policy.mechanisms)
        raise Refused("policy", f"the policy of site {site!r} releases by {allowed}, not by {mechanism!r}", public=True)
    if policy.private_labels and not private_labels:
        raise Refused(
            "policy",
            f"the policy of site {site!r} requires randomised labels, this learner takes them as public",
            public=True,
        )


def check_record(policy: Policy, site: str, epsilon: float, delta: float) -> None:
    """Refuse what promises a record less than the policy demands."""
    limit = policy.max_record_epsilon
    if limit is not None and (epsilon > limit or delta > policy.record_delta):
        raise Refused(
            "policy",
            f"the policy of site {site!r} allows a record epsilon of at most {limit:g} at delta "
            f"{policy.record_delta:g}, this release has ({_shown(epsilon)}, {_shown(delta)})",
            public=True,
        )


def _shown(value: float) -> str:
    return f"{round_up(value):g}" if math.isfinite(value) else "no bound"
