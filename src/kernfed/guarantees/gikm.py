"""Bounds printed in GIKM for the hypothesis space spanned by the kernel of the rows themselves.

For given rows the complexity bound is right. To bound errors on new rows the paper uses it as if the space had been
there before the rows; the kernel is built from them. No counterexample is known, and no proof.
"""

import math

import numpy.typing as npt

from kernfed.base.checks import check_confidence, check_count, check_number, check_vector
from kernfed.guarantees.bound import Bound

_INDEPENDENT = "the rows are independent draws"
_GAP = "proof gap: the hypothesis space is made from the rows it is tested on"
_FITTED = "every row is fitted by its own class's machines, GIKM Assumption 1"
_SEPARATED = "no row is fitted by another class's machines, GIKM Assumption 2"


def rademacher(rows: int) -> Bound:
    """Empirical Rademacher complexity of the convex hull (24) on the rows that made it: GIKM Theorem 3 (30)."""
    return Bound(1 / math.sqrt(check_count(rows, "rows")), 1.0, (), "proven", "GIKM Theorem 3")


def loss_rademacher(rows: int) -> Bound:
    """The same for squared losses of labels in {0, 1}, at most twice as much: GIKM Lemma 1 (35)."""
    return Bound(2 * rademacher(rows).value, 1.0, (), "proven", "GIKM Lemma 1")


def generalization_error(rows: int, training_error: float | None = None, confidence: float = 0.95) -> Bound:
    """Printed mean squared error on new rows: ``training_error + 4/sqrt(N) + sqrt(log(1/delta)/(2N))``.

    With a training error GIKM Theorems 4 (37) and 7 (47); without one the paper takes it for 0 under its Assumptions
    1 and 2: Theorems 6 (46) and 7 (48).
    """
    count = check_count(rows, "rows")
    start = 0.0 if training_error is None else check_number(training_error, "training_error", at_least=0, at_most=1)
    value = start + _deviation(confidence) / math.sqrt(count)
    if training_error is None:
        return Bound(value, confidence, (_INDEPENDENT, _FITTED, _SEPARATED), _GAP, "GIKM Theorems 6-7")
    return Bound(value, confidence, (_INDEPENDENT,), _GAP, "GIKM Theorems 4, 7")


def sample_complexity(error: float, confidence: float = 0.95) -> Bound:
    """Rows that suffice for an ``error`` by ``generalization_error``: GIKM Lemma 3 (52), the curve of Figure 3.

    >>> round(sample_complexity(0.1, 0.95).value)
    2729
    """
    value = (_deviation(confidence) / check_number(error, "error", above=0)) ** 2
    words = f"{math.ceil(value):,} rows suffice for an error of at most {error:g}"
    return Bound(value, confidence, (_INDEPENDENT, _FITTED, _SEPARATED), _GAP, "GIKM Lemma 3", words)


def solution_gap(distances: npt.ArrayLike, width: int) -> Bound:
    """How far the solution of GIKM Problem 1 can be from ``exp(-distance / p)`` at any query: GIKM Theorem 5 (44).

    distances (N,) : of the rows of a class to their own images. Every function of the learning space (40) is that
    exponential times a mean of the same over the rows, whatever its weights; so the gap is at most the largest
    ``1 - exp(-distance / p)`` of a row, which Assumption 1 wants near 0.

    >>> round(solution_gap([0.0, 2.0], 100).value, 4)
    0.0198
    """
    farthest = float(check_vector(distances, "distances").max())
    value = -math.expm1(-farthest / check_count(width, "width"))
    return Bound(value, 1.0, (), "proven", "GIKM Theorem 5")


def membership_gap(width: int) -> Bound:
    """How far ``exp(-distance / p)`` can be below 1 while query and image lie in [-1, 1]^p: ``1 - exp(-2/sqrt(p))``.

    GIKM Assumption 2 wants it near 1 for the rows of other classes. At p = 784 it is at most 0.069. So it is no
    probability either, as which GIKM Lemma 2 (49) takes it: over C classes it sums to ``C exp(-2/sqrt(p))`` or more.

    >>> round(membership_gap(784).value, 3)
    0.069
    """
    value = -math.expm1(-2 / math.sqrt(check_count(width, "width")))
    return Bound(value, 1.0, ("query and image lie in [-1, 1]^p",), "proven", "the diameter of the box")


def _deviation(confidence: float) -> float:
    delta = 1 - check_confidence(confidence)
    return 4 + math.sqrt(math.log(1 / delta) / 2)
