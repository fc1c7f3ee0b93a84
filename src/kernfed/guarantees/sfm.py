"""Bounds printed in SFM for the kernel ``Phi_c(x) Phi_c(x')``. Only the first is a theorem; see each remark.

The kernel has rank one, so the map called the inverse of J* undoes J* on multiples of Phi_c alone: Theorems 2-4 bound
a distance to a projection and call it a distance to the target. The hypothesis space of Theorem 5 contains, for every
choice of signs, a function that follows them, so its complexity does not vanish; Theorems 6-7 and Proposition 2 use it.
"""

import math

import numpy.typing as npt

from kernfed.base.checks import check_confidence, check_count, check_number, check_vector
from kernfed.guarantees.bound import Bound

_INDEPENDENT = "the rows are independent draws"
_FIXED_MAP = "the feature map was fixed before the rows were looked at"
_ENERGY = "the mean square of the feature map is the share of the class, SFM Assumption 3"
_PROJECTION = "counterexample: a feature map that does not vary cannot learn a target that does"
_MEMORISER = "counterexample: a map that memorises the labels of coin tosses satisfies every assumption"


def sample_risk(rows: int, confidence: float = 0.95) -> Bound:
    """Mean squared error of the sample solution within the kernel's space, ``3/sqrt(N) + sqrt(8 log(1/delta)/N)``.

    SFM Theorem 1 (64).

    >>> round(sample_risk(10_000).value, 3)
    0.079
    """
    count, delta = check_count(rows, "rows"), 1 - check_confidence(confidence)
    value = 3 / math.sqrt(count) + math.sqrt(8 * math.log(1 / delta) / count)
    return Bound(value, confidence, (_INDEPENDENT, _FIXED_MAP), "proven", "SFM Theorem 1")


def generalized_risk(rows: int, energy: float, confidence: float = 0.95, *, disturbance: float = 0.0) -> Bound:
    """Printed risk of the generalized solution: ``disturbance + sample_risk / energy^2``; false as stated.

    energy : ``|Phi_c|^2`` in L2. SFM Theorems 2 (70) and 4 (77) with ``disturbance = 0``; Theorem 3 (73) adds the mean
    squared disturbance.
    """
    square = check_number(energy, "energy", above=0, at_most=1) ** 2
    noise = check_number(disturbance, "disturbance", at_least=0)
    value = noise + sample_risk(rows, confidence).value / square
    return Bound(value, confidence, (_INDEPENDENT,), _PROJECTION, "SFM Theorem 3" if noise else "SFM Theorems 2, 4")


def rademacher_printed(rows: int) -> Bound:
    """Printed complexity of the hypothesis space, ``1 / sqrt(N)``: SFM Theorem 5 (93); false as stated."""
    remark = "counterexample: the space has a function for every choice of signs"
    return Bound(1 / math.sqrt(check_count(rows, "rows")), 1.0, (), remark, "SFM Theorem 5")


def hypothesis_gap(features: npt.ArrayLike) -> Bound:
    """How far the feature map (106) is from a member of the hypothesis space (87) at any query: SFM Proposition 1.

    features (N_c,) : the map at the rows of the class, 1 where the class is the nearest one. The member (111) is the
    map times their mean; under Assumption 2 the mean is 1 and the two are the same.

    >>> hypothesis_gap([1, 1, 1, 0]).value
    0.25
    """
    own = check_vector(features, "features", at_most=1)
    return Bound(1 - float(own.mean()), 1.0, (_ENERGY,), "proven", "SFM Proposition 1")


def hypothesis_error(
    rows: int, class_share: float, training_error: float = 0.0, confidence: float = 0.95, *, disturbance: float = 0.0
) -> Bound:
    """Printed error of a hypothesis: the smaller of a complexity bound and ``generalized_risk``; false as stated.

    class_share : ``N_c / N``. SFM Theorem 7 (96); Theorem 6 (95) with the mean squared ``disturbance``; Proposition 2
    (114) with no training error.
    """
    count, delta = check_count(rows, "rows"), 1 - check_confidence(confidence)
    start = check_number(training_error, "training_error", at_least=0, at_most=1)
    complexity = start + 4 / math.sqrt(count) + math.sqrt(math.log(1 / delta) / (2 * count))
    value = min(complexity, generalized_risk(rows, class_share, confidence, disturbance=disturbance).value)
    return Bound(value, confidence, (_INDEPENDENT,), _MEMORISER, "SFM Theorems 6-7, Proposition 2")
