"""Whether a site answers a question at all: who asks, what its policy allows, and what privacy it requires.

``Site.answer`` calls these in the order in which they stand here, and nothing else decides.
"""

import datetime
import hashlib
import math
from typing import Any

import numpy as np

from kernfed.errors import Refused
from kernfed.federation.protocol.message import Question, digest
from kernfed.federation.protocol.task import Task, find_task
from kernfed.federation.site.policy import Policy
from kernfed.promise import round_up


def caller_of(question: Question, known: str | None) -> str:
    """Who asks: as the engine knows from the connection, or else as the question says."""
    return question.caller if known is None else known


def check_policy(policy: Policy, site: str, question: Question, caller: str) -> Task:
    """The task that is asked for, if the site's policy allows it, and to this caller."""
    task = find_task(question.task)
    if task is None:
        raise Refused("unknown task", f"site {site!r} knows no task {question.task!r}")
    if not policy.allows(question.task):
        allowed = ", ".join(policy.tasks)
        raise Refused("policy", f"the policy of site {site!r} allows {allowed}, not {question.task!r}")
    if not policy.welcomes(caller):
        raise Refused("policy", f"the policy of site {site!r} does not answer caller {caller!r}")
    return task


def check_privacy(policy: Policy, site: str, task: Task) -> bool:
    """Refuse a task that has no answer under required privacy; says whether rows are guarded while it runs."""
    if not policy.require_privacy or task.under_privacy == "public":
        return False
    if task.under_privacy == "refused":
        raise privacy_refusal(site, f"{task.name!r} would send {task.leaves} without any")
    return True


def privacy_refusal(site: str, why: str) -> Refused:
    """The refusal of whatever the site's policy demands privacy for."""
    return Refused("policy", f"the policy of site {site!r} requires privacy, and {why}")


def repetition_key(question: Question, caller: str) -> str:
    """Name under which a site remembers a question: another caller's id is another question."""
    return digest({"caller": caller, "id": question.id})


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


def count_queries(policy: Policy, site: str, state: dict[str, Any], question: Question, caller: str) -> bool:
    """Add the rows of a question to what the caller has asked today; says whether ``state`` changed.

    A question asked again after a reply that was lost does not count again, and one above the limit is refused.
    """
    limit, queries = policy.queries_per_day, question.payload.arrays.get("X")
    if limit is None or queries is None:
        return False
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    counts = state["queries"].get(today, {})
    counted = state.get("counted", {}).get(today, {})
    key = repetition_key(question, caller)
    if check_repetition(question, counted.get(key)):
        return False
    asked = counts.get(caller, 0) + len(queries)
    if asked > limit:
        raise Refused(
            "policy",
            f"site {site!r} scores {limit} queries a day for {caller!r}, this would be number {asked}; "
            "ask again tomorrow",
        )
    state["queries"] = {today: {**counts, caller: asked}}
    state["counted"] = {today: {**counted, key: question_digest(question)}}
    return True


def check_work(policy: Policy, site: str, *, features: int = 0, steps: int = 0, numbers: int = 0) -> None:
    """Refuse, before it starts, work that is larger than the policy allows."""
    asked = {"max_features": features, "max_steps": steps, "max_numbers": numbers}
    for name, amount in asked.items():
        if not amount <= getattr(policy, name):  # also refuses what is not a number
            limit = getattr(policy, name)
            raise Refused("limit", f"the policy of site {site!r} allows {name} = {limit:,}, not {amount:,}")


def check_mechanism(policy: Policy, site: str, mechanism: str, *, private_labels: bool) -> None:
    """Refuse a mechanism that the policy does not name, or public labels where it wants private ones."""
    if "*" not in policy.mechanisms and mechanism not in policy.mechanisms:
        allowed = ", ".join(policy.mechanisms)
        raise Refused("policy", f"the policy of site {site!r} releases by {allowed}, not by {mechanism!r}")
    if policy.private_labels and not private_labels:
        raise Refused(
            "policy", f"the policy of site {site!r} requires randomised labels, this learner takes them as public"
        )


def check_record(policy: Policy, site: str, epsilon: float, delta: float) -> None:
    """Refuse what promises a record less than the policy demands."""
    limit = policy.max_record_epsilon
    if limit is not None and (epsilon > limit or delta > policy.record_delta):
        raise Refused(
            "policy",
            f"the policy of site {site!r} allows a record epsilon of at most {limit:g} at delta "
            f"{policy.record_delta:g}, this release has ({_shown(epsilon)}, {_shown(delta)})",
        )


def _shown(value: float) -> str:
    return f"{round_up(value):g}" if math.isfinite(value) else "no bound"
