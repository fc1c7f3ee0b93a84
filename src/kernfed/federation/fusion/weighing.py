"""How machines and a head are weighed: by rows that neither saw, answered by all sites, counted where their labels are.

Exchanges: the rows, the scores of all sites for them, the losses; one more for ``visit="unsure"``. Beside a head of the
aggregate "median" losses and counts are those of the median site, so that one site cannot choose by its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from kernfed.base.checks import FloatArray, check_rows
from kernfed.base.labels import ClassIndex
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.federation.asking import warn_missing
from kernfed.federation.folding.connection import ask_scores
from kernfed.federation.fusion.tasks import MOST_ROWS
from kernfed.federation.program import Ask, Program
from kernfed.federation.ridge.methods import Progress
from kernfed.federation.survey import check_arrays
from kernfed.files import labels_from_values, labels_to_values
from kernfed.fusion.combination import (
    TEMPERATURES,
    THRESHOLDS,
    USUAL_TEMPERATURE,
    WEIGHTS,
    FusionLosses,
    VisitCounts,
    most_losses,
)
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import SAMPLE_ROWS, FusionChoice, Visit, weight_and_temperature
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.robust import typical
from kernfed.ridge.sums import centred_features
from kernfed.site.protocol.message import Payload

#: Accuracy that ``visit="unsure"`` may give up on left-out rows.
GIVE_UP = 0.002


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Training rows of sites, left out of their machines: ``count`` that were asked for, rows by site, and scores.

    sampled : per site its rows X (m, p) and their scores by its machines without them. scores : (n, C) over all sites
    of the rows of all sites, in the order of ``sampled``.
    """

    count: int
    sampled: Mapping[str, Payload]
    scores: FloatArray

    @property
    def X(self) -> FloatArray:
        """Rows (n, p) of all sites."""
        return np.concatenate([payload.arrays["X"] for payload in self.sampled.values()])


@dataclass(frozen=True, eq=False)
class Weighing:
    """What both parts say of left-out rows: per site a question with everything its labels are compared with."""

    questions: Mapping[str, Payload]

    @property
    def rows(self) -> int:
        """Rows of all sites."""
        return sum(len(question.arrays["values"]) for question in self.questions.values())


