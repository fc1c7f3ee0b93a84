"""How well an attack tells members from others: the area under its curve and the curve's low end, with intervals.

An average over everybody hides the few who are exposed, so the share of members found at one false alarm in a hundred
or a thousand stands beside the area (Carlini et al. 2022).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, rel_entr

from kernfed.base.checks import check_count, check_finite, check_number
from kernfed.errors import InputError
from kernfed.privacy.noise import Floats

#: Shares of others that may be called members where the share of members found is reported.
RATES = (0.001, 0.01)


@dataclass(frozen=True)
class OperatingPoint:
    """Members found where at most the share ``rate`` of others is called a member.

    ``interval`` holds the true share of members found at this threshold. ``rate_limit`` is an upper bound on the true
    share of others called members: with few others it is far above ``rate``.
    """

    rate: float
    true_positives: int
    false_positives: int
    tpr: float
    interval: tuple[float, float]
    rate_limit: float


@dataclass(frozen=True)
class Roc:
    """Area under the curve, its low end, and how many scores of ``members`` and ``others`` they come from.

    Every interval holds with ``confidence`` on its own.
    """

    auc: float
    auc_interval: tuple[float, float]
    points: tuple[OperatingPoint, ...]
    members: int
    others: int
    confidence: float


@dataclass(frozen=True)
class Attack:
    """One attack: its ``name``, what the attacker ``knows``, in words, and what came of it."""

    name: str
    knows: str
    roc: Roc

    def __str__(self) -> str:
        low, high = self.roc.auc_interval
        points = "".join(
            f", finds {100 * point.tpr:.3g} % [{100 * point.interval[0]:.3g}, {100 * point.interval[1]:.3g}] "
            f"at {100 * point.rate:g} % false alarms"
            for point in self.roc.points
        )
        return f"{self.name}: AUC {self.roc.auc:.3f} [{low:.3f}, {high:.3f}]{points}"


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval for a probability (Clopper and Pearson 1934).

    >>> tuple(round(side, 4) for side in clopper_pearson(0, 100))
    (0.0, 0.0362)
    """
    trials = check_count(trials, "trials")
    successes = check_count(successes, "successes", at_least=0, at_most=trials)
    alpha = 1.0 - check_confidence(confidence)
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, alpha / 2))
    return low, float(upper_rates(np.array(successes), trials, alpha / 2))


def upper_rates(successes: npt.ArrayLike, trials: int, alpha: float) -> Floats:
    """One-sided upper Clopper-Pearson bounds for counts of successes, each wrong with probability ``alpha``."""
    count = np.asarray(successes)
    bounds = betaincinv(count + 1.0, np.maximum(trials - count, 0.5), 1.0 - alpha)
    return np.where(count == trials, 1.0, bounds)


def roc(
    members: npt.ArrayLike, others: npt.ArrayLike, *, rates: Sequence[float] = RATES, confidence: float = 0.95
) -> Roc:
    """The curve of scores of ``members`` (n,) and ``others`` (m,), where a larger score speaks for a member.

    Scores are taken as independent draws of each kind.
    """
    inside, outside = check_scores(members, "members"), check_scores(others, "others")
    check_confidence(confidence)
    points = tuple(_point(inside, outside, check_number(rate, "rate", above=0, below=1), confidence) for rate in rates)
    area = auc(inside, outside)
    interval = auc_interval(area, min(len(inside), len(outside)), confidence)
    return Roc(area, interval, points, len(inside), len(outside), confidence)


def auc(members: Floats, others: Floats) -> float:
    """Probability that a member's score is the larger one, ties counted half (Mann and Whitney 1947)."""
    ordered = np.sort(others)
    below, not_above = (np.searchsorted(ordered, members, side=side) for side in ("left", "right"))
    return float((below + not_above).mean() / (2 * len(others)))


def auc_interval(area: float, pairs: int, confidence: float) -> tuple[float, float]:
    """All areas a with ``pairs KL(area || a) <= log(2/alpha)``, where ``pairs`` is the smaller number of scores.

    The area is an average over matchings of independent pairs, so the Chernoff bound of such a matching holds for it
    (Hoeffding 1963, section 5). Unlike normal approximations it holds at an area of 1 and for few scores.
    """
    limit = -math.log((1.0 - confidence) / 2) / pairs

    def outside(candidate: float) -> bool:
        return float(rel_entr(area, candidate) + rel_entr(1.0 - area, 1.0 - candidate)) > limit

    return _last_inside(outside, area, 0.0), _last_inside(outside, area, 1.0)


def _last_inside(outside: Callable[[float], bool], inner: float, outer: float) -> float:
    """Bisection between a point of the interval and its farthest possible end; the result is not inside."""
    if not outside(outer):
        return outer
    for _ in range(60):
        middle = (inner + outer) / 2
        inner, outer = (inner, middle) if outside(middle) else (middle, outer)
    return outer


def _point(members: Floats, others: Floats, rate: float, confidence: float) -> OperatingPoint:
    # The threshold looks at others only: given it, the members found are a binomial count.
    threshold = np.sort(others)[len(others) - 1 - math.floor(rate * len(others))]
    named, alarms = int((members > threshold).sum()), int((others > threshold).sum())
    interval = clopper_pearson(named, len(members), confidence)
    limit = float(upper_rates(alarms, len(others), 1.0 - confidence))
    return OperatingPoint(rate, named, alarms, named / len(members), interval, limit)


def check_scores(values: npt.ArrayLike, name: str, *, at_least: int = 1) -> Floats:
    """Finite numbers (n,) as float64."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be a vector of numbers, got shape {array.shape} of dtype {array.dtype}")
    if len(array) < at_least:
        raise InputError(f"{name} must have at least {at_least} value(s), got {len(array)}")
    array = array.astype(np.float64)
    check_finite(array, name)
    return array


def check_confidence(confidence: float) -> float:
    """A probability strictly between 0 and 1."""
    return check_number(confidence, "confidence", above=0, below=1)
