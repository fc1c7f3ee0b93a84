"""Newton, conjugate gradients and first-order methods on explicit systems, against literal transcriptions."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pytest

from kernfed.ridge.solvers import conjugate_step, newton_step, start_conjugate, start_newton
from oracles import ridge as oracle


@dataclass
class Explicit:
    """``H W = b`` with explicit matrices, counting the exchanges it would need."""

    sites: list
    regularization: float
    exchanges: int = 0

    @cached_property
    def H(self):
        return oracle.hessian(oracle.pooled(self.sites)[0], self.regularization)

    @cached_property
    def P_inverse(self):
        return oracle.preconditioned(self.sites, self.regularization) @ np.linalg.inv(self.H)

    @cached_property
    def linear(self):
        phi, y = oracle.pooled(self.sites)
        return phi.T @ y / len(phi)

    @cached_property
    def constant(self):
        y = oracle.pooled(self.sites)[1]
        return float((y**2).sum() / len(y))

    def apply(self, V):
        self.exchanges += 1
        return self.H @ V

    def solve(self, R):
        self.exchanges += 1
        return self.P_inverse @ R

    @property
    def solution(self):
        return oracle.closed_form(*oracle.pooled(self.sites), self.regularization)


def sites_of(rng, sizes, M=12, C=2, shift=0.0):
    """Features with decaying scale, so that the Hessian is ill-conditioned; ``shift`` makes sites differ."""
    scale = 10.0 ** -np.linspace(0, 2, M)
    made = []
    for n in sizes:
        phi = (rng.standard_normal((n, M)) + shift * rng.standard_normal(M)) * scale
        made.append((phi, phi @ rng.standard_normal((M, C)) + 0.1 * rng.standard_normal((n, C))))
    return made


def run(begin, step, system, start, rounds):
    states = [begin(system, start)]
    for _ in range(rounds):
        further = step(system, states[-1])
        if further is None:
            break
        states.append(further)
    return states


def test_newton_is_algorithm_1_with_the_global_gradient(rng):
    sites = sites_of(rng, [30, 50, 20])
    system = Explicit(sites, 1e-2)
    start = oracle.dkrr(sites, 1e-2)
    states = run(start_newton, newton_step, system, start, 4)
    assert system.exchanges == 1 + 2 * 4
    for t, state in enumerate(states):
        np.testing.assert_allclose(state.weights, oracle.newton(sites, 1e-2, start, t), atol=1e-12)
        np.testing.assert_allclose(state.gradient, system.H @ state.weights - system.linear, atol=1e-13)
        phi, y = oracle.pooled(sites)
        assert state.objective == pytest.approx(oracle.objective(phi, y, state.weights, 1e-2), rel=1e-12)


def test_misprint_of_fednewton_local_gradient_returns_the_dkrr_average_from_any_start(rng):
    """FedNewton (4), (5) and lines 7-8 print the local gradient: then nothing is iterated at all."""
    sites = sites_of(rng, [30, 50, 20])
    start = 100 * rng.standard_normal((12, 2))
    misprinted = oracle.newton(sites, 1e-2, start, 1, local_gradient=True)
    np.testing.assert_allclose(misprinted, oracle.dkrr(sites, 1e-2), atol=1e-9)
    ours = run(start_newton, newton_step, Explicit(sites, 1e-2), start, 1)[-1].weights
    assert np.abs(ours - misprinted).max() > 1e-3


def test_newton_sees_the_eigenvalue_that_makes_it_diverge(rng):
    sites = sites_of(rng, [4, 5, 6], shift=1.0)
    system = Explicit(sites, 1e-3)
    largest = np.linalg.eigvals(oracle.preconditioned(sites, 1e-3)).real.max()
    assert largest > 2
    states = run(start_newton, newton_step, system, oracle.dkrr(sites, 1e-3), 12)
    assert states[-1].gradient_norm > 100 * states[0].gradient_norm
    assert largest * 0.99 < states[-1].largest_eigenvalue <= largest * (1 + 1e-9)


def test_newton_that_converges_sees_no_eigenvalue_above_two(rng):
    sites = sites_of(rng, [400, 500])
    largest = np.linalg.eigvals(oracle.preconditioned(sites, 1e-2)).real.max()
    assert largest < 2
    states = run(start_newton, newton_step, Explicit(sites, 1e-2), oracle.dkrr(sites, 1e-2), 30)
    np.testing.assert_allclose(states[-1].weights, Explicit(sites, 1e-2).solution, atol=1e-12)
    assert 1 <= states[-1].largest_eigenvalue <= largest * (1 + 1e-9)


def test_newton_ends_before_numbers_overflow(rng):
    sites = sites_of(rng, [4, 5, 6], shift=3.0)
    states = run(start_newton, newton_step, Explicit(sites, 1e-6), np.zeros((12, 2)), 2000)
    assert len(states) < 2000
    assert np.isfinite([states[-1].objective, states[-1].gradient_norm]).all()


@pytest.mark.parametrize("regularization", [1e-2, 1e-6])
@pytest.mark.parametrize("C", [1, 2, 5])
@pytest.mark.parametrize(("sizes", "shift"), [([40, 30], 0.0), ([4, 5, 6, 7], 1.0), ([1] * 6, 1.0)])
def test_conjugate_reaches_the_pooled_solution_within_m_rounds(rng, sizes, shift, C, regularization):
    sites = sites_of(rng, sizes, C=C, shift=shift)
    system = Explicit(sites, regularization)
    states = run(start_conjugate, conjugate_step, system, oracle.dkrr(sites, regularization), 12)
    assert len(states) - 1 <= -(-12 // C) + 1
    error = np.abs(states[-1].weights - system.solution).max()
    assert error < 1e-8 * np.abs(system.solution).max()


@pytest.mark.parametrize("seed", range(10))
def test_the_objective_of_conjugate_never_rises(seed):
    rng = np.random.default_rng(seed)
    sites = sites_of(rng, rng.integers(1, 30, 5), M=25, C=3, shift=rng.uniform(0, 2))
    phi, y = oracle.pooled(sites)
    system = Explicit(sites, 1e-5)
    states = run(start_conjugate, conjugate_step, system, rng.standard_normal((25, 3)), 40)
    truth = [oracle.objective(phi, y, state.weights, 1e-5) for state in states]
    assert len(states) > 3
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(truth))
    told = [state.objective for state in states]
    assert all(later <= earlier for earlier, later in pairwise(told))
    np.testing.assert_allclose(told, truth, rtol=1e-9, atol=1e-12 * truth[0])


def test_conjugate_needs_two_exchanges_a_round_and_stops_by_itself(rng):
    sites = sites_of(rng, [30, 20], M=6, C=1)
    system = Explicit(sites, 1e-2)
    states = run(start_conjugate, conjugate_step, system, oracle.dkrr(sites, 1e-2), 3)
    assert (len(states), system.exchanges) == (4, 7)
    assert len(run(start_conjugate, conjugate_step, system, oracle.dkrr(sites, 1e-2), 100)) <= 12


def test_conjugate_at_the_solution_has_nowhere_to_go(rng):
    sites = sites_of(rng, [30, 20], M=6)
    zero = Explicit([(phi, 0 * y) for phi, y in sites], 1e-2)
    assert conjugate_step(zero, start_conjugate(zero, np.zeros((6, 2)))) is None


def test_conjugate_takes_dependent_columns_as_one(rng):
    sites = sites_of(rng, [30, 20], M=8, C=1)
    doubled = [(phi, np.hstack([y, 2 * y, 0 * y])) for phi, y in sites]
    alone = run(start_conjugate, conjugate_step, Explicit(sites, 1e-3), np.zeros((8, 1)), 4)[-1]
    together = run(start_conjugate, conjugate_step, Explicit(doubled, 1e-3), np.zeros((8, 3)), 4)[-1]
    assert together.basis.shape[1] == 4
    np.testing.assert_allclose(together.weights, alone.weights * [1, 2, 0], atol=1e-10)


def test_conjugate_sees_the_largest_eigenvalue_from_its_own_exchanges(rng):
    sites = sites_of(rng, [4, 5, 6], shift=1.0)
    largest = np.linalg.eigvals(oracle.preconditioned(sites, 1e-3)).real.max()
    start = oracle.dkrr(sites, 1e-3)
    states = run(start_conjugate, conjugate_step, Explicit(sites, 1e-3), start, 8)
    seen = [state.largest_eigenvalue for state in states]
    assert seen[0] is None
    assert all(1 - 1e-9 <= value <= largest * (1 + 1e-6) for value in seen[1:])
    assert seen[3] == pytest.approx(largest, rel=0.05)


def test_conjugate_without_regularisation_finds_the_smallest_solution(rng):
    """Everything stays in the range of the rows, on which the pseudo-inverses add up to a positive matrix."""
    rows = [rng.standard_normal((3, 12)) for _ in range(3)]
    sites = [(phi, phi @ rng.standard_normal((12, 2)) + rng.standard_normal((3, 2))) for phi in rows]
    system = Explicit(sites, 0.0)
    p = oracle.weights_of(sites)
    system.P_inverse = sum(s * np.linalg.pinv(phi.T @ phi / 3, rcond=1e-10) for s, phi in zip(p, rows, strict=True))
    start = sum(s * np.linalg.pinv(phi) @ y for s, (phi, y) in zip(p, sites, strict=True))
    found = run(start_conjugate, conjugate_step, system, start, 12)[-1].weights
    phi, y = oracle.pooled(sites)
    np.testing.assert_allclose(found, np.linalg.lstsq(phi, y, rcond=None)[0], atol=1e-8)
