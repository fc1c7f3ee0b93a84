"""The sites of a ridge regression as one linear system: every product with it is an exchange."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from kernfed._validation import FloatArray
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.protocol.message import Payload, digest
from kernfed.federation.survey import ask_all, check_arrays
from kernfed.kernels import Moments
from kernfed.ridge.means import Means, moved, problem_values
from kernfed.ridge.model import RidgeRound
from kernfed.ridge.objective import average
from kernfed.ridge.parameters import RidgeParameters


@dataclass(frozen=True, eq=False)
class SiteStart:
    """What a site says of its part: solutions (L, M, C), b (M, C), s, mass, trace of its C_j."""

    solutions: FloatArray
    linear: FloatArray
    constant: float
    mass: float
    trace: float


@dataclass(frozen=True)
class Sites:
    """Sites that all must answer, in the problem ``parameters`` describes.

    means : of all their rows, which an intercept needs before anything is factored; see ``centred``.
    """

    federation: Federation
    names: tuple[str, ...]
    parameters: RidgeParameters
    timeout: float
    means: Means | None = None

    @property
    def _weights_shape(self) -> tuple[int, int]:
        return (self.parameters.n_features, self.parameters.n_targets)

    def ask(self, task: str, payload: Payload, check_answer: Callable[[Payload], object]) -> dict[str, Payload]:
        """Answers of all sites, or ``SitesLost``; ``check_answer`` raises ValueError for one that must not be used."""
        return dict(ask_all(self.federation, task, payload, self.names, check_answer, self.timeout))

    def centred(self) -> "Sites":
        """The same with the means of all sites' rows where there is an intercept: one exchange."""
        if not self.parameters.fit_intercept:
            return self

        def read(payload: Payload) -> Means:
            return _read_means(payload, self.parameters)

        replies = self.ask("ridge_means", Payload(values={"parameters": self.parameters.to_values()}), read)
        return replace(self, means=reduce(add, map(read, replies.values())))

    def question(self, **values: Any) -> Payload:
        """The problem, as every site is asked for it."""
        arrays = {} if self.means is None else {"means": self.means.to_array()}
        return Payload(arrays, {"parameters": self.parameters.to_values(), **values})

    def start(self) -> "RidgeSystem":
        """Let every site factor its part."""
        shape = self._weights_shape
        expected = {"solutions": (len(self.parameters.regularization), *shape), "linear": shape, "scalars": (3,)}

        def read(payload: Payload) -> SiteStart:
            check_arrays(payload, expected)
            constant, mass, trace = map(float, payload.arrays["scalars"])
            if constant < 0 or mass <= 0 or trace < 0:
                raise InputError(f"no rows have constant {constant}, mass {mass} and trace {trace}")
            return SiteStart(payload.arrays["solutions"], payload.arrays["linear"], constant, mass, trace)

        replies = self.ask("ridge_start", self.question(), read)
        members = {site: read(payload) for site, payload in replies.items()}
        handle = digest(problem_values(self.parameters, self.means))
        return RidgeSystem(self, handle, members, self.parameters.regularization[0])

    def moments(self) -> tuple[Moments, float, Means | None]:
        """Moments of all sites' rows together, their mass, and with an intercept the means the moments are around."""
        M, C = self._weights_shape
        question = Payload(values={"parameters": self.parameters.to_values()})

        def read(payload: Payload) -> tuple[Moments, float, Means | None]:
            arrays = dict(payload.arrays)
            own = _read_means(payload, self.parameters) if self.parameters.fit_intercept else None
            mass = float(arrays.pop("mass")[0]) if own is None else own.mass
            arrays.pop("means", None)
            moments = Moments.from_arrays(arrays)
            if (moments.width, moments.targets) != (M, C) or not 0 < mass < np.inf:
                raise InputError(f"moments must be of {M} features, {C} targets and a positive mass, got {mass}")
            return moments, mass, own

        replies = self.ask("ridge_moments", question, read)
        parts, masses, means = zip(*map(read, replies.values()), strict=True)
        pooled: Means | None = None
        if self.parameters.fit_intercept:
            pooled = reduce(add, means)
            parts = tuple(moved(part, own, pooled) for part, own in zip(parts, means, strict=True))
        return sum(parts, Moments.zero(M, C)), sum(masses), pooled


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """``H W = b`` over sites whose parts are factored: ``kernfed.ridge.objective.System``.

    position : which of the candidate regularisations is meant.
    """

    sites: Sites
    handle: str
    members: Mapping[str, SiteStart]
    regularization: float
    position: int = 0

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
        """``H_j V`` of every site."""
        return self._product("ridge_apply", V)

    def solve(self, R: FloatArray) -> FloatArray:
        """``P^-1 R``."""
        return average(self._product("ridge_solve", R), self.masses)

    def descend(self, weights: FloatArray, steps: int | str, rate: float, proximal: float) -> tuple[FloatArray, float]:
        """Average of the sites' weights after local steps (or "exact" ones), and the objective at ``weights``."""

        def check(payload: Payload) -> None:
            check_arrays(payload, {"objective": (1,), **({"result": weights.shape} if steps else {})})

        values = {**self._values, "steps": steps, "rate": rate, "proximal": proximal}
        replies = self.sites.ask("ridge_descend", Payload({"V": weights}, values), check)
        total = sum(self.masses.values())
        objective = sum(self.masses[site] * float(p.arrays["objective"][0]) for site, p in replies.items()) / total
        if not steps:
            return weights, objective
        return average({site: payload.arrays["result"] for site, payload in replies.items()}, self.masses), objective

    def losses(self) -> FloatArray:
        """Leave-one-out mean squared error (L,) of every candidate, over all rows."""
        total = sum(self.masses.values())
        problem = self.sites.question(mass=total)
        question = Payload({**problem.arrays, "averages": self.mean_solutions()}, problem.values)
        shapes = {"losses": (len(self.sites.parameters.regularization),)}
        replies = self.sites.ask("ridge_validate", question, lambda payload: check_arrays(payload, shapes))
        return np.asarray(sum(payload.arrays["losses"] for payload in replies.values()) / total)

    def dimensions(self) -> dict[str, float]:
        """Effective dimension of every site."""
        shapes = {"dimension": (1,)}
        question = Payload(values=self._values)
        replies = self.sites.ask("ridge_dimension", question, lambda payload: check_arrays(payload, shapes))
        return {site: float(payload.arrays["dimension"][0]) for site, payload in replies.items()}

    @property
    def _values(self) -> dict[str, Any]:
        return {"handle": self.handle, "regularization": self.regularization}

    def _product(self, task: str, V: FloatArray) -> dict[str, FloatArray]:
        shapes = {"result": V.shape}
        question = Payload({"V": V}, self._values)
        replies = self.sites.ask(task, question, lambda payload: check_arrays(payload, shapes))
        return {site: payload.arrays["result"] for site, payload in replies.items()}


def _read_means(payload: Payload, parameters: RidgeParameters) -> Means:
    return Means.from_array(payload.arrays["means"], parameters)


class Recorder:
    """Keeps the history of a fit: what each round reached, what it sent and how long it took."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._mark = self._now()
        self.rounds: list[RidgeRound] = []

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

    def set_objective(self, objective: float) -> None:
        """Complete the last round by its objective, which was learned after it."""
        self.rounds[-1] = replace(self.rounds[-1], objective=objective)

    def _now(self) -> tuple[int, int, float]:
        traffic = self._federation.traffic
        return traffic.bytes_up, traffic.bytes_down, time.perf_counter()
