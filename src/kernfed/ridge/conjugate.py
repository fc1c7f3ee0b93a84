"""Conjugate gradients on FedNewton's two exchanges per round: it cannot diverge, and ends within M / C rounds.

A round sends the residual R, gets ``Z = P^-1 R``, sends Z and gets ``H Z``. The coordinator keeps every direction and
takes the minimiser over all of them, for all columns of W at once: block conjugate gradients (O'Leary 1980) with full
orthogonalisation, so that rounding does not cost rounds. That is 3 M t C numbers of memory, at most 3 M^2.
"""

from dataclasses import dataclass

import numpy as np

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.ridge.objective import Iterate, System, first_iterate

#: A direction of which less than this share is new is taken as known.
_NEW = 1e-10
#: Directions of one round that depend on each other to this share are one direction.
_INDEPENDENT = 1e-8


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
        rank = min(int((sizes > _INDEPENDENT * sizes[0]).sum()), len(Z) - state.basis.shape[1])
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
