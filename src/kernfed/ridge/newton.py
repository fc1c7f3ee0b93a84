"""FedNewton: global gradient, local inverse Hessians. Preconditioned Richardson iteration, which may diverge.

FedNewton (4), (5) and lines 7-8 of Algorithm 1 print the *local* gradient. With it one round from anywhere returns the
average of the local solutions, since ``H_j^-1 g_j = W - W_j``; the text above (4), line 6 and the proof of Theorem 1
have the global one, as here.
"""

from dataclasses import dataclass

import numpy as np

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.ridge.objective import Iterate, System, diverged, first_iterate, objective_value

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
