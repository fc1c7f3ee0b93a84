"""What sites do for a ``RidgeLearner``: factor their part of the problem once, then multiply and solve with it.

Only sums over a site's rows leave it: M x C numbers per answer, and M^2 for "ridge_moments" (which M / C answers to
"ridge_apply" also amount to, for whoever asks so many). Numbers travel as arrays, so the size of an answer tells
nothing. A site keeps its factor in its store, under the digest of the problem and with that of its rows, so that any
number of methods and processes share it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernfed._random import generator
from kernfed._validation import FloatArray, check_count, check_number, check_rows
from kernfed.errors import FileFormatError, Refused
from kernfed.federation.protocol.message import Payload, digest
from kernfed.federation.protocol.task import task, when_forgetting
from kernfed.federation.release.kept import require_private
from kernfed.federation.site.site import Rows, Site, data_digest
from kernfed.files import Record
from kernfed.kernels import median_bandwidth
from kernfed.ridge.first_order import descend, proximal_minimiser, site_objective
from kernfed.ridge.local import LocalRidge, fit_local
from kernfed.ridge.means import Means, centred_features, centred_targets, problem_values, row_means
from kernfed.ridge.parameters import TASKS, RidgeParameters
from kernfed.ridge.path import leave_one_out_losses
from kernfed.ridge.sums import weighted_moments

_FOLDER = "ridge"
#: Problems whose factors a site keeps; with M = 2000 features each is 32 MB.
_KEPT = 4
#: Rows a site draws for its median distance: 45,000 pairs know it to a percent, and all sites' medians are combined.
_MEDIAN_ROWS = 300
#: Names for a site's policy.
RIDGE_TASKS = (
    "ridge_survey",
    "ridge_start",
    "ridge_apply",
    "ridge_solve",
    "ridge_descend",
    "ridge_moments",
    "ridge_validate",
    "ridge_dimension",
    "ridge_release",
    "ridge_means",
)


@task("ridge_survey", "counts", private=True)
def survey(site: Site, payload: Payload) -> Payload:
    """The site's schema (without labels to regress), its rows, and their median distance or 0 if not asked for."""
    values = payload.values
    if "privacy" in values:
        from kernfed.federation.ridge.private import read_mechanism  # it builds on this module

        read_mechanism(site, values["privacy"])
        rows = learning_rows(site)
    else:
        rows = _rows(site)
    _check_labels(site, rows, str(values["task"]))
    schema = site.schema().to_values()
    if values["task"] == "regress":  # every value of y would be a class
        schema |= {"classes": {"dtype": "<i8", "labels": []}, "counts": []}
    median = 0.0
    if values["median"] and len(rows.X) > 1 and "privacy" not in values:
        draws = generator(values["seed"], site.name, "ridge", "bandwidth")
        median = median_bandwidth(rows.X, draws, _MEDIAN_ROWS)
    return Payload({"facts": np.array([float(len(rows.X)), median])}, {"schema": schema})


@task("ridge_means", "statistics")
def means(site: Site, payload: Payload) -> Payload:
    """Mass, means of features (M,) and of targets (C,): what an intercept needs of the site."""
    parameters = read_parameters(payload.values)
    return Payload({"means": _own_means(parameters, _rows_of_width(site, parameters)).to_array()})


@task("ridge_start", "statistics")
def start(site: Site, payload: Payload) -> Payload:
    """The site's own solutions (L, M, C), b (M, C), s, mass and trace; its factor stays for the rounds to come."""
    local = _prepare(site, *_read_problem(payload))
    scalars = np.array([local.constant, local.mass, local.trace])
    return Payload({"solutions": local.solutions, "linear": local.linear, "scalars": scalars})


@task("ridge_apply", "statistics")
def apply(site: Site, payload: Payload) -> Payload:
    """``H_j V``."""
    local, regularization = _problem(site, payload)
    return Payload({"result": local.apply(_columns(payload, "V", local), regularization)})


@task("ridge_solve", "statistics")
def solve(site: Site, payload: Payload) -> Payload:
    """``H_j^-1 V``."""
    local, regularization = _problem(site, payload)
    return Payload({"result": local.solve(_columns(payload, "V", local), regularization)})


