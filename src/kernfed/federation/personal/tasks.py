"""What sites answer for personal models: statistics, embeddings, gains, released embeddings."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.errors import InputError, Refused
from kernfed.federation.survey import PUBLIC, answer_survey, check_rows_of, read_targets
from kernfed.files import Record
from kernfed.personal.fit import row_penalty, site_statistics
from kernfed.personal.gradient import LogisticRisk
from kernfed.personal.prior import SitePrior, cross_fitted_gain
from kernfed.personal.statistics import Coordinates, Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.record_sums import RecordEmbedding
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.receipts import ReceiptBook
from kernfed.site.release.kept import check_task, read_mechanism
from kernfed.site.release.permit import releasing, statement
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.statistics.bounds import check_bandwidth, saturate

_CACHE = "personal"


@task("personal_survey", leaves="counts", under_privacy="public", reason=PUBLIC)
def survey(site: Site, payload: Payload) -> Payload:
    """Rows, median distance (0 if not asked for), task of the site's labels, and its schema without values of y."""
    return answer_survey(site, payload, "personal")


@task("personal_statistics", leaves="statistics")
def statistics(site: Site, payload: Payload) -> Payload:
    """Whichever of statistics (with the site's own penalty) and embedding the question asks for."""
    values = payload.values
    problem, rows = _posed(site, values)
    targets = read_targets(problem, rows)
    arrays: dict[str, Any] = {}
    if values["statistics"]:
        own = site_statistics(problem, rows.X, rows.y)
        arrays |= {f"statistics.{name}": array for name, array in own.to_arrays().items()}
        arrays["penalty"] = np.array([row_penalty(problem, rows.X, targets, bool(values["intercept"]))])
    if values["kernel"] is not None:
        kernel = read_kernel(values)
        allow_kernel(site, kernel)
        arrays |= _embeddings(site, rows, kernel, targets, halves=bool(values.get("halves")))
    return Payload(arrays)


@task("personal_forms", leaves="statistics")
def forms(site: Site, payload: Payload) -> Payload:
    """q_tk (B,) against embeddings (B, D); NaN where the site has one row only."""
    problem, rows = _posed(site, payload.values)
    kernel = read_kernel(payload.values)
    allow_kernel(site, kernel)
    means = payload.arrays["means"]
    if means.ndim != 2 or means.shape[1] != kernel.dimension or not np.isfinite(means).all():
        raise Refused("bad question", f"means must be finite with {kernel.dimension} columns, got {means.shape}")
    if len(rows.y) < 2:
        return Payload({"forms": np.full(len(means), -1.0)})  # a message holds no NaN
    return Payload({"forms": kernel.forms(rows.X, read_targets(problem, rows), means)})


@task("personal_gain", leaves="counts")
def gain(site: Site, payload: Payload) -> Payload:
    """Error alone and together of rows that were left out, and how many there were."""
    problem, rows = _posed(site, payload.values)
    coordinates = Coordinates.from_arrays(_part(payload, "coordinates."))
    prior = SitePrior.from_arrays(_part(payload, "prior."))
    expected = (coordinates.dimension, problem.n_targets)
    if prior.means.shape[1:] != expected or len(coordinates.centre) != problem.n_features:
        raise Refused("bad question", f"the prior must be of {expected} coefficients, got {prior.means.shape[1:]}")
    X = coordinates.design(problem.transform(rows.X))
    Y = read_targets(problem, rows) - coordinates.target_centre
    gained = cross_fitted_gain(X, Y, prior, coordinates.target_centre if problem.task == "classify" else None)
    return Payload({"gain": np.array([gained.alone, gained.together, float(gained.rows)])})


@task("personal_gradient", leaves="statistics")
def gradient(site: Site, payload: Payload) -> Payload:
    """Losses (T,) and gradients (T, P) of the site's mean loss at parameters (T, P)."""
    problem, rows = _posed(site, payload.values)
    parameters = payload.arrays["parameters"]
    if parameters.ndim != 2 or not np.isfinite(parameters).all():
        raise Refused("bad question", f"parameters must be a finite matrix, got shape {parameters.shape}")
    if payload.values["kind"] != "logistic":
        _allow_network(site, problem, payload.values["hidden"], len(parameters) * len(rows.y))
    try:
        losses, slopes = _kept_risk(site, problem, rows, payload.values)(parameters.copy())  # torch may write to it
    except ImportError as error:
        raise Refused("missing extra", f"site {site.name!r}: {error}") from None
    return Payload({"losses": np.asarray(losses, dtype=np.float64), "gradients": np.asarray(slopes)})


def _allow_network(site: Site, problem: Problem, hidden: Any, copies: int) -> None:
    """Refuse layers larger than the policy allows, or activations of ``copies`` rows that it does not hold at once."""
    sizes = [problem.n_features, *(check_count(size, "hidden") for size in hidden), problem.n_targets]
    site.allow(features=max(sizes), steps=len(sizes))
    site.allow(numbers=sum(one * other for one, other in pairwise(sizes)) + copies * max(sizes))


