"""Scores of rows, the public bins they are counted in, and the counting ladder for counts with noise.

Bins are fixed before any row is looked at, so that histograms of sites can be added.

*The counting ladder* gives counts of rows beyond each bin from sums that noise hurts little. A threshold needs how many
rows lie *beyond* a bin. With noise on each bin that count has the noise of all bins beyond it. Here a row in bin k adds
to the rungs j < k the numbers ``r(k - 1 - j)``, r = 1, 1/2, 3/8, ... the coefficients of ``(1 - x)^(-1/2)``: their
square ``1/(1 - x)`` counts everything, so that going down the ladder once more gives the rows beyond (Fichtenberger,
Henzinger and Upadhyay 2023). The noise of such a count then grows with the logarithm of the number of bins: for 82 bins
it is 3.1 times that of one count alone, against 12.8 times with noise on each bin. Numbers are whole multiples of
2^-``BITS``, so that sums over rows and sites are exact.

Its bins are unions of the others, fewer of them: 0.2 in the log-odds from -8 to 8, 1/8 octave of strangeness from 2^-4
to 2^6, one before and one after. With the ladder 40 to 200 bins gave the smallest sets for 250 to 2,000 rows.
"""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, IntArray

#: Bins of the log-odds against the true class, which reach from -40 to 40; a probability of 1 has -36.7 or less.
BINS, _REACH = 2000, 40.0
#: Bins of the strangeness over the unit: 64 in an octave, from 2^-12 to 2^20.
RATIO_BINS, _PER_OCTAVE, _SMALLEST = 2048, 64, -12


