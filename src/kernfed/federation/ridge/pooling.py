"""Sums of all sites, and the head without some of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError, SitesLost
from kernfed.federation.asking import Federation
from kernfed.federation.program import Program
from kernfed.federation.ridge.plausible import Range, common_range, range_values, read_range
from kernfed.federation.ridge.system import Sites
from kernfed.federation.survey import Survey, ask_survey, far_above
from kernfed.kernels import Moments
from kernfed.ridge.leave_one_out import LeftOut, Spectrum, column_penalty, effective_rows
from kernfed.ridge.logistic import LogisticSums
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.robust import FEWEST_SITES, Part, capped, robust_sums, typical_errors
from kernfed.ridge.solvers import minimise
from kernfed.ridge.sums import Means, moved
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.traffic import Replies


@dataclass(frozen=True, eq=False)
class Pooled:
    """A problem's sums over all sites: moments around ``means``, around 0 without an intercept, and their mass.

    shares : under "median" how much every site counts, in order of their names. range : of values to regress, None
    where it is not known.
    """

    sites: Sites
    moments: Moments
    mass: float
    means: Means | None
    shares: FloatArray | None = None
    range: Range | None = None

    def mass_at(self, site: str) -> float:
        """The mass m of which a row of a site is ``c / m`` in C, so that it can be left out."""
        if self.shares is None:
            return self.mass
        share = float(self.shares[self.sites.names.index(site)])
        return self.sites.expected[site].mass / max(share, float(np.finfo(np.float64).eps))

    @property
    def trace(self) -> float:
        """``tr(C)``."""
        return float(np.trace(self.moments.second)) / self.mass

    @property
    def n_eff(self) -> float:
        """Rows that would say as much if all weighed the same."""
        return rows_that_count(self.sites)


def rows_that_count(sites: Sites) -> float:
    """``(sum c)^2 / sum c^2`` of all sites' rows, by the counts that were surveyed."""
    p = sites.parameters
    rows = round(sum(counted_rows(_surveys(sites), sites.aggregate).values()))
    return effective_rows(class_counts(sites), p.class_weights, rows)


def class_counts(sites: Sites) -> tuple[int, ...]:
    """Rows of every class over all sites, as surveyed and counted; () to regress."""
    return counted_classes(sites.parameters.classes, _surveys(sites), sites.aggregate)


def class_holders(sites: Sites) -> tuple[int, ...]:
    """How many sites hold every class."""
    held = [set(survey.schema.classes) for survey in _surveys(sites).values()]
    return tuple(sum(label in own for own in held) for label in sites.parameters.classes)


def _surveys(sites: Sites) -> dict[str, Survey]:
    return {name: sites.surveys[name] for name in sites.names}


def counted_rows(surveys: Mapping[str, Survey], aggregate: str) -> dict[str, float]:
    """Rows that each site counts with: all that it surveyed, under "median" no more than ``robust.CAP`` allows."""
    rows = {site: survey.rows for site, survey in surveys.items()}
    if aggregate == "sum":
        return dict(rows)
    return dict(zip(rows, capped(np.array(list(rows.values()), dtype=np.float64)).tolist(), strict=True))


def counted_classes(classes: Sequence[Any], surveys: Mapping[str, Survey], aggregate: str) -> tuple[int, ...]:
    """Rows of every class, of the rows that each site counts with."""
    rows = counted_rows(surveys, aggregate)
    totals: dict[Any, float] = dict.fromkeys(classes, 0)
    for site, survey in surveys.items():
        whole = rows[site] == survey.rows
        for label, count in zip(survey.schema.classes, survey.schema.counts, strict=True):
            if label in totals:
                totals[label] += int(count) if whole else count * rows[site] / survey.rows
    return tuple(math.ceil(total) for total in totals.values())


def check_majority(names: Sequence[str], aggregate: str) -> None:
    """Refuse sites of which none is a minority."""
    if aggregate == "median" and len(names) < FEWEST_SITES:
        raise InputError(
            f"aggregate='median' needs at least {FEWEST_SITES} sites, so that one is a minority, got {len(names)}; "
            "use aggregate='sum'"
        )


def ask_pooled(sites: Sites) -> Program[Pooled]:
    """Sums of the problem of ``sites``: one exchange of about M^2/2 numbers."""
    asked = range_values(sites.parameters.task)
    question = Payload(values={"parameters": sites.parameters.to_values(), **asked})
    return (yield from _ask(sites, "ridge_moments", question, [sites], lambda payload, _: payload.arrays))[0]


def ask_trials(sites: Sites, problems: Sequence[RidgeParameters]) -> Program[list[Pooled]]:
    """Sums of several problems in one exchange; that of ``sites`` itself is not among them."""
    question = Payload(values={"trials": [problem.to_values() for problem in problems]})
    tried = [replace(sites, parameters=problem) for problem in problems]
    return _ask(sites, "ridge_trials", question, tried, lambda payload, place: unprefixed(payload.arrays, place))


