"""Who answers at a site, and with what: the model itself, or of a personalised model the site's own predictor."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from kernfed.base.answer import Answer
from kernfed.base.model import Model, as_model
from kernfed.errors import InputError

#: What is told where nothing can be tested.
NOTHING_ASIDE = (
    "no site keeps rows aside to test on: make the sites with holdout=0.2, as in Federation.local(..., holdout=0.2), "
    "or give rows that were not trained on, as in holdout={site: (X, y)}"
)


def is_regressor(model: Any) -> bool:
    """Whether a model predicts values, not labels: it has no classes."""
    return not (model.is_classifier if isinstance(model, Model) else len(getattr(model, "classes_", ())))


def is_personal(model: Any) -> bool:
    """Whether a model has a predictor for each of its sites, and none for all."""
    return isinstance(model, Model) and model.is_personal


def predictor_for(model: Any, site: str, option: str) -> Any:
    """The predictor of ``site``, which must be named for a personalised model and is "" for every other one.

    ``option`` is how the user names it, for what is refused.
    """
    sites = _site_list(model.sites) if isinstance(model, Model) else ""
    if not is_personal(model):
        if site:
            told = f" of the sites {sites}" if sites else ""
            raise InputError(
                f"{option} is for personalised models, and a {type(model).__name__}{told} answers alike "
                f"for every site: leave it out, got {site!r}"
            )
        return model
    _check_predicts(model)
    if not site:
        raise InputError(f"a personalised model has a predictor for each site: name one by {option}, there are {sites}")
    return model.for_site(site)


def answer_columns(answer: Answer, classes: Iterable[Any] = ()) -> dict[str, npt.NDArray[Any]]:
    """Columns (n,) of a table of predictions: prediction, and as far as known probability, site, batch and score.

    ``classes`` (C,) name the columns of the probabilities of all classes.
    """
    if answer.labels.ndim == 2:
        return {f"prediction[{place}]": values for place, values in enumerate(answer.labels.T)}
    columns = {"prediction": answer.labels}
    if answer.probabilities is not None:
        columns["probability"] = answer.probabilities.max(axis=1)
        columns |= {f"probability of {name}": own for name, own in zip(classes, answer.probabilities.T, strict=False)}
    if answer.site is not None and answer.batch is not None and answer.score is not None:
        columns |= {"site": answer.site, "batch": answer.batch, "score": answer.score}
    return columns


def site_predictors(model: Any, sites: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The predictor of each of ``sites``, and the sites that have none, with the reason.

    It is the model itself at all of them unless it is personalised. Where no site has one the model is refused.
    """
    if not is_personal(model):
        as_model(model)  # refuses what does not predict
        return dict.fromkeys(sites, model), {}
    _check_predicts(model)
    predictors: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for site in sites:
        try:
            predictors[site] = model.for_site(site)
        except ValueError as error:
            missing[site] = str(error)
    if missing and not predictors:
        raise InputError(
            f"{next(iter(missing.values()))}; a personalised model is tested by its own sites, "
            "and rows need the names of theirs"
        )
    return predictors, missing


def _check_predicts(model: Any) -> None:
    """Refuse a personalised model that has weights only, before anything is said of its sites."""
    model.for_site(model.sites[0])


def _site_list(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - 20} more" if len(sites) > 20 else ""
    return ", ".join(map(repr, sites[:20])) + more