# Reading questions ------------------------------------------------------------------------------------------------


def read_problem(values: Mapping[str, Any]) -> Problem:
    """The problem in a question, or a refusal."""
    try:
        return Problem.from_values(values["problem"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the problem cannot be followed: {error}") from None


def read_kernel(values: Mapping[str, Any]) -> EmbeddingKernel:
    """The kernel in a question, or a refusal."""
    try:
        return EmbeddingKernel.from_values(values["kernel"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the kernel cannot be followed: {error}") from None


def _posed(site: Site, values: Mapping[str, Any]) -> tuple[Problem, Rows]:
    """The problem in a question, and the site's rows for it."""
    problem = read_problem(values)
    rows = check_rows_of(site, problem, site.rows())
    allow_problem(site, problem, len(rows.y))
    return problem, rows


def allow_problem(site: Site, problem: Problem, rows: int) -> None:
    """Refuse, before it starts, a problem larger than the policy allows: features of all rows, and their moments."""
    M, C = problem.n_features, problem.n_targets
    made = (problem.width + rows) * M if problem.features == "fourier" else 0
    site.allow(features=M, numbers=3 * min(max(rows, 1), M + C) * (M + C) + made)


def allow_kernel(site: Site, kernel: EmbeddingKernel) -> None:
    """Refuse an embedding larger than the policy allows, before it is made."""
    site.allow(features=kernel.n_components if kernel.kind == "fourier" else 0, numbers=kernel.width * kernel.dimension)


def _embeddings(
    site: Site, rows: Rows, kernel: EmbeddingKernel, targets: FloatArray, *, halves: bool
) -> dict[str, FloatArray]:
    """Arrays of the mean embedding of all rows, or of "embedding" and "other" of two halves."""
    if halves and len(rows.y) < 2:
        raise Refused("too few rows", f"site {site.name!r} has 1 row, and two halves need 2")
    made = kernel.halves(rows.X, targets) if halves else (kernel.embed(rows.X, targets),)
    return {
        f"{part}.{name}": np.asarray(array, dtype=np.float64)
        for part, embedding in zip(("embedding", "other"), made, strict=False)
        for name, array in embedding.to_arrays().items()
    }


def _part(payload: Payload, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in payload.arrays.items() if name.startswith(prefix)}


def _kept_risk(site: Site, problem: Problem, rows: Rows, values: Mapping[str, Any]) -> Any:
    """The site's mean loss, made once for the steps of a training and the rows it has now."""
    key = f"{digest(values)} {rows.digest}"
    kept = site.cache.get(_CACHE)
    if kept is None or kept[0] != key:
        kept = site.cache[_CACHE] = (key, _risk(problem, rows, values))
    return kept[1]


def discard_risk(site: Site, leaving: frozenset[int] = frozenset()) -> None:  # noqa: ARG001  all of it goes
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


@task("personal_release", leaves="released", under_privacy="released")
def release_embedding(site: Site, payload: Payload) -> Payload:
    """Noisy mean embedding (D,) of the compared columns, rows, and the noise in each number; released once."""
    mechanism = read_mechanism(payload.values["privacy"], RecordEmbedding)
    problem, kernel = read_problem(payload.values), read_kernel(payload.values)
    _check_bounded(site, problem, kernel, mechanism)
    check_task(site, problem.task)
    with releasing(site, mechanism) as permit:
        rows = check_rows_of(site, problem, permit.rows())
        compared = kernel.rows(saturate(rows.X), saturate(read_targets(problem, rows)))

        def compute(ledger: Ledger) -> Record:
            embedding = mechanism.release(compared, ledger=ledger, ids=rows.people)
            return Record({"vector": embedding.vector}, {"n": embedding.n, "noise": embedding.noise})

        record = permit.once(rows, compute, key=digest(kernel.to_values()))
    facts = np.array([float(record.values["n"]), float(record.values["noise"])])
    promised = statement(site, *mechanism.guarantees(problem.width))
    return Payload({"vector": record.arrays["vector"], "facts": facts}, {"privacy": promised})


def _check_bounded(site: Site, problem: Problem, kernel: EmbeddingKernel, mechanism: RecordEmbedding) -> None:
    """Refuse a comparison that does not fit the problem, or would not be finite for every row, before there is any."""
    site.allow(features=mechanism.features.n_components, numbers=problem.n_features)
    if (kernel.width, kernel.targets) != (problem.width, problem.n_targets):
        raise Refused("bad question", f"the kernel must be of {problem.width} columns and {problem.n_targets} targets")
    try:
        check_bandwidth(kernel.bandwidth)
        check_bandwidth(kernel.target_bandwidth)
    except InputError as error:
        raise Refused("bad question", f"the columns asked for cannot be compared: {error}") from None
    compared = kernel.rows(np.zeros((1, kernel.width)), np.zeros((1, kernel.targets))).shape[1]
    if mechanism.features.width != compared:
        raise Refused("bad question", f"privacy must be of the {compared} compared columns")


BOOK = ReceiptBook(elsewhere=("weights of sites in each other's personal models",))
