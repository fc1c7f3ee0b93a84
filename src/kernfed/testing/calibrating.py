"""One temperature for the probabilities of all sites together, from sums of losses on rows that sites kept aside.

Sites find a temperature each, from their own classes and machines, and the median counts. Here all sites' machines
answer for the rows that each kept aside, as for any query. Rows travel as in an evaluation, and labels do not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, check_finite
from kernfed.base.labels import ClassIndex
from kernfed.base.model import as_model
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.survey import MAX_SHARE, leave_out, outsized
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.left_out import temperature_losses
from kernfed.kahm.model import FoldingModel
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.testing.evaluation import whole_question
from kernfed.testing.held_out import ask_held_out, labelled_rows, row_scores
from kernfed.testing.predictors import model_questions, read_model

#: Temperatures that are tried, as factors of the sites' own: eight octaves each way, in eighths.
FACTORS = 2.0 ** (np.arange(-64, 65) / 8)


#: How far beyond what the other sites would choose the temperature may go: an octave, in eighths.
_REACH = 8
#: More rows than this are a lie, and so are losses of one site above this, at any temperature.
_MOST_ROWS, _LARGEST_LOSS = 2**40, 2.0**40
_NOTHING = "no site kept rows aside to calibrate on, with labels that the model knows: make the sites with holdout=0.2"


def calibrate(
    model: FoldingModel,
    federation: Federation,
    *,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_share: float = MAX_SHARE,
    sum: Any = None,
) -> FoldingModel:
    """The same model with the temperature that makes the labels of the rows kept aside most likely.

    Needs sites that keep rows aside (``Federation.local(..., holdout=0.2)``). Labels that the model does not know, and
    classes without an answer, are left out. Predicted labels do not change; evaluate on other rows than these.

    A site whose losses cannot be, or that claims above ``max_share`` of all rows, is missing. With three and more sites
    none can drive the temperature further than an octave beyond what the others would choose by themselves. With
    ``sum`` ("secure" or a ``kernfed.secure.Committee``, for machines held in the model) only the sum of all losses is
    seen, and nobody can check or limit a site's own.
    """
    if not as_model(model).can_calibrate:
        raise InputError(f"only the probabilities of a FoldingModel have a temperature, got a {type(model).__name__}")
    if model.privacy is not None:
        raise InputError(
            "this model promises differential privacy, and a temperature found on raw rows is not covered by it; its "
            "sites have fitted one to what they released"
        )
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    temperatures = replace(model, calibrated_=None).temperature_ * FACTORS
    if sum is not None:
        return _calibrate_sum(model, federation, temperatures, sum, options)
    scored: dict[str, FloatArray] = {}
    if model.connection is not None:
        scored, _ = ask_held_out(model, federation, model.scores, options)
        values = {"classes": labels_to_values(model.classes_)}
        questions: Any = {
            site: Payload({"scores": own, "temperatures": temperatures}, values) for site, own in scored.items()
        }
        name = "calibrate_scores"
    else:
        question, _ = model_questions(model, federation.sites)
        assert isinstance(question, Payload)
        questions = Payload({**question.arrays, "temperatures": temperatures}, question.values)
        name = "calibrate_model"

    def check(site: str, payload: Payload) -> None:
        _check(payload, 1 / temperatures)
        if site in scored:
            _check_scored(payload, scored[site], temperatures)

    replies = federation.ask(name, questions, check=check, **options)
    claimed = {site: int(payload.arrays["rows"]) for site, payload in replies}
    replies = leave_out(name, replies, outsized(claimed, max_share), min_replies)
    if not any(claimed[site] for site, _ in replies):
        raise InputError(_NOTHING)
    losses = [payload.arrays["losses"] for site, payload in replies if claimed[site]]
    return replace(model, calibrated_=float(temperatures[_best(losses)]))


def _calibrate_sum(
    model: FoldingModel, federation: Federation, temperatures: FloatArray, committee: Any, options: Any
) -> FoldingModel:
    question = whole_question(model, federation)
    payload = Payload({**question.arrays, "temperatures": temperatures}, question.values)
    arrays = {"losses": (FACTORS.shape, _LARGEST_LOSS), "rows": ((), float(_MOST_ROWS))}
    total = federation.sum("calibrate_model", payload, arrays, committee=committee, **options)
    if not total.arrays["rows"] > 0:
        raise InputError(_NOTHING)
    return replace(model, calibrated_=float(temperatures[int(np.argmin(total.arrays["losses"]))]))


def _best(losses: Sequence[FloatArray]) -> int:
    """Which temperature is best for the losses (129,) of all sites, as far as no site by itself decides it.

    The best of their sum, at most an octave beyond the second smallest and second largest of those that sites would
    choose alone, with a log-normal prior of deviation 1 around their usual one.
    """
    best = int(np.argmin(np.sum(losses, axis=0)))
    if len(losses) < 3:
        return best
    own = sorted(int(np.argmin(loss + np.log(FACTORS) ** 2 / 2)) for loss in losses)
    return int(np.clip(best, max(0, own[1] - _REACH), min(len(FACTORS) - 1, own[-2] + _REACH)))


def _check_scored(payload: Payload, scores: FloatArray, temperatures: FloatArray) -> None:
    """Refuse losses of more rows than were sent, or larger than any labels of these have at their scores (n, C)."""
    if payload.arrays["rows"] > len(scores):
        raise InputError(
            f"the losses must be of the {len(scores):,} rows that were asked, got {payload.arrays['rows']}"
        )
    finite = np.isfinite(scores)
    worst = np.argmax(np.where(finite, scores, -np.inf), axis=1) if len(scores) else np.zeros(0, dtype=np.intp)
    limits = temperature_losses(scores, worst, temperatures)
    if (payload.arrays["losses"] > limits * (1 + 1e-9) + 1e-9).any():
        raise InputError("no labels of the rows that were asked have such losses")


def _check(payload: Payload, rates: FloatArray) -> None:
    """Refuse what is not a loss at every temperature: it is convex in ``rates``, the inverse temperatures."""
    losses, rows = payload.arrays["losses"], payload.arrays["rows"]
    if losses.shape != FACTORS.shape or rows.shape != () or not np.isfinite(losses).all() or (losses < 0).any():
        raise InputError(f"expected {len(FACTORS)} losses of at least 0, got {losses.shape}")
    if rows.dtype.kind != "i" or not 0 <= rows <= _MOST_ROWS:
        raise InputError(f"expected a number of rows, got {rows}")
    share = (rates[1:-1] - rates[2:]) / (rates[:-2] - rates[2:])
    chords = losses[2:] + share * (losses[:-2] - losses[2:])
    if (losses[1:-1] > chords + 1e-9 * (1 + np.maximum(losses[:-2], losses[2:]))).any():
        raise InputError("a loss must be convex in the inverse temperature")


@task("calibrate_scores", leaves="counts")
def calibrate_scores(site: Site, payload: Payload) -> Payload:
    """Losses of scores of the held-out rows, in their order, at every temperature."""
    scores, classes = payload.arrays["scores"], labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if scores.shape != (len(rows.y), len(classes)) or np.isnan(scores).any():
        raise Refused("bad question", f"expected scores for {len(rows.y)} rows, got {scores.shape}")
    return _losses(rows, classes, scores, payload)


@task("calibrate_model", leaves="counts", additive=True)
def calibrate_model(site: Site, payload: Payload) -> Payload:
    """Losses of a model that came with the question, on the held-out rows, at every temperature."""
    arrays = {name: array for name, array in payload.arrays.items() if name != "temperatures"}
    model = read_model(site, arrays, payload.values["model"], len(site.held_out().y))
    if not model.can_calibrate or model.hold != "machines":
        raise Refused("bad question", f"a {type(model).__name__} has no temperature to find here")
    rows = labelled_rows(site, model.classes_)
    scores = row_scores(model.scores, rows.X, 0.0)  # absent classes score infinity
    return _losses(rows, model.classes_, scores, payload)


def _losses(rows: Rows, classes: Any, scores: Any, payload: Payload) -> Payload:
    temperatures = payload.arrays["temperatures"]
    if temperatures.shape != FACTORS.shape or not (temperatures > 0).all():
        raise Refused("bad question", f"expected {len(FACTORS)} temperatures above 0, got {temperatures.shape}")
    check_finite(temperatures, "temperatures")
    numbers = ClassIndex(classes).numbers(rows.y, "minus-one")
    known = numbers >= 0
    losses = temperature_losses(scores[known], numbers[known], temperatures)
    return Payload({"losses": losses, "rows": np.asarray(int(known.sum()))})
