"""Audits: what attacks achieve against a release or a model, and whether that contradicts the stated guarantee.

Everything is reached through callables and arrays: a function that adds the noise, one that trains, one that answers.
An audit compares worst cases, made up for the purpose, with the guarantee, and real rows with one another. It looks at
raw rows, so its figures are for those who may see these.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_rows
from kernfed.base.random import generator as seeded_generator
from kernfed.errors import InputError
from kernfed.privacy.attacks import (
    Mechanism,
    ReleaseRows,
    element_canaries,
    known_pair,
    known_row,
    record_canaries,
    row_law,
    run_canaries,
    unknown_position,
)
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.lower_bound import (
    EpsilonBound,
    ErrorRate,
    gaussian_bound,
    gaussian_error,
    laplace_error,
    one_run_bound,
    round_down,
    split_bound,
    two_answers_error,
)
from kernfed.privacy.mechanism import ElementLaplace, RecordGaussian
from kernfed.privacy.roc import Attack, MembershipScore, check_confidence, check_scores, membership_score, roc
from kernfed.promise import Guarantee, round_up

Finding = Attack | EpsilonBound | MembershipScore


@dataclass(frozen=True)
class AuditReport:
    """What was attacked (``subject``), what it promises in both units, and what was found.

    ``private`` is False where the audited release itself is not private, as its ``Release.private`` says. ``released``
    says in words what such a release consists of and how many numbers that are; empty where only answers were attacked.
    ``total`` is what all releases of the sites have come to for one person, by their ledgers, where that is known.
    """

    subject: str
    element: Guarantee
    record: Guarantee
    attacks: tuple[Attack, ...] = ()
    bounds: tuple[EpsilonBound, ...] = ()
    membership: MembershipScore | None = None
    private: bool = True
    released: str = ""
    total: Guarantee | None = None

    def __post_init__(self) -> None:
        if self.total is not None and (not isinstance(self.total, Guarantee) or self.total.unit != "record"):
            raise InputError(f"total must be a Guarantee of unit 'record', got {self.total!r}")
        for name in ("element", "record"):
            guarantee = getattr(self, name)
            if not isinstance(guarantee, Guarantee) or guarantee.unit != name:
                raise InputError(f"{name} must be a Guarantee of unit {name!r}, got {guarantee!r}")
        if not isinstance(self.released, str):
            raise InputError(f"released must say in words what was released, got {self.released!r}")
        if not isinstance(self.subject, str) or not self.subject.strip():
            raise InputError(f"subject must say in words what was audited, got {self.subject!r}")
        for name, kind in (("attacks", Attack), ("bounds", EpsilonBound)):
            if not all(isinstance(finding, kind) for finding in getattr(self, name)):
                raise InputError(f"{name} must be of type {kind.__name__}, got {getattr(self, name)!r}")

    def plus(self, *findings: Finding) -> "AuditReport":
        """The report with more attacks, bounds, or the membership score."""
        report = self
        for finding in findings:
            if isinstance(finding, Attack):
                report = replace(report, attacks=(*report.attacks, finding))
            elif isinstance(finding, EpsilonBound):
                report = replace(report, bounds=(*report.bounds, finding))
            elif isinstance(finding, MembershipScore):
                report = replace(report, membership=finding)
            else:
                raise InputError(f"a finding must be an Attack, EpsilonBound or MembershipScore, got {finding!r}")
        return report

    @property
    def worst(self) -> Guarantee:
        """What a person is left with: the total of the ledgers where it is known and more, else this record's."""
        return self.record if self.total is None or self.total.epsilon < self.record.epsilon else self.total

    def detects(self, unit: str) -> float | None:
        """The smallest epsilon of a ``unit`` that these trials would most likely have refuted; None where none."""
        known = [bound.detects for bound in self.bounds if bound.unit == unit and bound.detects is not None]
        return min(known, default=None)

    @property
    def confidence(self) -> float:
        """Probability at least that all bounds hold together."""
        return max(0.0, 1.0 - sum(1.0 - bound.confidence for bound in self.bounds))

    @property
    def contradicted(self) -> tuple[EpsilonBound, ...]:
        """The bounds that a stated guarantee cannot be true with."""
        return tuple(b for b in self.bounds if b.contradicts(self.element) or b.contradicts(self.record))

    @property
    def verdict(self) -> str:
        """One line: whether the audited bound contradicts the stated guarantee; without one, what attacks achieved."""
        if not self.bounds:
            return self._without_bounds()
        sure = f"{100 * self.confidence:.4g} % confidence"
        if self.contradicted:
            worst = max(self.contradicted, key=lambda bound: bound.value)
            stated, audited = stated_epsilon(getattr(self, worst.unit)), round_down(worst.value)
            return f"CONTRADICTED: audited {worst.unit} epsilon >= {audited:g}, stated {stated} ({sure})"
        return f"not contradicted: {'; '.join(filter(None, map(self._compared, ('element', 'record'))))} ({sure})"

    def _without_bounds(self) -> str:
        """What can be said of attacks alone, which cannot contradict a guarantee: the noise was drawn once."""
        claimed = math.isfinite(self.record.epsilon)
        start = "not tested: no lower bound on epsilon was computed" if claimed else "no guarantee is claimed"
        if not self.attacks:
            return start
        best = max(self.attacks, key=lambda attack: attack.roc.auc)
        low, high = best.roc.auc_interval
        exposed = "".join(
            f", and finds {point.tpr:.1%} of the members at {point.rate:.1%} false alarms"
            for point in best.roc.points[-1:]
        )
        achieved = (
            f"the best attack tried, {best.name}, has an area under the curve of {best.roc.auc:.3f} "
            f"[{low:.3f}, {high:.3f}], where guessing has 0.5{exposed}"
        )
        if not claimed:
            return f"{start}; {achieved}; nothing bounds what other attacks achieve"
        limit = attack_limit(self.worst)
        which = (
            "stated record epsilon" if self.worst is self.record else "epsilon that the ledgers have come to in all,"
        )
        allowed = f"the {which} {stated_epsilon(self.worst)} allows {limit:.3f} on average over the noise"
        more = ", which is less: audit the mechanism itself" if low > limit else ""
        return f"{start}, as the noise was drawn once; {achieved}; {allowed}{more}"

    def _compared(self, unit: str) -> str:
        bounds = [bound for bound in self.bounds if bound.unit == unit]
        if not bounds:
            return ""
        stated, ceiling = getattr(self, unit).epsilon, max(bound.ceiling for bound in bounds)
        limit = f", more than the {ceiling:.3g} that so many trials can show" if stated > ceiling else ""
        audited = round_down(max(bound.value for bound in bounds))
        smallest = self.detects(unit)
        power = "" if smallest is None else f", where {round_up(smallest, 3):g} would most likely have been refuted"
        return f"audited {unit} epsilon >= {audited:g}, stated {stated_epsilon(getattr(self, unit))}{limit}{power}"

    def __str__(self) -> str:
        lines = [f"Audit of {self.subject}", *self.promised()]
        if not self.private:
            lines.append("  marked not private: the guarantee does not hold")
        findings = (*self.attacks, *((self.membership,) if self.membership else ()), *self.bounds)
        return "\n".join([*lines, *(f"  {finding}" for finding in findings), f"Verdict: {self.verdict}"])

    def promised(self) -> list[str]:
        """Lines of what is promised: all releases together first, as a person has only one budget."""
        total = [] if self.total is None else [f"  in all, {self.total}"]
        return [*total, f"  {self.element}", f"  {self.record}"]

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite epsilon, no guarantee, is None."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "contradicted": bool(self.contradicted),
            "confidence": self.confidence,
            "element": self.element.to_dict(),
            "record": self.record.to_dict(),
            "attacks": [asdict(attack) for attack in self.attacks],
            "bounds": [asdict(bound) for bound in self.bounds],
            "membership": None if self.membership is None else asdict(self.membership),
            "private": self.private,
            "released": self.released,
            "total": None if self.total is None else self.total.to_dict(),
        }


