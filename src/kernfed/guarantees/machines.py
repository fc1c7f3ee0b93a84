"""Bounds on kernel affine hull machines: DP-KAHM, GIKM and SFM.

The image of a query is ``X' h / sum(h)`` with ``h = R k`` and ``R = (K + lambda I)^-1``. The papers bound the norm of
the weights ``h / sum(h)`` by ``(lambda + mu_max) / (lambda + mu_min)``, mu the eigenvalues of K. The proof (DP-KAHM
(140)) takes a product of two positive matrices for a positive one; ``sum(h)`` can vanish, and then no bound exists.
With ``u = R 1`` the sum is ``u'k``. Where u is positive, ``|h| <= |k| / (lambda + mu_min)`` and
``sum(h) >= min(u) |k|``, so ``1 / ((lambda + mu_min) min(u))`` bounds the norm for every query; that can be checked on
the machine. Where it is not, our machines answer doubtful queries by ``k / sum(k)`` and nothing exceeds 1e6.

**GIKM**. Bounds printed in GIKM for the hypothesis space spanned by the kernel of the rows themselves.

For given rows the complexity bound is right. To bound errors on new rows the paper uses it as if the space had been
there before the rows; the kernel is built from them. No counterexample is known, and no proof.

**SFM**. Bounds printed in SFM for the kernel ``Phi_c(x) Phi_c(x')``. Only the first is a theorem; see each remark.

The kernel has rank one, so the map called the inverse of J* undoes J* on multiples of Phi_c alone: Theorems 2-4 bound
a distance to a projection and call it a distance to the target. The hypothesis space of Theorem 5 contains, for every
choice of signs, a function that follows them, so its complexity does not vanish; Theorems 6-7 and Proposition 2 use it.
"""

import math

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from kernfed.base.checks import (
    FloatArray,
    check_choice,
    check_confidence,
    check_count,
    check_number,
    check_rows,
    check_vector,
)
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.machine import FALLBACK_RATIO, Machine, layer_kernel, recover_rows

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


_FORMS = ("sound", "printed", "printed-loose")
_PAPER_STATUS = "holds where sum(h) > 0"
_POSITIVE_SUM = "the memberships of the query have a positive sum"


def fixed_point_error(mean_square: float, rows: int, iterations: int) -> Bound:
    """Error of the regulariser's fixed point after ``iterations`` of DP-KAHM (25): ``q^t s``, q = N / (N + 2 s).

    mean_square : ``s = |X|_F^2 / (p N)``; rows : N. Theorem 1 gives a derivative below ``2 s / (e + tau) <= 1``, which
    is no contraction near e = 0. An eigenvalue of K is at most N, and every term of the derivative has a factor
    ``mu / (mu + lambda) <= N / (N + 2 s)`` besides: with it the iteration contracts everywhere.
    """
    scale = check_number(mean_square, "mean_square", at_least=0)
    count = check_count(rows, "rows")
    factor = count / (count + 2 * scale)
    value = scale * factor ** check_count(iterations, "iterations", at_least=0)
    return Bound(value, 1.0, ("the iteration starts in [0, s]",), "proven", "DP-KAHM Theorem 1, with a uniform factor")


def image_norm(machine: KAHM, *, form: str = "sound") -> Bound:
    """Largest norm of an image ``A(y)`` over all queries, DP-KAHM Theorem 2 (SFM Theorem 8, GIKM Theorem 1).

    form : "sound" holds for every query; "printed" is the middle of (46), "printed-loose" its right-hand side.
    """
    single = _only_machine(machine)
    rows = recover_rows(single)
    largest = float(np.linalg.norm(rows, 2))
    return _scaled(_weight_norm(single, form), largest, "DP-KAHM Theorem 2, SFM Theorem 8, GIKM Theorem 1")


def distance_ratio(machine: KAHM | DeepKAHM | WideKAHM, *, form: str = "sound") -> Bound:
    """Largest ``|y - A(y)| / |[y - x_1 ... y - x_N]|``, DP-KAHM Theorems 3-5 (SFM Theorem 9, GIKM Theorem 2).

    The norm below is the spectral one for one machine, deep or not, and Frobenius' for a wide one, whose bound is the
    smallest over its branches because every branch may answer. A deep machine is never farther than its first layer.
    """
    bounds = [_weight_norm(branch, form) for branch in _machines(machine)]
    smallest = min(bounds, key=lambda bound: bound.value)
    return _scaled(smallest, 1.0, "DP-KAHM Theorems 3-5, SFM Theorem 9, GIKM Theorem 2")


