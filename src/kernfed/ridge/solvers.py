"""The objective of ridge regression on features, and what a solver needs of a federation to minimise it.

Rows phi_i (M,) with targets y_i (C,) and weights c_i, mass m = sum c_i; weights of the model W (M, C)::

    F(W) = sum_i c_i |W' phi_i - y_i|^2 / m + lambda |W|^2  =  s - 2 <b, W> + <W, H W>

with ``H = sum_i c_i phi_i phi_i' / m + lambda I``, ``b = sum_i c_i phi_i y_i' / m``, ``s = sum_i c_i |y_i|^2 / m``:
twice FedNewton (1), whose gradient is ``g = H W - b``. The sites' objectives add up with the weights
``p_j = m_j / m`` (FedNewton Proposition 1), so a solver only needs H and the preconditioner
``P^-1 = sum_j p_j H_j^-1`` applied to matrices (M, C): each is one exchange.

Exact in one round where M^2 numbers may travel: local Gram matrices add up to the pooled one.

FedNewton: global gradient, local inverse Hessians. Preconditioned Richardson iteration, which may diverge.

FedNewton (4), (5) and lines 7-8 of Algorithm 1 print the *local* gradient. With it one round from anywhere returns the
average of the local solutions, since ``H_j^-1 g_j = W - W_j``; the text above (4), line 6 and the proof of Theorem 1
have the global one, as here.

Conjugate gradients on FedNewton's two exchanges per round: it cannot diverge, and ends within M / C rounds.

A round sends the residual R, gets ``Z = P^-1 R``, sends Z and gets ``H Z``. The coordinator keeps every direction and
takes the minimiser over all of them, for all columns of W at once: block conjugate gradients (O'Leary 1980) with full
orthogonalisation, so that rounding does not cost rounds. That is 3 M t C numbers of memory, at most 3 M^2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import Moments

#: Weights beyond this have diverged; the next products could overflow.
LIMIT = 1e100


class System(Protocol):
    """``H W = b`` spread over sites."""

    @property
    def linear(self) -> FloatArray:
        """Linear term b (M, C)."""

    @property
    def constant(self) -> float:
        """Constant term s, the objective at W = 0."""

    def apply(self, V: FloatArray) -> FloatArray:
        """``H V = sum_j p_j H_j V`` for V (M, k): one exchange."""

    def solve(self, R: FloatArray) -> FloatArray:
        """``P^-1 R = sum_j p_j H_j^-1 R`` for R (M, k): one exchange."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """Weights W (M, C) with their gradient ``H W - b`` (M, C) and objective F(W)."""

    weights: FloatArray
    gradient: FloatArray
    objective: float

    @property
    def gradient_norm(self) -> float:
        """Frobenius norm of the gradient."""
        return float(np.linalg.norm(self.gradient))


def objective_value(system: System, weights: FloatArray, gradient: FloatArray) -> float:
    """F(W) from W and ``g = H W - b``: s + <W, g - b>."""
    return float(system.constant + np.vdot(weights, gradient - system.linear))


def first_iterate(system: System, weights: FloatArray) -> Iterate:
    """Iterate at ``weights``: one exchange."""
    gradient = system.apply(weights) - system.linear
    return Iterate(weights, gradient, objective_value(system, weights, gradient))


def diverged(weights: FloatArray) -> bool:
    """Whether weights have left the range in which anything can be computed from them."""
    return not bool((np.abs(weights) < LIMIT).all())


def average(parts: Mapping[str, FloatArray], masses: Mapping[str, float]) -> FloatArray:
    """``sum_j p_j A_j`` with p_j the share of site j in the mass, added in order of names."""
    names = sorted(parts)
    total = sum(masses[name] for name in names)
    result = np.zeros_like(parts[names[0]])
    for name in names:
        result += (masses[name] / total) * parts[name]
    return result


def minimise(moments: Moments, mass: float, regularization: float, penalty: FloatArray | None = None) -> Iterate:
    """Minimiser of the pooled objective, FedNewton (2): ``W = (C + lambda D)^-1 b``, D the diagonal ``penalty`` (M,).

    Without one D = I. A singular matrix (lambda = 0) has many minimisers; this is the one of the smallest norm.
    """
    with single_blas_thread():
        H = moments.second / mass
        H[np.diag_indices_from(H)] += regularization if penalty is None else regularization * penalty
        b = moments.cross / mass
        weights = _solve(H, b)
        gradient = H @ weights - b
        constant = float(np.trace(moments.y_second)) / mass
        return Iterate(weights, gradient, float(constant + np.vdot(weights, gradient - b)))


def _solve(H: FloatArray, b: FloatArray) -> FloatArray:
    try:
        lower = np.linalg.cholesky(H)
        if safe_factor(lower):
            return np.asarray(_linalg.cho_solve((lower.T, False), b, check_finite=False))
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(H)
    kept = values > rank_tolerance(values)
    basis = vectors[:, kept]
    return np.asarray(basis @ ((basis.T @ b) / values[kept][:, None]))


def rank_tolerance(values: FloatArray) -> float:
    """Eigenvalues up to here are rounding errors of zero."""
    return float(np.finfo(np.float64).eps * len(values) * max(values.max(initial=0.0), 0.0))


def safe_factor(lower: FloatArray) -> bool:
    """Whether a Cholesky factor (k, k) is that of a matrix of full rank to working precision."""
    diagonal = np.diagonal(lower)
    return bool(diagonal.size == 0 or diagonal.min() ** 2 > rank_tolerance(diagonal**2))


#: Below this share of |b| a gradient has too few digits left to say anything of eigenvalues.
_NOISE = 1e-7
#: Steps that depend on each other to this share are one: around their means, targets of classes add up to 0.
_INDEPENDENT = 1e-6


@dataclass(frozen=True, eq=False)
class NewtonIterate(Iterate):
    """``largest_eigenvalue``: the largest seen of ``P^-1 H``, a lower bound; the iteration diverges if it exceeds 2."""

    largest_eigenvalue: float | None = None


def start_newton(system: System, weights: FloatArray) -> NewtonIterate:
    """State at ``weights``: one exchange."""
    first = first_iterate(system, weights)
    return NewtonIterate(first.weights, first.gradient, first.objective)


def newton_step(system: System, state: NewtonIterate) -> NewtonIterate | None:
    """``W <- W - P^-1 (H W - b)``, FedNewton Algorithm 1: two exchanges. None where it has diverged beyond numbers."""
    step = system.solve(state.gradient)
    weights = state.weights - step
    if diverged(weights):
        return None
    gradient = system.apply(weights) - system.linear
    seen = [value for value in (state.largest_eigenvalue, _ritz_value(system, state, step, gradient)) if value]
    return NewtonIterate(weights, gradient, objective_value(system, weights, gradient), max(seen, default=None))


def _ritz_value(system: System, state: NewtonIterate, step: FloatArray, gradient: FloatArray) -> float | None:
    """Largest eigenvalue of ``P^-1 H`` on the span of the step D: ``P D`` and ``H D`` are known without asking."""
    if state.gradient_norm <= _NOISE * np.linalg.norm(system.linear):
        return None
    with single_blas_thread():
        scale = np.linalg.norm(step, axis=0)
        columns = scale > _NOISE * scale.max(initial=0.0)
        _, sizes, turn = np.linalg.svd(step[:, columns] / scale[columns], full_matrices=False)
        kept = sizes > _INDEPENDENT * sizes.max(initial=0.0)
        mix = turn[kept].T / sizes[kept] / scale[columns][:, None]
        D, PD, HD = (matrix[:, columns] @ mix for matrix in (step, state.gradient, state.gradient - gradient))
        A, B = D.T @ HD, D.T @ PD
    try:
        values = _linalg.eigh((A + A.T) / 2, (B + B.T) / 2, eigvals_only=True)
    except (np.linalg.LinAlgError, ValueError):  # columns that depend on each other, or numbers out of range
        return None
    return float(values[-1])


#: A direction of which less than this share is new is taken as known.
_NEW = 1e-10
#: Directions of one round that depend on each other to this share are one direction.
_NEW_DIRECTION = 1e-8


@dataclass(frozen=True, eq=False)
class ConjugateIterate(Iterate):
    """An iterate with the directions so far: Q (M, k) with ``Q' H Q = I``, and the matrices HQ and PQ."""

    basis: FloatArray
    images: FloatArray
    preimages: FloatArray

    @property
    def largest_eigenvalue(self) -> float | None:
        """Largest eigenvalue of ``P^-1 H`` on the directions so far: a lower bound of it, from the same exchanges."""
        if not self.basis.size:
            return None
        with single_blas_thread():
            inner = self.basis.T @ self.preimages
            smallest = float(np.linalg.eigvalsh((inner + inner.T) / 2)[0])
        return 1 / smallest if smallest > 0 else None


