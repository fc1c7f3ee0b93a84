"""FedNewton Theorem 1: by how much a round of FedNewton brings the common weights closer to the pooled solution.

The federated error after t rounds is at most ``Upsilon^t |(C + lambda I)^(1/2) (W^0 - W)|``. C and C_j are second
moments of features under the common and the sites' distributions, C_D and C_Dj those of the rows at hand::

    Upsilon = sum_j p_j P_j (R + R_j + d_j) (1 + d_j)
    P_j = |(C_Dj + lambda I)^-1 (C_j + lambda I)|     R_j = |(C_j + lambda I)^-1 (C_j - C_Dj)|
    d_j = |C - C_j| / lambda                          R   = |(C + lambda I)^-1 (C - C_D)|

The paper prints 2 R_j for R + R_j, because R <= R_j (in print reversed), which it does not prove.

Rates of FedNewton: how its error behaves for many rows. They lack constants, so a value is no bound by itself.

Compare values with each other (twice the rows, other shares), never with a measured error.
"""

import math
from dataclasses import dataclass, replace

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


_SOURCE = "the target has regularity r and the kernel capacity gamma, FedNewton Assumptions 1-2"


@dataclass(frozen=True)
class SiteShape:
    """What a rate needs to know of a site: its share p_j, rows |D_j|, and its distance from the common distribution.

    covariate_shift : Delta_D_j, of second moments. concept_shift : Delta_f_j, of targets.
    """

    share: float
    rows: float
    covariate_shift: float = 0.0
    concept_shift: float = 0.0

    def __post_init__(self) -> None:
        check_number(self.share, "share", at_least=0, at_most=1)
        check_number(self.rows, "rows", at_least=1)
        check_number(self.covariate_shift, "covariate_shift", at_least=0)
        check_number(self.concept_shift, "concept_shift", at_least=0)


def federated_error_rate(
    sites: list[SiteShape],
    regularization: float,
    effective_dimension: float,
    contraction: float,
    rounds: int,
    delta: float = 0.05,
) -> Bound:
    """FedNewton Theorem 2 with ``R_j = 1/(lambda n_j) + sqrt(1/(lambda n_j))``, its order in (10).

    contraction : Upsilon; rounds : t.
    """
    level = check_number(regularization, "regularization", above=0)
    dimension = check_number(effective_dimension, "effective_dimension", above=0)
    log = _log(delta)
    value = 0.0
    for site in _check_sites(sites):
        ratio = site.covariate_shift / level
        residual = 1 / (level * site.rows) + math.sqrt(1 / (level * site.rows))
        spread = 1 / (math.sqrt(level) * site.rows) + math.sqrt(dimension / site.rows)
        inner = spread * log + ratio + site.concept_shift
        value += site.share * math.sqrt(1 + ratio) * (2 * residual + (1 + residual) * ratio) * inner
    value *= _power(contraction, rounds)
    return Bound(value, 1 - delta, (_SOURCE,), "rate only", "FedNewton Theorem 2")


def excess_risk_rate(
    sites: list[SiteShape], regularity: float, capacity: float, contraction: float, rounds: int, delta: float = 0.05
) -> Bound:
    """FedNewton Theorem 4, which is Theorem 3 where no site shifts; lambda is ``|D|^(-1/(2r + gamma))``.

    regularity : r > 0; capacity : gamma in [0, 1]; ``2r + gamma >= 1``. The theorem prints Upsilon without the exponent
    t that its proof has.
    """
    r = check_number(regularity, "regularity", above=0)
    gamma = check_number(capacity, "capacity", at_least=0, at_most=1)
    if 2 * r + gamma < 1:
        raise InputError(f"2 regularity + capacity must be >= 1, got {2 * r + gamma}")
    total, log = sum(site.rows for site in _check_sites(sites)), _log(delta)
    level = total ** (-1 / (2 * r + gamma))
    federated = 0.0
    for site in sites:
        both = _distributed(site.rows, total, r, gamma) + _shift_error(site, level)
        federated += site.share * math.sqrt(1 + site.covariate_shift / level) * both
    value = _power(contraction, rounds) * federated * log**2 + total ** (-r / (2 * r + gamma)) * log
    shifted = any(site.covariate_shift or site.concept_shift for site in sites)
    confidence = max(1 - 3 * delta, 1e-12)
    return Bound(value, confidence, (_SOURCE,), "rate only", f"FedNewton Theorem {4 if shifted else 3}")


def _distributed(rows: float, total: float, r: float, gamma: float) -> float:
    """aleph_j of Theorem 3, by the size of the site."""
    order = 2 * r + gamma
    if rows <= total ** ((1 - gamma) / order):
        return float(rows**-2 * total ** (1.5 / order))
    if rows <= total ** (1 / order):
        return float(rows**-1.5 * total ** ((1 + 0.5 * gamma) / order))
    if rows <= total ** ((order + 1) / (2 * order)):
        return float(rows**-1 * total ** ((1 + gamma) / (2 * order)))
    return float(total ** (-r / order))


def _shift_error(site: SiteShape, level: float) -> float:
    """Pi_j of Theorem 4; for a small site as its proof derives it, ``(Delta_D / lambda + Delta_f) / (lambda n_j)``."""
    ratio = site.covariate_shift / level
    if site.rows <= 1 / level:
        return (ratio + site.concept_shift) / (level * site.rows)
    return (1 + ratio) * (site.concept_shift + ratio)


def _check_sites(sites: list[SiteShape]) -> list[SiteShape]:
    shares = sum(site.share for site in sites)
    if not sites or not math.isclose(shares, 1.0, rel_tol=1e-9):
        raise InputError(f"shares of the sites must add up to 1, got {shares}")
    return sites


def _power(contraction: float, rounds: int) -> float:
    base = check_number(contraction, "contraction", at_least=0)
    try:
        return float(base ** int(check_number(rounds, "rounds", at_least=0)))
    except OverflowError:
        return math.inf


def _log(delta: float) -> float:
    return math.log(2 / check_number(delta, "delta", above=0, at_most=1 / 3))
