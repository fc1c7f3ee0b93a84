"""Audits: what attacks achieve against a release or a model, and whether that contradicts the stated guarantee.

Everything is reached through callables and arrays: a function that adds the noise, one that trains, one that answers.
An audit compares worst cases, made up for the purpose, with the guarantee, and real rows with one another. It looks at
raw rows, so its figures are for those who may see these.
"""

from collections.abc import Callable
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
from kernfed.privacy.audit_report import AuditReport
from kernfed.privacy.density import MembershipScore, membership_score
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.lower_bound import EpsilonBound, gaussian_bound, one_run_bound, split_bound
from kernfed.privacy.mechanism import ElementLaplace, RecordGaussian
from kernfed.privacy.power import ErrorRate, gaussian_error, laplace_error, two_answers_error
from kernfed.privacy.roc import Attack, check_confidence, check_scores, roc
from kernfed.promise import Guarantee

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
    by errors and, where the mechanism says that its noise is ``gaussian``, by that from mu; both hold with
    ``confidence``.
    """
    first = check_rows(rows, "rows")
    second = check_rows(neighbour, "neighbour", width=first.shape[1])
    check_count(runs, "runs", at_least=4)
    inside, outside = (check_scores([run(data) for _ in range(runs)], "scores of run") for data in (first, second))
    attack = Attack("repeated runs", "both data sets, and the release", roc(inside, outside, confidence=confidence))
    if not gaussian:
        return attack, split_bound(inside, outside, guarantee, confidence=confidence, seed=seed)
    options: dict[str, Any] = {"confidence": 1.0 - (1.0 - confidence) / 2, "seed": seed}
    error = gaussian_error(guarantee.delta)
    by_errors = split_bound(inside, outside, guarantee, error=error, **options)
    return attack, by_errors, gaussian_bound(inside, outside, guarantee, **options)
