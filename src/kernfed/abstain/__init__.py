"""Sets of classes with a stated coverage, and p-values of "nothing like this was ever seen", from histograms.

Split conformal prediction (Vovk, Gammerman and Shafer 2005) needs of rows that were kept aside only where their scores
lie. Here scores are put into bins that are fixed and public before any row is looked at, so that the histograms of all
sites add up. The bin itself is then the score: rows of one bin are ties, a threshold has its whole bin, and coverage is
that of the theorem, with sets that are larger by at most the rows of one bin.

Two scores of a row x are counted by its true class y:

- ``log((1 - p_y) / p_y)`` of the model's probability, in ``BINS`` bins: 1 - p_y, spread out where models are sure;
- the strangeness of x by the folding measures, in ``RATIO_BINS`` bins of 1/64 octave: how far the nearest class is, and
  how much nearer than the others.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from kernfed.abstain.bins import BINS, RATIO_BINS, count_scores, probability_bins, ratio_bins, strangeness
from kernfed.abstain.conformal import CONDITIONS, Conformal, NoisyConformal, read_counts
from kernfed.abstain.coverage import Abstaining, Coverage

__all__ = [
    "BINS",
    "CONDITIONS",
    "RATIO_BINS",
    "Abstaining",
    "Conformal",
    "Coverage",
    "NoisyConformal",
    "count_scores",
    "probability_bins",
    "ratio_bins",
    "read_counts",
    "read_coverage",
    "strangeness",
]


def read_coverage(arrays: Mapping[str, npt.NDArray[Any]], values: Any, classes: npt.NDArray[Any]) -> Coverage | None:
    """The counts in the file of a model with these ``classes`` (C,), checked; None where ``values`` are None."""
    if values is None:
        return None
    kind = NoisyConformal if "noise" in values else Conformal
    return kind.from_parts(arrays, values, classes)
