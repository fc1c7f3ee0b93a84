"""What an audit could have found: the smallest epsilon that so many trials would have shown to contradict a statement.

An audit that finds nothing says little without it: 2,000 trials that judge by errors alone let Gaussian noise of
epsilon 12 pass as 3. The errors of the best test are known for every law of noise, so the answer needs no trial.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri

from kernfed.privacy.accounting import analytic_gaussian_mu, gaussian_delta
from kernfed.privacy.roc import upper_rates

#: Error probability of the best test, for either kind of error, where epsilon is the true one.
ErrorRate = Callable[[float], float]
# Standard deviations above its mean that a number of errors stays below, in 97.7 % of audits for each kind.
_DEVIATIONS = 2.0
# No epsilon above is looked for.
_LARGEST = 200.0


def gaussian_error(delta: float) -> ErrorRate:
    """Errors where noise is Gaussian and (epsilon, delta) is exactly what it keeps."""
    return lambda epsilon: float(ndtr(-analytic_gaussian_mu(epsilon, delta) / 2))


def laplace_error(epsilon: float) -> float:
    """Errors where noise is Laplace: half of what lies beyond the middle."""
    return 0.5 * math.exp(-epsilon / 2)


def two_answers_error(epsilon: float) -> float:
    """Errors of randomised response, the easiest to refute of all that keep epsilon."""
    return 1.0 / (1.0 + math.exp(epsilon))


def smallest_refuted(
    stated: float, members: int, others: int, shown: Callable[[float, float], float], error: ErrorRate, alpha: float
) -> float | None:
    """The smallest true epsilon that would most likely contradict ``stated``; None where no epsilon would.

    ``members`` and ``others`` are trials of either kind; ``shown(fpr, fnr)`` is the epsilon that upper bounds on both
    rates show, each wrong with probability ``alpha``.
    """

    def refuted(epsilon: float) -> bool:
        rate = error(epsilon)
        fpr, fnr = (
            float(upper_rates(np.array([_likely_errors(rate, trials)]), trials, alpha)[0])
            for trials in (others, members)
        )
        return shown(fpr, fnr) > stated

    if not math.isfinite(stated) or not refuted(_LARGEST):
        return None
    low, high = stated, _LARGEST
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _likely_errors(rate: float, trials: int) -> int:
    mean = rate * trials
    return min(trials, math.ceil(mean + _DEVIATIONS * math.sqrt(mean * (1.0 - rate)) - 1e-9))


def mu_from_rates(fpr: float, fnr: float) -> float:
    """Mu of Gaussian noise for which no test has smaller error rates than these, and 0 where guessing has."""
    if fpr >= 1.0 or fnr >= 1.0:
        return 0.0
    return max(0.0, float(ndtri(1.0 - fnr) - ndtri(fpr)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon that Gaussian noise of ``mu`` keeps at ``delta``, not above the truth."""
    if mu <= 0.0 or float(gaussian_delta(mu, 0.0)) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while float(gaussian_delta(mu, high)) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if float(gaussian_delta(mu, middle)) > delta else (low, middle)
    return low
