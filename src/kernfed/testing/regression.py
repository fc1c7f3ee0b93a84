"""How well a regressor does at every site, from sums of errors: no test row and no test value leaves its site."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_column_names, check_count, check_number
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.survey import MAX_SHARE, leave_out, outsized
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import check_site_rows
from kernfed.site.site import Site
from kernfed.testing.harm import Influences
from kernfed.testing.predictors import (
    NOTHING_ASIDE,
    is_regressor,
    model_questions,
    read_model,
    site_predictors,
)

#: More rows than this are a lie; sums of them stay exact.
_MOST_ROWS = 2**40


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the tested rows of one site.

    squared : of squared errors; absolute : of absolute errors; mean : of the true values; spread : their squared
    deviations from it, added up (not a difference of large sums, which would lose the digits).
    """

    rows: int = 0
    squared: float = 0.0
    absolute: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    @property
    def mean_squared_error(self) -> float:
        """Mean squared error; NaN where no row was tested."""
        return self.squared / self.rows if self.rows else math.nan

    @property
    def mean_absolute_error(self) -> float:
        """Mean absolute error; NaN where no row was tested."""
        return self.absolute / self.rows if self.rows else math.nan

    @property
    def r2(self) -> float:
        """Coefficient of determination ``1 - squared / spread``; NaN where the true values do not differ."""
        return 1.0 - self.squared / self.spread if self.spread > 0 else math.nan

    def __add__(self, other: "ErrorSums") -> "ErrorSums":
        rows = self.rows + other.rows
        if not rows:
            return self
        gap, share = other.mean - self.mean, other.rows / rows
        spread = self.spread + other.spread + gap**2 * self.rows * share
        return ErrorSums(
            rows, self.squared + other.squared, self.absolute + other.absolute, self.mean + gap * share, spread
        )


@dataclass(frozen=True)
class RegressionEvaluation:
    """Sums of errors of every site, and of all together (``pooled``); ``influence`` of each, where asked for."""

    sites: Mapping[str, ErrorSums]
    missing: Mapping[str, str] = field(default_factory=dict)
    influence: Influences | None = None

    @property
    def pooled(self) -> ErrorSums:
        """The sums of all sites, as if their rows were one table."""
        return sum(self.sites.values(), ErrorSums())

    @property
    def r2(self) -> float:
        """Coefficient of determination over all sites' rows."""
        return self.pooled.r2

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; what is not defined is null."""
        told = {
            "pooled": _told(self.pooled),
            "sites": {site: _told(sums) for site, sums in self.sites.items()},
            "missing": dict(self.missing),
        }
        return told if self.influence is None else {**told, "influence": self.influence.to_json()}

    def __str__(self) -> str:
        width = max(len(name) for name in [*self.sites, "all sites"])
        lines = [f"{'site':<{width}}     rows  mean squared error  mean absolute error       R2"]
        for name, sums in [*self.sites.items(), ("all sites", self.pooled)]:
            lines.append(
                f"{name:<{width}}  {sums.rows:>7,}  {sums.mean_squared_error:>18.6g}  "
                f"{sums.mean_absolute_error:>19.6g}  {sums.r2:>7.4f}"
            )
        lines += [f"{site:<{width}}  missing: {reason}" for site, reason in self.missing.items()]
        lines += [] if self.influence is None else ["", str(self.influence)]
        return "\n".join(lines)


def error_sums(truth: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> ErrorSums:
    """Sums of errors of predictions (n,) for true values (n,)."""
    if not len(truth):
        return ErrorSums()
    values = truth.astype(np.float64)
    errors = predicted - values
    mean = float(values.mean())
    return ErrorSums(
        len(values), float((errors**2).sum()), float(np.abs(errors).sum()), mean, float(((values - mean) ** 2).sum())
    )


def evaluate_regressor(
    model: Any,
    federation: Federation,
    *,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_share: float = MAX_SHARE,
) -> RegressionEvaluation:
    """Errors of ``model`` at every site, on the rows it kept aside."""
    questions, missing = model_questions(model, federation.sites)
    replies = federation.ask("evaluate_regression", questions, check=_check, min_replies=min_replies, timeout=timeout)
    claimed = {site: payload.values["rows"] for site, payload in replies}
    replies = leave_out("evaluate_regression", replies, outsized(claimed, max_share), min_replies)
    missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
    return _tested({site: ErrorSums(**payload.values) for site, payload in replies}, missing)


def regression_rows(model: Any, holdout: Mapping[str, Any]) -> RegressionEvaluation:
    """Errors on rows that are here: ``{site: (X, y)}``."""
    predictors, missing = site_predictors(model, sorted(holdout))
    tested = {}
    for name, predictor in predictors.items():
        X, y = holdout[name][:2]
        X = prepared_rows(getattr(predictor, "preparation", None), X)
        check_column_names(X, getattr(predictor, "feature_names_in_", ()), f"X of site {name!r}")
        rows = check_site_rows(X, y, None, name)
        tested[name] = error_sums(_numbers(rows.y, name), predictor.predict(rows.X))
    return _tested(tested, missing)


def _tested(sums: Mapping[str, ErrorSums], missing: Mapping[str, str]) -> RegressionEvaluation:
    """The evaluation, unless nothing was tested at all; where no site answered, ``missing`` says why."""
    if (sums or not missing) and not any(own.rows for own in sums.values()):
        raise InputError(NOTHING_ASIDE)
    return RegressionEvaluation(sums, missing)


def _numbers(values: npt.NDArray[Any], site: str) -> npt.NDArray[Any]:
    if values.dtype.kind not in "biuf":
        raise InputError(f"a regressor is tested on numbers, y of site {site!r} is {values.dtype}")
    return values


def _check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
    sums = ErrorSums(**payload.values)
    check_count(sums.rows, "rows", at_least=0, at_most=_MOST_ROWS)
    for name in ("squared", "absolute", "spread"):
        check_number(getattr(sums, name), name, at_least=0)
    check_number(sums.mean, "mean")
    if sums.absolute**2 > sums.rows * sums.squared * (1 + 1e-9):  # Cauchy-Schwarz
        raise InputError(f"no {sums.rows:,} errors have squares of {sums.squared:g} and sizes of {sums.absolute:g}")


def _told(sums: ErrorSums) -> dict[str, float | int | None]:
    values = {
        "mean_squared_error": sums.mean_squared_error,
        "mean_absolute_error": sums.mean_absolute_error,
        "r2": sums.r2,
    }
    return {"rows": sums.rows, **{name: None if math.isnan(value) else value for name, value in values.items()}}


@task("evaluate_regression", leaves="statistics")
def evaluate_regression(site: Site, payload: Payload) -> Payload:
    """Sums of errors of a model that came with the question, on the held-out rows."""
    model = read_model(site, payload.arrays, payload.values["model"], len(site.held_out().y))
    if not is_regressor(model):
        raise Refused("bad question", f"a {type(model).__name__} that classifies has no errors to add up")
    rows = site.held_out()
    predicted = model.predict(rows.X) if len(rows.y) else np.zeros(0)
    return Payload(values=asdict(error_sums(_numbers(rows.y, site.name), predicted)))
