"""What is known of kernel affine hull machines themselves: the regulariser, the size of images, the distance measure.

The image of a query is ``X' h / sum(h)`` with ``h = R k`` and ``R = (K + lambda I)^-1``. The papers bound the norm of
the weights ``h / sum(h)`` by ``(lambda + mu_max) / (lambda + mu_min)``, mu the eigenvalues of K. The proof (DP-KAHM
(140)) takes a product of two positive matrices for a positive one; ``sum(h)`` can vanish, and then no bound exists.
With ``u = R 1`` the sum is ``u'k``. Where u is positive, ``|h| <= |k| / (lambda + mu_min)`` and
``sum(h) >= min(u) |k|``, so ``1 / ((lambda + mu_min) min(u))`` bounds the norm for every query; that can be checked on
the machine. Where it is not, our machines answer doubtful queries by ``k / sum(k)`` and nothing exceeds 1e6.
"""

import math

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number, check_rows
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.machine import FALLBACK_RATIO, Machine, layer_kernel, recover_rows

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