def _ask(
    sites: Sites, task: str, question: Payload, problems: Sequence[Sites], arrays_of: Any
) -> Program[list[Pooled]]:
    parts: dict[str, list[Part]] = {}
    ranges: dict[str, Range | None] = {}

    def read(site: str, payload: Payload) -> None:
        parts[site] = [read_part(own, site, arrays_of(payload, place)) for place, own in enumerate(problems)]
        if p.task == "regress":
            ranges[site] = _range_of(parts[site][0], payload)

    def compare(replies: Replies) -> dict[str, str]:
        first = {site: parts[site][0] for site, _ in replies}
        squares = {site: float(np.trace(moments.second)) / mass for site, (moments, mass, _) in first.items()}
        targets = {site: float(np.trace(moments.y_second)) / mass for site, (moments, mass, _) in first.items()}
        return far_above(squares, "trace of C_j") | far_above(targets, "mean square of targets")

    p = problems[0].parameters
    bounded = p.features == "fourier" and p.task == "classify"
    replies = yield from sites.ask(task, question, read, None if bounded else compare)
    pooled = [pool_parts(own, [parts[site][place] for site in replies]) for place, own in enumerate(problems)]
    common = common_range([ranges.get(site) for site in replies], sites.aggregate)
    return [replace(own, range=common) for own in pooled]


def _range_of(part: Part, payload: Payload) -> Range | None:
    """The range of values that a site sent with its moments, checked against them."""
    moments, _, own = part
    mean = None if own is None else float(own.targets[0])
    return read_range(payload.arrays, moments.n, float(moments.y_second[0, 0]), mean or 0.0, mean)


def read_part(sites: Sites, site: str, sent: Mapping[str, npt.NDArray[Any]]) -> Part:
    """One site's moments, mass and means, or an error where the rows it surveyed cannot have them."""
    arrays, p = dict(sent), sites.parameters
    own = sites.read_means(site, arrays["means"]) if p.fit_intercept else None
    mass = float(arrays.pop("mass")[0]) if own is None else own.mass
    arrays.pop("means", None)
    arrays.pop("range", None)
    moments = Moments.from_arrays(arrays)
    if (moments.width, moments.targets) != (p.n_features, p.n_targets) or not 0 < mass < np.inf:
        raise InputError(
            f"moments must be of {p.n_features} features, {p.n_targets} targets and a positive mass, got {mass}"
        )
    sites.expected[site].check_mass(mass)
    sites.expected[site].check_moments(moments, own)
    return moments, mass, own


def pool_parts(sites: Sites, parts: Sequence[Part]) -> Pooled:
    """All sites' parts, moved to the common means where there is an intercept, and added up."""
    if sites.aggregate == "median":
        common, shares = robust_sums(parts, classify=sites.parameters.task == "classify")
        return Pooled(sites, *common, shares)
    pooled: Means | None = None
    moments = [part[0] for part in parts]
    if sites.parameters.fit_intercept:
        own = [means for _, _, means in parts if means is not None]
        pooled = reduce(add, own)
        moments = [moved(part, means, pooled) for part, means in zip(moments, own, strict=True)]
    zero = Moments.zero(sites.parameters.n_features, sites.parameters.n_targets)
    return Pooled(sites, sum(moments, zero), sum(mass for _, mass, _ in parts), pooled)


def ask_left_out(
    problems: Sequence[Pooled], spectra: Sequence[Spectrum], paths: Sequence[FloatArray]
) -> Program[list[LeftOut]]:
    """Errors of all sites' rows, each predicted without itself, under every candidate of every problem: one exchange.

    Sites get the eigenvectors of the pooled second moments, M^2 numbers.
    """
    sites = problems[0].sites
    arrays: dict[str, npt.NDArray[Any]] = {}
    for place, (pooled, spectrum, path) in enumerate(zip(problems, spectra, paths, strict=True)):
        sent = {**spectrum.to_arrays(), "path": path}
        if pooled.means is not None:
            sent["means"] = pooled.means.to_array()
        arrays |= {f"{place}.{name}": array for name, array in sent.items()}
    question = Payload(arrays, {"trials": [pooled.sites.parameters.to_values() for pooled in problems]})
    questions = (
        question if sites.aggregate == "sum" else {site: _asked_of(site, question, problems) for site in sites.names}
    )
    told: dict[str, list[LeftOut]] = {}

    def read(site: str, payload: Payload) -> None:
        told[site] = [
            LeftOut.from_array(payload.arrays[f"{place}"], len(path), sites.expected[site].mass)
            for place, path in enumerate(paths)
        ]

    def compare(replies: Replies) -> dict[str, str]:
        # A row that only its own target explains has any error for a small regularisation: the best one is compared.
        best = {site: float(told[site][0].squares.min()) / sites.expected[site].mass for site, _ in replies}
        return far_above(best, "loss of the best candidate")

    replies = yield from sites.ask("ridge_left_out", questions, read, compare)
    if sites.aggregate == "sum":
        return [reduce(add, (told[site][place] for site in replies)) for place in range(len(problems))]
    masses = np.array([sites.expected[site].mass for site in replies])
    return [
        typical_errors([told[site][place] for site in replies], masses, pooled.mass)
        for place, pooled in enumerate(problems)
    ]


