"""What sites do for a ``PersonalLearner``; each answers from its rows, and its store keeps private releases only.

"personal_survey"      schema, whether labels are classes or values, and the median distance of rows
"personal_statistics"  moments of features and targets, the mean embedding (of all rows or of two halves), or a private
                       release of it
"personal_forms"       q_tk of Q-aggregation against everybody's embedding: B numbers
"personal_gain"        errors alone and together on the site's own rows
"personal_gradient"    losses and gradients of the site's mean loss at the parameters of all targets
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernfed._random import generator
from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.errors import InputError, Refused
from kernfed.federation.protocol.message import Payload, digest
from kernfed.federation.protocol.task import task, when_forgetting
from kernfed.federation.release.charging import check_release, mechanism_from_values, released
from kernfed.federation.release.kept import require_private
from kernfed.federation.ridge.tasks import learning_rows
from kernfed.federation.site.site import Rows, Site
from kernfed.files import Record
from kernfed.kernels import median_bandwidth
from kernfed.personal.fit import row_penalty, site_statistics
from kernfed.personal.logistic import LogisticRisk
from kernfed.personal.prior import SitePrior, cross_fitted_gain
from kernfed.personal.problem import Problem
from kernfed.personal.statistics import Coordinates
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy import Ledger, RecordEmbedding

#: Names for a site's policy.
PERSONAL_TASKS = ("personal_survey", "personal_statistics", "personal_forms", "personal_gain", "personal_gradient")
_CACHE = "personal"
#: Rows a site draws for its median distance.
_MEDIAN_ROWS = 300


@task("personal_survey", "counts", private=True)
def survey(site: Site, payload: Payload) -> Payload:
    """Rows, median distance (0 if not asked for), task of the site's labels, and its schema without values of y."""
    values = payload.values
    rows = _rows(site, values.get("mechanism"))
    wanted = check_choice(values["task"], "task", ("infer", "classify", "regress"))
    kind = rows.y.dtype.kind
    found = ("regress" if kind == "f" else "classify") if wanted == "infer" else wanted
    if found == "regress" and kind not in "fiub":
        raise Refused("bad labels", f"to regress y must be numbers, site {site.name!r} has dtype {rows.y.dtype}")
    if found == "classify" and kind == "f" and (rows.y != np.floor(rows.y)).any():
        raise Refused("bad labels", f"site {site.name!r} has labels with fractions; use task='regress'")
    schema = site.schema().to_values()
    if found == "regress":  # every value of y would be a class
        schema |= {"classes": {"dtype": "<i8", "labels": []}, "counts": []}
    median = 0.0
    if values["median"] and len(rows.X) > 1 and values.get("mechanism") is None:
        draws = generator(check_count(values["seed"], "seed", at_least=0), site.name, "personal", "bandwidth")
        median = median_bandwidth(rows.X, draws, _MEDIAN_ROWS)
    return Payload({"facts": np.array([float(len(rows.X)), median])}, {"schema": schema, "task": found})


@task("personal_statistics", "statistics", private=True)
def statistics(site: Site, payload: Payload) -> Payload:
    """Whichever of statistics (with the site's own penalty) and embedding the question asks for."""
    values = payload.values
    arrays: dict[str, Any] = {}
    private = values.get("mechanism")
    if private is not None and values["statistics"]:
        raise Refused("bad question", "statistics have no private release; ask for the embedding alone")
    rows = _rows(site, private)
    problem = _problem(values, rows)
    targets = _targets(problem, rows)
    if values["statistics"]:
        found = site_statistics(problem, rows.X, rows.y)
        arrays |= {f"statistics.{name}": array for name, array in found.to_arrays().items()}
        arrays["penalty"] = np.array([row_penalty(problem, rows.X, targets, bool(values["intercept"]))])
    if values["kernel"] is not None:
        kernel = _kernel(values)
        if private is not None:
            parts = {"embedding": _release(site, rows, kernel, targets, private)}
        elif values.get("halves"):
            parts = dict(zip(("embedding", "other"), _halves(site, rows, kernel, targets), strict=True))
        else:
            parts = {"embedding": kernel.embed(rows.X, targets).to_arrays()}
        arrays |= {
            f"{part}.{name}": np.asarray(array, dtype=np.float64)
            for part, embedding in parts.items()
            for name, array in embedding.items()
        }
    return Payload(arrays)


@task("personal_forms", "statistics")
def forms(site: Site, payload: Payload) -> Payload:
    """q_tk (B,) against embeddings (B, D); NaN where the site has one row only."""
    rows = _rows(site)
    problem, kernel = _problem(payload.values, rows), _kernel(payload.values)
    means = payload.arrays["means"]
    if means.ndim != 2 or means.shape[1] != kernel.dimension or not np.isfinite(means).all():
        raise Refused("bad question", f"means must be finite with {kernel.dimension} columns, got {means.shape}")
    if len(rows.y) < 2:
        return Payload({"forms": np.full(len(means), -1.0)})  # a message holds no NaN
    return Payload({"forms": kernel.forms(rows.X, _targets(problem, rows), means)})


