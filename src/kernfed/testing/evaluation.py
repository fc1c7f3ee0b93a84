"""How well a model does at every site, from counts: no test row is pooled and no test label leaves its site.

A model that is whole (ridge, machines) travels to the sites, and counts come back; of a personalised model each site
gets its own predictor and no other's. For a model whose machines stay at their sites, the sites' held-out rows travel
together as the queries they are, and every site gets the probabilities of its own to count. In any case the number of
questions does not depend on the number of sites.

Labels do not travel, but counts of right answers tell them to who asks with answers of his own making: a policy should
allow these tasks to callers only who may know the labels of rows kept aside.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_column_names
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation, leave_out
from kernfed.federation.shares import MAX_SHARE, outsized
from kernfed.files import labels_from_values, labels_to_values
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import check_site_rows
from kernfed.site.site import Site
from kernfed.testing.held_out import ask_held_out, check_labels_alike, labelled_rows, row_scores
from kernfed.testing.influence import influence_rows, measure_influence
from kernfed.testing.outcomes import (
    BINS,
    MOST_RANKED,
    RANKS,
    Evaluation,
    Outcome,
    RegressionEvaluation,
    count_outcomes,
    evaluate_regressor,
    regression_rows,
)
from kernfed.testing.predictors import (
    NOTHING_ASIDE,
    is_regressor,
    model_questions,
    read_model,
    site_predictors,
)

#: More rows than this are a lie; sums of them stay exact.
_MOST_ROWS = 2**40
#: Who stands for all sites where only their sum is seen.
TOGETHER = "all sites together"
#: Classes that a message names.
_SHOWN = 10


def evaluate(
    model: Any,
    federation: Federation,
    holdout: Mapping[str, Any] | None = None,
    *,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_share: float = MAX_SHARE,
    sum: Any = None,
    influence: bool = False,
    liars: int | None = None,
) -> Evaluation | RegressionEvaluation:
    """Accuracy, confusion and calibration of ``model`` at every site; of a regressor its errors and R^2.

    Without ``holdout`` each site tests on the rows it kept aside (``Federation.local(..., holdout=0.2)``); with
    ``{site: (X, y)}`` on these, which the caller holds anyway. A ``PersonalModel`` is tested at each site by the site's
    own predictor; sites that have none are listed in ``missing`` and not asked, so ``min_replies`` counts the others.

    Nobody can check what a site counts on rows of its own. Counts that contradict each other are refused, and so is one
    of three and more sites that claims above ``max_share`` of all rows; look at sites one by one, too.

    sum : "secure" or a ``kernfed.secure.Committee``, for a classifier that is whole: counts are added up under masks,
    and those of all sites together are all that is seen.
    influence : also leave every site out of the model, and name those without which the answers for rows of the
    others are better; ``liars`` of those who count may lie about that, 1 unless given, and 0 with ``holdout``. See
    ``kernfed.testing.harm``.
    """
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    if sum is not None:
        if influence:
            raise InputError("with sum= nobody sees a site's part, so none can be left out: leave out one of the two")
        return _evaluate_sum(model, federation, holdout, sum, options)
    tested = _evaluate(model, federation, holdout, max_share, options)
    if not influence:
        return tested
    if holdout is not None:
        return replace(tested, influence=influence_rows(model, holdout, liars=0 if liars is None else liars))
    scale = _usual_error(tested) if isinstance(tested, RegressionEvaluation) else 1.0
    heard = 1 if liars is None else liars
    return replace(tested, influence=measure_influence(model, federation, liars=heard, scale=scale, **options))


def _usual_error(tested: RegressionEvaluation) -> float:
    """Mean squared error of the median site, which no single one chooses; 1 where nobody errs."""
    errors = [sums.mean_squared_error for sums in tested.sites.values() if sums.rows]
    return float(np.median(errors)) or 1.0


def _evaluate(
    model: Any, federation: Federation, holdout: Mapping[str, Any] | None, max_share: float, options: Any
) -> Evaluation | RegressionEvaluation:
    if is_regressor(model):
        if holdout is not None:
            return regression_rows(model, holdout)
        return evaluate_regressor(model, federation, **options, max_share=max_share)
    if holdout is not None:
        return evaluate_rows(model, holdout)
    if getattr(model, "connection", None) is not None:
        return _evaluate_by_scores(model, federation, options)
    questions, missing = model_questions(model, federation.sites)
    replies = federation.ask("evaluate", questions, check=_checker(len(model.classes_)), **options)
    claimed = {site: _outcome(payload).rows for site, payload in replies}
    replies = leave_out("evaluate", replies, outsized(claimed, max_share), options["min_replies"])
    missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
    return _tested(model.classes_, {site: _outcome(payload) for site, payload in replies}, missing)


def _evaluate_sum(model: Any, federation: Federation, holdout: Any, committee: Any, options: Any) -> Evaluation:
    """Counts of all sites together, of which nobody sees any site's own."""
    count = 0 if is_regressor(model) else len(model.classes_)
    shapes: dict[str, tuple[int, ...]] = {"confusion": (count + 1, count), "calibration": (BINS, 3)}
    if count <= MOST_RANKED:
        shapes["ranking"] = (count, 2, RANKS)
    total = federation.sum(
        "evaluate",
        whole_question(model, federation, holdout),
        {name: (shape, float(_MOST_ROWS)) for name, shape in shapes.items()},
        committee=committee,
        **options,
    )
    counts = {name: np.rint(total.arrays[name]).astype(np.int64) for name in shapes if name != "calibration"}
    together = Outcome(counts["confusion"], total.arrays["calibration"], counts.get("ranking"))
    missing = {site: refusal.reason for site, refusal in total.missing.items()}
    return _tested(model.classes_, {TOGETHER: together}, missing)


