"""Lower bounds on epsilon from what attacks achieved: statistics that can refute a guarantee, never confirm it.

If a mechanism is (epsilon, delta)-private, every test has ``TPR <= e^epsilon FPR + delta``, and the same with the two
kinds exchanged (Kairouz, Oh and Viswanath 2015). Errors counted over trials bound both rates, hence epsilon from below.

What an audit could have found: the smallest epsilon that so many trials would have shown to contradict a statement.

An audit that finds nothing says little without it: 2,000 trials that judge by errors alone let Gaussian noise of
epsilon 12 pass as 3. The errors of the best test are known for every law of noise, so the answer needs no trial.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtr, ndtri

from kernfed.base.checks import check_count, check_number
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.privacy.accounting import analytic_gaussian_mu, gaussian_delta
from kernfed.privacy.noise import Floats
from kernfed.privacy.roc import check_confidence, check_scores, upper_rates
from kernfed.promise import Guarantee, delta_words, round_up

#: Error probability of the best test, for either kind of error, where epsilon is the true one.
ErrorRate = Callable[[float], float]

# Thresholds tried on the half that chooses one.
_THRESHOLDS = 200
# Shares of canaries about which a one-run attack may speak; the error probability is divided among them.
_SHARES = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)
# Largest i of the maximum in the one-run bound that is computed; beyond, a probability over i is at most 1/i.
_LARGEST_I = 2000


@dataclass(frozen=True)
class EpsilonBound:
    """With ``confidence`` no epsilon below ``value`` makes the mechanism (epsilon, delta)-private for the ``unit``.

    ``ceiling`` is what a perfect attack would have shown with as many trials: a guarantee above it cannot be refuted.
    ``detects`` is the smallest true epsilon that so many trials would most likely have shown to contradict the stated
    one; None where no epsilon would, or where it is not known. ``mu`` is what the value was made of where the noise is
    taken to be Gaussian, as the mechanism says; where it is not, the value says that the mechanism is not what it says.
    """

    value: float
    ceiling: float
    delta: float
    unit: str
    confidence: float
    method: str
    trials: int
    detects: float | None = None
    mu: float | None = None

    def contradicts(self, guarantee: Guarantee) -> bool:
        """Whether the guarantee is refuted; nothing is said of the other unit nor of a larger delta."""
        return self.unit == guarantee.unit and guarantee.delta <= self.delta and self.value > guarantee.epsilon

    def __str__(self) -> str:
        estimate = "" if self.mu is None else f"mu >= {round_down(self.mu):g}, "
        power = "" if self.detects is None else f", {self.detects:.3g} or more would most likely have been refuted"
        return (
            f"{self.unit}: {estimate}epsilon >= {round_down(self.value):g} at delta {delta_words(self.delta)} with "
            f"{100 * self.confidence:.4g} % confidence ({self.method}, {self.trials} trials, at most "
            f"{self.ceiling:.3g} could show{power})"
        )


def round_down(value: float) -> float:
    """The value to three significant digits, never more than the truth."""
    return -round_up(-value, 3)


def epsilon_from_errors(
    false_positives: int, others: int, false_negatives: int, members: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from the errors of one fixed test on independent trials.

    Both rates get an upper Clopper-Pearson bound, each wrong with probability (1 - confidence)/2.

    >>> round(epsilon_from_errors(0, 1000, 0, 1000, delta=0.0), 3)
    5.601
    """
    others, members = check_count(others, "others"), check_count(members, "members")
    alarms = check_count(false_positives, "false_positives", at_least=0, at_most=others)
    misses = check_count(false_negatives, "false_negatives", at_least=0, at_most=members)
    _check(delta, confidence)
    return float(_bounds(np.array([alarms]), others, np.array([misses]), members, delta, confidence)[0])


def _bounds(
    alarms: npt.NDArray[np.intp],
    others: int,
    misses: npt.NDArray[np.intp],
    members: int,
    delta: float,
    confidence: float,
) -> Floats:
    fpr = upper_rates(alarms, others, (1.0 - confidence) / 2)
    fnr = upper_rates(misses, members, (1.0 - confidence) / 2)
    return _epsilon(fpr, fnr, delta)


def _epsilon(fpr: Floats, fnr: Floats, delta: float) -> Floats:
    """Epsilon below which no mechanism allows a test with these error rates."""
    ratio = np.maximum((1.0 - fnr - delta) / fpr, (1.0 - fpr - delta) / fnr)
    return np.log(np.maximum(ratio, 1.0))