@task("personal_gain", "counts")
def gain(site: Site, payload: Payload) -> Payload:
    """Error alone and together of rows that were left out, and how many there were."""
    rows = _rows(site)
    problem = _problem(payload.values, rows)
    coordinates = Coordinates.from_arrays(_part(payload, "coordinates."))
    prior = SitePrior.from_arrays(_part(payload, "prior."))
    expected = (coordinates.dimension, problem.n_targets)
    if prior.means.shape[1:] != expected or len(coordinates.centre) != problem.n_features:
        raise Refused("bad question", f"the prior must be of {expected} coefficients, got {prior.means.shape[1:]}")
    X = coordinates.design(problem.transform(rows.X))
    Y = _targets(problem, rows) - coordinates.target_centre
    found = cross_fitted_gain(X, Y, prior, coordinates.target_centre if problem.task == "classify" else None)
    return Payload({"gain": np.array([found.alone, found.together, float(found.rows)])})


@task("personal_gradient", "statistics")
def gradient(site: Site, payload: Payload) -> Payload:
    """Losses (T,) and gradients (T, P) of the site's mean loss at parameters (T, P)."""
    rows = _rows(site)
    problem = _problem(payload.values, rows)
    parameters = payload.arrays["parameters"]
    if parameters.ndim != 2 or not np.isfinite(parameters).all():
        raise Refused("bad question", f"parameters must be a finite matrix, got shape {parameters.shape}")
    try:
        losses, slopes = _kept_risk(site, problem, rows, payload.values)(parameters.copy())  # torch may write to it
    except ImportError as error:
        raise Refused("missing extra", f"site {site.name!r}: {error}") from None
    return Payload({"losses": np.asarray(losses, dtype=np.float64), "gradients": np.asarray(slopes)})


# Reading questions ------------------------------------------------------------------------------------------------


def _rows(site: Site, mechanism: Any = None) -> Rows:
    """Rows that the site learns from, if its policy allows it without privacy or with the mechanism in a question."""
    if mechanism is None:
        require_private(site)
    else:
        _mechanism(site, mechanism)
    return learning_rows(site)


def _mechanism(site: Site, values: Any) -> RecordEmbedding:
    try:
        mechanism = mechanism_from_values(values)
        if not isinstance(mechanism, RecordEmbedding):
            raise InputError("personalised learning takes record-embedding")
    except (ValueError, RecursionError) as error:
        raise Refused("bad question", f"the privacy asked for cannot be followed: {error}") from None
    check_release(site, mechanism)
    return mechanism


def _halves(site: Site, rows: Rows, kernel: EmbeddingKernel, targets: FloatArray) -> list[dict[str, Any]]:
    if len(rows.y) < 2:
        raise Refused("too few rows", f"site {site.name!r} has 1 row, and two halves need 2")
    return [half.to_arrays() for half in kernel.halves(rows.X, targets)]


def _problem(values: Mapping[str, Any], rows: Rows) -> Problem:
    try:
        problem = Problem.from_values(values["problem"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the problem cannot be followed: {error}") from None
    if problem.width != rows.X.shape[1]:
        raise Refused("bad question", f"the problem has {problem.width} columns, not {rows.X.shape[1]}")
    return problem


def _kernel(values: Mapping[str, Any]) -> EmbeddingKernel:
    try:
        return EmbeddingKernel.from_values(values["kernel"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the kernel cannot be followed: {error}") from None


def _targets(problem: Problem, rows: Rows) -> FloatArray:
    try:
        return problem.targets(rows.y)
    except ValueError as error:  # rows came since the survey
        raise Refused("stale", str(error)) from None


def _part(payload: Payload, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in payload.arrays.items() if name.startswith(prefix)}


def _kept_risk(site: Site, problem: Problem, rows: Rows, values: Mapping[str, Any]) -> Any:
    """The site's mean loss, made once for the steps of a training and the rows it has now."""
    key = f"{digest(values)} {rows.digest}"
    kept = site.cache.get(_CACHE)
    if kept is None or kept[0] != key:
        kept = site.cache[_CACHE] = (key, _risk(problem, rows, values))
    return kept[1]


@when_forgetting
def discard_risk(site: Site) -> None:
    """Drop what is kept in memory for a training: it holds rows."""
    site.cache.pop(_CACHE, None)


def _risk(problem: Problem, rows: Rows, values: Mapping[str, Any]) -> Any:
    """The site's mean loss as a function of parameters (T, P)."""
    features = problem.transform(rows.X).astype(np.float64)
    if values["kind"] == "logistic":
        ridge = check_number(values["regularization"], "regularization", at_least=0)
        return LogisticRisk(features, problem.numbers(rows.y), problem.n_targets, ridge)
    from kernfed.personal.network import NetworkRisk, relu_network  # torch is loaded where networks are

    module = relu_network(
        problem.n_features, [check_count(size, "hidden") for size in values["hidden"]], problem.n_targets
    )
    if problem.task == "regress":
        return NetworkRisk(module, features, np.asarray(rows.y, dtype=np.float64))
    return NetworkRisk(module, features, problem.numbers(rows.y), "cross-entropy")


def _release(site: Site, rows: Rows, kernel: EmbeddingKernel, targets: FloatArray, values: Any) -> dict[str, Any]:
    """The site's private embedding of the compared columns, charged to its ledger once."""
    mechanism, compared = _mechanism(site, values), kernel.rows(rows.X, targets)
    if mechanism.features.width != compared.shape[1]:
        raise Refused("bad question", f"privacy must be of the {compared.shape[1]} compared columns")

    def compute(ledger: Ledger) -> Record:
        found = mechanism.release(compared, ledger=ledger, ids=rows.ids)
        return Record({"vector": found.vector}, {"n": found.n, "noise": found.noise})

    record = released(site, mechanism, rows, compute, key=digest(kernel.to_values()))
    return {"vector": record.arrays["vector"], "facts": np.array([record.values["n"], record.values["noise"]])}
