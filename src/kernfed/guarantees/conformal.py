"""Sets of classes that contain the true one with a stated probability, whatever the classifier.

Scores are those of kernfed: smaller is nearer. From held-out rows take the score of each row's true class; a new row's
set has every class whose score is not above their quantile (split conformal prediction, Vovk, Gammerman and Shafer
2005). Sites may send their held-out scores of the true class and nothing else.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from kernfed.base.checks import check_count, check_number
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound

_EXCHANGEABLE = "the new row is drawn as the held-out rows were"
_FIXED = "the classifier was fixed before the held-out rows were looked at"


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
