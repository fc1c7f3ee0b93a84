"""The sites of a ridge regression as one linear system: every product with it is an exchange."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.program import Meter, Program
from kernfed.federation.ridge.plausible import (
    Expected,
    Range,
    SiteStart,
    check_inverse,
    check_product,
    check_same_hessian,
    common_range,
    range_values,
    read_range,
    unlike_others,
)
from kernfed.federation.survey import Survey, ask_all, check_arrays, far_above
from kernfed.ridge.model import RidgeRound
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.solvers import average
from kernfed.ridge.sums import Means, problem_values
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.traffic import Replies


@dataclass(frozen=True)
class Sites:
    """Sites that all must answer, in the problem ``parameters`` describes.

    surveys : what each said before, to which its answers are held. meter : counts the exchanges.
    means : of all their rows, which an intercept needs
    before anything is factored; see ``centred``. aggregate : how sums are put together, see ``kernfed.ridge.robust``.
    """

    federation: Federation
    names: tuple[str, ...]
    parameters: RidgeParameters
    timeout: float
    surveys: Mapping[str, Survey]
    meter: Meter = field(default_factory=Meter)
    means: Means | None = None
    aggregate: str = "sum"

    @cached_property
    def expected(self) -> dict[str, Expected]:
        """What is known of every site's sums before it sends any."""
        return {site: Expected.of(self.surveys[site], self.parameters) for site in self.names}

    @property
    def _weights_shape(self) -> tuple[int, int]:
        return (self.parameters.n_features, self.parameters.n_targets)

    def ask(
        self,
        task: str,
        payload: Payload | Mapping[str, Payload],
        check: Callable[[str, Payload], object],
        compare: Callable[[Replies], Mapping[str, str]] | None = None,
    ) -> Program[dict[str, Payload]]:
        """Answers of all sites, or ``SitesLost``; ``check(site, answer)`` raises ValueError for one that is false."""
        return dict((yield from ask_all(task, payload, self.names, check, compare, self.meter)))

    def centred(self) -> Program["Sites"]:
        """The same with the means of all sites' rows where there is an intercept: one exchange."""
        if not self.parameters.fit_intercept:
            return self

        def read(site: str, payload: Payload) -> Means:
            return self.read_means(site, payload.arrays["means"])

        def compare(replies: Replies) -> dict[str, str]:
            means = {site: read(site, payload) for site, payload in replies}
            features = {site: float(np.linalg.norm(own.features)) for site, own in means.items()}
            targets = {site: float(np.linalg.norm(own.targets)) for site, own in means.items()}
            return far_above(features, "mean of features") | far_above(targets, "mean of targets")

        question = Payload(values={"parameters": self.parameters.to_values()})
        replies = yield from self.ask("ridge_means", question, read, compare)
        return replace(self, means=reduce(add, (read(*reply) for reply in replies.items())))

    def read_means(self, site: str, array: FloatArray) -> Means:
        """Means that a site sent, or an error where the rows it surveyed cannot have them."""
        means = Means.from_array(array, self.parameters)
        self.expected[site].check_means(means)
        return means

    def question(self, **values: Any) -> Payload:
        """The problem, as every site is asked for it."""
        arrays = {} if self.means is None else {"means": self.means.to_array()}
        return Payload(arrays, {"parameters": self.parameters.to_values(), **values})

    def start(self) -> Program["RidgeSystem"]:
        """Let every site factor its part."""
        shape = self._weights_shape
        expected = {"solutions": (len(self.parameters.regularization), *shape), "linear": shape, "scalars": (3,)}
        asked = range_values(self.parameters.task)

        def read(site: str, payload: Payload) -> SiteStart:
            check_arrays(payload, expected | ({"range": (2,)} if asked and "range" in payload.arrays else {}))
            scalars = map(float, payload.arrays["scalars"])
            start = SiteStart(payload.arrays["solutions"], payload.arrays["linear"], *scalars)
            self.expected[site].check_start(start, self.means, self.parameters.regularization)
            self._range_of(start, payload)
            return start

        def compare(replies: Replies) -> dict[str, str]:
            return unlike_others({site: read(site, payload) for site, payload in replies})

        replies = yield from self.ask("ridge_start", self.question(**asked), read, compare)
        members = {site: read(site, payload) for site, payload in replies.items()}
        handle = digest(problem_values(self.parameters, self.means))
        ranges = [self._range_of(members[site], payload) for site, payload in replies.items()]
        common = common_range(ranges, self.aggregate)
        return RidgeSystem(self, handle, members, self.parameters.regularization[0], range=common)

    def _range_of(self, start: SiteStart, payload: Payload) -> Range | None:
        """The range of values that a site sent with its part, checked against its sums."""
        around = 0.0 if self.means is None else float(self.means.targets[0])
        return read_range(payload.arrays, round(start.mass), start.constant * start.mass, around)


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """``H W = b`` over sites whose parts are factored: ``kernfed.ridge.solvers.System``.

    position : which of the candidate regularisations is meant. latest : what was multiplied last, and by whom to what.
    range : of values to regress, None where it is not known.
    """

    sites: Sites
    handle: str
    members: Mapping[str, SiteStart]
    regularization: float
    position: int = 0
    latest: dict[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    range: Range | None = None

    @cached_property
    def masses(self) -> dict[str, float]:
        """Mass of every site; p_j is its share."""
        return {site: member.mass for site, member in self.members.items()}

    @cached_property
    def linear(self) -> FloatArray:
        """Linear term b (M, C)."""
        return average({site: member.linear for site, member in self.members.items()}, self.masses)

    @cached_property
    def constant(self) -> float:
        """Constant term s."""
        return sum(m.mass * m.constant for m in self.members.values()) / sum(self.masses.values())

    def solutions(self) -> dict[str, FloatArray]:
        """The sites' own solutions (M, C)."""
        return {site: member.solutions[self.position] for site, member in self.members.items()}

    def mean_solutions(self) -> FloatArray:
        """Average of the sites' solutions for every candidate (L, M, C): DKRR."""
        return average({site: member.solutions for site, member in self.members.items()}, self.masses)

    def apply(self, V: FloatArray) -> FloatArray:
        """``H V``."""
        return average(self.apply_by_site(V), self.masses)

    def apply_by_site(self, V: FloatArray) -> dict[str, FloatArray]:
        """``H_j V`` of every site, each with the one Hessian that fits what the site said before."""

        def check(site: str, HV: FloatArray) -> None:
            start = self.members[site]
            check_product(start, start.solutions[self.position], self.regularization, V, HV)
            if site in self.latest:
                check_same_hessian(start.trace + self.regularization, V, HV, self.latest[site])

        by_site = self._product("ridge_apply", V, check)
        self.latest.update({site: (V, HV) for site, HV in by_site.items()})
        return by_site

    def solve(self, R: FloatArray) -> FloatArray:
        """``P^-1 R``."""

        def check(site: str, Z: FloatArray) -> None:
            start = self.members[site]
            check_inverse(start, start.solutions[self.position], self.regularization, R, Z)

        return average(self._product("ridge_solve", R, check), self.masses)

    def losses(self) -> FloatArray:
        """Leave-one-out mean squared error (L,) of every candidate, over all rows."""
        total = sum(self.masses.values())
        problem = self.sites.question(mass=total)
        question = Payload({**problem.arrays, "averages": self.mean_solutions()}, problem.values)
        shapes = {"losses": (len(self.sites.parameters.regularization),)}

        def check(_: str, payload: Payload) -> None:
            check_arrays(payload, shapes)
            if (payload.arrays["losses"] < 0).any():
                raise InputError("losses must be at least 0")

        def compare(replies: Replies) -> dict[str, str]:
            worst = {site: float(payload.arrays["losses"].max()) / self.masses[site] for site, payload in replies}
            return far_above(worst, "loss of a candidate")

        replies = self._ask("ridge_validate", question, check, compare)
        return np.asarray(sum(payload.arrays["losses"] for payload in replies.values()) / total)

    def dimensions(self) -> dict[str, float]:
        """Effective dimension of every site."""
        shapes = {"dimension": (1,)}
        question = Payload(values=self._values)
        replies = self._ask("ridge_dimension", question, lambda _, payload: check_arrays(payload, shapes))
        return {site: float(payload.arrays["dimension"][0]) for site, payload in replies.items()}

    @property
    def _values(self) -> dict[str, Any]:
        return {"handle": self.handle, "regularization": self.regularization}

    def _ask(self, *asked: Any) -> dict[str, Payload]:
        """Answers of all sites to one round; rounds of a method are not shared with other programs."""
        return self.sites.federation.run(self.sites.ask(*asked), timeout=self.sites.timeout)

    def _product(
        self, task: str, V: FloatArray, check_result: Callable[[str, FloatArray], None]
    ) -> dict[str, FloatArray]:
        def check(site: str, payload: Payload) -> None:
            check_arrays(payload, {"result": V.shape})
            with single_blas_thread():
                check_result(site, payload.arrays["result"])

        replies = self._ask(task, Payload({"V": V}, self._values), check)
        return {site: payload.arrays["result"] for site, payload in replies.items()}


class Recorder:
    """Keeps the history of a fit: what each round reached, what it sent and how long it took."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._mark = self._now()
        self.rounds: list[RidgeRound] = []

    @property
    def exchanges(self) -> int:
        """Exchanges so far, and the survey before."""
        return 1 + self.meter.exchanges

    @property
    def done(self) -> int:
        """Number of the last round."""
        return self.rounds[-1].round if self.rounds else 0

    def add(self, number: int, objective: float | None = None, gradient_norm: float | None = None) -> None:
        """Note a complete round."""
        earlier, now = self._mark, self._now()
        self._mark = now
        spent = (now[0] - earlier[0], now[1] - earlier[1], now[2] - earlier[2])
        self.rounds.append(RidgeRound(number, objective, gradient_norm, *spent))

    def _now(self) -> tuple[int, int, float]:
        return self.meter.bytes_up, self.meter.bytes_down, time.perf_counter()