def stated_epsilon(guarantee: Guarantee) -> str:
    """The epsilon in words, never less than the truth."""
    return "none" if math.isinf(guarantee.epsilon) else f"{round_up(guarantee.epsilon):g}"


def attack_limit(guarantee: Guarantee) -> float:
    """Largest area under the curve of an attack on one unit, on average over the noise, rounded up to three digits.

    ``TPR <= exp(epsilon) FPR + delta`` and the same with the two cases exchanged: the area under both is at most
    ``exp(epsilon) / (1 + exp(epsilon)) + delta``.

    >>> attack_limit(Guarantee(1.0, 1e-5, "record", "one row replaced by any other"))
    0.732
    """
    area = 1.0 / (1.0 + math.exp(-guarantee.epsilon)) + guarantee.delta
    return min(1.0, math.ceil(1000 * area) / 1000)


# Elements are cheaper to try than rows.
_ELEMENTS = 10

#: Distances or other answers (n,) of a model to rows (n, p).
Answer = Callable[[FloatArray], npt.NDArray[Any]]


def audit_release(
    mechanism: Mechanism,
    rows: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    release: ReleaseRows | None = None,
    trials: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    generator: NoiseGenerator | None = None,
) -> AuditReport:
    """Attack a mechanism that releases rows: known pair, known row and unknown position, and canaries for the bounds.

    ``rows`` (n, p) are those of the data, ``others`` (m, p) rows of the same population that are not in it. The noise
    is that of ``release``, by default the mechanism's own; a given one is held against the mechanism's guarantee.
    """
    check_confidence(confidence)
    data = check_rows(rows, "rows")
    law = row_law(mechanism, data.shape[1])
    source = check_generator(generator)
    add_noise = release if release is not None else lambda X: mechanism.release(X, generator=source).values
    element, record = mechanism.guarantees(data.shape[1])
    options: dict[str, Any] = {"confidence": confidence, "seed": seed}
    attacks = (
        known_pair(add_noise, law, data, others, trials=trials, **options),
        known_row(add_noise, law, data, others, trials=trials, **options),
        unknown_position(add_noise, law, data, others, **options),
    )
    bounds = canary_bounds(
        mechanism, data.shape[1], release=add_noise, stated=(element, record), trials=trials, **options
    )
    numbers = f"{len(data):,} noisy rows of {law.width:,} numbers each, {len(data) * law.width:,} numbers in all"
    return AuditReport(_describe(mechanism, data), element, record, attacks, bounds, released=numbers)


