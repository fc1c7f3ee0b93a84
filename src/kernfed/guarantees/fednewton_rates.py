"""Rates of FedNewton: how its error behaves for many rows. They lack constants, so a value is no bound by itself.

Compare values with each other (twice the rows, other shares), never with a measured error.
"""

import math
from dataclasses import dataclass

from kernfed.base.checks import check_number
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound

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
        both = _distributed(site.rows, total, r, gamma) + _shifted(site, level)
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


def _shifted(site: SiteShape, level: float) -> float:
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
