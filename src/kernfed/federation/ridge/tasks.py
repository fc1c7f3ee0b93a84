"""What sites answer of a head: sums, products with its system, and errors of rows left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number, check_rows
from kernfed.errors import FileFormatError, Refused
from kernfed.federation.ridge.plausible import range_arrays
from kernfed.federation.ridge.pooling import unprefixed
from kernfed.federation.survey import PUBLIC, answer_survey, check_rows_of, read_targets
from kernfed.files import Record, content_digest
from kernfed.kernels.rows import ColumnStatistics
from kernfed.ridge.leave_one_out import Spectrum, left_out
from kernfed.ridge.local import LocalRidge, fit_local, leave_one_out_losses
from kernfed.ridge.logistic import logistic_sums
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means, centred_features, centred_targets, problem_values, row_means, weighted_moments
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.receipts import Kept, ReceiptBook
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


def describe(name: str, record: Record) -> Kept:
    """A factor, which is kept only to be at hand: it is made again whenever rows have changed."""
    return Kept(name, 0, content_digest(dict(record.values), record.arrays))


BOOK = ReceiptBook(_FOLDER, describe, elsewhere=("regularization, bandwidth and weights of classes of a head",))
