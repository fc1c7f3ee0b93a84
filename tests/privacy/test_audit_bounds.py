"""Curves, intervals and lower bounds on epsilon against naive transcriptions and known mechanisms."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from kernfed.base.random import generator
from kernfed.privacy import Guarantee, lower_bound
from kernfed.privacy.lower_bound import (
    epsilon_from_errors,
    one_run_bound,
    one_run_epsilon,
    one_run_p_value,
    split_bound,
)
from kernfed.privacy.roc import auc, auc_interval, clopper_pearson, roc

PURE = Guarantee(1.0, 0.0, "record", "one row replaced by any other")


def naive_auc(members, others):
    return np.mean([(a > b) + 0.5 * (a == b) for a in members for b in others])


@pytest.mark.parametrize("sizes", [(1, 1), (7, 30), (40, 3)])
def test_area(rng, sizes):
    for scores in (rng.normal(size=sum(sizes)), rng.integers(0, 3, sum(sizes)).astype(float)):
        members, others = scores[: sizes[0]], scores[sizes[0] :]
        assert auc(members, others) == pytest.approx(naive_auc(members, others))


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 50), (3, 50), (50, 50), (999, 1000)])
def test_interval_is_clopper_and_pearson(successes, trials):
    """The ends are the probabilities at which the observed tail has mass alpha/2."""
    low, high = clopper_pearson(successes, trials, 0.9)
    if successes > 0:
        assert low == pytest.approx(brentq(lambda p: binom.sf(successes - 1, trials, p) - 0.05, 0, 1, xtol=1e-14))
    if successes < trials:
        assert high == pytest.approx(brentq(lambda p: binom.cdf(successes, trials, p) - 0.05, 0, 1, xtol=1e-14))
    assert (low == 0) == (successes == 0)
    assert (high == 1) == (successes == trials)


def test_area_interval_covers(rng):
    truth = float(norm.cdf(1 / math.sqrt(2)))
    covered = 0
    for _ in range(200):
        curve = roc(rng.normal(1, 1, 60), rng.normal(0, 1, 40), confidence=0.9)
        covered += curve.auc_interval[0] <= truth <= curve.auc_interval[1]
    assert covered >= 180


def test_area_interval_at_the_ends():
    """At an area of 1 the Chernoff bound is a^n: the lower end is (alpha/2)^(1/n)."""
    low, high = auc_interval(1.0, 30, 0.95)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 30)), 1.0)
    assert auc_interval(0.0, 30, 0.95) == (0.0, pytest.approx(1 - 0.025 ** (1 / 30)))


def test_points_of_the_curve():
    others = np.arange(1000.0)
    members = np.array([998.5, 989.5, 989.0, 10.0, 2000.0])
    thousandth, hundredth = roc(members, others).points
    assert (thousandth.true_positives, thousandth.false_positives) == (2, 1)
    assert (hundredth.true_positives, hundredth.false_positives) == (3, 10)
    assert hundredth.interval == clopper_pearson(3, 5)
    assert hundredth.rate_limit == pytest.approx(beta.ppf(0.95, 11, 990))


def test_few_others_allow_no_alarm():
    (point,) = roc([1.0, 5.0, 6.0], np.arange(6.0), rates=[0.001]).points
    assert (point.true_positives, point.false_positives) == (1, 0)
    assert point.rate_limit == pytest.approx(1 - 0.05 ** (1 / 6))


def test_equal_scores_find_nobody():
    curve = roc(np.zeros(50), np.zeros(70))
    assert curve.auc == 0.5
    assert [point.tpr for point in curve.points] == [0.0, 0.0]


def naive_epsilon(alarms, others, misses, members, delta, confidence):
    alpha = (1 - confidence) / 2
    fpr = 1.0 if alarms == others else beta.ppf(1 - alpha, alarms + 1, others - alarms)
    fnr = 1.0 if misses == members else beta.ppf(1 - alpha, misses + 1, members - misses)
    bounds = [0.0]
    for hit, error in ((1 - fnr, fpr), (1 - fpr, fnr)):
        if hit - delta > 0:
            bounds.append(math.log((hit - delta) / error))
    return max(bounds)


@pytest.mark.parametrize("counts", [(0, 100, 0, 100), (3, 200, 150, 170), (180, 200, 1, 170), (200, 200, 0, 9)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3, 1.0])
def test_epsilon_from_errors(counts, delta):
    found = epsilon_from_errors(*counts, delta=delta, confidence=0.9)
    assert found == pytest.approx(naive_epsilon(*counts, delta, 0.9), abs=1e-12)


def laplace_trials(epsilon, count, rng):
    """Log-likelihood ratios of Laplace noise around 0 and 1, and which of the two it was.

    Rounded: the last bits of floating-point noise tell the two apart, and the bounds would rightly say so.
    """
    included = rng.random(count) < 0.5
    noisy = included + rng.laplace(0, 1 / epsilon, count)
    return np.round(epsilon * (np.abs(noisy) - np.abs(noisy - 1)), 9), included


def test_bounds_hold_as_often_as_they_say():
    """Laplace noise of epsilon 1, exactly tight: at 80 % confidence at most a fifth of the bounds may exceed it."""
    wrong = np.zeros(2)
    for number in range(150):
        scores, included = laplace_trials(1.0, 400, generator(number, "coverage"))
        bounds = (
            split_bound(scores[included], scores[~included], PURE, confidence=0.8, seed=number),
            one_run_bound(scores, included, PURE, confidence=0.8, seed=number),
        )
        wrong += [bound.contradicts(PURE) for bound in bounds]
    assert (wrong <= 0.2 * 150 + 15).all()  # three standard deviations of a binomial count


def test_bounds_come_close():
    scores, included = laplace_trials(1.0, 20000, generator(0, "close"))
    split = split_bound(scores[included], scores[~included], PURE)
    one_run = one_run_bound(scores, included, PURE)
    assert 0.85 < split.value < 1
    assert 0.85 < one_run.value < 1
    assert split.ceiling == pytest.approx(epsilon_from_errors(0, 5000, 0, 5000, delta=0.0), rel=0.02)


@pytest.mark.parametrize("epsilon", [2.0, 5.0])
def test_too_little_noise_is_found(epsilon):
    scores, included = laplace_trials(epsilon, 2000, generator(3, "broken"))
    assert split_bound(scores[included], scores[~included], PURE).contradicts(PURE)
    assert one_run_bound(scores, included, PURE).contradicts(PURE)


def naive_p_value(correct, guesses, canaries, epsilon, delta):
    """Steinke, Nasr and Jagielski (2023), Theorem 5.2, literally."""
    q = math.exp(epsilon) / (math.exp(epsilon) + 1)
    p = sum(binom.pmf(k, guesses, q) for k in range(correct, guesses + 1))
    alpha = max(
        (
            sum(binom.pmf(k, guesses, q) for k in range(max(correct - i, 0), correct)) / i
            for i in range(1, canaries + 1)
        ),
    )
    return min(1.0, p + 2 * canaries * delta * alpha)


@pytest.mark.parametrize("counts", [(0, 5, 9), (1, 1, 1), (7, 10, 30), (30, 30, 30), (25, 30, 60)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_one_run_p_value(counts, epsilon, delta):
    assert one_run_p_value(*counts, epsilon, delta) == pytest.approx(naive_p_value(*counts, epsilon, delta), abs=1e-12)


def test_one_run_p_value_of_many_guesses_is_on_the_safe_side(monkeypatch):
    for correct, guesses in ((30, 40), (40, 40), (21, 40)):
        exact = one_run_p_value(correct, guesses, 40, 0.5, 1e-3)
        with monkeypatch.context() as patch:
            patch.setattr(lower_bound, "_LARGEST_I", 8)
            short = one_run_p_value(correct, guesses, 40, 0.5, 1e-3)
        assert exact <= short <= exact + 2 * 40 * 1e-3 / 8


def test_one_run_epsilon_is_where_the_p_value_crosses():
    for delta in (0.0, 1e-4):
        found = one_run_epsilon(18, 20, 25, delta=delta, confidence=0.95)
        assert found > 0.5
        assert naive_p_value(18, 20, 25, found - 1e-9, delta) < 0.05
        assert naive_p_value(18, 20, 25, found + 1e-6, delta) >= 0.05
    assert one_run_epsilon(51, 100, 100, delta=0.0) == 0.0
    assert one_run_epsilon(100, 100, 100, delta=0.1) == 0.0


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_order_of_canaries_tells_nothing(value):
    """Scores without information, canaries sorted by whether they were included."""
    included = np.arange(2000) < 1000
    assert one_run_bound(np.full(2000, value), included, PURE).value < 0.3


def test_bound_speaks_of_its_unit_and_delta_only():
    loose = Guarantee(1.0, 0.1, "record", "one row replaced by any other")
    scores, included = laplace_trials(6.0, 2000, generator(4, "unit"))
    bound = one_run_bound(scores, included, PURE)
    assert bound.contradicts(PURE)
    assert not bound.contradicts(Guarantee(1.0, 0.0, "element", "one element"))
    assert not bound.contradicts(loose)
    assert one_run_bound(scores, included, Guarantee(9.0, 0.1, "record", "one row")).value < bound.value


def test_halves_and_ties_follow_the_seed():
    scores, included = laplace_trials(2.0, 500, generator(5, "seed"))
    values = [split_bound(scores[included], scores[~included], PURE, seed=seed).value for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


BAD = [
    (lambda: roc([], [1.0]), "members must have at least 1"),
    (lambda: roc([1.0], [np.inf]), "others must be finite"),
    (lambda: roc([1.0], [1.0], rates=[0.0]), "rate must be > 0"),
    (lambda: roc([1.0], [1.0], confidence=1.0), "confidence must be < 1"),
    (lambda: clopper_pearson(3, 2), "successes must be <= 2"),
    (lambda: clopper_pearson(0, 0), "trials must be >= 1"),
    (lambda: epsilon_from_errors(-1, 5, 0, 5, delta=0.0), "false_positives must be >= 0"),
    (lambda: epsilon_from_errors(0, 5, 6, 5, delta=0.0), "false_negatives must be <= 5"),
    (lambda: epsilon_from_errors(0, 5, 0, 5, delta=-0.1), "delta must be >= 0"),
    (lambda: epsilon_from_errors(0, 5, 0, 5, delta=0.0, confidence=0), "confidence must be > 0"),
    (lambda: split_bound([1.0], [1.0, 2.0], PURE), "members must have at least 2"),
    (lambda: split_bound([1.0, 2.0], [1.0, 2.0], 1.0), "guarantee must be a Guarantee"),
    (lambda: one_run_bound([1.0, 2.0], [True, False], None), "guarantee must be a Guarantee"),
    (lambda: one_run_bound([1.0, 2.0], [1, 0], PURE), "included must be 2 booleans"),
    (lambda: one_run_bound([1.0, 2.0], [True], PURE), "included must be 2 booleans"),
    (lambda: one_run_bound([1.0, 2.0], [True, False], PURE, shares=()), "shares must name at least one"),
    (lambda: one_run_bound([1.0, 2.0], [True, False], PURE, shares=(2.0,)), "shares must be <= 1"),
    (lambda: one_run_epsilon(3, 2, 5, delta=0.0), "correct must be <= 2"),
    (lambda: one_run_epsilon(1, 6, 5, delta=0.0), "guesses must be <= 5"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
