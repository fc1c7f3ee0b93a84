"""Attacks by what a site need not say: whether it refuses, what it charges for, which bounds its sums keep.

The asker writes preparations and bounds. If a refusal or a charge followed from what these make of a row, every
question would tell one bit of it, and bisection all of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernfed.data.columns import RawColumn
from kernfed.errors import KernfedError
from kernfed.federation.summing.tasks import TERMS
from kernfed.secure.committee.fixed import fit_layout
from kernfed.site.protocol.message import Payload, Reply
from kernfed.site.protocol.task import question_parts
from kernfed.site.rows import Rows
from kernfed.testing.verify.crafted import NOBODY, Plan, above, around, cheaper, question, wide, with_bound, word_flag
from kernfed.testing.verify.questions import masked_question, others_of
from kernfed.testing.verify.twins import Target, Verdict, ask_twins, site_of

#: Share of the epsilon of an honest release that a question costs here, so that many fit into a budget.
_SHARE = 1 / 64
#: Powers of two between which a sum of the site's own is looked for, and how often they are halved.
_POWERS, _HALVINGS = (-60.0, 100.0), 30
#: Bounds of a block in a masked sum of noisy shares.
_BOUNDS = (5e-324, 1e-300, 2.0**-20, 1.0, 2.0**10, 2.0**30, 2.0**50, 2.0**59)


# Preparations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moved:
    """Rows that differ in one value of one column: beyond all others of it by ``step``, with a threshold between."""

    rows: Rows
    columns: tuple[str, ...]
    place: int
    value: float
    threshold: float
    step: float

    @classmethod
    def of(cls, target: Target, sign: float) -> "_Moved":
        """The row with the largest (``sign`` 1) or smallest (-1) value of a column, moved further out."""
        X = sign * target.rows.X.astype(np.float64)
        place = int(np.abs(X).max(axis=0).argmin())  # there is room beyond small values
        spoken = np.isin(target.rows.ids, target.site().without_small_classes(target.rows).ids)
        row, end = int(np.where(spoken, X[:, place], -np.inf).argmax()), float(X[:, place].max())
        step = max(1.0, abs(end))
        moved = target.rows.X.copy()
        moved[row, place] = sign * (end + 2 * step)
        names = target.columns or tuple(map(str, range(X.shape[1])))
        return cls(replace(target.rows, X=moved), names, place, float(moved[row, place]), sign * (end + step), step)

    @property
    def column(self) -> str:
        """Name of the column."""
        return self.columns[self.place]

    @property
    def word(self) -> str:
        """The value that only these rows have, as a category is called."""
        return RawColumn(self.column, "number", np.array([self.value])).named[1][0]

    def preparing(self, plan: Plan, *, constant: bool) -> tuple[str, Payload]:
        """The question to prepare the column so, and the others as they are or as zeros."""
        plans = [word_flag(name) if constant else wide(name) for name in self.columns]
        plans[self.place] = plan
        return "prepare", question(plans)


def hostile_preparations(target: Target) -> Verdict:
    """Prepare columns so that values beyond a threshold overflow, and have the rows released."""
    releases, lacking = _preparable(target)
    if lacking:
        return None, lacking
    site, asked = target.site(), 0
    for sign in (1.0, -1.0):
        moved = _Moved.of(target, sign)
        questions = []
        for plan in around(moved.column, moved.threshold):
            preparing = moved.preparing(plan, constant=False)
            questions.append(preparing)
            if target.ask(site, *preparing).refusal is None:  # else rows stay as they were
                questions += releases
        wrong = ask_twins(target, moved.rows, questions)
        if wrong:
            end = "largest" if sign > 0 else "smallest"
            return False, f"whether a value is beyond a threshold shows, so that the {end} one can be read ({wrong})"
        asked += len(questions)
    return True, f"{asked} questions, refused or answered alike whichever values are beyond a threshold"


def kept_releases(target: Target) -> Verdict:
    """Have rows released by two preparations that differ in what they make of one row, and count the charges."""
    releases, lacking = _preparable(target)
    if lacking:
        return None, lacking
    moved, asked = _Moved.of(target, 1.0), 0
    high = moved.threshold + 2 * moved.step
    pairs = (
        (word_flag(moved.column, moved.word), word_flag(moved.column, NOBODY)),
        (above(moved.column, moved.threshold, 1.0, high), above(moved.column, high, 1.0, high + moved.step)),
    )
    for release in releases:
        for first, second in pairs:
            prepared = [moved.preparing(plan, constant=True) for plan in (first, second, first)]
            questions = [one for preparing in prepared for one in (preparing, release)]
            wrong = ask_twins(target, moved.rows, questions)
            if wrong:
                return False, f"whether a cell holds a word or a value shows in what is charged ({wrong})"
            asked += len(questions)
    return True, f"{asked} questions, charged alike whether or not a word or a value is there"


def _preparable(target: Target) -> tuple[list[tuple[str, Payload]], str]:
    """Releases of rows that may be prepared before, and why there are none; "" where there are some."""
    if not target.policy.require_privacy:
        return [], "the policy requires no privacy: rows are used as they are"
    if not target.policy.allows("prepare"):
        return [], "not allowed: the policy does not name 'prepare'"
    releases = _releases(target)
    return releases, "" if releases else "the policy releases nothing that was asked for"


def _releases(target: Target) -> list[tuple[str, Payload]]:
    """Cheap questions for releases that the site answers, one for each task, mechanism and way of labels."""
    found: dict[str, tuple[str, Payload]] = {}
    site = target.site()
    for task in ("folding_fit", "ridge_release", "personal_release"):  # schemas are of the same releases as fits
        for payload in target.honest(task):
            asked, kind = cheaper(task, payload, _SHARE), repr((task, _mechanism(payload)))
            if asked is not None and kind not in found and target.ask(site, task, asked).refusal is None:
                found[kind] = (task, asked)
    return list(found.values())


def _mechanism(payload: Payload) -> tuple[Any, ...]:
    asked = dict(payload.values.get("privacy") or {})
    mechanism = asked.get("mechanism", asked)
    features = dict(payload.values.get("parameters") or {}).get("features")
    return mechanism.get("kind"), mechanism.get("projection"), asked.get("labels") is None, features


# Masked sums ------------------------------------------------------------------------------------------------------


def asked_bounds(target: Target) -> Verdict:
    """Take part in masked sums under bounds just below and just above the site's own sums."""
    if target.policy.require_privacy:
        return _bounds_of_shares(target)
    if not target.policy.allows("sum_masked"):
        return None, "not allowed: the policy does not name 'sum_masked'"
    tasks = [task for task in target.policy.masked if not target.policy.allows(task)]
    if not tasks:
        return None, "the policy answers sums in the clear, or none"
    asked = 0
    for task in tasks:
        for sums in _own_sums(target, task):
            for name in sums.arrays:
                asked += 2
                if sums.differs(name):
                    questions, digits = sums.bisect(name)
                    return False, (
                        f"a bound below the site's own sum is refused and one above it is not: of {name!r} of {task} "
                        f"{digits} digits can be read in {questions} questions"
                    )
    if not asked:
        return None, "no sum that is masked by policy could be asked for"
    return True, f"{asked} questions, answered alike whether bounds are below or above the site's own sums"