def whole_question(model: Any, federation: Federation, holdout: Any = None) -> Payload:
    """The question that brings a classifier to all sites alike, which is what counts can be added up for."""
    questions, _ = model_questions(model, federation.sites) if not is_regressor(model) else ({}, {})
    if holdout is not None or getattr(model, "connection", None) is not None or not isinstance(questions, Payload):
        raise InputError(
            "counts are added up for a classifier that is whole and the same at all sites: ridge, or machines held in "
            "the model; leave sum out otherwise"
        )
    return questions


def evaluate_rows(model: Any, holdout: Mapping[str, Any]) -> Evaluation:
    """Evaluation on rows that are here: ``{site: (X, y)}``; a personalised model needs the names of its sites."""
    predictors, missing = site_predictors(model, sorted(holdout))
    tested = {}
    for name, predictor in predictors.items():
        X, y = holdout[name][:2]
        X = prepared_rows(getattr(predictor, "preparation", None), X)
        check_column_names(X, getattr(predictor, "feature_names_in_", ()), f"X of site {name!r}")
        rows = check_site_rows(X, y, None, name)
        check_labels_alike(model.classes_, rows, name)
        tested[name] = count_outcomes(model.classes_, rows.y, predictor.predict_proba(rows.X))
    return _tested(model.classes_, tested, missing)


def _tested(classes: npt.NDArray[Any], sites: Mapping[str, Outcome], missing: Mapping[str, str]) -> Evaluation:
    """The evaluation, unless nothing was tested at all, or nothing that the model could have known."""
    evaluation = Evaluation(classes, sites, missing)
    pooled = evaluation.pooled
    if not pooled.rows and (sites or not missing):  # where no site answered, ``missing`` says why
        raise InputError(NOTHING_ASIDE)
    if pooled.rows and pooled.unknown == pooled.rows:
        listed = ", ".join(map(repr, classes.tolist()[:_SHOWN])) + " and more" * (len(classes) > _SHOWN)
        raise InputError(
            f"the model knows none of the labels of the {pooled.rows:,} rows it is tested on; its classes "
            f"are {listed}; look at the column of labels"
        )
    return evaluation


def _evaluate_by_scores(model: Any, federation: Federation, options: Any) -> Evaluation:
    """Let every site count the answers to its own held-out rows."""
    answered, missing = ask_held_out(model, federation, model.predict_proba, options)
    if not answered:
        return Evaluation(model.classes_, {}, missing)
    classes = labels_to_values(model.classes_)
    questions = {site: Payload({"probabilities": own}, {"classes": classes}) for site, own in answered.items()}
    sent = {site: len(own) for site, own in answered.items()}
    counted = federation.ask("evaluate_scores", questions, check=_checker(len(model.classes_), sent), **options)
    missing |= {site: refusal.reason for site, refusal in counted.missing.items()}
    return _tested(model.classes_, {site: _outcome(payload) for site, payload in counted}, missing)


