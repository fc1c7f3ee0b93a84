"""Bounds on the error of a classifier from rows it has never seen: what a user can rely on.

Two things are assumed, and nobody can check them from the numbers: that the classifier was fixed before the rows were
looked at, and that the rows are drawn independently, at each site from what the site will meet later. Nothing is
assumed of the classifier, of the distribution or of the dimension.

Sets of classes that contain the true one with a stated probability, whatever the classifier.

Scores are those of kernfed: smaller is nearer. From held-out rows take the score of each row's true class; a new row's
set has every class whose score is not above their quantile (split conformal prediction, Vovk, Gammerman and Shafer
2005). Sites may send their held-out scores of the true class and nothing else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from kernfed.base.checks import check_choice, check_confidence, check_count, check_number
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound

_FIXED = "the classifier was fixed before the held-out rows were looked at"
_DRAWN = "the held-out rows are independent draws of what is met later"
_DRAWN_BY_SITE = (
    "the held-out rows are independent draws of what each site meets later, sites weighing as their held-out rows"
)
#: Below this confidence the binomial bound is not known to hold for rows of several sites.
_LOWEST_POOLED = 0.75


class SiteCounts(Protocol):
    """What was counted at a site."""

    @property
    def errors(self) -> int:
        """Rows predicted wrongly."""

    @property
    def rows(self) -> int:
        """Rows that were tested."""


class CountedSites(Protocol):
    """Counts by site, such as ``kernfed.evaluate`` returns for a classifier."""

    @property
    def sites(self) -> Mapping[str, SiteCounts]:
        """Counts of every site."""


@dataclass(frozen=True)
class HeldOutBounds:
    """Bounds on the error at every site, and on the error over all sites by their rows."""

    sites: Mapping[str, Bound]
    pooled: Bound

    def __str__(self) -> str:
        lines = [f"error at {site!r} is {bound}" for site, bound in self.sites.items()]
        return "\n".join([*lines, f"error over all sites is {self.pooled}"])


def hoeffding(errors: int, rows: int, confidence: float = 0.95) -> Bound:
    """``errors / rows + sqrt(log(1 / delta) / (2 rows))`` with delta = 1 - confidence, Hoeffding (1963) Theorem 1.

    >>> round(hoeffding(10, 1000).value, 4)
    0.0487
    """
    return _bound(hoeffding_value, "Hoeffding (1963) Theorem 1", errors, rows, confidence)


def clopper_pearson(errors: int, rows: int, confidence: float = 0.95) -> Bound:
    """Largest error p under which so few errors still have probability 1 - confidence, Clopper and Pearson (1934).

    It is never above Hoeffding's bound, and far below where errors are rare.

    >>> round(clopper_pearson(10, 1000).value, 4), round(clopper_pearson(0, 1000).value, 4)
    (0.0169, 0.003)
    """
    return _bound(clopper_pearson_value, "Clopper and Pearson (1934)", errors, rows, confidence)


def heldout_bounds(
    counts: Mapping[str, tuple[int, int]] | CountedSites,
    confidence: float = 0.95,
    *,
    method: str = "clopper-pearson",
    simultaneous: bool = False,
) -> HeldOutBounds:
    """Bounds per site and pooled; sites without held-out rows are left out.

    ``counts`` is ``{site: (errors, rows)}``, or the evaluation of a classifier as ``kernfed.evaluate`` returns it.
    ``method`` is "clopper-pearson" or "hoeffding". Each bound holds with the confidence on its own; with
    ``simultaneous`` all bounds (those of the sites and the pooled one) hold together with that confidence, as needed
    to speak of the worst site.

    The pooled rows come from different distributions, so errors are a sum of Bernoulli draws that are not alike.
    Hoeffding's bound covers that. The binomial bound does as well: of all such sums with the same mean the binomial
    one has the heaviest lower tail up to one below the mean (Hoeffding 1956), and for a confidence of at least 3/4 no
    more of the tail is used, because a binomial variable is at most its mean with probability above 1/4 (Greenberg
    and Mohri 2014) unless the mean is within one of all rows; there the bound is 1.
    """
    check_choice(method, "method", ("clopper-pearson", "hoeffding"))
    confidence = check_confidence(confidence)
    if method == "clopper-pearson" and confidence < _LOWEST_POOLED:
        raise InputError(f"confidence must be >= {_LOWEST_POOLED} for pooled rows, got {confidence}; use 'hoeffding'")
    pairs = counts if isinstance(counts, Mapping) else _counted(counts)
    checked = {site: _check_counts(*_pair(site, pairs[site]), at_least=0) for site in sorted(pairs)}
    checked = {site: pair for site, pair in checked.items() if pair[1]}
    if not checked:
        raise InputError("at least one site must have held-out rows, got none")
    share = 1 - (1 - confidence) / (len(checked) + 1) if simultaneous else confidence
    alone = hoeffding if method == "hoeffding" else clopper_pearson
    sites = {site: alone(*pair, share) for site, pair in checked.items()}
    errors, rows = (sum(pair[place] for pair in checked.values()) for place in (0, 1))
    return HeldOutBounds(sites, _pooled(method, errors, rows, share))


def _pooled(method: str, errors: int, rows: int, confidence: float) -> Bound:
    assumptions = (_FIXED, _DRAWN_BY_SITE)
    if method == "hoeffding":
        value = hoeffding_value(errors, rows, confidence)
        return Bound(value, confidence, assumptions, "proven", "Hoeffding (1963) Theorem 1")
    value = 1.0 if errors >= rows - 1 else clopper_pearson_value(errors, rows, confidence)
    return Bound(value, confidence, assumptions, "proven", "Clopper and Pearson (1934) with Hoeffding (1956)")


def hoeffding_value(errors: int, rows: int, confidence: float) -> float:
    """Hoeffding's bound as a number, at most 1."""
    return min(1.0, errors / rows + float(np.sqrt(-np.log1p(-confidence) / (2 * rows))))


