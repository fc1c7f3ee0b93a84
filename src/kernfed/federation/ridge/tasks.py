"""What sites do for a ``RidgeLearner``: factor their part of the problem once, then multiply and solve with it.

Only sums over a site's rows leave it: M x C numbers per answer, and M^2 for "ridge_moments" (which M / C answers to
"ridge_apply" also amount to, for whoever asks so many). Numbers travel as arrays, so the size of an answer tells
nothing. A site keeps its factor in its store, under the digest of the problem and with that of its rows, so that any
number of methods and processes share it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number, check_rows
from kernfed.errors import FileFormatError, Refused
from kernfed.federation.ridge.ranges import range_arrays
from kernfed.federation.survey import PUBLIC, answer_survey, check_rows_of, read_targets
from kernfed.files import Record
from kernfed.ridge.local import LocalRidge, fit_local, leave_one_out_losses
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means, centred_features, centred_targets, problem_values, row_means, weighted_moments
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.rows import Rows
from kernfed.site.site import Site

_FOLDER = "ridge"
#: Problems whose factors a site keeps; with M = 2000 features each is 32 MB.
_KEPT = 4


@task("ridge_survey", leaves="counts", under_privacy="public", reason=PUBLIC)
def survey(site: Site, payload: Payload) -> Payload:
    """The site's schema (without labels to regress), its rows, and their median distance or 0 if not asked for."""
    return answer_survey(site, payload, "ridge")


@task("ridge_means", leaves="statistics")
def means(site: Site, payload: Payload) -> Payload:
    """Mass, means of features (M,) and of targets (C,): what an intercept needs of the site."""
    parameters = read_parameters(payload.values)
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, 1)
    return Payload({"means": _own_means(parameters, rows).to_array()})


@task("ridge_start", leaves="statistics")
def start(site: Site, payload: Payload) -> Payload:
    """The site's own solutions (L, M, C), b (M, C), s, mass and trace; its factor stays for the rounds to come.

    To regress also the range of values (2,), where it is asked for.
    """
    parameters, around = _read_problem(payload)
    local = _prepare(site, parameters, around)
    scalars = np.array([local.constant, local.mass, local.trace])
    ends = range_arrays(site, payload, parameters.task)
    return Payload({"solutions": local.solutions, "linear": local.linear, "scalars": scalars, **ends})


@task("ridge_apply", leaves="statistics")
def apply(site: Site, payload: Payload) -> Payload:
    """``H_j V``."""
    local, regularization = _problem(site, payload)
    return Payload({"result": local.apply(_columns(payload, "V", local), regularization)})


@task("ridge_solve", leaves="statistics")
def solve(site: Site, payload: Payload) -> Payload:
    """``H_j^-1 V``."""
    local, regularization = _problem(site, payload)
    return Payload({"result": local.solve(_columns(payload, "V", local), regularization)})


@task("ridge_moments", leaves="statistics")
def moments(site: Site, payload: Payload) -> Payload:
    """Moments of all features and targets: M^2 numbers, from which rows can be recovered if there are few.

    To regress also the range of values (2,), where it is asked for.
    """
    parameters = read_parameters(payload.values)
    sums = moments_of(site, parameters)
    return Payload({**sums, **range_arrays(site, payload, parameters.task)})


@task("ridge_validate", leaves="statistics")
def validate(site: Site, payload: Payload) -> Payload:
    """Leave-one-out losses (L,) of the candidates' averages (L, M, C)."""
    parameters, around = _read_problem(payload)
    local = _prepare(site, parameters, around)
    averages = payload.arrays["averages"]
    if averages.shape != local.solutions.shape or not np.isfinite(averages).all():
        raise Refused("bad question", f"averages must be finite of shape {local.solutions.shape}")
    share = local.mass / check_number(payload.values["mass"], "mass", at_least=local.mass)
    rows = site.some_rows()
    return Payload({"losses": leave_one_out_losses(rows.X, rows.y, parameters, local, averages, share, around)})


@task("ridge_dimension", leaves="statistics")
def dimension(site: Site, payload: Payload) -> Payload:
    """The site's effective dimension."""
    local, regularization = _problem(site, payload)
    return Payload({"dimension": np.array([local.effective_dimension(regularization)])})


# Rows and problems ------------------------------------------------------------------------------------------------


