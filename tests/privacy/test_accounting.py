"""Curves against sums and high precision, compositions against closed forms, and never less than the truth."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from kernfed.privacy.accounting import (
    EVENTS,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    StaircaseEvent,
    _compose,
    analytic_gaussian_mu,
    analytic_gaussian_sigma,
    delta_for,
    epsilon_for,
    event_from_dict,
    event_to_dict,
    gaussian_delta,
)
from kernfed.privacy.noise import DiscreteLaplace, DiscreteStaircase


def hockey_stick(upper, lower, epsilon):
    """The definition: sum of what exceeds e^epsilon times the other."""
    return np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum()


@pytest.mark.parametrize("shift", [1, 2, 7, 50])
@pytest.mark.parametrize("rate", [0.01, 0.3, 2.0])
def test_laplace_curve_is_the_sum(shift, rate):
    k = np.arange(-6000, 6001)
    law = DiscreteLaplace(Fraction(rate))
    upper, lower = law.pmf(k), law.pmf(k - shift)
    epsilons = np.linspace(0, 1.2 * rate * shift, 40)
    curve = LaplaceEvent(rate, shift).curve(epsilons)
    exact = [hockey_stick(upper, lower, epsilon) for epsilon in epsilons]
    assert np.allclose(curve, exact, rtol=1e-9, atol=1e-15)


def test_laplace_curve_in_the_limit_is_the_continuous_one():
    epsilons = np.linspace(0, 3, 13)
    event = LaplaceEvent(2.0 / 100_000, 100_000, atom=1e-3)
    curve = np.array([delta_for([event], epsilon) for epsilon in epsilons])
    limit = 1e-3 + (1 - 1e-3) * np.maximum(0, 1 - np.exp((epsilons - 2.0) / 2))
    assert np.allclose(curve, limit, atol=1e-5)
    assert 1e-3 <= curve.min() <= 1.001e-3


@pytest.mark.parametrize("inner", [1, 3, 9])
@pytest.mark.parametrize("reach", [1, 4, 9])
def test_staircase_curve_is_the_worst_of_all_shifts(inner, reach):
    law = DiscreteStaircase(Fraction(1), 9, inner)
    mass = law.variation(reach) / -math.expm1(-1.0)
    event = StaircaseEvent(1.0, mass)
    k = np.arange(-700, 701)
    for epsilon in (0.0, 0.3, 0.9, 1.0):
        shifts = [hockey_stick(law.pmf(k), law.pmf(k - shift), epsilon) for shift in range(1, reach + 1)]
        assert math.isclose(float(event.curve(np.asarray(epsilon))), max(shifts), rel_tol=1e-9, abs_tol=1e-14)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 10.0, 60.0])
def test_gaussian_curve_against_high_precision(mu, epsilon):
    with mpmath.workdps(60):
        m = mpmath.mpf(mu)
        exact = mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m)
        assert math.isclose(float(gaussian_delta(mu, epsilon)), float(exact), rel_tol=1e-9, abs_tol=1e-300)


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 3.7306), (3, 1.391), (8, 0.600), (16, 0.344)])
def test_calibration_figures(epsilon, sigma):
    assert math.isclose(analytic_gaussian_sigma(epsilon, 1e-5), sigma, abs_tol=6e-4)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 64.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
def test_calibration_is_never_less_private_than_asked_nor_much_more(epsilon, delta):
    def exact(sigma):
        m = 1 / mpmath.mpf(sigma)
        return mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m)

    sigma = analytic_gaussian_sigma(epsilon, delta)
    with mpmath.workdps(60):
        assert exact(sigma) <= delta
        assert exact(sigma * (1 - 1e-8)) > delta
    assert epsilon_for([GaussianEvent(1 / sigma)], delta) <= epsilon


RECORD_TABLE = {
    0.1: (9.5, 14.9, 17.7),
    1.0: (206, 382, 484),
    3.0: (905, 1780, 2298),
    8.0: (2819, 5682, 7391),
}


@pytest.mark.parametrize("epsilon", RECORD_TABLE)
@pytest.mark.parametrize("place", range(3))
def test_what_an_element_epsilon_costs_a_record(epsilon, place):
    """Box [-1, 1]^n with d = 2 at delta 1e-5."""
    n = (384, 784, 1024)[place]
    steps = math.ceil(1000 * max(1, epsilon))
    found = epsilon_for([LaplaceEvent(epsilon / steps, steps, count=n)], 1e-5)
    assert math.isclose(found, RECORD_TABLE[epsilon][place], rel_tol=0.01)


def randomized_response(epsilon, n, target):
    """Delta of n copies of two-answer randomised response, by the number of truthful answers."""
    j = np.arange(n + 1)
    p = 1 / (1 + math.exp(-epsilon))
    return np.maximum(binom.pmf(j, n, p) - np.exp(target) * binom.pmf(j, n, 1 - p), 0).sum()


@pytest.mark.parametrize(("epsilon", "n"), [(0.1, 50), (0.5, 20), (2.0, 7)])
def test_pure_composition_against_the_binomial(epsilon, n):
    events = [PureEvent(epsilon, count=n)]
    for target in np.linspace(0.1, 0.9, 5) * n * epsilon:
        exact = randomized_response(epsilon, n, target)
        found = delta_for(events, target)
        assert exact <= found <= exact * 1.02 + 1e-9


def test_many_kinds_compose_as_one_by_one():
    """N copies in one event, and n events, must agree, and the order must not matter."""
    copies = [LaplaceEvent(0.01, 50, count=4), GaussianEvent(0.2), StaircaseEvent(0.3, 0.5, count=2)]
    singles = [GaussianEvent(0.2), *[StaircaseEvent(0.3, 0.5)] * 2, *[LaplaceEvent(0.01, 50)] * 4]
    assert math.isclose(epsilon_for(copies, 1e-5), epsilon_for(singles, 1e-5), rel_tol=1e-3)
    assert math.isclose(epsilon_for(copies, 1e-5), epsilon_for(copies[::-1], 1e-5), rel_tol=1e-6)


@pytest.mark.parametrize("parts", [[0.3, 0.4], [0.1] * 9, [2.0, 1.0]])
def test_gaussians_compose_by_pythagoras(parts):
    events = [GaussianEvent(mu) for mu in parts]
    exact = epsilon_for([GaussianEvent(math.hypot(*parts))], 1e-5)
    assert math.isclose(epsilon_for(events, 1e-5), exact, rel_tol=1e-12)
    numerically = _compose([*events, PureEvent(1e-9)]).get_epsilon_for_delta(1e-5)
    assert exact <= numerically <= exact * 1.001


def test_composed_delta_is_not_below_the_truth():
    mu = math.hypot(0.5, 0.6)
    composed = _compose([GaussianEvent(0.5), GaussianEvent(0.6)])
    for epsilon in (0.5, 1.5, 3.0):
        assert composed.get_delta_for_epsilon(epsilon) + 1e-12 >= float(gaussian_delta(mu, epsilon))


def test_the_atom_sets_a_floor_to_delta():
    events = [LaplaceEvent(1e-3, 1000, atom=1e-5, count=784)]
    floor = 1 - (1 - 1e-5) ** 784
    assert epsilon_for(events, 1e-5) == math.inf
    assert epsilon_for(events, 0.999 * floor) == math.inf
    assert math.isfinite(epsilon_for(events, floor + 1e-5))
    assert delta_for(events, 1e6) >= floor * (1 - 1e-12)
    assert epsilon_for([LaplaceEvent(1e-3, 1000, atom=1e-5)], 1e-5 * (1 + 1e-12)) <= 1.0 + 1e-12


def test_an_atom_that_reveals_all_leaves_no_guarantee():
    events = [LaplaceEvent(1e-3, 1000, atom=0.5, count=784)]
    assert epsilon_for(events, 0.999) == math.inf
    assert delta_for(events, 10.0) == 1.0


def test_losses_too_large_for_exp():
    curve = LaplaceEvent(1.0, 1000).curve(np.array([0.0, 800.0, 999.0, 1000.0]))
    assert np.allclose(curve, [1.0, 1.0, 0.5, 0.0], atol=0.3)
    assert 9e4 < epsilon_for([LaplaceEvent(1.0, 1000, count=100)], 1e-5) <= 1e5


def test_pure_events_need_no_delta():
    events = [PureEvent(0.5, count=3), LaplaceEvent(0.1, 10)]
    assert math.isclose(epsilon_for(events, 0.0), 2.5)
    assert delta_for(events, 2.5) == 0.0
    assert epsilon_for([], 0.0) == 0.0


def test_slack_is_part_of_delta():
    event = GaussianEvent(0.3, slack=4e-6)
    assert epsilon_for([event], 3.9e-6) == math.inf
    assert math.isclose(epsilon_for([event], 1e-5), epsilon_for([GaussianEvent(0.3)], 6e-6), rel_tol=1e-9)
    assert math.isclose(delta_for([event], 1.0), 4e-6 + float(gaussian_delta(0.3, 1.0)))


@pytest.mark.parametrize(
    "event",
    [LaplaceEvent(0.1, 3, 1e-4, 5, 1e-30), StaircaseEvent(1.0, 0.4, 2), PureEvent(0.1 + 0.2), GaussianEvent(1 / 3)],
)
def test_events_survive_json(event):
    import json

    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    assert event.kind in EVENTS


def test_unknown_events_are_refused():
    with pytest.raises(ValueError, match="kind of a privacy event must be one of 'laplace'"):
        event_from_dict({"kind": "magic"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analytic_gaussian_mu(0.0, 1e-5), "epsilon must be > 0"),
        (lambda: analytic_gaussian_mu(1.0, 0.0), "delta must be > 0"),
        (lambda: analytic_gaussian_sigma(math.nan, 1e-5), "epsilon must be a finite number"),
        (lambda: analytic_gaussian_sigma(1.0, 1.0), "delta must be < 1"),
        (lambda: epsilon_for([], 1.0), "delta must be < 1"),
        (lambda: epsilon_for([], -1e-9), "delta must be >= 0"),
        (lambda: delta_for([], -1.0), "epsilon must be >= 0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
