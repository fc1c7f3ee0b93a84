"""A site inspected: what its policy lets each question tell, what the test of noninterference and the attacks found.

Noninterference: no reply depends on anything of rows but public facts and what mechanisms released. A pair is two sites
with the same public facts and other rows, on one tape. Both are asked the same questions, honest and crafted, of all
tasks. Where a policy requires privacy every reply must be the same bytes, and every charge the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.federation.summing.tasks import TERMS
from kernfed.privacy.names import ROW_MECHANISMS
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, Reply, encode_question
from kernfed.site.protocol.task import Part, question_parts
from kernfed.site.rows import Rows
from kernfed.testing.verify.attacks import ATTACKS, run_attacks
from kernfed.testing.verify.crafted import cheaper, crafted, leaves, trainings, wrong_bytes
from kernfed.testing.verify.questions import Facts, Recording, record_questions
from kernfed.testing.verify.tape import counted_tasks, quiet_sites, taped_mechanisms
from kernfed.testing.verify.twins import SHAPES, Difference, Outcome, Target, Twins, other_rows

#: Refusals of a question that the task could not make sense of.
_NOT_FOLLOWED = ("bad question", "refused", "error")
#: Of a hundred questions so many are honest, so many changed gently; the rest is changed wildly.
_HONEST, _GENTLE = 45, 80
#: Differences of one kind that are kept.
_KEPT = 200


@dataclass
class Check:
    """What came of asking pairs of sites: how often each task was asked, entered and followed, and what differed.

    asked : questions by task. entered : those whose task was run. followed : those that were answered, or refused for
    another reason than that they made no sense. answered : those that were answered.
    """

    pairs: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    entered: Counter[str] = field(default_factory=Counter)
    followed: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    @property
    def questions(self) -> int:
        """Questions that both sites of a pair were asked."""
        return self.asked.total()

    @property
    def leaks(self) -> list[str]:
        """What differed, each kind once, with how often."""
        kinds = Counter(f"{difference.task}: {difference.what}" for difference in self.differences)
        return [f"{kind} ({count} times)" if count > 1 else kind for kind, count in sorted(kinds.items())]

    def note(self, difference: Difference | None) -> None:
        """Keep a difference, if there is one."""
        if difference is not None and len(self.differences) < _KEPT:
            self.differences.append(difference)


def check_noninterference(
    rows: Rows,
    policy: Policy,
    *,
    name: str = "site",
    columns: Sequence[str] = (),
    pairs: int = 200,
    seed: int = 0,
    recording: Recording | None = None,
    shapes: Sequence[str] = SHAPES,
    advance: Callable[[], None] | None = None,
) -> Check:
    """Ask ``pairs`` of sites, one with ``rows`` and one with others of the same public facts.

    ``recording`` has the honest questions (default: recorded now). ``advance`` hears of every pair that is done.
    """
    facts = Facts.of(name, rows, policy, columns)
    known = record_questions(facts, seed=seed) if recording is None else recording
    check = Check()
    with taped_mechanisms(), counted_tasks(check.entered), quiet_sites():
        for number in range(pairs):
            draws = generator(seed, "verify", "pair", str(number))
            shape = shapes[number % len(shapes)]
            others = other_rows(rows, policy, shape, draws)
            # Half of the pairs keep rows aside, by draws of their own.
            aside = 0.5 * int(generator(seed, "verify", "aside", str(number)).integers(2))
            about: Any = {"seed": seed + number, "shape": shape, "columns": tuple(columns), "holdout": aside}
            twins = Twins(name, policy, rows, others, **about)
            _ask_pair(check, twins, known, policy, number, draws)
            check.pairs += 1
            if advance is not None:
                advance()
    return check


def _ask_pair(
    check: Check, twins: Twins, recording: Recording, policy: Policy, number: int, draws: np.random.Generator
) -> None:
    for place, (task, payload) in enumerate(_story(recording, policy, number, draws)):
        identity = place if draws.integers(10) else 0  # now and then that of another question
        wire = task.partition(":")[0]
        question = Question("verify", f"{number}-{identity}", wire, payload, f"caller {draws.integers(3)}")
        try:
            data = encode_question(question)
        except ValueError:  # what cannot travel is no question
            continue
        entered = check.entered[task]
        reply, difference = twins.ask(question, data)
        check.entered[task] = entered + (check.entered[task] > entered)  # once for both sites
        check.asked[task] += 1
        check.followed[task] += _followed(reply)
        check.answered[task] += reply is not None and reply.refusal is None
        check.note(difference)
        if draws.integers(16) == 0:
            counted = dict(check.entered)
            damaged = twins.answers(wrong_bytes(data, draws))
            check.entered.update({name: counted.get(name, 0) - count for name, count in check.entered.items()})
            check.note(None if damaged[0] == damaged[1] else Difference("a damaged message", "replies differ"))
    check.note(twins.charges_differ())


def _followed(reply: Reply | None) -> bool:
    return reply is not None and (reply.refusal is None or reply.refusal.code not in _NOT_FOLLOWED)


def _story(
    recording: Recording, policy: Policy, number: int, draws: np.random.Generator
) -> Iterator[tuple[str, Payload]]:
    """A few questions in a row: what needs machines comes after their training, and some come twice.

    Every task has its turn; those that are refused by policy or for privacy have it one time in eight. One release in
    six is asked for under a hostile preparation, and again under another one.
    """
    machines = trainings(recording)
    known = question_parts()
    open_tasks = [name for name in sorted(known) if policy.allows(name) and known[name].under_privacy != "refused"]
    shut_tasks = [name for name in sorted(known) if name not in open_tasks]
    for step in range(2):
        tasks = shut_tasks if not open_tasks or (shut_tasks and draws.integers(8) == 0) else open_tasks
        task = tasks[(2 * number + step) % len(tasks)]
        honest = recording.get(task, (Payload(),))
        suiting = [payload for payload in honest if suits(policy, payload, machines)]
        if suiting and draws.integers(8):
            honest = tuple(suiting)
        payload = honest[draws.integers(len(honest))]
        training = machines.get(str(payload.values.get("handle")))
        before = [("folding_fit", training)] if task != "folding_fit" and training is not None else []
        hostile = known[task].under_privacy == "released" and policy.allows("prepare") and draws.integers(6) == 0
        if hostile and TERMS not in payload.arrays:  # two releases: they must fit into a budget
            payload = cheaper(task, payload, 0.25) or payload
        luck = draws.integers(_GENTLE if hostile else 100)
        asked = payload if luck < _HONEST else crafted(task, payload, draws, wild=bool(luck >= _GENTLE))
        for _ in range(2 if hostile else 1):
            yield from (*(_prepared(recording, draws) if hostile else ()), *before, (task, asked))
        if not hostile and draws.integers(4) == 0:
            yield task, asked


def _prepared(recording: Recording, draws: np.random.Generator) -> Iterator[tuple[str, Payload]]:
    """A hostile preparation of the columns, as one question, where an honest one is known."""
    for payload in recording.get("prepare", ())[:1]:
        yield "prepare", crafted("prepare", payload, draws, wild=False)


def suits(policy: Policy, payload: Payload, machines: Mapping[str, Payload]) -> bool:
    """Whether an honest question asks for what the policy can allow: others end at the policy, before any row."""
    training = machines.get(str(payload.values.get("handle")), payload)
    places = [(key, home[key]) for home, key in leaves(dict(training.values))]
    kinds = {value for key, value in places if key == "kind" and value in ROW_MECHANISMS}
    private = (
        "labels" in dict(training.values.get("privacy") or {}) and training.values["privacy"]["labels"] is not None
    )
    if "*" not in policy.mechanisms and not kinds <= set(policy.mechanisms):
        return False
    if training.values.get("privacy", kinds) is None:
        return False
    if policy.private_labels:
        return private
    return policy.labels != "targets" or private or ("task", "regress") in places


# The inspection ---------------------------------------------------------------------------------------------------

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
        found = [] if self.policy.require_privacy else [_OPEN]
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
