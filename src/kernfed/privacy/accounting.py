"""What releases cost together: hockey-stick curves, their composition, and the inverse questions.

An event is the worst pair of output distributions a record can cause, given by its curve ``delta(epsilon)``, the
hockey-stick divergence: the smallest delta for which the mechanism is (epsilon, delta)-differentially private. Curves
compose as privacy loss distributions (PLD) of dp-accounting, discretised pessimistically by connecting the dots
(Doroshenko et al. 2022). Every epsilon and delta returned is at least the true one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import check_number
from kernfed.errors import InputError

Floats = npt.NDArray[np.float64]

# Rounding of the Fourier transforms in a composition, as a share of probability: taken off the delta asked for.
_ROUNDING = 1e-12
# A smaller delta than this is beyond the transforms' precision: answered from closed forms only.
_SMALLEST_DELTA = 1e-10
# Standard normal deviations after which a Gaussian's privacy loss is cut (1e-22 of its mass).
_TAIL = 10.0


class Event(Protocol):
    """One kind of release: ``count`` independent copies, ``slack`` the part of delta its sampler costs in all."""

    kind: ClassVar[str]

    @property
    def count(self) -> int:
        """Number of independent copies."""
        ...

    @property
    def slack(self) -> float:
        """Added to delta."""
        ...

    @property
    def atom(self) -> float:
        """Probability that a copy has no noise at all."""
        ...

    @property
    def largest_loss(self) -> float:
        """Where the curve ends; infinite if it never reaches 0."""
        ...

    @property
    def cut(self) -> float:
        """Where its discretisation ends; what the curve holds beyond counts as an infinite loss."""
        ...

    def curve(self, epsilon: Floats) -> Floats:
        """delta(epsilon) of one copy with noise, for epsilon >= 0."""
        ...


@dataclass(frozen=True)
class LaplaceEvent:
    """Discrete Laplace of ``rate`` per step shifted by ``shift`` steps; with probability ``atom`` no noise at all.

    The atom reveals the value: n copies have no delta below 1 - (1 - atom)^n.
    """

    kind: ClassVar[str] = "laplace"
    rate: float
    shift: int
    atom: float = 0.0
    count: int = 1
    slack: float = 0.0

    @property
    def largest_loss(self) -> float:
        """Rate times shift: the loss in the tails."""
        return self.rate * self.shift

    @property
    def cut(self) -> float:
        """Rate times shift."""
        return self.largest_loss

    def curve(self, epsilon: Floats) -> Floats:
        """``P(v <= K) - e^epsilon P(v <= K - shift)``; on a fine grid ``1 - exp((epsilon - rate shift)/2)``."""
        # The loss (shift - 2k) rate of an outcome 0 <= k <= shift exceeds epsilon for k up to K < shift.
        K = np.ceil((self.shift - epsilon / self.rate) / 2) - 1
        tail = 1.0 / (1.0 + math.exp(-self.rate))  # times exp(-rate m) it is P(v <= -m), m > 0
        here = np.where(
            K < 0, tail * np.exp(self.rate * np.minimum(K, 0)), 1.0 - tail * np.exp(-self.rate * (np.maximum(K, 0) + 1))
        )
        there = tail * np.exp(np.minimum(epsilon + self.rate * (K - self.shift), 0.0))
        return np.where(epsilon < self.largest_loss, np.clip(here - there, 0.0, 1.0), 0.0)


@dataclass(frozen=True)
class StaircaseEvent:
    """Losses -epsilon, 0, epsilon only, the last with probability ``mass``: noise in steps, shifted by one step."""

    kind: ClassVar[str] = "staircase"
    atom: ClassVar[float] = 0.0
    epsilon: float
    mass: float
    count: int = 1
    slack: float = 0.0

    @property
    def largest_loss(self) -> float:
        """Epsilon."""
        return self.epsilon

    @property
    def cut(self) -> float:
        """Epsilon."""
        return self.epsilon

    def curve(self, epsilon: Floats) -> Floats:
        """``mass max(0, 1 - exp(epsilon' - epsilon))``."""
        return self.mass * np.maximum(0.0, -np.expm1(np.minimum(epsilon - self.epsilon, 0.0)))


@dataclass(frozen=True)
class PureEvent:
    """Anything epsilon-differentially private: the worst is randomised response of two answers."""

    kind: ClassVar[str] = "pure"
    atom: ClassVar[float] = 0.0
    epsilon: float
    count: int = 1
    slack: float = 0.0

    @property
    def largest_loss(self) -> float:
        """Epsilon."""
        return self.epsilon

    @property
    def cut(self) -> float:
        """Epsilon."""
        return self.epsilon

    def curve(self, epsilon: Floats) -> Floats:
        """``max(0, (e^epsilon - e^epsilon') / (1 + e^epsilon))``."""
        return np.maximum(0.0, -np.expm1(np.minimum(epsilon - self.epsilon, 0.0))) / (1.0 + math.exp(-self.epsilon))


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise where neighbours differ by ``mu`` standard deviations in L2."""

    kind: ClassVar[str] = "gaussian"
    atom: ClassVar[float] = 0.0
    mu: float
    count: int = 1
    slack: float = 0.0

    @property
    def largest_loss(self) -> float:
        """Infinite."""
        return math.inf

    @property
    def cut(self) -> float:
        """Mean of the loss and ``_TAIL`` of its deviations."""
        return self.mu**2 / 2 + _TAIL * self.mu

    def curve(self, epsilon: Floats) -> Floats:
        """Balle and Wang (2018), Theorem 8."""
        return gaussian_delta(self.mu, epsilon)


EVENTS: dict[str, Callable[..., Event]] = {
    event.kind: event for event in (LaplaceEvent, StaircaseEvent, PureEvent, GaussianEvent)
}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Plain values of an event, with its kind."""
    return {"kind": event.kind, **asdict(event)}  # type: ignore[call-overload]


def event_from_dict(values: dict[str, Any]) -> Event:
    """The event of ``event_to_dict``."""
    kind = values.get("kind")
    if kind not in EVENTS:
        raise InputError(f"kind of a privacy event must be one of {', '.join(map(repr, EVENTS))}, got {kind!r}")
    return EVENTS[kind](**{name: value for name, value in values.items() if name != "kind"})


def repeated(event: Event, count: int, *, together: bool) -> Event:
    """What a person with ``count`` rows pays where one row costs ``event``.

    Rows with noise of their own compose. Rows that move one noisy sum move it ``count`` times as far: for Gaussian
    noise that is ``count`` times mu; for a bounded loss ``count`` losses (group privacy).
    """
    if count == 1:
        return event
    changes: dict[str, Any] = {"slack": event.slack * count}
    if not together:
        changes["count"] = event.count * count
    elif isinstance(event, GaussianEvent):
        changes["mu"] = event.mu * count
    elif event.atom:
        raise InputError("a sum of several rows of one person cannot be released with an atom")
    else:
        return PureEvent(event.count * event.largest_loss * count, 1, changes["slack"])
    return replace(event, **changes)  # type: ignore[type-var]


def gaussian_delta(mu: float, epsilon: npt.ArrayLike) -> Floats:
    """``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``, in logarithms."""
    epsilon = np.asarray(epsilon, dtype=np.float64)
    log_normal = scipy.special.log_ndtr
    first, second = log_normal(mu / 2 - epsilon / mu), epsilon + log_normal(-mu / 2 - epsilon / mu)
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(second - first, 0.0)))


