"""How machines and a head are weighed: by rows that neither saw, answered by all sites, counted where their labels are.

Exchanges: the rows, the scores of all sites for them, the losses; one more for ``visit="unsure"``. Beside a head of the
aggregate "median" losses and counts are those of the median site, so that one site cannot choose by its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, check_rows
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.fusion.tasks import MOST_ROWS
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
from kernfed.ridge.single import leverage
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.replies import Replies

#: Accuracy that ``visit="unsure"`` may give up on left-out rows.
GIVE_UP = 0.002


@dataclass(frozen=True, eq=False)
class Weighing:
    """The parts' word on left-out rows of sites: per site a question with everything its labels are compared with."""

    federation: Federation
    questions: Mapping[str, Payload]
    timeout: float

    @property
    def rows(self) -> int:
        """Rows of all sites."""
        return sum(len(question.arrays["values"]) for question in self.questions.values())


def weigh(
    federation: Federation, folding: FoldingModel, ridge: RidgeModel, fitted: Progress, timeout: float
) -> Weighing | None:
    """Let sites' left-out rows be answered by all of them; None where no site lets rows travel."""
    count = min(MOST_ROWS, -(-SAMPLE_ROWS // len(folding.sites)))
    sampled = _ask_sample(federation, folding, count, timeout)
    sampled = {site: payload for site, payload in sampled.items() if len(payload.arrays["X"])}
    if not sampled:
        return None
    X = np.concatenate([payload.arrays["X"] for payload in sampled.values()])
    cuts = np.cumsum([len(payload.arrays["X"]) for payload in sampled.values()])[:-1]
    scores = _scores_left_out(folding, sampled, X, timeout)
    model = FusionModel(folding, ridge)
    values, own_share = model.head_values(X), _leverage(ridge, fitted, X)
    own = None if ridge.parameters.class_weights is None else np.asarray(ridge.parameters.class_weights)
    weights = np.ones(len(model.classes_))
    if own is not None:
        weights[np.searchsorted(model.classes_, ridge.classes_)] = own
    parts = zip(np.split(values, cuts), np.split(scores, cuts), np.split(own_share, cuts), strict=True)
    about = {
        "handle": folding.handle,
        "generation": {site: folding.members_[site].generation for site in folding.sites},
        "rows": count,
        "classes": labels_to_values(model.classes_),
    }
    questions = {
        site: Payload(
            {"values": v, "scores": s, "leverage": h * _counted(site, fitted), "class_weights": weights}, about
        )
        for site, (v, s, h) in zip(sampled, parts, strict=True)
    }
    return Weighing(federation, questions, timeout)


def _ask_sample(federation: Federation, folding: FoldingModel, count: int, timeout: float) -> dict[str, Payload]:
    """Left-out rows of the sites that let them travel, with the scores of their own machines."""

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
    replies = federation.ask(
        "fusion_sample", question, sites=folding.sites, min_replies=0, timeout=timeout, check=check
    )
    return dict(replies.payloads)


def _scores_left_out(
    folding: FoldingModel, sampled: Mapping[str, Payload], X: FloatArray, timeout: float
) -> FloatArray:
    """Scores (n, C) over all sites; a row's own site answers with machines that did not see it."""
    by_site = folding.site_scores(X, min_replies=1, timeout=timeout)
    values = by_site.values
    start = 0
    for site, payload in sampled.items():
        stop = start + len(payload.arrays["X"])
        member = folding.members_[site]
        if site in by_site.sites:
            place = by_site.sites.index(site)
            own = payload.arrays["scores"][:, member.columns(folding.classes_)]
            values[place, start:stop, list(member.classes)] = own.T
        start = stop
    return folding.combined(by_site)


def _leverage(ridge: RidgeModel, fitted: Progress, X: FloatArray) -> FloatArray:
    """``h`` (n,) of rows of weight 1: how much of a row's own target is in its value; 0 where the sums are not here."""
    pooled = fitted.pooled
    if pooled is None or ridge.head != "squared":
        return np.zeros(len(X))
    with single_blas_thread():
        return leverage(ridge, pooled.moments, pooled.means, pooled.mass, X, fitted.penalty)


def _counted(site: str, fitted: Progress) -> float:
    """How much a site's rows count in the head, of what they would in a sum."""
    pooled = fitted.pooled
    if pooled is None or pooled.shares is None:
        return 1.0
    return pooled.mass / pooled.mass_at(site) if site in pooled.sites.names else 0.0


def choose_weight(
    weighing: Weighing | None, given: float | None, ridge: RidgeModel
) -> tuple[float, float, FusionChoice]:
    """Weight, temperature and how they came about."""
    usual = ridge.temperature_ or USUAL_TEMPERATURE
    losses = None if weighing is None else _ask_losses(weighing, ridge.choices_.aggregate)
    total, sites = (None, ()) if losses is None else losses
    weight, temperature = weight_and_temperature(total, given, usual)
    if total is None or weighing is None:
        return weight, temperature, FusionChoice("default" if given is None else "given")
    errors = {float(w): float(e) / total.total for w, e in zip(WEIGHTS, total.wrong, strict=True)}
    return weight, temperature, FusionChoice("rows" if given is None else "given", weighing.rows, sites, errors)


def _ask_losses(weighing: Weighing, aggregate: str) -> tuple[FusionLosses, tuple[str, ...]] | None:
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

    replies = _ask(weighing, "fusion_losses", dict(weighing.questions), check)
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


def choose_visit(weighing: Weighing | None, model: FusionModel) -> Visit:
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

    replies = _ask(weighing, "fusion_visits", questions, check)
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


def _ask(weighing: Weighing, task: str, questions: Mapping[str, Payload], check: Any) -> Replies:
    return weighing.federation.ask(task, questions, min_replies=0, timeout=weighing.timeout, check=check)


def _visits(payload: Payload) -> VisitCounts:
    stay, alone, together = payload.arrays["counts"]
    return VisitCounts(stay, alone, together, int(payload.arrays["rows"][0]))
