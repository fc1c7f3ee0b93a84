"""Scores of rows and the bins they are counted in, fixed and public before any row is looked at."""

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
    own = probabilities[known, numbers[known]]
    np.add.at(counts, (numbers[known], probability_bins(own)), 1)
    counts[-1, -1] = len(numbers) - int(known.sum())
    if ratios is not None:
        np.add.at(nearest, (numbers[known], ratio_bins(ratios[known])), 1)
    return counts, nearest
