"""FedNewton Theorem 1: by how much a round of FedNewton brings the common weights closer to the pooled solution.

The federated error after t rounds is at most ``Upsilon^t |(C + lambda I)^(1/2) (W^0 - W)|``. C and C_j are second
moments of features under the common and the sites' distributions, C_D and C_Dj those of the rows at hand::

    Upsilon = sum_j p_j P_j (R + R_j + d_j) (1 + d_j)
    P_j = |(C_Dj + lambda I)^-1 (C_j + lambda I)|     R_j = |(C_j + lambda I)^-1 (C_j - C_Dj)|
    d_j = |C - C_j| / lambda                          R   = |(C + lambda I)^-1 (C - C_D)|

The paper prints 2 R_j for R + R_j, because R <= R_j (in print reversed), which it does not prove.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound

_FORMS = ("sum", "printed")
_METHOD = "the loss is squared and every round uses the global gradient"


def newton_contraction(shares: npt.ArrayLike, moments: npt.ArrayLike, regularization: float) -> Bound:
    """Upsilon for the rows at hand: ``sum p_j d_j (1 + d_j)`` with ``d_j = |C_D - C_Dj| / lambda``.

    Theorem 1 with the rows themselves as distributions, where P_j = 1 and R_j = R = 0. It bounds the contraction in
    the norm of ``H = C_D + lambda I`` whatever the rows are. Below 1 FedNewton converges; above 1 nothing follows.

    shares : p_j (m,); moments : C_Dj (m, M, M).
    """
    p, C = _check_moments(shares, moments, "moments")
    scale = check_number(regularization, "regularization", above=0)
    pooled = np.tensordot(p, C, axes=1)
    value = sum(share * _heterogeneity(pooled, part, scale) for share, part in zip(p, C, strict=True))
    return Bound(float(value), 1.0, (_METHOD,), "proven", "FedNewton Theorem 1, with C = C_D and C_j = C_Dj")


def _heterogeneity(pooled: FloatArray, part: FloatArray, scale: float) -> float:
    ratio = _norm(pooled - part) / scale
    return ratio * (1 + ratio)


def newton_contraction_expected(
    shares: npt.ArrayLike, moments: npt.ArrayLike, expected: npt.ArrayLike, regularization: float, *, form: str = "sum"
) -> Bound:
    """Upsilon as in Theorem 1, between the distributions the rows come from and the rows.

    shares : p_j (m,); moments : C_Dj (m, M, M) of the rows; expected : C_j (m, M, M) of the distributions, whose
    mixture with weights p_j is the common one. form : "sum" has R + R_j, as the proof gives; "printed" has 2 R_j.
    """
    p, rows = _check_moments(shares, moments, "moments")
    _, C = _check_moments(shares, expected, "expected")
    if C.shape != rows.shape:
        raise InputError(f"expected must have the shape of moments, {rows.shape}, got {C.shape}")
    scale = check_number(regularization, "regularization", above=0)
    check_choice(form, "form", _FORMS)
    common, pooled = np.tensordot(p, C, axes=1), np.tensordot(p, rows, axes=1)
    R = _residual(common, pooled, scale)
    value = 0.0
    for share, C_j, rows_j in zip(p, C, rows, strict=True):
        R_j = _residual(C_j, rows_j, scale)
        P_j = _norm(np.linalg.solve(_shifted(rows_j, scale), _shifted(C_j, scale)))
        d_j = _norm(common - C_j) / scale
        value += share * P_j * ((R if form == "sum" else R_j) + R_j + d_j) * (1 + d_j)
    assumptions = (_METHOD, "the common distribution is the mixture of the sites' with weights p_j")
    if form == "sum":
        return Bound(float(value), 1.0, assumptions, "proven", "FedNewton Theorem 1, (16) with R + R_j")
    return Bound(float(value), 1.0, (*assumptions, "R <= R_j at every site"), "proof gap", "FedNewton Theorem 1")


def federated_error(contraction: Bound, initial: float, rounds: int) -> Bound:
    """Bound of the federated error after ``rounds``: ``Upsilon^t`` times the ``initial`` error in the same norm."""
    first = check_number(initial, "initial", at_least=0)
    with np.errstate(over="ignore"):  # an infinite bound says nothing, and that is so
        value = float(np.float64(contraction.value) ** check_count(rounds, "rounds", at_least=0))
    return replace(contraction, value=value * first if first else 0.0)


def _check_moments(shares: npt.ArrayLike, moments: npt.ArrayLike, name: str) -> tuple[FloatArray, FloatArray]:
    p, C = np.asarray(shares, dtype=np.float64), np.asarray(moments, dtype=np.float64)
    if p.ndim != 1 or not p.size or not (p >= 0).all() or not np.isclose(p.sum(), 1.0):
        raise InputError(f"shares must be at least 0 and add up to 1, got {p}")
    if C.ndim != 3 or C.shape[0] != len(p) or C.shape[1] != C.shape[2] or not np.isfinite(C).all():
        raise InputError(f"{name} must be {len(p)} finite square matrices, got shape {C.shape}")
    if not np.allclose(C, C.transpose(0, 2, 1)):
        raise InputError(f"{name} must be symmetric matrices")
    return p, C


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2))


def _shifted(matrix: FloatArray, scale: float) -> FloatArray:
    return np.asarray(matrix + scale * np.eye(len(matrix)))


def _residual(expected: FloatArray, actual: FloatArray, scale: float) -> float:
    """``|(C + lambda I)^-1 (C - C_D)|``."""
    return _norm(np.linalg.solve(_shifted(expected, scale), expected - actual))
