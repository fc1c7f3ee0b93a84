"""Exact in one round where M^2 numbers may travel: local Gram matrices add up to the pooled one."""

from functools import reduce
from operator import add

import numpy as np
import scipy.linalg
from joblib import Parallel, delayed

from kernfed._threads import resolve_jobs, single_blas_thread
from kernfed._validation import FloatArray
from kernfed.kernels import FeatureMap, Moments, row_blocks
from kernfed.ridge.objective import Iterate


def weighted_moments(X: FloatArray, targets: FloatArray, weights: FloatArray | None,
                     features: FeatureMap | None) -> Moments:  # fmt: skip
    """Moments of features and targets of rows (n, p), in blocks of rows side by side, added in their order.

    With ``weights`` (n,) the rows are scaled by their roots, so ``second``, ``cross`` and ``y_second`` are weighted.
    """
    jobs = resolve_jobs(None)
    with single_blas_thread():
        work = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem", return_as="generator")
        parts = work(delayed(_block_moments)(X, targets, weights, features, block) for block in row_blocks(len(X)))
        total: Moments = reduce(add, parts)
    return total


def _block_moments(X: FloatArray, targets: FloatArray, weights: FloatArray | None, features: FeatureMap | None,
                   block: slice) -> Moments:  # fmt: skip
    if weights is None:
        return Moments.from_rows(X[block], targets[block], features=features)
    root = np.sqrt(weights[block])[:, None]
    rows = X[block] if features is None else features(X[block])
    return Moments.from_rows(rows * root, targets[block] * root)


def minimise(moments: Moments, mass: float, regularization: float) -> Iterate:
    """Minimiser of the pooled objective, FedNewton (2): ``W = (C + lambda I)^-1 b``.

    A singular matrix (lambda = 0) has many minimisers; this is the one of the smallest norm.
    """
    with single_blas_thread():
        H = moments.second / mass
        H[np.diag_indices_from(H)] += regularization
        b = moments.cross / mass
        weights = _solve(H, b)
        gradient = H @ weights - b
        constant = float(np.trace(moments.y_second)) / mass
        return Iterate(weights, gradient, float(constant + np.vdot(weights, gradient - b)))


def _solve(H: FloatArray, b: FloatArray) -> FloatArray:
    try:
        lower = np.linalg.cholesky(H)
        if safe_factor(lower):
            return np.asarray(scipy.linalg.cho_solve((lower.T, False), b, check_finite=False))
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