def _bounds_of_shares(target: Target) -> Verdict:
    """Sums with noise under bounds of all sizes, asked of the site beside one whose rows are far larger."""
    tasks = [
        task for task in ("folding_shares", "ridge_shares", "test_model:coverage:shared") if target.policy.allows(task)
    ]
    questions = [
        (task, Payload({**payload.arrays, TERMS: with_bound(payload.arrays[TERMS], bound)}, payload.values))
        for task in tasks
        for payload in target.honest(task)[:3]
        for bound in _BOUNDS
    ]
    if not questions:
        return None, "not allowed: the policy names no task of masked sums"
    others = replace(target.rows, X=np.clip(1e6 * target.rows.X, -1e30, 1e30).astype(target.rows.X.dtype))
    wrong = ask_twins(target, others, questions)
    if wrong:
        return False, f"whether a site takes part in a masked sum follows from its rows ({wrong})"
    return True, f"{len(questions)} questions under bounds of all sizes, refused or answered alike"


@dataclass(frozen=True)
class _OwnSums:
    """What a site answers to an additive task for itself, and how it takes part in a masked sum of it."""

    target: Target
    task: str
    payload: Payload
    arrays: dict[str, Any]
    ask: Callable[[Payload], Reply]

    def largest(self, name: str) -> float:
        """The largest entry of a block in size, or 1 where all are 0."""
        return float(np.abs(self.arrays[name]).max(initial=0.0)) or 1.0

    def differs(self, name: str) -> bool:
        """Whether a bound just below the largest entry of a block is answered otherwise than one just above."""
        largest = self.largest(name)
        return self._kind(name, 0.999 * largest) != self._kind(name, 1.001 * largest)

    def bisect(self, name: str) -> tuple[int, int]:
        """Questions that an asker needs who knows nothing of the sum, and the digits of it that are known then."""
        (low, high), reference = _POWERS, self._kind(name, 2.0 ** _POWERS[1])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._kind(name, 2.0**middle) == reference else (middle, high)
        inside = low - 1e-6 <= np.log2(self.largest(name)) <= high + 1e-6
        return _HALVINGS + 1, int(-np.log10((high - low) * np.log(2))) if inside else 0

    def _kind(self, name: str, bound: float) -> tuple[Any, ...]:
        """How the site takes part where entries of a block may be at most ``bound`` in size."""
        sizes = {part: (np.shape(array), 16 * self.largest(part)) for part, array in self.arrays.items()}
        sizes[name] = (np.shape(self.arrays[name]), bound)
        layout = fit_layout(sizes, 1 + len(others_of(self.target.policy)))
        asked = masked_question(self.task.partition(":")[0], self.payload, layout, self.target.name, self.target.policy)
        reply = self.ask(asked)
        code = "" if reply.refusal is None else reply.refusal.code
        return code, sorted((part, array.shape) for part, array in reply.payload.arrays.items())


def _own_sums(target: Target, task: str) -> Iterator[_OwnSums]:
    """The site's own answers to honest questions of an additive task, or part of one."""
    if not question_parts()[task].additive:
        return
    site = site_of(target.name, target.policy, target.rows, columns=target.columns, holdout=0.5)
    for payload in target.honest(task)[:2]:
        try:
            answer = site.as_owner(task.partition(":")[0], payload)
        except KernfedError:  # of another model than the site's columns
            continue
        yield _OwnSums(target, task, payload, dict(answer.arrays), lambda asked: target.ask(site, "sum_masked", asked))