def _describe(mechanism: Mechanism, rows: FloatArray) -> str:
    unit = "record" if isinstance(mechanism, RecordGaussian) else "element"
    what = f"{type(mechanism).__name__} (epsilon {mechanism.epsilon:g} per {unit})"
    return f"noisy rows by {what}, {rows.shape[0]} rows of {rows.shape[1]} elements"


def canary_bounds(
    mechanism: Mechanism,
    width: int,
    *,
    release: ReleaseRows,
    stated: tuple[Guarantee, Guarantee] | None = None,
    trials: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[EpsilonBound, ...]:
    """Lower bounds on epsilon from made-up worst cases, all holding together with ``confidence``.

    For the record, ``trials`` rows at one end of what clipping allows or at the other, by a coin each. For the element
    (mechanisms with a d), ten times as many elements that differ by d. Each is judged by the errors of a test, which
    takes trials as independent, and by the guesses in one run, which does not. Deltas are those ``stated`` for element
    and record, by default by the mechanism.
    """
    check_count(trials, "trials", at_least=20)
    check_confidence(confidence)
    law = row_law(mechanism, width)
    first, second = record_canaries(mechanism, width, seed)
    element, record = stated or mechanism.guarantees(width)
    coins = seeded_generator(seed, "privacy", "audit", "canaries")
    included = coins.random(trials) < 0.5
    cases = [(run_canaries(release, law, first, second, included), included, record)]
    if not isinstance(mechanism, RecordGaussian):
        included = coins.random((-(-_ELEMENTS * trials // width), width)) < 0.5
        low, high = (np.full(width, value) for value in element_canaries(mechanism))
        cases.append((run_canaries(release, law, high, low, included).ravel(), included.ravel(), element))
    gaussian = isinstance(mechanism, RecordGaussian)
    count = 3 if gaussian else 2 * len(cases)
    options: dict[str, Any] = {"confidence": 1.0 - (1.0 - confidence) / count, "seed": seed}
    bounds = []
    for scores, bits, guarantee in cases:
        error = _best_error(mechanism, guarantee)
        bounds.append(split_bound(scores[bits], scores[~bits], guarantee, error=error, **options))
        bounds.append(one_run_bound(scores, bits, guarantee, **options))
        if gaussian:
            bounds.append(gaussian_bound(scores[bits], scores[~bits], guarantee, **options))
    return tuple(bounds)


def _best_error(mechanism: Mechanism, guarantee: Guarantee) -> ErrorRate:
    """Errors of the best test under the mechanism's law; of a row with noise on its elements, the fewest possible."""
    if isinstance(mechanism, RecordGaussian):
        return gaussian_error(guarantee.delta)
    laplace = isinstance(mechanism, ElementLaplace) and guarantee.unit == "element"
    return laplace_error if laplace else two_answers_error


def audit_answers(
    members: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    answer: Answer | None = None,
    permutations: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Attack, MembershipScore]:
    """Attack by a model's answers only: a smaller distance speaks for a member (DP-KAHM (67)-(69)).

    ``members`` (n,) are the distances at training rows, ``others`` (m,) at other rows; or, where ``answer`` computes
    distances, the rows themselves, (n, p) and (m, p).
    """
    near, far = members, others
    if answer is not None:
        inside = check_rows(members, "members")
        outside = check_rows(others, "others", width=inside.shape[1])
        near, far = _answers(answer, inside), _answers(answer, outside)
    near, far = check_scores(near, "members", at_least=2), check_scores(far, "others", at_least=2)
    attack = Attack(
        "answers only", "the row, and what the model answers to it", roc(-near, -far, confidence=confidence)
    )
    return attack, membership_score(near, far, permutations=permutations, seed=seed)


def _answers(answer: Answer, rows: FloatArray) -> npt.NDArray[np.float64]:
    values = check_scores(answer(rows), "answers")
    if len(values) != len(rows):
        raise InputError(f"answer must return one number for each of {len(rows)} rows, got {len(values)}")
    return values


def audit_training(
    train: Callable[[FloatArray], Answer],
    canaries: npt.ArrayLike,
    substitutes: npt.ArrayLike,
    guarantee: Guarantee,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Attack, EpsilonBound]:
    """One training run with many canaries, attacked by its answers (Steinke, Nasr and Jagielski 2023).

    A coin decides for each row of ``canaries`` (m, p) whether it or the row of ``substitutes`` in its place (and of its
    class) is in the data. ``train`` gets these m rows, adds what else it trains on, and returns a function from rows
    to distances. The score is by how much the canary is closer than its substitute.
    """
    first = check_rows(canaries, "canaries", min_rows=2)
    second = check_rows(substitutes, "substitutes", width=first.shape[1])
    if len(second) != len(first):
        raise InputError(f"substitutes must have a row for each of the {len(first)} canaries, got {len(second)}")
    included = seeded_generator(seed, "privacy", "audit", "training canaries").random(len(first)) < 0.5
    if included.all() or not included.any():
        raise InputError(f"canaries must be more: the coins of all {len(first)} fell on the same side")
    answer = train(np.where(included[:, None], first, second))
    scores = _answers(answer, second) - _answers(answer, first)
    knows = "the row, its substitute, and what the model answers to both"
    attack = Attack("canaries", knows, roc(scores[included], scores[~included], confidence=confidence))
    return attack, one_run_bound(scores, included, guarantee, confidence=confidence, seed=seed)


def audit_pair(
    run: Callable[[FloatArray], float],
    rows: npt.ArrayLike,
    neighbour: npt.ArrayLike,
    guarantee: Guarantee,
    *,
    runs: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    gaussian: bool = False,
) -> tuple[Attack, *tuple[EpsilonBound, ...]]:
    """Attack any mechanism by repeated runs on ``rows`` (n, p) and on a ``neighbour`` that differs in one unit.

    ``run`` releases from the rows it gets and returns a score that should be larger for ``rows``, such as the released
    numbers along the direction in which the two differ. Runs must be independent. The attack is followed by the bound
    by errors and, where its noise is said to be ``gaussian``, by that from mu; both hold with ``confidence``.
    """
    first = check_rows(rows, "rows")
    second = check_rows(neighbour, "neighbour", width=first.shape[1])
    check_count(runs, "runs", at_least=4)
    inside, outside = (check_scores([run(data) for _ in range(runs)], "scores of run") for data in (first, second))
    attack = Attack("repeated runs", "both data sets, and the release", roc(inside, outside, confidence=confidence))
    if not gaussian:
        return attack, split_bound(inside, outside, guarantee, confidence=confidence, seed=seed)
    options: dict[str, Any] = {"confidence": 1.0 - (1.0 - confidence) / 2, "seed": seed}
    by_errors = split_bound(inside, outside, guarantee, error=gaussian_error(guarantee.delta), **options)
    return attack, by_errors, gaussian_bound(inside, outside, guarantee, **options)
