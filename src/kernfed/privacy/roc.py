"""How well an attack tells members from others: the area under its curve and the curve's low end, with intervals.

An average over everybody hides the few who are exposed, so the share of members found at one false alarm in a hundred
or a thousand stands beside the area (Carlini et al. 2022).

The papers' membership score: squared L2 distance of two densities, from samples (DP-KAHM (69)).

The distance is estimated without estimating either density, by a least-squares fit of their difference (LSDD, Sugiyama
et al. 2013). The score of the paper grows as distances shrink in scale and hardly sees a small share of fully exposed
members, so it is for comparison only: values are standardised first and a permutation p-value says what chance gives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import betaincinv, rel_entr

from kernfed.base.checks import check_count, check_finite, check_number
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
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


#: Kernel widths, in standard deviations of the pooled values, and regularisations among which cross-validation chooses.
WIDTHS = tuple(float(width) for width in np.logspace(-1.5, 0.5, 9))
REGULARIZATIONS = tuple(float(value) for value in np.logspace(-4, 1, 11))
#: Most kernels in a fit; their centres are quantiles of the pooled values.
_CENTRES = 100
_FOLDS = 5
# Labellings that are worked on at a time: bounds the memory at a few times that many copies of the values.
_BLOCK = 32


@dataclass(frozen=True)
class MembershipScore:
    """``value`` of DP-KAHM (69) on standardised values, and how often relabelled values reach it, ``p_value``.

    ``width`` and ``regularization`` are what cross-validation chose, ``scale`` the standard deviation divided by.
    """

    value: float
    p_value: float
    width: float
    regularization: float
    scale: float
    permutations: int

    def __str__(self) -> str:
        return (
            f"mis {self.value:.4g} on standardised distances, p = {self.p_value:.3g} ({self.permutations} relabellings)"
        )


def membership_score(
    members: npt.ArrayLike, others: npt.ArrayLike, *, permutations: int = 200, seed: int = 0
) -> MembershipScore:
    """Score of distances at training rows ``members`` (n,) against those at other rows ``others`` (m,).

    Width and regularisation are chosen anew for every relabelling, as they were for the true labels: so the p-value is
    exact, P(p <= a) <= a if members and others are alike.
    """
    inside = check_scores(members, "members", at_least=_FOLDS)
    outside = check_scores(others, "others", at_least=_FOLDS)
    check_count(permutations, "permutations")
    pooled = np.concatenate([inside, outside])
    # In units of the largest value: the squares of huge ones overflow.
    unit = float(np.abs(pooled).max()) or 1.0
    spread = float((pooled / unit).std())
    if spread <= 1e-12:  # equal up to rounding: nothing to tell apart
        return MembershipScore(0.0, 1.0, WIDTHS[0], REGULARIZATIONS[0], 0.0, permutations)
    points = (pooled / unit - (pooled / unit).mean()) / spread
    rng = generator(seed, "privacy", "membership score")
    first = np.concatenate([rng.permutation(len(inside)), len(inside) + rng.permutation(len(outside))])
    orders = np.vstack([first, *(rng.permutation(len(points)) for _ in range(permutations))])
    with single_blas_thread():
        values, widths, regularizations = density_differences(points, orders, len(inside))
    # A relabelling that repeats the true one up to rounding must count as reaching it.
    reached = int((values[1:] >= values[0] * (1 - 1e-9)).sum())
    return MembershipScore(
        float(values[0]),
        (1 + reached) / (1 + permutations),
        float(widths[0]),
        float(regularizations[0]),
        spread * unit,
        permutations,
    )


def density_differences(points: Floats, orders: npt.NDArray[np.intp], count: int) -> tuple[Floats, Floats, Floats]:
    """LSDD estimates (R,) for R ways to divide ``points`` (n,): row r of ``orders`` (R, n) names the first ``count``.

    Returns the estimates with the width and the regularisation chosen for each.
    """
    best = np.full(len(orders), np.inf)
    values, widths, chosen = np.zeros((3, len(orders)))
    centres = np.quantile(points, (np.arange(_CENTRES) + 0.5) / _CENTRES)
    for width in WIDTHS:
        eigenvalues, features = _features(points, centres, width)
        for start in range(0, len(orders), _BLOCK):
            block = slice(start, start + _BLOCK)
            total, train, test = _mean_differences(features, orders[block], count)
            for regularization in REGULARIZATIONS:
                theta = train / (eigenvalues + regularization)
                error = (theta * (eigenvalues * theta - 2.0 * test)).sum(axis=(1, 2))
                theta = total / (eigenvalues + regularization)
                better = error < best[block]
                estimate = (theta * (2.0 * total - eigenvalues * theta)).sum(axis=1)
                values[block] = np.where(better, estimate, values[block])
                widths[block] = np.where(better, width, widths[block])
                chosen[block] = np.where(better, regularization, chosen[block])
                best[block] = np.minimum(best[block], error)
    return values, widths, chosen


def _features(points: Floats, centres: Floats, width: float) -> tuple[Floats, Floats]:
    """Gaussian kernels at the points, in the eigenbasis of their inner products H, and the eigenvalues of H.

    ``H_ij = width sqrt(pi) exp(-(c_i - c_j)^2 / (4 width^2))``, the integral of kernel i times kernel j. In this basis
    the fit ``theta = (H + lambda I)^-1 h`` is a division for every lambda.
    """
    gaps = (centres[:, None] - centres) / width
    eigenvalues, vectors = np.linalg.eigh(width * np.sqrt(np.pi) * np.exp(-np.square(gaps) / 4))
    kernels = np.exp(-np.square((points[:, None] - centres) / width) / 2)
    return np.maximum(eigenvalues, 0.0), kernels @ vectors


def _mean_differences(features: Floats, orders: npt.NDArray[np.intp], count: int) -> tuple[Floats, Floats, Floats]:
    """``h``: mean feature of the first kind minus that of the second, for each labelling.

    Returns it over all points (R, b), over all but one fold (R, folds, b), and over that fold (R, folds, b).
    """
    R, n = orders.shape
    place = np.concatenate([np.arange(count) % _FOLDS, _FOLDS + np.arange(n - count) % _FOLDS])
    cells = np.arange(R)[:, None] * 2 * _FOLDS + place
    sums = csr_array((np.ones(R * n), (cells.ravel(), orders.ravel())), shape=(R * 2 * _FOLDS, n)) @ features
    sums = sums.reshape(R, 2, _FOLDS, -1)
    sizes = np.bincount(place, minlength=2 * _FOLDS).reshape(2, _FOLDS, 1).astype(np.float64)
    totals, counts = sums.sum(axis=2, keepdims=True), sizes.sum(axis=1, keepdims=True)
    whole, rest, part = totals / counts, (totals - sums) / (counts - sizes), sums / sizes
    return (whole[:, 0] - whole[:, 1])[:, 0], rest[:, 0] - rest[:, 1], part[:, 0] - part[:, 1]