def clopper_pearson_value(errors: int, rows: int, confidence: float) -> float:
    """The binomial bound as a number: the confidence quantile of Beta(errors + 1, rows - errors)."""
    return 1.0 if errors == rows else float(beta.ppf(confidence, errors + 1, rows - errors))


def _bound(value: Callable[[int, int, float], float], source: str, errors: int, rows: int, confidence: float) -> Bound:
    errors, rows = _check_counts(errors, rows, at_least=1)
    confidence = check_confidence(confidence)
    return Bound(value(errors, rows, confidence), confidence, (_FIXED, _DRAWN), "proven", source)


def _counted(evaluation: Any) -> dict[str, tuple[int, int]]:
    sites = getattr(evaluation, "sites", None)
    try:
        return {site: (heldout.errors, heldout.rows) for site, heldout in sites.items()}  # type: ignore[union-attr]
    except AttributeError:
        raise InputError(
            "counts must map sites to (errors, rows) or be the evaluation of a classifier, got "
            f"{type(evaluation).__name__}"
        ) from None


def _pair(site: str, counts: Any) -> tuple[Any, Any]:
    if not isinstance(counts, (tuple, list)) or len(counts) != 2:
        raise InputError(f"counts of site {site!r} must be (errors, rows), got {counts!r}")
    return counts[0], counts[1]


def _check_counts(errors: Any, rows: Any, *, at_least: int) -> tuple[int, int]:
    rows = check_count(rows, "rows", at_least=at_least)
    return check_count(errors, "errors", at_least=0, at_most=rows), rows


_EXCHANGEABLE = "the new row is drawn as the held-out rows were"


def conformal_threshold(scores: npt.ArrayLike, coverage: float = 0.9) -> float:
    """Quantile of held-out ``scores`` (n,) of true classes: the ceil((n + 1) coverage)-th smallest.

    It is infinite, and every set full, where there are too few rows for the coverage. Absent classes may score
    infinity; NaN is refused.

    >>> conformal_threshold([0.1, 0.2, 0.3, 0.4], coverage=0.6)
    0.3
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise InputError(f"scores must be one number per held-out row and no NaN, got shape {values.shape}")
    rank = _rank(len(values), _check_share(coverage, "coverage"))
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else math.inf


def conformal_sets(scores: npt.ArrayLike, threshold: float) -> npt.NDArray[np.bool_]:
    """Which classes (n, C) are in the set of each query: those with ``scores`` (n, C) at most ``threshold``."""
    if math.isnan(threshold):
        raise InputError("threshold must be a number, got nan")
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or np.isnan(values).any():
        raise InputError(f"scores must be a matrix (queries, classes) without NaN, got shape {values.shape}")
    return np.asarray(values <= threshold)


def conformal_miscoverage(rows: int, coverage: float = 0.9, confidence: float | None = None) -> Bound:
    """Probability that a new row's set misses its class, with ``rows`` held-out rows.

    Without ``confidence`` over the draw of held-out rows and query together. With it for the threshold at hand, which
    then holds with that probability over the held-out rows: the Beta quantile of Vovk (2012).

    >>> round(conformal_miscoverage(1000, 0.9, confidence=0.95).value, 3)
    0.116
    """
    count, share = check_count(rows, "rows", at_least=0), _check_share(coverage, "coverage")
    rank = _rank(count, share)
    if rank > count:
        return Bound(0.0, 1.0, (), "proven", "every class is in every set")
    if confidence is None:
        return Bound(1 - rank / (count + 1), 1.0, (_FIXED, _EXCHANGEABLE), "proven", "split conformal prediction")
    sure = _check_share(confidence, "confidence")
    value = float(beta.ppf(sure, count + 1 - rank, rank))
    assumptions = (_FIXED, "the held-out rows are independent draws of what is met later")
    return Bound(value, sure, assumptions, "proven", "Vovk (2012), Proposition 2b")


def _rank(rows: int, coverage: float) -> int:
    return math.ceil((rows + 1) * coverage - 1e-12)


def _check_share(value: float, name: str) -> float:
    return check_number(value, name, above=0, below=1)
