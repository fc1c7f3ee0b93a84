"""A site inspected: what its policy lets each question tell, what the test of noninterference and the attacks found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.privacy.names import ROW_MECHANISMS
from kernfed.site.policy import Policy
from kernfed.site.protocol.task import Part, question_parts
from kernfed.site.rows import Rows
from kernfed.testing.verify.attacks import ATTACKS, run_attacks
from kernfed.testing.verify.checker import Check, check_noninterference, quiet_sites
from kernfed.testing.verify.crafted import leaves
from kernfed.testing.verify.honest import Facts, Recording, record_questions
from kernfed.testing.verify.tape import taped_mechanisms
from kernfed.testing.verify.target import Outcome, Target

#: Rows that are tested; of a larger table so many are drawn, for every pair of sites works with all of them.
MOST_ROWS = 300
_OPEN = "the policy does not require privacy: rows are used as they are"
#: What nobody promises, whatever the policy says.
REMAINING = (
    "How long an answer takes is not hidden, and may depend on rows.",
    "The number of rows, the columns and the size of what is released are public, and so are classes with their "
    "numbers of rows unless the policy wants private labels or says that labels are targets.",
    "A site that is not honest, or whoever administers it, can send whatever they like: this inspects kernfed's own "
    "code with the site's policy, not the machine that it runs on.",
    "Whoever makes the keys of encrypted answers is trusted to make them honestly.",
    "BFV is not secure against chosen ciphertexts: nobody but the key holder may learn whether an answer could be "
    "decrypted.",
    "Restoring the whole store of a site from an older copy gives budget back that was spent; only the number of "
    "charges that replies carry shows it.",
    "What is true of a group of people is learned with or without any one of them.",
)


@dataclass(frozen=True)
class TaskLine:
    """What a question can be made to tell: ``verdict`` is refused, public, released or rows as they are."""

    task: str
    verdict: str
    why: str


@dataclass(frozen=True)
class Inspection:
    """What an officer signs: the policy in force, what each question tells, what was tried and what came of it."""

    site: str
    rows: int
    tested_rows: int
    columns: int
    policy: Policy
    tasks: tuple[TaskLine, ...]
    check: Check
    outcomes: tuple[Outcome, ...]

    @property
    def leaks(self) -> tuple[str, ...]:
        """What this site tells beyond its releases, in words; empty where nothing was found."""
        found = (
            [] if self.policy.require_privacy else ["the policy does not require privacy: rows are used as they are"]
        )
        found += [f"replies depend on rows: {leak}" for leak in self.check.leaks]
        found += [f"{outcome.attack}: {outcome.told}" for outcome in self.outcomes if outcome.held is False]
        return tuple(found)

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.leaks

    @property
    def verdict(self) -> str:
        """The one sentence to remember."""
        if self.holds:
            promise = f"epsilon {self.policy.max_record_epsilon:g} at delta {self.policy.record_delta:g}"
            return (
                f"Nothing was found to leave site {self.site!r} but public facts and releases: of one record whoever "
                f"asks learns at most what {promise} allows, over all releases."
            )
        many = f"{len(self.leaks)} findings" if len(self.leaks) > 1 else "1 finding"
        return f"Site {self.site!r} tells more than it releases: {many}. Do not sign."

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        policy = {setting.name: getattr(self.policy, setting.name) for setting in fields(self.policy)}
        return {
            "site": self.site,
            "holds": self.holds,
            "verdict": self.verdict,
            "leaks": list(self.leaks),
            "rows": self.rows,
            "tested_rows": self.tested_rows,
            "columns": self.columns,
            "policy": {name: list(value) if isinstance(value, tuple) else value for name, value in policy.items()},
            "tasks": [asdict(line) for line in self.tasks],
            "pairs": self.check.pairs,
            "questions": self.check.questions,
            "entered": dict(sorted(self.check.entered.items())),
            "attacks": [asdict(outcome) for outcome in self.outcomes],
            "remaining": list(REMAINING),
        }


def inspect_site(
    rows: Rows,
    policy: Policy,
    *,
    name: str = "site",
    columns: Sequence[str] = (),
    pairs: int = 200,
    seed: int = 0,
    advance: Callable[[], None] | None = None,
) -> Inspection:
    """Test a site with these rows under this policy. Nothing is kept, and no store of the site is touched.

    What the policy holds until it is approved is tried as if it were: somebody may approve it one day.
    ``advance`` is called ``steps(pairs)`` times on the way.
    """
    chosen, tried = some_rows(rows, policy, seed), replace(policy, approve=())
    facts = Facts.of(name, chosen, tried, columns)
    recording = record_questions(facts, seed=seed)
    check = check_noninterference(
        chosen, tried, name=name, columns=columns, pairs=pairs, seed=seed, recording=recording, advance=advance
    )
    target = Target(name, tried, chosen, recording, tuple(columns))
    with taped_mechanisms(), quiet_sites():
        outcomes = run_attacks(target, advance)
    lines = tuple(_line(policy, part, recording) for _, part in sorted(question_parts().items()))
    return Inspection(name, len(rows.y), len(chosen.y), rows.X.shape[1], policy, lines, check, tuple(outcomes))


def steps(pairs: int) -> int:
    """How many steps an inspection has."""
    return pairs + len(ATTACKS)


def some_rows(rows: Rows, policy: Policy, seed: int, most: int = MOST_ROWS) -> Rows:
    """At most so many rows, or a few more: classes that the site may speak of keep enough of theirs."""
    if len(rows.y) <= most:
        return rows
    order = generator(seed, "verify", "rows").permutation(len(rows.y))
    kept = set(order[:most].tolist())
    if policy.labels == "classes" and policy.min_rows_per_class > 1:
        for label in np.unique(rows.y):
            own = order[rows.y[order] == label]
            kept |= set(own[: policy.min_rows_per_class].tolist())
    return rows.take(np.array(sorted(kept)))


# What each question tells -----------------------------------------------------------------------------------------


def _line(policy: Policy, task: Part, recording: Recording) -> TaskLine:
    if not policy.allows(task.name):
        return TaskLine(task.name, "refused", "the policy does not name it")
    if not policy.require_privacy:
        tells = "changes the site, and tells by refusing" if task.leaves == "none" else task.leaves
        return TaskLine(task.name, "rows as they are", f"{tells}; the policy requires no privacy")
    if task.under_privacy == "refused":
        why = "a command at the site" if task.leaves == "none" else f"it would tell {task.leaves} without privacy"
        return TaskLine(task.name, "refused", why)
    if task.under_privacy == "public":
        return TaskLine(task.name, "public", task.reason)
    return TaskLine(task.name, "released", _released(policy, task, recording))


def _released(policy: Policy, task: Part, recording: Recording) -> str:
    """By which mechanisms a task releases under this policy, and up to what."""
    kinds = {
        home[key]
        for payload in recording.get(task.name, ())
        for home, key in leaves(dict(payload.values))
        if key == "kind" and home[key] in ROW_MECHANISMS
    }
    if not kinds:
        return "made of what was released before; costs nothing more"
    allowed = sorted(kinds if "*" in policy.mechanisms else kinds & set(policy.mechanisms))
    if not allowed:
        return f"nothing: the policy names none of {', '.join(sorted(kinds))}"
    return (
        f"by {', '.join(allowed)}; epsilon at most {policy.max_record_epsilon:g} at delta {policy.record_delta:g} for "
        "a person, over all releases"
    )


def policy_lines(policy: Policy) -> Mapping[str, str]:
    """The policy in words, for pages."""
    labels = "targets, of which none is told" if policy.labels == "targets" else "classes, public with their counts"
    if policy.private_labels:
        labels = "randomised before anything is told of them"
    cap = policy.max_record_epsilon
    return {
        "who may ask": "anybody" if "*" in policy.callers else ", ".join(policy.callers),
        "waits for approval": ", ".join(policy.approve) or "nothing",
        "privacy": "required" if policy.require_privacy else "not required",
        "budget of a person": "none" if cap is None else f"epsilon {cap:g} at delta {policy.record_delta:g}",
        "mechanisms": "all" if "*" in policy.mechanisms else ", ".join(policy.mechanisms),
        "atoms": "allowed" if policy.atoms else "refused",
        "labels": labels,
        "rows a class needs": f"{policy.min_rows_per_class:,}",
        "queries a day": "no limit" if policy.queries_per_day is None else f"{policy.queries_per_day:,} for a caller",
        "schemes of encryption": ", ".join(policy.schemes) or "none",
        "keys of encryption": "any" if "*" in policy.keys else f"{len(policy.keys)} named",
    }