def _checker(classes: int, sent: Mapping[str, int] | None = None) -> Any:
    """A check of counts: that they are some, agree with each other, and are of the rows ``sent``, where these are."""

    def check(site: str, payload: Payload) -> None:
        confusion, calibration = payload.arrays["confusion"], payload.arrays["calibration"]
        if confusion.shape != (classes + 1, classes) or calibration.shape != (BINS, 3):
            raise InputError(f"counts have shapes {confusion.shape} and {calibration.shape}")
        if confusion.dtype != np.int64 or (confusion < 0).any() or not np.isfinite(calibration).all():
            raise InputError("counts must be integers of at least 0")
        if confusion.astype(np.float64).sum() > _MOST_ROWS:
            raise InputError(f"a site tests on at most {_MOST_ROWS:,} rows")
        outcome = _outcome(payload)
        _check_calibration(outcome)
        _check_ranking(outcome)
        if sent is not None and outcome.rows != sent[site]:
            raise InputError(f"the counts must be of the {sent[site]:,} rows that were asked, got {outcome.rows:,}")

    return check


def _check_calibration(outcome: Outcome) -> None:
    """Refuse counts by confidence that are not those of the confusion, or confidences that are not of their bins."""
    rows, correct, confidence = outcome.calibration.T
    if (rows < 0).any() or (correct < 0).any() or (correct > rows).any():
        raise InputError("counts by confidence must be at least 0, and those correct no more than all")
    if (rows.sum(), correct.sum()) != (outcome.rows, outcome.correct):
        raise InputError(
            f"counts by confidence are of {rows.sum():,.0f} rows, {correct.sum():,.0f} correct, and those by class of "
            f"{outcome.rows:,} and {outcome.correct:,}"
        )
    edges = np.arange(BINS + 1) / BINS
    slack = 1e-6 * rows + 1e-9
    if (confidence < edges[:-1] * rows - slack).any() or (confidence > edges[1:] * rows + slack).any():
        raise InputError("confidences must add up to what their bins can hold")


def _check_ranking(outcome: Outcome) -> None:
    """Refuse counts by probability that are not those of the confusion; earlier versions tell none."""
    ranking, classes = outcome.ranking, outcome.confusion.shape[1]
    if ranking is None:
        return
    if ranking.shape != (classes, 2, RANKS) or ranking.dtype != np.int64 or (ranking < 0).any():
        raise InputError(f"counts by probability must be {(classes, 2, RANKS)} integers of at least 0")
    own = outcome.confusion[:-1].sum(axis=1)
    told = np.column_stack([own, outcome.rows - own])
    if (ranking.astype(np.float64).sum(axis=2) != told).any():
        raise InputError("counts by probability must be of the same rows as those by class")


def _outcome(payload: Payload) -> Outcome:
    return Outcome(payload.arrays["confusion"], payload.arrays["calibration"], payload.arrays.get("ranking"))


def _counts(outcome: Outcome) -> Payload:
    arrays: dict[str, npt.NDArray[Any]] = {"confusion": outcome.confusion, "calibration": outcome.calibration}
    return Payload(arrays if outcome.ranking is None else {**arrays, "ranking": outcome.ranking})


@task("evaluate_scores", leaves="counts")
def evaluate_scores(site: Site, payload: Payload) -> Payload:
    """Counts for probabilities of the held-out rows, in their order."""
    probabilities, classes = payload.arrays["probabilities"], labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if probabilities.shape != (len(rows.y), len(classes)):
        raise Refused("bad question", f"expected probabilities for {len(rows.y)} rows, got {probabilities.shape}")
    return _counts(count_outcomes(classes, rows.y, probabilities))


@task("evaluate", leaves="counts", additive=True)
def evaluate_model(site: Site, payload: Payload) -> Payload:
    """Counts of a model that came with the question, on the held-out rows."""
    model = read_model(site, payload.arrays, payload.values["model"], len(site.held_out().y))
    rows = labelled_rows(site, model.classes_)
    probabilities = row_scores(model.predict_proba, rows.X, 1 / len(model.classes_), low=0.0, high=1.0 + 1e-6)
    return _counts(count_outcomes(model.classes_, rows.y, probabilities))
