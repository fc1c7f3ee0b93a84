"""Whether a site answers a question at all: who asks, what its policy allows, and what privacy it requires.

``Site.answer`` calls these in the order in which they stand here, and nothing else decides.
"""

import datetime
from typing import Any

from kernfed.errors import Refused
from kernfed.federation.protocol.message import Question, digest
from kernfed.federation.protocol.task import Task, find_task
from kernfed.federation.site.policy import Policy


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


def count_queries(policy: Policy, site: str, state: dict[str, Any], question: Question, caller: str) -> bool:
    """Add the rows of a question to what the caller has asked today, once for every id; says whether ``state`` changed.

    A question above the day's limit is refused.
    """
    limit, queries = policy.queries_per_day, question.payload.arrays.get("X")
    if limit is None or queries is None:
        return False
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    counts = state["queries"].get(today, {})
    counted = state.get("counted", {}).get(today, [])
    key = repetition_key(question, caller)
    if key in counted:  # asked again after a reply that was lost
        return False
    asked = counts.get(caller, 0) + len(queries)
    if asked > limit:
        raise Refused(
            "policy",
            f"site {site!r} scores {limit} queries a day for {caller!r}, this would be number {asked}; "
            "ask again tomorrow",
        )
    state["queries"] = {today: {**counts, caller: asked}}
    state["counted"] = {today: [*counted, key]}
    return True