def analytic_gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu at which Gaussian noise is (epsilon, delta)-private, not above the truth (Balle and Wang 2018)."""
    check_number(epsilon, "epsilon", above=0)
    check_number(delta, "delta", above=0, below=1)
    low, high = 0.0, 1.0
    while _safe_delta(high, epsilon) < delta:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high) and high - low > 1e-13 * high:
        low, high = (middle, high) if _safe_delta(middle, epsilon) <= delta else (low, middle)
    return low


def _safe_delta(mu: float, epsilon: float) -> float:
    """The curve with a margin for its rounding: log_ndtr is good to a few units in the last place."""
    return float(gaussian_delta(mu * (1 + 1e-12), epsilon)) * (1 + 1e-10)


def analytic_gaussian_sigma(epsilon: float, delta: float) -> float:
    """Standard deviation per unit of L2 sensitivity that is (epsilon, delta)-private, not below the truth.

    >>> round(analytic_gaussian_sigma(1.0, 1e-5), 4)
    3.7306
    """
    return math.nextafter(1.0 / analytic_gaussian_mu(epsilon, delta), math.inf)


def delta_for(events: Sequence[Event], epsilon: float) -> float:
    """Delta at which the events together are (epsilon, delta)-private."""
    check_number(epsilon, "epsilon", at_least=0)
    revealed, slack = _fixed_delta(events)
    if epsilon >= sum(event.count * event.largest_loss for event in events):
        body = 0.0
    elif (only := _closed_form(events)) is not None:
        body = float(only.curve(np.asarray(epsilon)))
    else:
        body = float(_compose(events).get_delta_for_epsilon(epsilon)) + _ROUNDING
    return min(1.0, slack + revealed + (1.0 - revealed) * body)


def epsilon_for(events: Sequence[Event], delta: float) -> float:
    """Epsilon at which the events together are (epsilon, delta)-private; infinite if delta is too small for any."""
    check_number(delta, "delta", at_least=0, below=1)
    revealed, slack = _fixed_delta(events)
    if delta < slack + revealed or revealed == 1.0:
        return math.inf
    budget = (delta - slack - revealed) / (1.0 - revealed)
    basic = sum(event.count * event.largest_loss for event in events)
    if (only := _closed_form(events)) is not None:
        return min(basic, _invert(lambda e: float(only.curve(np.asarray(e))), budget, only.cut))
    if budget < _SMALLEST_DELTA:
        return basic
    return min(basic, _composed_epsilon(tuple(events), budget))


@lru_cache(maxsize=256)  # a question to a site that requires privacy asks several times for the sum of one ledger
def _composed_epsilon(events: tuple[Event, ...], budget: float) -> float:
    """Epsilon of the events' composition where their delta is ``budget``."""
    with np.errstate(over="ignore"):  # a loss beyond the range of exp is infinite, and then the basic bound holds
        composed = _compose(events)
        epsilon = float(composed.get_epsilon_for_delta(budget - _ROUNDING))
        # The library's inverse loses digits where exp(-loss) underflows: step up until its own curve agrees.
        step = 1e-10 * max(epsilon, 1.0)
        while composed.get_delta_for_epsilon(epsilon) > budget - _ROUNDING:
            epsilon, step = epsilon + step, 2 * step
    return epsilon