@task("ridge_descend", "statistics")
def gradient_steps(site: Site, payload: Payload) -> Payload:
    """Weights after a few local gradient steps from the common ones, and the site's objective at the common ones.

    For ``steps`` "exact" the weights are those of the site's own minimum near the common ones.
    """
    local, regularization = _problem(site, payload)
    weights = _columns(payload, "V", local)
    values = payload.values
    found = {"objective": np.array([site_objective(local, weights, regularization)])}
    proximal = check_number(values["proximal"], "proximal", at_least=0)
    if values["steps"] == "exact":
        result = proximal_minimiser(local, weights, proximal=proximal, regularization=regularization)
        return Payload({"result": result, **found})
    steps = check_count(values["steps"], "steps", at_least=0)
    if steps == 0:
        return Payload(found)
    rate = check_number(values["rate"], "rate", above=0)
    result = descend(local, weights, steps=steps, rate=rate, proximal=proximal, regularization=regularization)
    return Payload({"result": result, **found})


@task("ridge_moments", "statistics")
def moments(site: Site, payload: Payload) -> Payload:
    """Moments of all features and targets: M^2 numbers, from which rows can be recovered if there are few."""
    parameters = read_parameters(payload.values)
    rows = _rows_of_width(site, parameters)
    _, weights = read_targets(parameters, rows)
    own = _own_means(parameters, rows) if parameters.intercept else None
    targets, features = centred_targets(parameters, rows.y, own), centred_features(parameters, own)
    found = weighted_moments(rows.X, targets, weights, features).to_arrays()
    if own is not None:
        return Payload({**found, "means": own.to_array()})
    return Payload({**found, "mass": np.array([float(len(rows.X) if weights is None else weights.sum())])})


@task("ridge_release", "released")
def release(site: Site, payload: Payload) -> Payload:
    """Moments with noise, under differential privacy."""
    from kernfed.federation.ridge.private import release_sums  # it builds on this module, and is slow to import

    return release_sums(site, payload)


@task("ridge_validate", "statistics")
def validate(site: Site, payload: Payload) -> Payload:
    """Leave-one-out losses (L,) of the candidates' averages (L, M, C)."""
    parameters, around = _read_problem(payload)
    local = _prepare(site, parameters, around)
    averages = payload.arrays["averages"]
    if averages.shape != local.solutions.shape or not np.isfinite(averages).all():
        raise Refused("bad question", f"averages must be finite of shape {local.solutions.shape}")
    share = local.mass / check_number(payload.values["mass"], "mass", at_least=local.mass)
    rows = _rows(site)
    return Payload({"losses": leave_one_out_losses(rows.X, rows.y, parameters, local, averages, share, around)})


@task("ridge_dimension", "statistics")
def dimension(site: Site, payload: Payload) -> Payload:
    """The site's effective dimension."""
    local, regularization = _problem(site, payload)
    return Payload({"dimension": np.array([local.effective_dimension(regularization)])})


# Rows and problems ------------------------------------------------------------------------------------------------


def _rows(site: Site) -> Rows:
    require_private(site)
    return learning_rows(site)


