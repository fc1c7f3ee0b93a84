"""What sites do so that bandwidth and regularisation can be chosen: sums of a few small problems, errors left out.

A site that counts its errors sees the second moments of all sites' rows together: with two sites, each learns the
other's. Only sums over its rows leave it.
"""

from typing import Any

import numpy as np

from kernfed.base.checks import check_rows
from kernfed.errors import Refused
from kernfed.federation.ridge.pooling import unprefixed
from kernfed.federation.ridge.tasks import allow_problem, moments_of, read_parameters
from kernfed.federation.survey import check_rows_of, read_targets
from kernfed.kernels.rows import ColumnStatistics
from kernfed.ridge.leave_one_out import Spectrum, left_out
from kernfed.ridge.logistic import logistic_sums
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.site import Site

#: Problems that are tried at once, and candidates of the regularisation for each, at most.
MOST_TRIALS = 8
MOST_CANDIDATES = 64


@task("ridge_trials", leaves="statistics")
def trials(site: Site, payload: Payload) -> Payload:
    """Moments of features and targets for several problems, each as "ridge_moments" has them."""
    problems = _read_trials(payload)
    return Payload(
        {
            f"{place}.{name}": array
            for place, problem in enumerate(problems)
            for name, array in moments_of(site, problem).items()
        }
    )


@task("ridge_left_out", leaves="statistics")
def errors_left_out(site: Site, payload: Payload) -> Payload:
    """Sums (L, 3 + T) of errors of the site's rows for every problem, each row predicted without itself."""
    answers = {
        f"{place}": _errors(site, problem, unprefixed(payload.arrays, place))
        for place, problem in enumerate(_read_trials(payload))
    }
    return Payload(answers)


@task("ridge_columns", leaves="statistics")
def columns(site: Site, payload: Payload) -> Payload:
    """Mean and sum of squares around it (p,) of every column, and the number of rows."""
    rows = check_rows_of(site, read_parameters(payload.values), site.rows())
    return Payload(ColumnStatistics.of(rows.X).to_arrays())


@task("ridge_gradient", leaves="statistics")
def gradient(site: Site, payload: Payload) -> Payload:
    """Sums of losses and gradients of a logistic head at given weights (M, C) and intercept (C,)."""
    parameters = read_parameters(payload.values)
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, 1)
    read_targets(parameters, rows)
    arrays, M, C = payload.arrays, parameters.n_features, parameters.n_targets
    try:
        means = Means.from_array(arrays["means"], parameters) if parameters.fit_intercept else None
        weights, intercept = check_rows(arrays["weights"], "weights"), arrays["intercept"]
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the weights cannot be used: {error}") from None
    if parameters.task != "classify" or weights.shape != (M, C) or intercept.shape != (C,):
        raise Refused("bad question", f"weights of classes must have shape {(M, C)}, got {weights.shape}")
    if not np.isfinite(intercept).all():
        raise Refused("bad question", "the intercept must be finite")
    return Payload({"sums": logistic_sums(rows.X, rows.y, parameters, weights, intercept, means).to_array()})


def _errors(site: Site, parameters: RidgeParameters, arrays: dict[str, Any]) -> Any:
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, parameters.n_features)
    read_targets(parameters, rows)
    try:
        spectrum = Spectrum.from_arrays(arrays, parameters)
        means = Means.from_array(arrays["means"], parameters) if parameters.fit_intercept else None
        path = arrays["path"]
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the pooled sums cannot be used: {error}") from None
    if path.ndim != 1 or not 0 < len(path) <= MOST_CANDIDATES or path.dtype != np.float64:
        raise Refused("bad question", f"path must have 1 to {MOST_CANDIDATES} candidates, got shape {path.shape}")
    if not (np.isfinite(path).all() and (path >= 0).all()):
        raise Refused("bad question", "candidates of the regularisation must be finite and at least 0")
    site.allow(numbers=len(path) * parameters.n_targets * len(spectrum.values))
    return left_out(rows.X, rows.y, parameters, spectrum, tuple(path.tolist()), means).to_array()


def _read_trials(payload: Payload) -> list[RidgeParameters]:
    """The problems of a question, or a refusal."""
    tried = payload.values.get("trials")
    if not isinstance(tried, list) or not 0 < len(tried) <= MOST_TRIALS:
        raise Refused("bad question", f"trials must be 1 to {MOST_TRIALS} problems, got {tried!r:.80}")
    return [read_parameters({"parameters": values}) for values in tried]