def start_conjugate(system: System, weights: FloatArray) -> ConjugateIterate:
    """State at ``weights``: one exchange."""
    first = first_iterate(system, weights)
    none = np.zeros((len(weights), 0))
    return ConjugateIterate(first.weights, first.gradient, first.objective, none, none, none)


def conjugate_step(system: System, state: ConjugateIterate) -> ConjugateIterate | None:
    """The minimiser with the directions ``P^-1 R`` added: two exchanges. None where no direction lowers F."""
    residual = -state.gradient
    directions, preimages = _new_directions(state, system.solve(residual), residual)
    if not directions.shape[1]:
        return None
    return _minimise(state, directions, system.apply(directions), preimages)


def _new_directions(state: ConjugateIterate, Z: FloatArray, PZ: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Orthonormal basis (M, k) of what Z adds to the known directions, and P times it."""
    with single_blas_thread():
        size = np.linalg.norm(Z, axis=0)
        for _ in range(2):  # once loses what cancels; twice is enough
            overlap = state.images.T @ Z
            Z, PZ = Z - state.basis @ overlap, PZ - state.preimages @ overlap
        left = np.linalg.norm(Z, axis=0)
        new = left > _NEW * size
        Z, PZ = Z[:, new] / left[new], PZ[:, new] / left[new]
        if not Z.shape[1]:
            return Z, PZ
        Q, T, order = _linalg.qr(Z, mode="economic", pivoting=True)
        sizes = np.abs(np.diagonal(T))
        rank = min(int((sizes > _NEW_DIRECTION * sizes[0]).sum()), len(Z) - state.basis.shape[1])
        if rank == 0:  # the known directions span everything
            return Z[:, :0], PZ[:, :0]
        return Q[:, :rank], _linalg.solve_triangular(T[:rank, :rank], PZ[:, order[:rank]].T, trans="T").T


def _minimise(
    state: ConjugateIterate, directions: FloatArray, HD: FloatArray, PD: FloatArray
) -> ConjugateIterate | None:
    """Minimiser of F over ``state`` plus all directions; None if it is not below F of ``state``."""
    with single_blas_thread():
        inner = directions.T @ HD
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        kept = values > np.finfo(np.float64).eps * len(values) * values[-1]
        if not kept.any():
            return None
        turn = vectors[:, kept] / np.sqrt(values[kept])
        basis = np.hstack([state.basis, directions @ turn])
        images = np.hstack([state.images, HD @ turn])
        preimages = np.hstack([state.preimages, PD @ turn])
        # Old directions have nothing left to give but rounding errors, which are taken along.
        steps = -basis.T @ state.gradient
        change_of_weights, change_of_gradient = basis @ steps, images @ steps
        change = 2 * np.vdot(change_of_weights, state.gradient) + np.vdot(change_of_weights, change_of_gradient)
        if not change < 0:
            return None
        return ConjugateIterate(
            state.weights + change_of_weights,
            state.gradient + change_of_gradient,
            state.objective + float(change),
            basis,
            images,
            preimages,
        )
