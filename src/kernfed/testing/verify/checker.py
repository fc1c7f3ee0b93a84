"""Noninterference, tested: no reply depends on anything of rows but public facts and what mechanisms released.

A pair is two sites with the same public facts and other rows, on one tape. Both are asked the same questions, honest
and crafted, of all tasks. Where a policy requires privacy every reply must be the same bytes, and every charge the
same.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.federation.summing.party import TERMS
from kernfed.privacy.names import ROW_MECHANISMS
from kernfed.site.policy import Policy
from kernfed.site.protocol import task as registry
from kernfed.site.protocol.message import Payload, Question, Reply, encode_question
from kernfed.site.protocol.task import find_task, question_parts, shown_name, task_names
from kernfed.site.rows import Rows
from kernfed.testing.verify.crafted import cheaper, crafted, leaves, trainings, wrong_bytes
from kernfed.testing.verify.honest import Facts, Recording, record_questions
from kernfed.testing.verify.tape import taped_mechanisms
from kernfed.testing.verify.twins import SHAPES, Difference, Twins, other_rows

#: Refusals of a question that the task could not make sense of.
_NOT_FOLLOWED = ("bad question", "refused", "error")
#: Of a hundred questions so many are honest, so many changed gently; the rest is changed wildly.
_HONEST, _GENTLE = 45, 80
#: Differences of one kind that are kept.
_KEPT = 200


@dataclass
class Check:
    """What came of asking pairs of sites: how often each task was asked, entered and followed, and what differed.

    asked : questions by task, or by part of one. entered : those whose task was run. followed : those that were
    answered, or refused for another reason than that they made no sense. answered : those that were answered.
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


# While it runs ----------------------------------------------------------------------------------------------------


@contextmanager
def counted_tasks(entered: Counter[str]) -> Iterator[None]:
    """Count how often each task, or part of one, is run."""
    known: Mapping[str, registry.Task] = {name: task for name in task_names() if (task := find_task(name)) is not None}

    def counting(task: registry.Task) -> registry.Task:
        def run(site: object, payload: Payload) -> Payload:
            entered[shown_name(task.name, payload)] += 1
            return task.run(site, payload)

        return replace(task, run=run)

    registry._tasks.update({name: counting(task) for name, task in known.items()})
    try:
        yield
    finally:
        registry._tasks.update(known)


@contextmanager
def quiet_sites() -> Iterator[None]:
    """Thousands of refusals, on purpose, are nothing for the log of a site."""
    log = logging.getLogger("kernfed.site")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