def _asked_of(site: str, question: Payload, problems: Sequence[Pooled]) -> Payload:
    """The question with the mass that a site's rows count by: it leaves out no more of a row than is there."""
    masses = {f"{place}.mass": np.array([pooled.mass_at(site)]) for place, pooled in enumerate(problems)}
    return Payload({**question.arrays, **masses}, question.values)


def ask_gradient(pooled: Pooled, weights: FloatArray, intercept: FloatArray) -> Program[LogisticSums]:
    """Sums of a logistic head over all sites' rows at W (M, C) and a (C,): one exchange of M C + C + 1 numbers."""
    sites = pooled.sites
    arrays = {"weights": weights, "intercept": intercept}
    if pooled.means is not None:
        arrays["means"] = pooled.means.to_array()
    told: dict[str, LogisticSums] = {}

    def read(site: str, payload: Payload) -> None:
        told[site] = LogisticSums.from_array(payload.arrays["sums"], sites.parameters)
        sites.expected[site].check_slope(told[site])

    question = Payload(arrays, {"parameters": sites.parameters.to_values()})

    def compare(replies: Replies) -> dict[str, str]:
        sizes = {site: float(np.linalg.norm(told[site].weights)) / sites.expected[site].mass for site, _ in replies}
        return far_above(sizes, "gradient")

    replies = yield from sites.ask("ridge_gradient", question, read, compare)
    return reduce(add, (told[site] for site in replies))


def unprefixed(arrays: Mapping[str, npt.NDArray[Any]], place: int) -> dict[str, npt.NDArray[Any]]:
    """Arrays of one of several problems, which are named with its number and a dot before."""
    start = f"{place}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


#: How far weights that are made again may be from those of the model, relative to their norm.
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class SiteSums:
    """What each site tells of the rows that a head is made of."""

    head: RidgeModel
    sites: Sites
    parts: Mapping[str, Part]

    @property
    def counts(self) -> dict[str, FloatArray]:
        """Rows (C,) of every class at each site, as surveyed; none to regress."""
        classes = self.head.parameters.classes
        told: dict[str, FloatArray] = {}
        for site in self.sites.names:
            schema = self.sites.surveys[site].schema
            own = dict(zip(schema.classes, schema.counts, strict=True))
            told[site] = np.array([own.get(label, 0) for label in classes], dtype=np.float64)
        return told if classes else {}

    def without(self, left_out: Sequence[str]) -> RidgeModel:
        """The head of the rows of all other sites, with every choice that the head recorded."""
        others = [self.parts[site] for site in sorted(self.parts) if site not in left_out]
        if not others:
            raise InputError("a head needs one site at least")
        head = self.head
        pooled = pool_parts(self.sites, others)
        by_columns = head.parameters.features == "given" and head.choices_.scale == "columns"
        penalty = column_penalty(pooled.moments, pooled.mass) if by_columns else None
        weights = minimise(pooled.moments, pooled.mass, head.regularization_, penalty).weights
        intercept = None if pooled.means is None else pooled.means.intercept(weights)
        return replace(head, weights_=weights, intercept_=intercept)


def ask_site_sums(federation: Federation, head: RidgeModel, *, timeout: float = 600.0) -> SiteSums:
    """Let sites tell again the sums that ``head`` was made of, from which it must come out as it is."""
    sums = SiteSums(head, *_ask_parts(federation, head, timeout))
    if head.method == "exact" and head.head == "squared":
        _check_same(head, sums.without(()))
    return sums


def _ask_parts(federation: Federation, head: RidgeModel, timeout: float) -> tuple[Sites, dict[str, Part]]:
    taking_part = federation.only([site for site in federation.sites if site not in head.missing_])
    try:
        survey = ask_survey(
            "ridge_survey",
            head.parameters.task,
            seed=taking_part.seed,
            median=False,
            min_replies=None,
            max_share=1.0,
        )
        surveyed = taking_part.run(survey, timeout=timeout)
        how = head.choices_.aggregate
        sites = Sites(taking_part, surveyed.names, head.parameters, timeout, surveyed.surveys, aggregate=how)
        parts: dict[str, Part] = {}

        def read(site: str, payload: Payload) -> None:
            parts[site] = read_part(sites, site, payload.arrays)

        question = Payload(values={"parameters": head.parameters.to_values()})
        taking_part.run(sites.ask("ridge_moments", question, read), timeout=timeout)
    except SitesLost as lost:
        raise InputError(f"sites can be left out of a head where all tell their sums again: {lost}") from None
    return sites, parts


def _check_same(head: RidgeModel, again: RidgeModel) -> None:
    """Refuse sums that are not those of the head: rows changed since, or a site tells other sums than it did."""
    distance = float(np.linalg.norm(again.weights_ - head.weights_))
    if distance > _SAME * float(np.linalg.norm(head.weights_)):
        raise InputError(
            "the sums that sites tell now do not make this head: rows have changed since it was made, other sites take "
            "part, or one tells others than it did then; fit the learner again, and look at the influence at once"
        )
