"""One temperature for the probabilities of all sites together, from sums of losses on rows that sites kept aside.

Sites find a temperature each, from their own classes and machines, and the median counts. Here all sites' machines
answer for the rows that each kept aside, as for any query. Rows travel as in an evaluation, and labels do not.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kernfed._validation import check_finite
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.task import task
from kernfed.federation.site.rows import Rows
from kernfed.federation.site.site import Site
from kernfed.federation.testing.evaluation import ask_held_out, labelled_rows
from kernfed.federation.testing.predictors import model_questions
from kernfed.files import Record, from_record, labels_from_values, labels_to_values
from kernfed.kahm.calibration import temperature_losses
from kernfed.kahm.model import FoldingModel

#: Temperatures that are tried, as factors of the sites' own: eight octaves each way, in eighths.
FACTORS = 2.0 ** (np.arange(-64, 65) / 8)


def calibrate(
    model: FoldingModel, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0
) -> FoldingModel:
    """The same model with the temperature that makes the labels of the rows kept aside most likely.

    Needs sites that keep rows aside (``Federation.local(..., holdout=0.2)``). Labels that the model does not know, and
    classes without an answer, are left out. Predicted labels do not change; evaluate on other rows than these.
    """
    if not isinstance(model, FoldingModel):
        raise InputError(f"only the probabilities of a FoldingModel have a temperature, got a {type(model).__name__}")
    if model.privacy is not None:
        raise InputError(
            "this model promises differential privacy, and a temperature found on raw rows is not covered by it; its "
            "sites have fitted one to what they released"
        )
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    temperatures = replace(model, calibrated_=None).temperature_ * FACTORS
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
    replies = federation.ask(name, questions, check=_check, **options)
    if not sum(int(payload.arrays["rows"]) for _, payload in replies):
        raise InputError(
            "no site kept rows aside to calibrate on, with labels that the model knows: make the sites with holdout=0.2"
        )
    losses = sum((payload.arrays["losses"] for _, payload in replies), np.zeros(len(FACTORS)))
    return replace(model, calibrated_=float(temperatures[np.argmin(losses)]))


def _check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
    losses, rows = payload.arrays["losses"], payload.arrays["rows"]
    if losses.shape != FACTORS.shape or rows.shape != () or not np.isfinite(losses).all() or (losses < 0).any():
        raise InputError(f"expected {len(FACTORS)} losses of at least 0, got {losses.shape}")
    if rows.dtype.kind != "i" or rows < 0:
        raise InputError(f"expected a number of rows, got {rows}")


@task("calibrate_scores", leaves="counts")
def calibrate_scores(site: Site, payload: Payload) -> Payload:
    """Losses of scores of the held-out rows, in their order, at every temperature."""
    scores, classes = payload.arrays["scores"], labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if scores.shape != (len(rows.y), len(classes)) or np.isnan(scores).any():
        raise Refused("bad question", f"expected scores for {len(rows.y)} rows, got {scores.shape}")
    return _losses(rows, classes, scores, payload)


@task("calibrate_model", leaves="counts")
def calibrate_model(site: Site, payload: Payload) -> Payload:
    """Losses of a model that came with the question, on the held-out rows, at every temperature."""
    arrays = {name: array for name, array in payload.arrays.items() if name != "temperatures"}
    model = from_record(Record(arrays, payload.values["model"]))
    if not isinstance(model, FoldingModel) or model.banks_ is None:
        raise Refused("bad question", f"a {type(model).__name__} has no temperature to find here")
    rows = labelled_rows(site, model.classes_)
    scores = model.scores(rows.X) if len(rows.y) else np.zeros((0, len(model.classes_)))
    return _losses(rows, model.classes_, scores, payload)


def _losses(rows: Rows, classes: Any, scores: Any, payload: Payload) -> Payload:
    temperatures = payload.arrays["temperatures"]
    if temperatures.shape != FACTORS.shape or not (temperatures > 0).all():
        raise Refused("bad question", f"expected {len(FACTORS)} temperatures above 0, got {temperatures.shape}")
    check_finite(temperatures, "temperatures")
    place = {label: number for number, label in enumerate(classes.tolist())}
    numbers = np.array([place.get(label, -1) for label in rows.y.tolist()], dtype=np.intp)
    known = numbers >= 0
    losses = temperature_losses(scores[known], numbers[known], temperatures)
    return Payload({"losses": losses, "rows": np.asarray(int(known.sum()))})