def split_bound(
    members: npt.ArrayLike,
    others: npt.ArrayLike,
    guarantee: Guarantee,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    error: ErrorRate | None = None,
) -> EpsilonBound:
    """Lower bound from scores of independent trials with the record (``members``, (n,)) and without it (``others``).

    A threshold is chosen on a random half of each and judged on the other half. ``guarantee`` gives unit and delta.
    ``error`` tells the errors of the best test under the law of the noise, for ``detects``.
    """
    best = _best_threshold(
        members, others, guarantee, confidence, seed, lambda fpr, fnr: _epsilon(fpr, fnr, guarantee.delta)
    )
    (n, m), alpha, delta = best.trials, (1.0 - confidence) / 2, guarantee.delta

    def shown(fpr: float, fnr: float) -> float:
        return float(_epsilon(np.array([fpr]), np.array([fnr]), delta)[0])

    value = shown(*best.rates)
    none = (float(upper_rates(np.zeros(1), trials, alpha)[0]) for trials in (m, n))
    detects = None if error is None else smallest_refuted(guarantee.epsilon, n, m, shown, error, alpha)
    method = "errors of a test"
    return EpsilonBound(value, shown(*none), delta, guarantee.unit, confidence, method, n + m, detects)


def gaussian_bound(
    members: npt.ArrayLike, others: npt.ArrayLike, guarantee: Guarantee, *, confidence: float = 0.95, seed: int = 0
) -> EpsilonBound:
    """Lower bound from the same trials where the noise is Gaussian by its own statement (Nasr et al. 2023).

    Such noise keeps one number mu, and every test has ``Phi^-1(TPR) <= Phi^-1(FPR) + mu``: a test that errs in a tenth
    of all trials tells as much as one that hardly ever errs, so that far fewer trials are needed than for an epsilon
    whose noise may be any. Epsilon is then that of mu at the guarantee's delta.
    """
    best = _best_threshold(members, others, guarantee, confidence, seed, _mus)
    (n, m), alpha, delta = best.trials, (1.0 - confidence) / 2, guarantee.delta

    def shown(fpr: float, fnr: float) -> float:
        return epsilon_of_mu(mu_from_rates(fpr, fnr), delta)

    none = (float(upper_rates(np.zeros(1), trials, alpha)[0]) for trials in (m, n))
    detects = smallest_refuted(guarantee.epsilon, n, m, shown, gaussian_error(delta), alpha) if delta > 0 else None
    mu, method = mu_from_rates(*best.rates), "mu of Gaussian noise"
    return EpsilonBound(shown(*best.rates), shown(*none), delta, guarantee.unit, confidence, method, n + m, detects, mu)


def _mus(fpr: Floats, fnr: Floats) -> Floats:
    return np.array([mu_from_rates(float(one), float(other)) for one, other in zip(fpr, fnr, strict=True)])


@dataclass(frozen=True)
class _Tested:
    """Upper bounds on the false positive and false negative rate of a test, and trials with and without the record."""

    rates: tuple[float, float]
    trials: tuple[int, int]


def _best_threshold(
    members: npt.ArrayLike,
    others: npt.ArrayLike,
    guarantee: Guarantee,
    confidence: float,
    seed: int,
    worth: Callable[[Floats, Floats], Floats],
) -> _Tested:
    """The threshold of most ``worth(fpr, fnr)`` on a random half of the scores, judged on the other half."""
    inside, outside = check_scores(members, "members", at_least=2), check_scores(others, "others", at_least=2)
    _check_guarantee(guarantee)
    check_confidence(confidence)
    rng = generator(seed, "privacy", "audit", "halves")
    (train_in, test_in), (train_out, test_out) = (_halves(scores, rng) for scores in (inside, outside))
    levels = np.linspace(0.0, 1.0, _THRESHOLDS)
    thresholds = np.unique(np.quantile(np.concatenate([train_in, train_out]), levels, method="higher"))
    chosen = thresholds[[int(worth(*_upper_rates(train_out, train_in, thresholds, confidence)).argmax())]]
    fpr, fnr = _upper_rates(test_out, test_in, chosen, confidence)
    return _Tested((float(fpr[0]), float(fnr[0])), (len(test_in), len(test_out)))