def with_left_out_rows(
    program: Program[FoldingModel], wanted: Callable[[], bool]
) -> Program[tuple[FoldingModel, LeftOut | None]]:
    """The machines that ``program`` makes and what they say of left-out rows.

    None where no site lets rows travel, or where they are not ``wanted`` any more: there is no head to weigh.
    """
    folding = yield from program
    if not wanted():
        return folding, None
    count = min(MOST_ROWS, -(-SAMPLE_ROWS // len(folding.sites)))
    replies = yield _sample_ask(folding, count)
    sampled = {site: payload for site, payload in replies if len(payload.arrays["X"])}
    if not sampled:
        return folding, None
    left_out = LeftOut(count, sampled, np.zeros(0))
    scores = yield from _scores_left_out(folding, left_out)
    return folding, replace(left_out, scores=scores)


def weigh(left_out: LeftOut, folding: FoldingModel, ridge: RidgeModel, fitted: Progress) -> Weighing:
    """The questions by which sites compare both parts with the labels of their left-out rows."""
    sampled, X = left_out.sampled, left_out.X
    cuts = np.cumsum([len(payload.arrays["X"]) for payload in sampled.values()])[:-1]
    model = FusionModel(folding, ridge)
    values, own_share = model.head_values(X), _leverage(ridge, fitted, X)
    weights = np.ones(len(model.classes_))
    if ridge.parameters.class_weights is not None:
        weights[ClassIndex(model.classes_).numbers(ridge.classes_)] = ridge.parameters.class_weights
    parts = zip(np.split(values, cuts), np.split(left_out.scores, cuts), np.split(own_share, cuts), strict=True)
    about = {
        "handle": folding.handle,
        "generation": {site: folding.members_[site].generation for site in folding.sites},
        "rows": left_out.count,
        "classes": labels_to_values(model.classes_),
    }
    return Weighing(
        {
            site: Payload(
                {"values": v, "scores": s, "leverage": h * _counted(site, fitted), "class_weights": weights}, about
            )
            for site, (v, s, h) in zip(sampled, parts, strict=True)
        }
    )


def _sample_ask(folding: FoldingModel, count: int) -> Ask:
    """The ask for left-out rows of the sites that let them travel, with the scores of their machines."""

    def check(site: str, payload: Payload) -> None:
        member = folding.members_[site]
        X = check_rows(payload.arrays["X"], "rows", width=folding.n_features_in_, min_rows=0)
        if labels_from_values(payload.values["classes"]).tolist() != member.held(folding.classes_):
            raise InputError("the site's classes are not those the model was made with")
        held = len(member.classes) + len(member.left_out)
        scores = payload.arrays["scores"]
        if scores.shape != (len(X), held) or not (scores >= 0).all() or len(X) > 2 * count + member.rows // 10:
            raise InputError(f"expected scores of rows, at least 0, got shape {scores.shape} for {X.shape}")

    generation = {site: folding.members_[site].generation for site in folding.sites}
    question = Payload(values={"handle": folding.handle, "generation": generation, "rows": count})
    return Ask("fusion_sample", question, folding.sites, 0, check)


def _scores_left_out(folding: FoldingModel, left_out: LeftOut) -> Program[FloatArray]:
    """Scores (n, C) over all sites; a row's site answers with machines that did not see it."""
    if folding.banks_ is None:
        by_site = yield from ask_scores(folding, left_out.X, min_replies=1)
        warn_missing(by_site.missing, "the others answer")
    else:
        by_site = folding.site_scores(left_out.X)
    values = by_site.values
    start = 0
    for site, payload in left_out.sampled.items():
        stop = start + len(payload.arrays["X"])
        member = folding.members_[site]
        if site in by_site.sites:
            place = by_site.sites.index(site)
            scores = payload.arrays["scores"][:, member.columns(folding.classes_)]
            values[place, start:stop, list(member.classes)] = scores.T
        start = stop
    return folding.combined(by_site)


def _leverage(ridge: RidgeModel, fitted: Progress, X: FloatArray) -> FloatArray:
    """``h`` (n,) of rows of weight 1: how much of its target is in a row's value.

    It is ``(phi' (C + lambda D)^-1 phi + 1) / mass``, and 0 where the sums are not here, or the head is not squared.
    """
    pooled = fitted.pooled
    if pooled is None or ridge.head != "squared":
        return np.zeros(len(X))
    with single_blas_thread():
        features = centred_features(ridge.parameters, pooled.means)
        rows = X if features is None else features(X)
        H = pooled.moments.second / pooled.mass
        H[np.diag_indices_from(H)] += ridge.regularization_ * (1.0 if fitted.penalty is None else fitted.penalty)
        quadratic = np.einsum("nm,mn->n", rows, np.linalg.solve(H, rows.T))
        return np.asarray(np.maximum(quadratic + (pooled.means is not None), 0.0) / pooled.mass)


def _counted(site: str, fitted: Progress) -> float:
    """How much a site's rows count in the head, of what they would in a sum."""
    pooled = fitted.pooled
    if pooled is None or pooled.shares is None:
        return 1.0
    return pooled.mass / pooled.mass_at(site) if site in pooled.sites.names else 0.0


def choose_weight(
    weighing: Weighing | None, given: float | None, ridge: RidgeModel
) -> Program[tuple[float, float, FusionChoice]]:
    """Weight, temperature and how they came about."""
    usual = ridge.temperature_ or USUAL_TEMPERATURE
    losses = None if weighing is None else (yield from _ask_losses(weighing, ridge.choices_.aggregate))
    total, sites = (None, ()) if losses is None else losses
    if total is None or weighing is None:
        return usual_weight(given, ridge)
    weight, temperature = weight_and_temperature(total, given, usual)
    errors = {float(w): float(e) / total.total for w, e in zip(WEIGHTS, total.wrong, strict=True)}
    return weight, temperature, FusionChoice("rows" if given is None else "given", weighing.rows, sites, errors)


def usual_weight(given: float | None, ridge: RidgeModel) -> tuple[float, float, FusionChoice]:
    """Weight and temperature where no left-out rows can be had."""
    weight, temperature = weight_and_temperature(None, given, ridge.temperature_ or USUAL_TEMPERATURE)
    return weight, temperature, FusionChoice("default" if given is None else "given")


def _ask_losses(weighing: Weighing, aggregate: str) -> Program[tuple[FusionLosses, tuple[str, ...]] | None]:
    shapes = {"surprise": (len(WEIGHTS), len(TEMPERATURES)), "wrong": (len(WEIGHTS),), "total": (1,)}

    def check(site: str, payload: Payload) -> None:
        check_arrays(payload, shapes)
        arrays = weighing.questions[site].arrays
        heaviest = float(arrays["class_weights"].max())
        total = float(payload.arrays["total"][0])
        if any((array < 0).any() for array in payload.arrays.values()):
            raise InputError("losses must be at least 0")
        if (
            total > heaviest * len(arrays["values"]) * (1 + 1e-9)
            or (payload.arrays["wrong"] > total * (1 + 1e-9)).any()
        ):
            raise InputError("the losses must be of the rows that were asked")
        limits = most_losses(arrays["values"], arrays["leverage"], arrays["scores"], heaviest)
        if (payload.arrays["surprise"] > limits * (1 + 1e-6) + 1e-6).any():
            raise InputError("no labels of the rows that were asked have such losses")

    replies = yield Ask("fusion_losses", weighing.questions, None, 0, check)
    parts = [
        FusionLosses(p.arrays["surprise"], p.arrays["wrong"], float(p.arrays["total"][0]))
        for _, p in replies
        if p.arrays["total"][0] > 0
    ]
    if not parts:
        return None
    return _all_losses(parts, aggregate), tuple(site for site, _ in replies)


def _all_losses(parts: Sequence[FusionLosses], aggregate: str) -> FusionLosses:
    if aggregate == "sum":
        return reduce(add, parts)
    totals = np.array([part.total for part in parts])
    total = float(totals.sum())
    surprise, wrong = (typical([getattr(part, name) for part in parts], totals) for name in ("surprise", "wrong"))
    return FusionLosses(total * surprise, total * wrong, total)


def choose_visit(weighing: Weighing | None, model: FusionModel) -> Program[Visit]:
    """From which probability on the head answers alone, and what that costs on left-out rows."""
    assert model.ridge is not None
    if weighing is None:
        raise InputError(
            "visit='unsure' needs sites that let rows travel (task fusion_sample), to measure what it gives up; "
            "use visit='always'"
        )
    about = {
        "weight": model.weight_,
        "temperature": model.temperature_,
        "head_temperature": model.ridge.temperature_ or model.temperature_,
    }
    questions = {
        site: Payload(question.arrays, {**question.values, **about}) for site, question in weighing.questions.items()
    }

    def check(site: str, payload: Payload) -> None:
        counts, rows = payload.arrays["counts"], payload.arrays["rows"]
        if counts.shape != (3, len(THRESHOLDS)) or rows.shape != (1,) or not np.isfinite(counts).all():
            raise InputError(f"expected counts of shape {(3, len(THRESHOLDS))}, got {counts.shape}")
        if not 0 <= rows[0] <= len(questions[site].arrays["values"]) or (counts < 0).any() or (counts > rows[0]).any():
            raise InputError("counts must be of the rows that were asked")

    replies = yield Ask("fusion_visits", questions, None, 0, check)
    if not len(replies):
        raise InputError("no site counted what visit='unsure' would give up; use visit='always'")
    parts = [_visits(p) for _, p in replies]
    total = _all_visits(parts, model.ridge.choices_.aggregate)
    return Visit("unsure", *total.choose(GIVE_UP))


def _all_visits(parts: Sequence[VisitCounts], aggregate: str) -> VisitCounts:
    if aggregate == "sum":
        return reduce(add, parts)
    rows = np.array([float(part.rows) for part in parts])
    total = sum(part.rows for part in parts)
    stay, alone, together = (
        total * typical([getattr(part, name) for part in parts], rows) for name in ("stay", "alone", "together")
    )
    return VisitCounts(stay, alone, together, total)


def _visits(payload: Payload) -> VisitCounts:
    stay, alone, together = payload.arrays["counts"]
    return VisitCounts(stay, alone, together, int(payload.arrays["rows"][0]))
