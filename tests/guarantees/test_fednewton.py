"""FedNewton Theorem 1 against the error that is measured round by round."""

from itertools import pairwise

import numpy as np
import pytest

from kernfed.guarantees.fednewton import federated_error, newton_contraction, newton_contraction_expected
from oracles import ridge as oracle

M = 8


def second(phi):
    return phi.T @ phi / len(phi)


def energy(C, value, W):
    return float(np.sqrt(np.trace(W.T @ (C + value * np.eye(M)) @ W)))


def problem(rng, sizes, shift):
    """Sites that sample from large finite populations: populations, rows, targets."""
    populations = [(rng.standard_normal((4000, M)) + shift * rng.standard_normal(M)) / np.sqrt(M) for _ in sizes]
    rows = [population[rng.integers(0, 4000, n)] for population, n in zip(populations, sizes, strict=True)]
    return populations, [(phi, rng.standard_normal((len(phi), 1))) for phi in rows]


def measured_errors(sites, value, norm, rounds=6):
    start, goal = oracle.dkrr(sites, value), oracle.closed_form(*oracle.pooled(sites), value)
    return [energy(norm, value, oracle.newton(sites, value, start, t) - goal) for t in range(rounds)]


@pytest.mark.parametrize("value", [0.3, 3.0])
@pytest.mark.parametrize("shift", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_every_round_contracts_at_least_as_fast_as_the_rows_promise(seed, shift, value):
    _, sites = problem(np.random.default_rng(seed), [300, 200, 500], shift)
    bound = newton_contraction(oracle.weights_of(sites), [second(phi) for phi, _ in sites], value)
    errors = measured_errors(sites, value, second(oracle.pooled(sites)[0]))
    for t, error in enumerate(errors):
        assert error <= federated_error(bound, errors[0], t).value * (1 + 1e-9) + 1e-14
    assert (bound.status, bound.confidence) == ("proven", 1.0)


@pytest.mark.parametrize("shift", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_the_theorem_holds_between_populations_and_rows(seed, shift):
    value = 0.5
    populations, sites = problem(np.random.default_rng(seed), [300, 200, 500], shift)
    p, expected = oracle.weights_of(sites), [second(population) for population in populations]
    common = np.tensordot(p, np.array(expected), axes=1)
    bound = newton_contraction_expected(p, [second(phi) for phi, _ in sites], expected, value)
    errors = measured_errors(sites, value, common)
    for t, error in enumerate(errors):
        assert error <= federated_error(bound, errors[0], t).value * (1 + 1e-9) + 1e-14


def test_upsilon_is_the_printed_formula(rng):
    populations, sites = problem(rng, [30, 50], 0.5)
    p, value, eye = oracle.weights_of(sites), 0.1, np.eye(M)
    C = [second(population) for population in populations]
    common = sum(share * part for share, part in zip(p, C, strict=True))
    expected = 0.0
    for share, C_j, (phi, _) in zip(p, C, sites, strict=True):
        rows = second(phi)
        P = np.linalg.norm(np.linalg.inv(rows + value * eye) @ (C_j + value * eye), 2)
        R = np.linalg.norm(np.linalg.inv(C_j + value * eye) @ (C_j - rows), 2)
        delta = np.linalg.norm(common - C_j, 2)
        expected += share * P * (2 * R + delta / value) * (1 + delta / value)
    printed = newton_contraction_expected(p, [second(phi) for phi, _ in sites], C, value, form="printed")
    assert printed.value == pytest.approx(expected)
    assert (printed.status, printed.reliable) == ("proof gap", False)


def test_upsilon_above_one_is_only_sufficient(rng):
    """FedNewton reads Upsilon >= 1 as divergence; here it is far above 1 and every round still gains."""
    _, sites = problem(rng, [300, 300], 0.4)
    value = 1e-3
    assert newton_contraction(oracle.weights_of(sites), [second(phi) for phi, _ in sites], value).value > 100
    errors = measured_errors(sites, value, second(oracle.pooled(sites)[0]))
    assert all(later < 0.5 * earlier for earlier, later in pairwise(errors[:5]))


def test_a_bound_beyond_numbers_is_infinite():
    bound = newton_contraction([0.5, 0.5], [np.zeros((M, M)), np.eye(M)], 1e-150)
    assert federated_error(bound, 1.0, 5).value == np.inf
    assert federated_error(bound, 0.0, 5).value == 0.0


def test_equal_sites_need_no_round(rng):
    phi = rng.standard_normal((20, M))
    assert newton_contraction([0.5, 0.5], [second(phi)] * 2, 0.1).value == 0.0
    exact = newton_contraction_expected([0.5, 0.5], [second(phi)] * 2, [second(phi)] * 2, 0.1)
    assert exact.value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("shares", "moments", "value", "message"),
    [
        ([0.5, 0.6], np.zeros((2, 3, 3)), 0.1, "shares must be at least 0 and add up to 1"),
        ([], np.zeros((0, 3, 3)), 0.1, "shares must"),
        ([1.0], np.zeros((2, 3, 3)), 0.1, "moments must be 1 finite square matrices"),
        ([1.0], np.zeros((1, 3, 2)), 0.1, "moments must be 1 finite square matrices"),
        ([1.0], np.full((1, 2, 2), np.nan), 0.1, "moments must be 1 finite"),
        ([1.0], [[[1.0, 2.0], [0.0, 1.0]]], 0.1, "moments must be symmetric"),
        ([1.0], np.zeros((1, 2, 2)), 0.0, "regularization must be > 0"),
    ],
)
def test_input_that_cannot_be_is_refused(shares, moments, value, message):
    with pytest.raises(ValueError, match=message):
        newton_contraction(shares, moments, value)


def test_expected_moments_must_match_the_rows():
    with pytest.raises(ValueError, match="expected must have the shape of moments"):
        newton_contraction_expected([1.0], np.zeros((1, 2, 2)), np.zeros((1, 3, 3)), 0.1)