def _upper_rates(others: Floats, members: Floats, thresholds: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Upper bounds on the rate of false alarms and of misses at every threshold."""
    alarms, outside, misses, inside = _errors(others, members, thresholds)
    alpha = (1.0 - confidence) / 2
    return upper_rates(alarms, outside, alpha), upper_rates(misses, inside, alpha)


def _halves(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    mixed = rng.permutation(scores)
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def _errors(
    others: Floats, members: Floats, thresholds: Floats
) -> tuple[npt.NDArray[np.intp], int, npt.NDArray[np.intp], int]:
    """False alarms and misses where a score of at least the threshold is called a member."""
    alarms = len(others) - np.searchsorted(np.sort(others), thresholds, side="left")
    misses = np.searchsorted(np.sort(members), thresholds, side="left")
    return alarms, len(others), misses, len(members)


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Bound on the probability of so many ``correct`` guesses under (epsilon, delta)-privacy.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: with B binomial of ``guesses`` and ``1/(1 + e^-epsilon)``,
    ``P(B >= v) + 2 delta canaries max_i P(v - i <= B < v) / i``.
    """
    if correct == 0:
        return 1.0
    q = 1.0 / (1.0 + math.exp(-epsilon))
    p = float(betainc(correct, guesses - correct + 1.0, q))  # P(B >= correct)
    if delta > 0:
        i = np.arange(1, min(correct, _LARGEST_I) + 1)
        # P(B >= correct - i); at correct - i = 0 it is 1, whatever the arguments given there.
        tails = np.where(i == correct, 1.0, betainc(np.maximum(correct - i, 1), guesses - correct + i + 1.0, q))
        excess = float(((tails - p) / i).max())
        p += 2.0 * delta * canaries * (excess if correct <= _LARGEST_I else max(excess, 1.0 / _LARGEST_I))
    return min(p, 1.0)


def one_run_epsilon(correct: int, guesses: int, canaries: int, *, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on epsilon from ``correct`` of ``guesses`` about ``canaries`` in one run; not above the truth.

    >>> round(one_run_epsilon(100, 100, 1000, delta=0.0), 3)
    3.493
    """
    canaries = check_count(canaries, "canaries")
    guesses = check_count(guesses, "guesses", at_most=canaries)
    correct = check_count(correct, "correct", at_least=0, at_most=guesses)
    _check(delta, confidence)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(correct, guesses, canaries, epsilon, delta) < 1.0 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def one_run_bound(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    guarantee: Guarantee,
    *,
    shares: Sequence[float] = _SHARES,
    confidence: float = 0.95,
    seed: int = 0,
) -> EpsilonBound:
    """Lower bound from one run of a mechanism with many canaries (Steinke, Nasr and Jagielski 2023).

    ``included`` (m,): for each canary an independent fair coin that decided whether it or its substitute was in the
    data. ``scores`` (m,): larger speaks for the canary. Half of the guesses go to the largest scores, half to the
    smallest, for a number of guesses that is a share of m; the best of ``shares`` counts. Nothing is assumed of how
    canaries influence each other.
    """
    values, bits = check_scores(scores, "scores", at_least=2), np.asarray(included)
    if bits.dtype != np.bool_ or bits.shape != values.shape:
        raise InputError(f"included must be {len(values)} booleans, got shape {bits.shape} of dtype {bits.dtype}")
    if len(shares) == 0:
        raise InputError("shares must name at least one share of the canaries, got none")
    _check_guarantee(guarantee)
    check_confidence(confidence)
    m = len(values)
    counts = {max(2, 2 * round(check_number(s, "shares", above=0, at_most=1) * m / 2)) for s in shares}
    counts = {min(count, m - m % 2) for count in counts}
    each = 1.0 - (1.0 - confidence) / len(counts)
    # Equal scores in random order: the order of the canaries may tell which were included.
    mixed = generator(seed, "privacy", "audit", "ties").permutation(m)
    ordered = bits[mixed[np.argsort(values[mixed], kind="stable")]]
    value = ceiling = 0.0
    for count in sorted(counts):
        half = count // 2
        correct = int(ordered[m - half :].sum() + (~ordered[:half]).sum())
        value = max(value, one_run_epsilon(correct, count, m, delta=guarantee.delta, confidence=each))
        ceiling = max(ceiling, one_run_epsilon(count, count, m, delta=guarantee.delta, confidence=each))
    return EpsilonBound(value, ceiling, guarantee.delta, guarantee.unit, confidence, "guesses in one run", m)


def _check_guarantee(guarantee: Guarantee) -> None:
    if not isinstance(guarantee, Guarantee):
        raise InputError(f"guarantee must be a Guarantee, got {type(guarantee).__name__}")


def _check(delta: float, confidence: float) -> None:
    check_number(delta, "delta", at_least=0, at_most=1)
    check_confidence(confidence)


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
