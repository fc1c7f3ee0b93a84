"""Sums of a head that travel masked, with noise of each site, or with noise in shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError, Refused
from kernfed.federation.program import Program
from kernfed.federation.ridge.pooling import Pooled
from kernfed.federation.ridge.system import Sites
from kernfed.federation.ridge.tasks import allow_problem, read_parameters
from kernfed.federation.summing.gather import gather_sum
from kernfed.federation.summing.released import gather_shares, honest_sites, promised, send_share
from kernfed.federation.survey import check_arrays, check_rows_of, read_targets
from kernfed.files import Record
from kernfed.kernels import Moments
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy.generator import Ints
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.noisy_sum import sum_deviation
from kernfed.privacy.record_sums import RecordRidge, RidgeRelease
from kernfed.privacy.shared import SharedRidge
from kernfed.privacy.values import mechanism_to_values
from kernfed.promise import Terms
from kernfed.ridge.leave_one_out import rule
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means, row_means, weighted_moments
from kernfed.secure.committee.terms import Committee
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.release.kept import check_task, read_mechanism, terms_of
from kernfed.site.release.permit import releasing, statement
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.statistics.bounds import check_features, check_scale, saturate

# At a site ---------------------------------------------------------------------------------------------------------


def _asked(site: Site, payload: Payload) -> tuple[RidgeParameters, Rows]:
    """The problem in a question, and the site's rows."""
    parameters = read_parameters(payload.values)
    rows = check_rows_of(site, parameters, site.rows())
    allow_problem(site, parameters, parameters.n_features)
    return parameters, rows


def _targets(parameters: RidgeParameters, rows: Rows) -> FloatArray:
    """Targets (n, C) of rows, 0 for labels that are no class; what kind of labels the site has is public."""
    if parameters.task == "regress":
        if rows.y.dtype.kind not in "fiub":
            raise Refused("bad labels", "the labels of the site are text, and no values to regress", public=True)
        return saturate(rows.y[:, None])
    if (rows.y.dtype.kind == "U") != (parameters.labels.dtype.kind == "U"):
        told = "labels of the site and classes are text on one side and numbers on the other"
        raise Refused("bad labels", told, public=True)
    return np.asarray(rows.y[:, None] == parameters.labels, dtype=np.float64)


def _bounded_weights(weights: Sequence[float]) -> FloatArray:
    """Weights of classes (C,), each positive and of sane size."""
    try:
        return np.array([check_scale(weight, "a weight of a class") for weight in weights])
    except InputError as error:
        raise Refused("bad question", str(error), public=True) from None


@task("ridge_range", leaves="statistics")
def ridge_range(site: Site, payload: Payload) -> Payload:
    """The powers of two that bound features and targets: how much room the site's sums need."""
    parameters, rows = _asked(site, payload)
    targets, features = read_targets(parameters, rows), parameters.feature_map()
    largest = float(np.abs(rows.X).max(initial=0.0)) if features is None else 1.0
    return Payload({"powers": np.array([_power(largest), _power(float(np.abs(targets).max(initial=0.0)))])})


def _power(value: float) -> float:
    """The exponent of the smallest power of two that is not below ``value``, which is at least 2^-60."""
    return float(math.ceil(math.log2(max(value, 2.0**-60))))


@task("ridge_sums", leaves="statistics", additive=True)
def ridge_sums(site: Site, payload: Payload) -> Payload:
    """Sums of products of features and targets around 0, of them, and of the rows' weights.

    Values are cut to a public range, bandwidths and weights must be in one, and a label that is not among the classes
    has targets of 0: nothing that a row holds makes the site refuse, or its sums infinite.
    """
    parameters, rows = _asked(site, payload)
    features = parameters.feature_map()
    check_bounded(site, parameters, features)
    X, targets = saturate(rows.X), _targets(parameters, rows)
    weights = None if parameters.class_weights is None else targets @ _bounded_weights(parameters.class_weights)
    transform = None if features is None else features.transform
    own = weighted_moments(X, targets, weights, transform)
    joint = own.joint_scatter + own.n * np.outer(own.joint_mean, own.joint_mean)
    means = row_means(X, targets, weights, transform)
    sums = means.mass * np.concatenate([means.features, means.targets])
    return Payload({"products": joint[np.triu_indices(len(joint))], "sums": sums, "mass": np.array([means.mass])})


