"""What audits could have found, and the bound from mu: true to what is drawn, and never a false alarm."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from kernfed.base.random import generator
from kernfed.privacy import ElementLaplace, Guarantee, RecordGaussian
from kernfed.privacy.accounting import analytic_gaussian_mu, gaussian_delta
from kernfed.privacy.audit import canary_bounds
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.lower_bound import (
    epsilon_of_mu,
    gaussian_bound,
    gaussian_error,
    laplace_error,
    mu_from_rates,
    split_bound,
    two_answers_error,
)

DELTA = 1e-5


def stated(epsilon: float) -> Guarantee:
    return Guarantee(epsilon, DELTA, "record", "one row replaced by any other")


def scores(epsilon: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the best test where noise is Gaussian of this epsilon: normal, mu apart."""
    draws, mu = generator(seed, "power"), analytic_gaussian_mu(epsilon, DELTA)
    return draws.normal(mu, 1.0, count), draws.normal(0.0, 1.0, count)


def test_gaussian_noise_of_epsilon_12_does_not_pass_as_3() -> None:
    """At default trials errors alone showed 2.65; mu shows 9."""
    claimed, true = RecordGaussian(3.0, DELTA, 1.0), RecordGaussian(12.0, DELTA, 1.0)
    record = claimed.guarantees(10)[1]
    for seed in range(3):
        noise = NoiseGenerator(seed)
        bounds = canary_bounds(
            claimed, 10, release=lambda X, noise=noise: true.release(X, generator=noise).values, seed=seed
        )
        by_mu = next(bound for bound in bounds if bound.mu is not None)
        assert by_mu.contradicts(record)
        assert 7 < by_mu.value < 12
        assert by_mu.mu == pytest.approx(analytic_gaussian_mu(by_mu.value, DELTA), rel=1e-6)
        assert by_mu.detects is not None
        assert 3 < by_mu.detects < 7
        assert "mu >= " in str(by_mu)
        assert f"{by_mu.detects:.3g} or more would most likely have been refuted" in str(by_mu)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_the_bound_from_mu_holds_as_often_as_it_says(epsilon: float) -> None:
    wrong = sum(
        gaussian_bound(*scores(epsilon, 400, seed), stated(epsilon), confidence=0.9).contradicts(stated(epsilon))
        for seed in range(100)
    )
    assert wrong <= 17  # of 100 at 0.9: more has probability below 0.01


@pytest.mark.parametrize("bound", [gaussian_bound, split_bound])
def test_what_would_be_refuted_is_refuted_and_less_is_not_promised(bound) -> None:
    extra = {} if bound is gaussian_bound else {"error": gaussian_error(DELTA)}
    claimed = stated(1.0)
    smallest = bound(*scores(1.0, 2000, 0), claimed, **extra).detects
    assert smallest is not None

    def refuted(epsilon: float) -> int:
        return sum(bound(*scores(epsilon, 2000, seed), claimed).contradicts(claimed) for seed in range(30))

    assert refuted(smallest) >= 24
    assert refuted(1.0 + 0.2 * (smallest - 1.0)) <= 10


def test_more_trials_refute_smaller_epsilons() -> None:
    found = [gaussian_bound(*scores(3.0, count, 1), stated(3.0)).detects for count in (100, 1000, 10_000)]
    assert all(value is not None for value in found)
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert gaussian_bound(*scores(3.0, 100, 1), stated(99.0)).detects is None  # nothing could be


def test_errors_of_the_best_test() -> None:
    mu = analytic_gaussian_mu(2.0, DELTA)
    assert gaussian_error(DELTA)(2.0) == pytest.approx(norm.cdf(-mu / 2))
    assert laplace_error(2.0) == pytest.approx(0.5 * math.exp(-1.0))
    assert two_answers_error(2.0) == pytest.approx(1 / (1 + math.exp(2.0)))
    assert mu_from_rates(norm.cdf(-mu / 2), norm.cdf(-mu / 2)) == pytest.approx(mu)
    assert mu_from_rates(0.6, 0.6) == mu_from_rates(1.0, 0.1) == 0.0
    for epsilon in (0.1, 1.0, 12.0):
        found = epsilon_of_mu(analytic_gaussian_mu(epsilon, DELTA), DELTA)
        assert found == pytest.approx(epsilon, rel=1e-6)
        assert float(gaussian_delta(analytic_gaussian_mu(epsilon, DELTA), found)) >= DELTA * (1 - 1e-9)
    assert epsilon_of_mu(0.0, DELTA) == epsilon_of_mu(1e-7, 0.5) == 0.0


def test_mechanisms_on_elements_say_it_too() -> None:
    mechanism = ElementLaplace(3.0, 1.0, (0.0, 1.0))
    bounds = canary_bounds(mechanism, 10, release=lambda X: mechanism.release(X).values)
    assert [bound.mu for bound in bounds] == [None] * 4
    smallest = next(bound.detects for bound in bounds if bound.unit == "element")
    assert smallest is not None
    assert 3 < smallest < 6
    loud = ElementLaplace(float(smallest) * 1.1, 1.0, (0.0, 1.0))
    element, _ = mechanism.guarantees(10)
    found = canary_bounds(mechanism, 10, release=lambda X: loud.release(X).values)
    assert any(bound.contradicts(element) for bound in found)