def learning_rows(site: Site) -> Rows:
    """Rows that the site learns from, or a refusal where there are none."""
    rows = site.rows()
    if not len(rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    return rows


def _check_labels(site: Site, rows: Rows, task_name: str) -> None:
    if task_name not in TASKS:
        raise Refused("bad question", f"task must be one of {', '.join(TASKS)}, got {task_name!r}")
    kind = rows.y.dtype.kind
    if task_name == "regress" and kind not in "fiub":
        raise Refused("bad labels", f"to regress y must be numbers, site {site.name!r} has dtype {rows.y.dtype}")
    if task_name == "classify" and kind == "f" and (rows.y != np.floor(rows.y)).any():
        raise Refused(
            "bad labels",
            f"site {site.name!r} has labels with fractions, such as "
            f"{rows.y[rows.y != np.floor(rows.y)][0]}; use task='regress'",
        )


def read_targets(parameters: RidgeParameters, rows: Rows) -> tuple[FloatArray, FloatArray | None]:
    """Targets and weights of rows, or a refusal where their labels are not those of the problem."""
    try:
        return parameters.targets(rows.y), parameters.row_weights(rows.y)
    except ValueError as error:  # rows came since the survey
        raise Refused("stale", str(error)) from None


def read_parameters(values: Mapping[str, Any]) -> RidgeParameters:
    """The problem in a question, or a refusal."""
    try:
        return RidgeParameters.from_values(values["parameters"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the parameters cannot be followed: {error}") from None


def _read_problem(payload: Payload) -> tuple[RidgeParameters, Means | None]:
    """The problem in a question and, where it has an intercept, the means of all sites' rows."""
    parameters = read_parameters(payload.values)
    if not parameters.intercept:
        return parameters, None
    try:
        return parameters, Means.from_array(payload.arrays["means"], parameters)
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"an intercept needs the means of all rows: {error}") from None


def _rows_of_width(site: Site, parameters: RidgeParameters) -> Rows:
    rows = _rows(site)
    if rows.X.shape[1] != parameters.width:
        raise Refused("bad question", f"site {site.name!r} has {rows.X.shape[1]} columns, not {parameters.width}")
    return rows


def _own_means(parameters: RidgeParameters, rows: Rows) -> Means:
    return row_means(rows.X, *read_targets(parameters, rows), centred_features(parameters, None))


def _prepare(site: Site, parameters: RidgeParameters, around: Means | None) -> LocalRidge:
    """The site's part of the problem for the rows it has now, factored where it is not there yet."""
    rows = _rows_of_width(site, parameters)
    read_targets(parameters, rows)
    handle, data = digest(problem_values(parameters, around)), data_digest(rows)
    with site.store.locked():
        found = _read(site, handle)
        if found is None or found[1] != data:
            found = (fit_local(rows.X, rows.y, parameters, around), data, _forgotten(site))
            _write(site, handle, *found)
    return found[0]


def _problem(site: Site, payload: Payload) -> tuple[LocalRidge, float]:
    """The factored problem a question refers to, and the regularisation it names."""
    require_private(site)
    handle = str(payload.values["handle"])
    with site.store.locked():
        found = _read(site, handle)
    if found is None:
        raise Refused("stale", f"site {site.name!r} keeps nothing of this problem; its rows changed, or it is too old")
    regularization = payload.values["regularization"]
    if regularization not in found[0].path:
        raise Refused("bad question", f"this problem has regularization {found[0].path}, not {regularization!r}")
    return found[0], float(regularization)


def _columns(payload: Payload, name: str, local: LocalRidge) -> FloatArray:
    V = payload.arrays[name]
    if V.ndim != 2 or len(V) != len(local.linear):
        raise Refused("bad question", f"{name} must have {len(local.linear)} rows, got shape {V.shape}")
    return check_rows(V, name)


# Memory -----------------------------------------------------------------------------------------------------------


@when_forgetting
def discard_factors(site: Site) -> None:
    """Delete everything the site keeps for ridge regressions: it is made of its rows, also of those now forgotten."""
    site.cache.pop(_FOLDER, None)
    for handle in site.store.names(_FOLDER):
        site.store.delete(_FOLDER, handle)


def _forgotten(site: Site) -> int:
    """Number of rows the site was asked to forget: a factor made before is not to be used again."""
    return len(site.store.read_state()["forgotten"])


def _read(site: Site, handle: str) -> tuple[LocalRidge, str, int] | None:
    """Factored problem, digest of its rows and number of rows forgotten by then, from memory or the store."""
    cached: tuple[str, tuple[LocalRidge, str, int]] | None = site.cache.get(_FOLDER)
    if cached is not None and cached[0] == handle:
        found = cached[1]
    else:
        try:
            record = site.store.read(_FOLDER, handle)
            if record is None:
                return None
            local = LocalRidge.from_arrays(record.arrays)
            found = (local, str(record.values["data"]), int(record.values["forgotten"]))
        except (FileFormatError, KeyError, ValueError):  # a damaged record is made again from the rows
            return None
    if found[2] != _forgotten(site):
        discard_factors(site)
        return None
    site.cache[_FOLDER] = (handle, found)
    return found


def _write(site: Site, handle: str, local: LocalRidge, data: str, forgotten: int) -> None:
    """Keep a factored problem, in the store first; the oldest go."""
    site.store.write(Record(local.to_arrays(), {"data": data, "forgotten": forgotten}), _FOLDER, handle)
    site.cache[_FOLDER] = (handle, (local, data, forgotten))
    folder = site.store.path / _FOLDER
    kept = sorted(folder.glob("*.safetensors"), key=lambda entry: entry.stat().st_mtime_ns)
    for old in kept[:-_KEPT]:
        old.unlink(missing_ok=True)