@task("ridge_shares", leaves="masked", under_privacy="released")
def ridge_shares(site: Site, payload: Payload) -> Payload:
    """The site's share of ``X'X`` and ``X'y``, with its part of the noise, masked."""
    mechanism, parameters = read_mechanism(payload.values.get("privacy"), RecordRidge), read_parameters(payload.values)
    if parameters.class_weights is not None or parameters.fit_intercept:
        raise Refused("bad question", "rows are released without weights of classes, and without an intercept")
    features = parameters.feature_map()
    check_bounded(site, parameters, features)
    check_task(site, parameters.task)
    try:
        honest = payload.values["honest"]
        shared = SharedRidge.of(mechanism, parameters.n_features, parameters.n_targets, honest)
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the sum asked for cannot be followed: {error}") from None

    def integers(rows: Rows, pays: npt.NDArray[np.bool_]) -> Mapping[str, Ints]:
        check_rows_of(site, parameters, rows)
        mapped = rows.X if features is None else features.transform(saturate(rows.X))
        targets = read_targets(parameters, rows)
        return shared.integers(*(np.where(pays[:, None], part, 0.0) for part in (mapped, targets)))

    return send_share(site, "ridge_shares", payload, mechanism, shared, "ridge", integers, protects_labels=False)


# At the learner ----------------------------------------------------------------------------------------------------


