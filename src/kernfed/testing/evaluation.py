"""How well a model does at every site, from counts and sums of errors: no test row is pooled, no test label leaves."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.model import as_model
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.survey import MAX_SHARE
from kernfed.testing.exchange import NOT_WHOLE, NOTHING_ASIDE, Options, ask_sites, rows_here, sum_sites
from kernfed.testing.influence import influence_rows, measure_influence
from kernfed.testing.outcomes import (
    ErrorSums,
    Evaluation,
    Outcome,
    RegressionEvaluation,
    count_outcomes,
    error_sums,
)
from kernfed.testing.predictors import is_regressor, site_predictors
from kernfed.testing.statistics import Errors, Outcomes

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
    options: Options = {"min_replies": min_replies, "timeout": timeout}
    if sum is not None:
        if influence:
            raise InputError("with sum= nobody sees a site's part, so none can be left out: leave out one of the two")
        if holdout is not None:
            raise InputError(f"{NOT_WHOLE}, on rows that sites keep aside: leave holdout out")
        return _evaluate_sum(model, federation, sum, options)
    tested = _evaluate(model, federation, holdout, max_share, options)
    if not influence:
        return tested
    if holdout is not None:
        return replace(tested, influence=influence_rows(model, holdout, liars=0 if liars is None else liars))
    scale = _usual_error(tested) if isinstance(tested, RegressionEvaluation) else 1.0
    lying = 1 if liars is None else liars
    return replace(tested, influence=measure_influence(model, federation, liars=lying, scale=scale, **options))


def _usual_error(tested: RegressionEvaluation) -> float:
    """Mean squared error of the median site, which no single one chooses; 1 where nobody errs."""
    errors = [sums.mean_squared_error for sums in tested.sites.values() if sums.rows]
    return float(np.median(errors)) or 1.0


def _evaluate(
    model: Any, federation: Federation, holdout: Mapping[str, Any] | None, max_share: float, options: Options
) -> Evaluation | RegressionEvaluation:
    if is_regressor(model):
        if holdout is not None:
            return regression_rows(model, holdout)
        errors, missing = ask_sites(model, federation, Errors(), options, max_share)
        return _regressed({site: Errors.error_sums(sums) for site, sums in errors.items()}, missing)
    if holdout is not None:
        return evaluate_rows(model, holdout)
    # A site that sent its rows as queries cannot claim others.
    limit = None if as_model(model).connection is not None else max_share
    counts, missing = ask_sites(model, federation, Outcomes(len(model.classes_)), options, limit)
    return _tested(model.classes_, {site: Outcome(**sums) for site, sums in counts.items()}, missing)


def _evaluate_sum(model: Any, federation: Federation, committee: Any, options: Options) -> Evaluation:
    """Counts of all sites together, of which nobody sees any site's own."""
    statistic = Outcomes(0 if is_regressor(model) else len(model.classes_))
    sums, missing = sum_sites(model, federation, statistic, committee, options)
    return _tested(model.classes_, {TOGETHER: Outcome(**sums)}, missing)


def evaluate_rows(model: Any, holdout: Mapping[str, Any]) -> Evaluation:
    """Evaluation on rows that are here: ``{site: (X, y)}``; a personalised model needs the names of its sites."""
    predictors, missing = site_predictors(model, sorted(holdout))
    tested = {}
    for name, predictor in predictors.items():
        rows = rows_here(predictor, model.classes_, name, holdout)
        tested[name] = count_outcomes(model.classes_, rows.y, predictor.predict_proba(rows.X))
    return _tested(model.classes_, tested, missing)


def regression_rows(model: Any, holdout: Mapping[str, Any]) -> RegressionEvaluation:
    """Errors on rows that are here: ``{site: (X, y)}``."""
    predictors, missing = site_predictors(model, sorted(holdout))
    tested = {}
    for name, predictor in predictors.items():
        rows = rows_here(predictor, np.array([]), name, holdout)
        tested[name] = error_sums(rows.y, predictor.predict(rows.X))
    return _regressed(tested, missing)


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


def _regressed(sites: Mapping[str, ErrorSums], missing: Mapping[str, str]) -> RegressionEvaluation:
    """The evaluation, unless nothing was tested at all; where no site answered, ``missing`` says why."""
    if (sites or not missing) and not any(sums.rows for sums in sites.values()):
        raise InputError(NOTHING_ASIDE)
    return RegressionEvaluation(sites, missing)
