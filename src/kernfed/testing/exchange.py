"""Statistics of rows kept aside, asked of all sites: by a model that travels, by scores that travel, or as one sum.

A model that is whole (ridge, machines) travels to the sites; of a personalised model each site gets its own predictor
and no other's. For a model whose machines stay at their sites the held-out rows travel together as the queries they
are, all sites answer them, and each gets the scores of its own rows. The number of exchanges does not depend on the
number of sites.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_column_names, check_rows
from kernfed.base.model import as_model
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.survey import leave_out, outsized
from kernfed.files import labels_to_values, to_record
from kernfed.site.protocol.message import Payload
from kernfed.site.rows import Rows, check_site_rows
from kernfed.testing.held_out import MODEL, HeldOutStatistic, Sums, check_labels_alike
from kernfed.testing.predictors import is_personal, is_regressor, site_predictors


class Options(TypedDict):
    """What every asker takes: how many sites must reply (None for all), and the seconds that they have."""

    min_replies: int | None
    timeout: float


#: Sums of each site, and why others are missing.
SiteSums = tuple[dict[str, Sums], dict[str, str]]

#: What is said where nothing can be tested.
NOTHING_ASIDE = (
    "no site keeps rows aside to test on: make the sites with holdout=0.2, as in Federation.local(..., holdout=0.2), "
    "or give rows that were not trained on, as in holdout={site: (X, y)}"
)
#: What is said of a sum of anything else.
NOT_WHOLE = (
    "counts are added up for a classifier that is whole and the same at all sites: ridge, or machines held in the model"
)
#: Rows that a site may test on beside each that it learned from: a share of 0.8 kept aside.
_MOST_ASIDE = 4


def ask_sites(
    model: Any, federation: Federation, statistic: HeldOutStatistic, options: Options, max_share: float | None = None
) -> SiteSums:
    """Sums of every site, checked; a site that claims above ``max_share`` of all rows is missing."""
    scored: dict[str, FloatArray] = {}
    questions: Payload | dict[str, Payload]
    if as_model(model).connection is not None:
        task, (scored, missing) = "test_scores", _ask_scores(model, federation, statistic, options)
        if not scored:
            return {}, missing
        about = {"classes": labels_to_values(model.classes_)}
        questions = {site: _question(statistic, {"scores": own}, about) for site, own in scored.items()}
    else:
        task, (questions, missing) = "test_model", _model_questions(model, federation, statistic)

    def check(site: str, payload: Payload) -> None:
        statistic.check(_sums(statistic, payload.arrays), scored.get(site))

    replies = federation.ask(task, questions, check=check, **options)
    if max_share is not None:
        claimed = {site: statistic.rows(_sums(statistic, payload.arrays)) for site, payload in replies}
        replies = leave_out(task, replies, outsized(claimed, max_share), options["min_replies"])
    missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
    return {site: _sums(statistic, payload.arrays) for site, payload in replies}, missing


def sum_sites(
    model: Any, federation: Federation, statistic: HeldOutStatistic, committee: Any, options: Options
) -> tuple[Sums, dict[str, str]]:
    """Sums of all sites together, of which nobody sees any site's, and why sites are missing."""
    known = {f"{statistic.name}.{name}": array for name, array in statistic.arrays.items()}
    total = federation.sum(
        "test_model",
        whole_question(model, federation, statistic),
        {name: (array.shape, array.bound) for name, array in known.items()},
        committee=committee,
        **options,
    )
    added = {
        name: np.rint(total.arrays[name]).astype(np.int64) if array.whole else total.arrays[name]
        for name, array in known.items()
    }
    return _sums(statistic, added), {site: refusal.reason for site, refusal in total.missing.items()}


def whole_question(model: Any, federation: Federation, statistic: HeldOutStatistic) -> Payload:
    """The question that brings a classifier to all sites alike, which is what counts can be added up for."""
    whole = not is_regressor(model) and not is_personal(model) and as_model(model).connection is None
    questions = _model_questions(model, federation, statistic)[0] if whole else None
    if not isinstance(questions, Payload):
        raise InputError(f"{NOT_WHOLE}; leave sum out otherwise")
    return questions


def rows_here(predictor: Any, classes: npt.NDArray[Any], name: str, holdout: Mapping[str, Any]) -> Rows:
    """The rows of site ``name`` in ``holdout`` {site: (X, y)}, prepared for a predictor that is here, and checked."""
    X, y = holdout[name][:2]
    X = prepared_rows(getattr(predictor, "preparation", None), X)
    check_column_names(X, getattr(predictor, "feature_names_in_", ()), f"X of site {name!r}")
    rows = check_site_rows(X, y, None, name)
    check_labels_alike(classes, rows, name)
    return rows


def _ask_scores(
    model: Any, federation: Federation, statistic: HeldOutStatistic, options: Options
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Scores (n, ...) of each site's held-out rows, fetched as queries and answered together; and who sent none."""

    def check(site: str, payload: Payload) -> None:
        rows = check_rows(payload.arrays["X"], "the rows kept aside", width=model.n_features_in_, min_rows=0)
        learned = model.members_[site].rows
        if len(rows) > _MOST_ASIDE * learned:  # all sites answer for them, from what they answer a day
            raise InputError(f"a site that learned from {learned:,} rows may test on {_MOST_ASIDE} times as many")

    queries = federation.ask("held_out_queries", Payload(), sites=model.sites, check=check, **options)
    missing = {site: refusal.reason for site, refusal in queries.missing.items()}
    if not len(queries):
        return {}, missing
    together = np.concatenate([payload.arrays["X"] for _, payload in queries])
    empty = np.zeros((0, *statistic.otherwise.shape))
    scores = statistic.score(model, together, **options) if len(together) else empty
    scores = np.ascontiguousarray(scores, dtype=statistic.sent_as)
    ends = np.cumsum([len(payload.arrays["X"]) for _, payload in queries])
    return {site: own for (site, _), own in zip(queries, np.split(scores, ends[:-1]), strict=True)}, missing


def _model_questions(
    model: Any, federation: Federation, statistic: HeldOutStatistic
) -> tuple[Payload | dict[str, Payload], dict[str, str]]:
    """What to ask sites: the model itself, or to each its own predictor; and who has none, with the reason."""
    predictors, missing = site_predictors(model, federation.sites)
    if not is_personal(model):
        return model_question(model, statistic), missing
    return {site: model_question(predictor, statistic) for site, predictor in predictors.items()}, missing


def model_question(model: Any, statistic: HeldOutStatistic) -> Payload:
    """A model and what is to be summed of its scores."""
    record = to_record(model)
    arrays = {f"{MODEL}{name}": array for name, array in record.arrays.items()}
    question = _question(statistic, None, {"model": dict(record.values)})
    return Payload({**arrays, **question.arrays}, question.values)


def _question(statistic: HeldOutStatistic, scores: Sums | None, about: Mapping[str, Any]) -> Payload:
    """What is to be summed, with its parameters; ``scores`` are those that travel in the place of a model."""
    values, arrays = statistic.parameters(model=scores is None)
    named = {f"{statistic.name}.{name}": array for name, array in {**(scores or {}), **arrays}.items()}
    return Payload(named, {**about, "statistics": {statistic.name: values}})


def _sums(statistic: HeldOutStatistic, arrays: Sums) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an answer that the statistic has."""
    named = {name: arrays.get(f"{statistic.name}.{name}") for name in statistic.arrays}
    return {name: array for name, array in named.items() if array is not None}