def sum_pooled(sites: Sites, committee: Committee) -> Program[Pooled]:
    """Sums of the problem over all sites, of which nobody has seen a part."""
    p = sites.parameters
    size = p.n_features + p.n_targets
    rows = max(sites.surveys[name].rows for name in sites.names)
    weight = 1.0 if p.class_weights is None else max(p.class_weights)
    entry = yield from _largest_entry(sites)
    total = yield from gather_sum(
        sites.federation,
        "ridge_sums",
        Payload(values={"parameters": p.to_values()}),
        {
            "products": ((size * (size + 1) // 2,), 2 * rows * weight * entry**2),
            "sums": ((size,), 2 * rows * weight * entry),
            "mass": ((1,), 2 * rows * weight),
        },
        committee=committee,
        sites=sites.names,
        min_replies=None,
        check=None,
    )
    sites.meter.exchanges += total.exchanges
    joint = np.zeros((size, size))
    joint[np.triu_indices(size)] = total.arrays["products"]
    joint += np.triu(joint, 1).T
    mass = float(total.arrays["mass"][0])
    if not mass > 0:
        raise InputError(f"the sites' rows must have a positive weight, got a sum of {mass}")
    strange = mass - float(total.arrays["sums"][p.n_features :].sum())
    if p.task == "classify" and p.class_weights is None and strange > 0.5:
        raise InputError(
            f"{strange:.0f} rows of the sites have labels that were not among their classes when these were counted: "
            "rows came in between; fit again"
        )
    means = None
    if p.fit_intercept:
        middle = total.arrays["sums"] / mass
        means = Means(mass, middle[: p.n_features], middle[p.n_features :])
        joint -= mass * np.outer(middle, middle)
    count = sum(sites.surveys[name].rows for name in sites.names)
    return Pooled(sites, Moments(count, p.n_features, np.zeros(size), joint), mass, means)


def _largest_entry(sites: Sites) -> Program[float]:
    """A bound on every feature and target: known for Fourier features and classes, else the sites tell theirs."""
    p = sites.parameters
    if p.features == "fourier" and p.task == "classify":
        return 1.0

    def check(_: str, payload: Payload) -> None:
        check_arrays(payload, {"powers": (2,)})
        if not (np.abs(payload.arrays["powers"]) <= 200).all():
            raise ValueError("features and targets must be of ordinary size")

    replies = yield from sites.ask("ridge_range", Payload(values={"parameters": p.to_values()}), check)
    return float(2.0 ** max(payload.arrays["powers"].max() for payload in replies.values()))


def solve_shares(
    sites: Sites, mechanism: RecordRidge, committee: Committee, regularization: float | None
) -> Program[tuple[FloatArray, Terms, float]]:
    """Weights (M, C) from sums with noise in shares, the terms under which sites gave theirs, and the regularisation.

    Without one it is that of the rule, ``tr(C) / n``, of the noisy sums alone.
    """
    p = sites.parameters
    honest = honest_sites(committee, len(sites.names), None)
    shared = SharedRidge.of(mechanism, p.n_features, p.n_targets, honest)
    asked = mechanism_to_values(mechanism)
    about = {"mechanism": asked, "labels": None, "sum": {"honest": honest, "alone": shared.alone}}
    public = p.task == "classify"  # classes and their rows were surveyed
    promises = promised(shared, public_labels=public)
    terms = Terms(asked, None, "rows" if public else "rows and targets", *promises, request=about)
    told: dict[str, Any] = {}

    def hear(site: str, answer: Payload) -> None:
        terms.check_told(answer.values["privacy"])
        told[site] = answer.values["privacy"]

    question = Payload(values={"privacy": asked, "parameters": p.to_values(), "honest": honest})
    total = yield from gather_shares(
        sites.federation,
        "ridge_shares",
        question,
        shared,
        "ridge",
        committee,
        sites.names,
        min_replies=None,
        hear=hear,
    )
    sites.meter.exchanges += total.exchanges
    moments = shared.moments(total.integers, sum(sites.surveys[name].rows for name in sites.names))
    noise = sum_deviation(shared.arrays("ridge")["diagonal"].deviation, honest, len(total.sites))
    needed = shared.regularization(moments, noise)
    release = RidgeRelease(moments, needed, terms.element, terms.record, True, ())
    used = rule(float(np.trace(moments.second)) / moments.n, moments.n) if regularization is None else regularization
    return release.coefficients(used), terms.with_told(told), used


def solve_released(
    sites: Sites, mechanism: RecordRidge, regularization: float | None
) -> Program[tuple[FloatArray, Terms, float]]:
    """Weights (M, C) from the sums that all sites release, the terms of these releases, and the regularisation.

    Without one it is that of the rule, ``tr(C) / n``, of the released sums alone.
    """
    M, C = sites.parameters.n_features, sites.parameters.n_targets
    terms = terms_of(mechanism, sites.parameters.width, sites.parameters.task)
    expected = {"second": (M, M), "cross": (M, C), "scalars": (2,)}

    def read(site: str, payload: Payload) -> tuple[Moments, float]:
        check_arrays(payload, expected)
        terms.check_told(payload.values["privacy"])
        rows, needed = map(float, payload.arrays["scalars"])
        if rows < 1 or needed < 0:
            raise InputError(f"expected rows and a regularisation, got {rows} and {needed}")
        sites.expected[site].check_rows(int(rows))
        joint = np.zeros((M + C, M + C))
        joint[:M, :M], joint[:M, M:] = payload.arrays["second"], payload.arrays["cross"]
        joint[M:, :M] = joint[:M, M:].T
        return Moments(int(rows), M, np.zeros(M + C), joint), needed

    question = Payload(values={"parameters": sites.parameters.to_values(), "privacy": dict(terms.mechanism)})
    replies = yield from sites.ask("ridge_release", question, read)
    parts, regularizations = zip(*(read(*reply) for reply in replies.items()), strict=True)
    # Noise of independent releases adds up as the root of squares, and so does what has to be added against it.
    needed = math.sqrt(sum(part**2 for part in regularizations))
    pooled = RidgeRelease(sum(parts, Moments.zero(M, C)), needed, terms.element, terms.record, True, ())
    told = {site: payload.values["privacy"] for site, payload in replies.items()}
    chosen = rule(float(np.trace(pooled.moments.second)) / pooled.moments.n, pooled.moments.n)
    used = chosen if regularization is None else regularization
    return pooled.coefficients(used), terms.with_told(told), used


@task("ridge_release", leaves="released", under_privacy="released")
def release_sums(site: Site, payload: Payload) -> Payload:
    """Noisy ``X'X`` (M, M) and ``X'y`` (M, C), rows, and the regularisation that the noise asks for; released once."""
    mechanism = read_mechanism(payload.values["privacy"], RecordRidge)
    parameters = read_parameters(payload.values)
    if parameters.class_weights is not None or parameters.fit_intercept:
        raise Refused("bad question", "rows are released without weights of classes, and without an intercept")
    features = parameters.feature_map()
    check_bounded(site, parameters, features)
    check_task(site, parameters.task)
    with releasing(site, mechanism) as permit:
        rows = check_rows_of(site, parameters, permit.rows())
        site.allow(numbers=len(rows.y) * (parameters.n_features + parameters.n_targets))
        targets = read_targets(parameters, rows)

        def compute(ledger: Ledger) -> Record:
            mapped = rows.X if features is None else features.transform(saturate(rows.X))
            sums = mechanism.release(mapped, targets, ledger=ledger, ids=rows.people)
            scalars = np.array([float(sums.moments.n), sums.regularization])
            return Record({"second": sums.moments.second, "cross": sums.moments.cross, "scalars": scalars})

        record = permit.once(rows, compute, key=_problem_key(parameters))
    return Payload(record.arrays, {"privacy": statement(site, *mechanism.guarantees(parameters.width))})


def check_bounded(site: Site, parameters: RidgeParameters, features: FourierFeatures | None) -> None:
    """Refuse features that are too many, or that would not be finite for every row, before there is any."""
    columns = parameters.n_features + parameters.n_targets
    site.allow(features=parameters.n_features, numbers=4 * columns**2)  # sums, their noise, and two copies on the way
    if features is not None:
        try:
            check_features(features)
        except InputError as error:
            raise Refused("bad question", f"the features asked for cannot be had: {error}") from None


def _problem_key(parameters: RidgeParameters) -> str:
    """Digest of what the sums depend on: everything but the regularisation."""
    return digest(replace(parameters, regularization=(1.0,)).to_values())
