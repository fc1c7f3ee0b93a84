"""Exact in one round where M^2 numbers may travel: local Gram matrices add up to the pooled one."""

import numpy as np

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import Moments
from kernfed.ridge.objective import Iterate


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