def membership_loss(machine: KAHM, query: npt.ArrayLike, *, form: str = "sound") -> Bound:
    """How far ``exp(-distance / p)`` of a query (p,) can be below 1, from its distances to the rows: GIKM Theorem 8."""
    single = _only_machine(machine)
    y = check_rows(np.asarray(query)[None], "query", width=single.width)[0]
    differences = y.astype(np.float64) - recover_rows(single)
    ratio = _weight_norm(single, form)
    length = ratio.value * float(np.linalg.norm(differences, 2))
    value = -math.expm1(-length / single.width)
    return Bound(value, 1.0, ratio.assumptions, ratio.status, "GIKM Theorem 8")


def smoothing_factor(machine: KAHM) -> Bound:
    """``|S(X)|_2 / |X|_2`` of one smoothing step, ``mu_max / (mu_max + lambda)`` below 1: SFM Proposition 3."""
    single = _only_machine(machine)
    largest = float(np.linalg.eigvalsh(_kernel_matrix(single))[-1])
    value = largest / (largest + single.layers[0].regularization)
    return Bound(value, 1.0, (), "proven", "SFM Proposition 3")


def smoothing_error(mean_square: float, rows: int, width: int, steps: int) -> Bound:
    """Sum of distances between N rows and their images after ``steps`` of smoothing: DP-KAHM Theorem 6 (86).

    mean_square : ``s = |Y|_F^2 / (p N)`` before smoothing. A step multiplies the rows by a matrix of norm at most
    ``N / (N + lambda)`` with ``lambda >= 2 s``, so ``1 / s`` grows by ``4 / N`` at least and vanishes like 1 / steps:
    ``s_m <= s / (1 + 4 m s / N)``. An image is at most 1e6 times as long as all rows together, by the rule for doubtful
    sums, so errors vanish too. The printed proof takes the largest of ``steps`` factors for one that does not depend
    on ``steps``.
    """
    scale = check_number(mean_square, "mean_square", at_least=0)
    count, columns = check_count(rows, "rows"), check_count(width, "width")
    left = scale / (1 + 4 * check_count(steps, "steps", at_least=0) * scale / count)
    value = math.sqrt(columns * count * left) * (math.sqrt(count) + count / FALLBACK_RATIO)
    remark = "proven: the rows themselves shrink to the origin"
    return Bound(value, 1.0, (), remark, "DP-KAHM Theorem 6, with a factor for each step")


def _machines(machine: KAHM | DeepKAHM | WideKAHM) -> list[Machine]:
    if not isinstance(machine, (KAHM, DeepKAHM, WideKAHM)):
        raise InputError(f"machine must be a fitted KAHM, DeepKAHM or WideKAHM, got {type(machine).__name__}")
    check_is_fitted(machine, "bank_")
    return list(machine.bank_.machines)


def _only_machine(machine: KAHM) -> Machine:
    machines = _machines(machine)
    if len(machines) != 1:
        raise InputError(f"expected a machine of one branch, got {len(machines)}; look at its branches one by one")
    return machines[0]


def _kernel_matrix(machine: Machine) -> FloatArray:
    return layer_kernel(machine.layers[0].exponent.astype(np.float64), machine.scores.astype(np.float64))


def _weight_norm(machine: Machine, form: str) -> Bound:
    """Bound on ``|h / sum(h)|`` over all queries."""
    check_choice(form, "form", _FORMS)
    if machine.subspace_dim == 0:  # the image is the row mean whatever the query: weights 1 / N
        return Bound(1 / math.sqrt(machine.n_rows), 1.0, (), "proven", "the row mean")
    level = machine.layers[0].regularization
    spectrum, basis = np.linalg.eigh(_kernel_matrix(machine))
    spectrum = np.maximum(spectrum, 0.0)
    if form == "printed":
        value = float((level + spectrum[-1]) / (level + spectrum[0]))
        return Bound(value, 1.0, (_POSITIVE_SUM,), _PAPER_STATUS, "DP-KAHM (46)")
    if form == "printed-loose":
        energy = float(np.square(recover_rows(machine)).sum())
        value = 1 + machine.width * machine.n_rows**2 / (2 * energy) if energy else math.inf
        return Bound(value, 1.0, (_POSITIVE_SUM,), _PAPER_STATUS, "DP-KAHM (46)")
    u = basis @ (basis.sum(axis=0) / (spectrum + level))
    if u.min() > 0:
        value = float(1 / ((level + spectrum[0]) * u.min()))
        return Bound(value, 1.0, (), "proven: (K + lambda I)^-1 1 is positive, as checked", "DP-KAHM (46), repaired")
    remark = "proven: memberships of some query may sum to nothing, and the rule k / sum(k) takes over"
    return Bound(1 / FALLBACK_RATIO, 1.0, (), remark, "the rule for doubtful sums")


def _scaled(bound: Bound, factor: float, source: str) -> Bound:
    return Bound(bound.value * factor, bound.confidence, bound.assumptions, bound.status, source)