def read_parameters(values: Mapping[str, Any]) -> RidgeParameters:
    """The problem in a question, or a refusal."""
    try:
        return RidgeParameters.from_values(values["parameters"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the parameters cannot be followed: {error}") from None


def allow_problem(site: Site, parameters: RidgeParameters, height: int) -> None:
    """Refuse, before it starts, a problem larger than the policy allows; its matrices are ``height`` by M, and copied.

    Beside them it needs the frequencies (p, M), and one solution (M, C) for every regularisation.
    """
    M, C = parameters.n_features, parameters.n_targets
    solutions = len(parameters.regularization) * M * C
    frequencies = parameters.width * M if parameters.features == "fourier" else 0
    site.allow(features=M, numbers=3 * (height + C) * (M + C) + solutions + frequencies)


def moments_of(site: Site, parameters: RidgeParameters) -> dict[str, npt.NDArray[Any]]:
    """Moments of the site's features and targets, and their mass or, with an intercept, the means they are around."""
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, parameters.n_features)
    read_targets(parameters, rows)
    weights = parameters.row_weights(rows.y)
    own = _own_means(parameters, rows) if parameters.fit_intercept else None
    targets, features = centred_targets(parameters, rows.y, own), centred_features(parameters, own)
    sums = weighted_moments(rows.X, targets, weights, features).to_arrays()
    if own is not None:
        return {**sums, "means": own.to_array()}
    return {**sums, "mass": np.array([float(len(rows.X) if weights is None else weights.sum())])}


def _read_problem(payload: Payload) -> tuple[RidgeParameters, Means | None]:
    """The problem in a question and, where it has an intercept, the means of all sites' rows."""
    parameters = read_parameters(payload.values)
    if not parameters.fit_intercept:
        return parameters, None
    try:
        return parameters, Means.from_array(payload.arrays["means"], parameters)
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"an intercept needs the means of all rows: {error}") from None


def _own_means(parameters: RidgeParameters, rows: Rows) -> Means:
    targets = read_targets(parameters, rows)
    return row_means(rows.X, targets, parameters.row_weights(rows.y), centred_features(parameters, None))


def _prepare(site: Site, parameters: RidgeParameters, around: Means | None) -> LocalRidge:
    """The site's part of the problem for the rows it has now, factored where it is not there yet."""
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, min(len(rows.y), parameters.n_features))
    read_targets(parameters, rows)  # rows may have come since the survey
    handle = digest(problem_values(parameters, around))
    kept = _read(site, handle)
    if kept is None or kept.data != rows.digest:
        kept = KeptProblem(fit_local(rows.X, rows.y, parameters, around), rows.digest, _forgotten(site))
        _write(site, handle, kept)
    return kept.local


def _problem(site: Site, payload: Payload) -> tuple[LocalRidge, float]:
    """The factored problem a question refers to, and the regularisation it names."""
    kept = _read(site, str(payload.values["handle"]))
    if kept is None:
        raise Refused("stale", f"site {site.name!r} keeps nothing of this problem; its rows changed, or it is too old")
    regularization = payload.values["regularization"]
    if regularization not in kept.local.path:
        raise Refused("bad question", f"this problem has regularization {kept.local.path}, not {regularization!r}")
    return kept.local, float(regularization)


def _columns(payload: Payload, name: str, local: LocalRidge) -> FloatArray:
    V = payload.arrays[name]
    if V.ndim != 2 or len(V) != len(local.linear):
        raise Refused("bad question", f"{name} must have {len(local.linear)} rows, got shape {V.shape}")
    return check_rows(V, name)


# Memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeptProblem:
    """A factored problem, the digest of its rows, and how many rows the site had been asked to forget by then."""

    local: LocalRidge
    data: str
    forgotten: int


def discard_factors(site: Site, leaving: frozenset[int] = frozenset()) -> None:  # noqa: ARG001  all of them go
    """Delete everything the site keeps for ridge regressions: it is made of its rows, also of those now forgotten."""
    site.cache.pop(_FOLDER, None)
    for handle in site.store.names(_FOLDER):
        site.store.delete(_FOLDER, handle)


def _forgotten(site: Site) -> int:
    """Number of rows the site was asked to forget: a factor made before is not to be used again."""
    return len(site.store.read_state()["forgotten"])


def _read(site: Site, handle: str) -> KeptProblem | None:
    """The factored problem with this handle, from memory or the store; None where rows were forgotten since."""
    in_memory: tuple[str, KeptProblem] | None = site.cache.get(_FOLDER)
    kept = in_memory[1] if in_memory is not None and in_memory[0] == handle else _read_store(site, handle)
    if kept is None:
        return None
    if kept.forgotten != _forgotten(site):
        discard_factors(site)
        return None
    site.cache[_FOLDER] = (handle, kept)
    return kept


def _read_store(site: Site, handle: str) -> KeptProblem | None:
    try:
        record = site.store.read(_FOLDER, handle)
        if record is None:
            return None
        values = record.values
        return KeptProblem(LocalRidge.from_arrays(record.arrays), str(values["data"]), int(values["forgotten"]))
    except (FileFormatError, KeyError, ValueError):  # a damaged record is made again from the rows
        return None


def _write(site: Site, handle: str, kept: KeptProblem) -> None:
    """Keep a factored problem, in the store first; the oldest go."""
    about = {"data": kept.data, "forgotten": kept.forgotten}
    site.store.write(Record(kept.local.to_arrays(), about), _FOLDER, handle)
    site.cache[_FOLDER] = (handle, kept)
    folder = site.store.path / _FOLDER
    by_age = sorted(folder.glob("*.safetensors"), key=lambda entry: entry.stat().st_mtime_ns)
    for old in by_age[:-_KEPT]:
        old.unlink(missing_ok=True)