def _fixed_delta(events: Sequence[Event]) -> tuple[float, float]:
    """Probability that an atom reveals a value in any of the events, and their slack: no epsilon makes up for these."""
    clean = sum(event.count * math.log1p(-event.atom) for event in events)
    return min(1.0, -math.expm1(clean) * (1 + 1e-13)), sum(event.slack for event in events)


def _closed_form(events: Sequence[Event]) -> Event | None:
    """The one event that these amount to, where no numerical composition is needed."""
    if len(events) == 1 and events[0].count == 1:
        return events[0]
    if events and all(isinstance(event, GaussianEvent) for event in events):
        return _merge_gaussians(events)[0]
    return None


def _merge_gaussians(events: Sequence[Event]) -> list[Event]:
    """The same events with all Gaussians as one: their squared mu add up, exactly."""
    squared = [event.count * event.mu**2 for event in events if isinstance(event, GaussianEvent)]
    others = [event for event in events if not isinstance(event, GaussianEvent)]
    return [*others, GaussianEvent(math.sqrt(sum(squared)) * (1 + 1e-15 * len(squared)))] if squared else others


def _invert(curve: Callable[[float], float], delta: float, scale: float) -> float:
    """The smallest epsilon with curve(epsilon) <= delta, from above; infinite if there is none."""
    if curve(0.0) <= delta:
        return 0.0
    low, high = 0.0, max(scale, 1e-300)
    while curve(high) > delta:
        low, high = high, 2 * high
        if high > 1e6 * max(scale, 1.0):
            return math.inf
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high


def _compose(events: Sequence[Event]) -> Any:
    """PLD of all events together, on about 1e5 intervals: a composition takes a fraction of a second."""
    from dp_accounting.pld import privacy_loss_distribution as distributions  # slow to import

    events = _merge_gaussians(events)
    # Mean of the loss of a copy that ends at L: at most L, and about L^2/2 for small L; its deviation at most L.
    drift = sum(event.count * min(event.cut, event.cut**2 / 2) for event in events)
    spread = math.sqrt(sum(event.count * event.cut**2 for event in events))
    interval = max((drift + _TAIL * spread) / 1e5, 1e-12)
    composed = distributions.identity(value_discretization_interval=interval)
    for event in events:
        composed = composed.compose(_distribution(event, interval).self_compose(event.count))
    return composed


def _distribution(event: Event, interval: float) -> Any:
    """PLD of one copy, its mass on multiples of ``interval`` such that it dominates the event's curve.

    The pair is symmetric, so for negative arguments ``delta(-e) = 1 - exp(-e) (1 - delta(e))``.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    steps = math.ceil(event.cut / interval)
    positive: Floats = np.arange(steps + 1, dtype=np.float64) * interval
    right = np.minimum.accumulate(event.curve(positive))
    left = -np.expm1(-positive[:0:-1]) + np.exp(-positive[:0:-1]) * right[:0:-1]
    deltas = np.clip(np.concatenate([left, right]), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, deltas)
    return PrivacyLossDistribution(pmf)