def probability_bins(probabilities: FloatArray) -> npt.NDArray[np.intp]:
    """Bins of probabilities, in the same shape: 0 where a class is certain, ``BINS - 1`` where it is impossible.

    >>> probability_bins(np.array([1.0, 0.5, 0.0])).tolist()
    [0, 1000, 1999]
    """
    likely = np.clip(probabilities, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # of a certain class and of an impossible one
        odds = np.log1p(-likely) - np.log(likely)
    return np.clip(np.floor((odds + _REACH) * (BINS / (2 * _REACH))), 0, BINS - 1).astype(np.intp)


def strangeness(scores: FloatArray) -> FloatArray:
    """``d (d / m)^2`` (n,), with d the smallest and m the mean of a row's scores (n, C); absent classes do not count.

    The distance d alone is small for rows of little content, such as images with little ink. A row of a known kind is
    much nearer to its own class than to others, a stranger is not. Of printed letters beside MNIST the square of that
    ratio told 45 in 100, d alone 18; on digits and letters of tables as many. With one class it is d.

    >>> strangeness(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, np.inf]])).tolist()
    [0.25, 2.0, 2.0]
    """
    known = np.isfinite(scores)
    nearest = np.where(known, scores, np.inf).min(axis=1)
    mean = np.where(known, scores, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    share = np.where(known.any(axis=1), nearest, 1.0) / np.where(mean > 0, mean, 1.0)
    return np.asarray(nearest * np.square(share))


def ratio_bins(ratios: FloatArray) -> npt.NDArray[np.intp]:
    """Bins of strangeness over the unit (n,); what has more than 2^20 units is in the last one.

    >>> ratio_bins(np.array([0.0, 1.0, np.inf])).tolist()
    [0, 768, 2047]
    """
    with np.errstate(divide="ignore"):  # a row that a machine reproduces
        octaves = np.log2(ratios)
    bins: npt.NDArray[np.intp] = np.clip(np.floor((octaves - _SMALLEST) * _PER_OCTAVE), 0, RATIO_BINS - 1).astype(
        np.intp
    )
    return bins


def count_scores(
    numbers: npt.NDArray[np.intp], probabilities: FloatArray, ratios: FloatArray | None
) -> tuple[IntArray, IntArray]:
    """Histograms of rows by true class: of odds (C + 1, BINS) and of ratios (C, RATIO_BINS).

    ``numbers`` (n,) are classes, C for a label that the model does not know. Such a row is in no set, so that it counts
    in the last bin of the last line. Without ``ratios`` (n,) the second histogram is empty.
    """
    classes = probabilities.shape[1]
    counts = np.zeros((classes + 1, BINS), dtype=np.int64)
    nearest = np.zeros((classes, RATIO_BINS), dtype=np.int64)
    known = numbers < classes
    true = probabilities[known, numbers[known]]
    np.add.at(counts, (numbers[known], probability_bins(true)), 1)
    counts[-1, -1] = len(numbers) - int(known.sum())
    if ratios is not None:
        np.add.at(nearest, (numbers[known], ratio_bins(ratios[known])), 1)
    return counts, nearest


#: Bins of either score. A row in none of them, which no set has, is in place ``PLACES``.
PLACES = 82
#: A row adds to a rung multiples of 2^-BITS, at most 1.
BITS = 16
#: Width and beginning of the bins, in the bins above: the second begins there.
_ODDS, _RATIOS = (5, 800), (8, 512)
# For the noise bound: noise of this much more variance is continuous to a relative 1e-30, and four of its deviations.
_SMOOTHER, _DEVIATIONS = 4.0, 4.0


def odds_places(bins: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Places (n,) of ``probability_bins`` among the bins of the ladder.

    >>> odds_places(np.array([0, 799, 800, 1000, 1199, 1200, 1999])).tolist()
    [0, 0, 1, 41, 80, 81, 81]
    """
    return _places(bins, *_ODDS)


def ratio_places(bins: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Places (n,) of ``ratio_bins`` among the bins of the ladder."""
    return _places(bins, *_RATIOS)


def _places(bins: npt.NDArray[np.intp], width: int, start: int) -> npt.NDArray[np.intp]:
    return np.asarray(np.clip((bins - start) // width + 1, 0, PLACES - 1), dtype=np.intp)


def last_odds_bin(place: int) -> int:
    """The last of the ``probability_bins`` in a place."""
    return BINS - 1 if place >= PLACES - 1 else _ODDS[1] + _ODDS[0] * place - 1


def ratio_table(by_place: FloatArray) -> FloatArray:
    """Values (PLACES,) by place as values (RATIO_BINS,) by bin."""
    return np.asarray(by_place[ratio_places(np.arange(RATIO_BINS))])


@cache
def rungs() -> IntArray:
    """What a row in each place adds to each rung (PLACES, PLACES + 1), in units of 2^-BITS."""
    weights = np.ones(PLACES)
    for k in range(1, PLACES):
        weights[k] = weights[k - 1] * (2 * k - 1) / (2 * k)
    rung, place = np.arange(PLACES)[:, None], np.arange(PLACES + 1)
    steps = place - 1 - rung
    return np.where(steps >= 0, np.floor(weights * 2.0**BITS).astype(np.int64)[np.maximum(steps, 0)], 0)


def ladder_sums(places: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Sums (PLACES,) over rows in these places (n,), exact."""
    return np.asarray(rungs() @ np.bincount(places, minlength=PLACES + 1).astype(np.int64))


@cache
def sensitivity() -> float:
    """How far the sums move in L2 where one row is replaced, in units of 2^-BITS: the largest distance of two places.

    A row that is added or removed moves them by the length of its own numbers, less by a fifth; but then the number of
    rows must not be public, and here it is.
    """
    columns = rungs()
    products = columns.T @ columns
    squares = np.diag(products)
    return math.sqrt(int((squares[:, None] + squares[None, :] - 2 * products).max())) * (1 + 1e-15)


@cache
def longest() -> float:
    """How far the sums move in L2 where one row is added or removed, in units of 2^-BITS."""
    return math.sqrt(int(np.square(rungs()).sum(axis=0).max())) * (1 + 1e-15)


@cache
def _descent() -> FloatArray:
    """From sums to rows beyond each place: ``A R^-1`` (PLACES, PLACES), with R the ``rungs`` and A of ones above."""
    return np.asarray(np.triu(np.ones((PLACES, PLACES))) @ np.linalg.inv(rungs()[:, 1:].astype(np.float64)))


def rows_beyond(sums: IntArray) -> FloatArray:
    """Rows (PLACES,) beyond each place, from their sums (PLACES,)."""
    return np.asarray(_descent() @ sums)


@cache
def lengths() -> FloatArray:
    """By how much noise on the sums is multiplied in ``rows_beyond`` (PLACES,): L2 lengths of the combinations."""
    return np.asarray(np.linalg.norm(_descent(), axis=1))


def noise_bound(deviation: float, risk: float) -> float:
    """What a combination of length 1 of independent discrete Gaussians exceeds with probability at most ``risk``.

    ``deviation``: their common standard deviation, 4 or more. With continuous noise of variance 4 beside it each of
    them is a continuous Gaussian to a relative 1e-30 (Poisson summation, as in ``privacy/noise.py``); that noise is
    above -8 but for a probability of 3.2e-5, so that whoever exceeds the bound without it exceeds the bound less 8 with
    it.

    >>> round(noise_bound(1000.0, 1e-3) / 1000, 2)
    3.1
    """
    aside = _DEVIATIONS * math.sqrt(_SMOOTHER)
    surely = NormalDist().cdf(_DEVIATIONS) * (1 - 1e-9)
    return aside + math.sqrt(deviation**2 + _SMOOTHER) * NormalDist().inv_cdf(1 - risk * surely)
