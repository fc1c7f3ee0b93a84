"""One site's part of the system: its Hessian factored once, then applied and solved many times.

With n rows and M features the Hessian ``H_j = C_j + lambda I`` is factored as it is (n >= M), or through the n x n
Gram matrix ``K = A A'`` of the scaled feature rows ``A = diag(sqrt(c/m)) Phi`` (n < M), for which ``C_j = A' A`` and
``H_j^-1 r = (r - A' (K + lambda I)^-1 A r) / lambda``. The operators are those of FedNewton Definitions 1-3 on
explicit features.

Choice of the regularisation by leave-one-out cross-validation over the whole federation, in one more exchange.

The candidates are judged by the average of the sites' solutions, ``W = sum_j p_j W_j``, each row by the average whose
own site has not seen it. A ridge solution without row i predicts ``y_i - (y_i - f_j(x_i)) / (1 - h_i)`` there, with
``h_i = c_i phi_i' H_j^-1 phi_i / m_j``; so nothing is fitted twice (as usual the mass, and with it lambda m_j, is that
of all rows, and so are the means of an intercept).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import FeatureMap, row_blocks
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.solvers import rank_tolerance, safe_factor
from kernfed.ridge.sums import Means, centred_features, centred_targets, row_sums


class Factor(Protocol):
    """``C_j + lambda I`` ready to multiply and to solve."""

    def apply(self, V: FloatArray, regularization: float) -> FloatArray:
        """``(C_j + lambda I) V``."""

    def solve(self, R: FloatArray, regularization: float) -> FloatArray:
        """``(C_j + lambda I)^-1 R``; for lambda = 0 and a singular matrix the pseudo-inverse."""

    def inverse_trace(self, regularization: float) -> float:
        """Trace of ``(C_j + lambda I)^-1``; for lambda = 0 of the pseudo-inverse."""


@dataclass(frozen=True, eq=False)
class PrimalFactor:
    """Cholesky factor L (M, M) of ``C_j + lambda I`` for one lambda."""

    lower: FloatArray

    def apply(self, V: FloatArray, regularization: float) -> FloatArray:  # noqa: ARG002  it is in the factor
        """``L L' V`` by triangular products; the transpose is in their order, so the factor is not copied."""
        upper = self.lower.T
        inner = _linalg.blas.dtrmm(1.0, upper, V)
        return np.asarray(_linalg.blas.dtrmm(1.0, upper, inner, trans_a=1, overwrite_b=1))

    def solve(self, R: FloatArray, regularization: float) -> FloatArray:  # noqa: ARG002
        """``(L L')^-1 R`` by triangular systems."""
        return np.asarray(_linalg.cho_solve((self.lower.T, False), R, check_finite=False))

    def inverse_trace(self, regularization: float) -> float:  # noqa: ARG002
        """``|L^-1|_F^2``."""
        return _inverse_norm(self.lower)


@dataclass(frozen=True, eq=False)
class DualFactor:
    """Scaled feature rows A (n, M) and the Cholesky factor (n, n) of ``A A' + lambda I`` for one lambda > 0."""

    rows: FloatArray
    lower: FloatArray

    def apply(self, V: FloatArray, regularization: float) -> FloatArray:
        """``A' (A V) + lambda V``."""
        return np.asarray(self.rows.T @ (self.rows @ V) + regularization * V)

    def solve(self, R: FloatArray, regularization: float) -> FloatArray:
        """``(R - A' (A A' + lambda I)^-1 A R) / lambda``."""
        inner = _linalg.cho_solve((self.lower.T, False), self.rows @ R, check_finite=False)
        return np.asarray((R - self.rows.T @ inner) / regularization)

    def inverse_trace(self, regularization: float) -> float:
        """Trace of ``(A A' + lambda I)^-1`` and 1/lambda for each of the M - n directions without rows."""
        n, M = self.rows.shape
        return float(_inverse_norm(self.lower) + (M - n) / regularization)


@dataclass(frozen=True, eq=False)
class SpectralFactor:
    """Eigenvectors (M, k) and positive eigenvalues (k,) of C_j: for every lambda, and for singular matrices."""

    basis: FloatArray
    values: FloatArray

    def apply(self, V: FloatArray, regularization: float) -> FloatArray:
        """``B diag(s) B' V + lambda V``."""
        return np.asarray(self.basis @ (self.values[:, None] * (self.basis.T @ V)) + regularization * V)

    def solve(self, R: FloatArray, regularization: float) -> FloatArray:
        """Divide by s + lambda along the eigenvectors, and by lambda > 0 beside them."""
        along = self.basis.T @ R
        inside = self.basis @ (along / (self.values + regularization)[:, None])
        if regularization == 0:
            return np.asarray(inside)
        return np.asarray(inside + (R - self.basis @ along) / regularization)

    def inverse_trace(self, regularization: float) -> float:
        """Sum of 1/(s + lambda), and 1/lambda beside the eigenvectors."""
        M, k = self.basis.shape
        beside = (M - k) / regularization if regularization else 0.0
        return float((1 / (self.values + regularization)).sum() + beside)


@dataclass(frozen=True, eq=False)
class LocalRidge:
    """A site's objective: its factor, b (M, C), s, mass, trace of C_j, and its own minimisers (L, M, C).

    ``path`` has the lambdas the factor is for, ``solutions`` one minimiser for each: FedNewton Algorithm 1, line 2.
    """

    path: tuple[float, ...]
    factor: Factor
    linear: FloatArray
    constant: float
    mass: float
    trace: float
    solutions: FloatArray

    def apply(self, V: FloatArray, regularization: float) -> FloatArray:
        """``H_j V``."""
        with single_blas_thread():
            return self.factor.apply(V, regularization)

    def solve(self, R: FloatArray, regularization: float) -> FloatArray:
        """``H_j^-1 R``."""
        with single_blas_thread():
            return self.factor.solve(R, regularization)

    def effective_dimension(self, regularization: float) -> float:
        """Empirical ``N_j(lambda) = tr(C_j (C_j + lambda I)^-1)`` of FedNewton Assumption 1."""
        if regularization == 0 and isinstance(self.factor, SpectralFactor):
            return float(len(self.factor.values))
        with single_blas_thread():
            return max(0.0, len(self.linear) - regularization * self.factor.inverse_trace(regularization))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays for the site's store."""
        parts = {f"factor.{name}": value for name, value in vars(self.factor).items()}
        scalars = np.array([self.constant, self.mass, self.trace])
        return {
            **parts,
            "path": np.array(self.path),
            "linear": self.linear,
            "solutions": self.solutions,
            "scalars": scalars,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "LocalRidge":
        """A site's objective from ``to_arrays``."""
        parts = {name.removeprefix("factor."): a for name, a in arrays.items() if name.startswith("factor.")}
        kinds: dict[frozenset[str], type[Any]] = {
            frozenset({"lower"}): PrimalFactor,
            frozenset({"rows", "lower"}): DualFactor,
            frozenset({"basis", "values"}): SpectralFactor,
        }
        factor = kinds[frozenset(parts)](**parts)
        constant, mass, trace = map(float, arrays["scalars"])
        path = tuple(arrays["path"].tolist())
        return cls(path, factor, arrays["linear"], constant, mass, trace, arrays["solutions"])


def fit_local(
    X: FloatArray, y: npt.NDArray[Any], parameters: RidgeParameters, means: Means | None = None
) -> LocalRidge:
    """The objective of rows (n, p) with labels or values y (n,), n at least 1; around ``means`` for an intercept."""
    targets, weights = centred_targets(parameters, y, means), parameters.row_weights(y)
    mass = float(len(X)) if weights is None else float(weights.sum())
    build = _fit_dual if len(X) < parameters.n_features else _fit_primal
    return build(X, targets, weights, mass, centred_features(parameters, means), parameters.regularization)


def _fit_primal(
    X: FloatArray,
    targets: FloatArray,
    weights: FloatArray | None,
    mass: float,
    features: FeatureMap | None,
    path: tuple[float, ...],
) -> LocalRidge:
    sums = row_sums(X, targets, weights, features)
    with single_blas_thread():
        C, linear, constant = sums.gram / mass, sums.cross / mass, sums.square / mass
        del sums
        trace = float(np.trace(C))
        factor: Factor | None = None
        if len(path) == 1:
            lower = _cholesky(C, path[0])
            factor = None if lower is None else PrimalFactor(lower)
        if factor is None:
            values, vectors = np.linalg.eigh(C)
            kept = values > rank_tolerance(values)
            factor = SpectralFactor(vectors[:, kept], values[kept])
        solutions = np.stack([factor.solve(linear, value) for value in path])
    return LocalRidge(path, factor, linear, constant, mass, trace, solutions)


def _fit_dual(
    X: FloatArray,
    targets: FloatArray,
    weights: FloatArray | None,
    mass: float,
    features: FeatureMap | None,
    path: tuple[float, ...],
) -> LocalRidge:
    root = np.sqrt((np.ones(len(X)) if weights is None else weights) / mass)[:, None]
    with single_blas_thread():
        rows = (X if features is None else features(X)) * root
        targets = targets * root
        K = rows @ rows.T
        linear = rows.T @ targets
        constant, trace = float(np.vdot(targets, targets)), float(np.trace(K))
        lower = _cholesky(K, path[0]) if len(path) == 1 and path[0] > 0 else None
        if lower is not None:
            inner = _linalg.cho_solve((lower.T, False), targets, check_finite=False)
            return LocalRidge(path, DualFactor(rows, lower), linear, constant, mass, trace, (rows.T @ inner)[None])
        values, vectors = np.linalg.eigh(K)
        kept = values > rank_tolerance(values)
        values, vectors = values[kept], vectors[:, kept]
        factor = SpectralFactor(rows.T @ (vectors / np.sqrt(values)), values)
        along = vectors.T @ targets * np.sqrt(values)[:, None]
        solutions = [factor.basis @ (along / (values + value)[:, None]) for value in path]
    return LocalRidge(path, factor, linear, constant, mass, trace, np.stack(solutions))


def _cholesky(matrix: FloatArray, shift: float) -> FloatArray | None:
    """Factor of ``matrix + shift I``, or None where it is singular to working precision."""
    shifted = matrix + 0.0
    shifted[np.diag_indices_from(shifted)] += shift
    try:
        lower: FloatArray = np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return None
    return lower if safe_factor(lower) else None


def _inverse_norm(lower: FloatArray) -> float:
    """``|L^-1|_F^2``, the trace of ``(L L')^-1``."""
    inverse, info = _linalg.lapack.dtrtri(lower.T, lower=0)
    assert info == 0, "the factor was made with a positive diagonal"
    return float(np.vdot(inverse, inverse))


#: A row that its own solution reproduces whatever its target: its prediction without it is not defined.
_FREE = 1e-10


def leave_one_out_losses(
    X: FloatArray,
    y: npt.NDArray[np.generic],
    parameters: RidgeParameters,
    local: LocalRidge,
    averages: FloatArray,
    share: float,
    means: Means | None = None,
) -> FloatArray:
    """Weighted sum of squared errors (L,) of a site's rows under each candidate.

    averages : (L, M, C) average of all sites' solutions per candidate; share : p_j of this site in it. means : those
    that ``local`` was fitted around.
    """
    factor = local.factor
    assert isinstance(factor, SpectralFactor), "several candidates are factored by eigenvalues"
    targets, weights = centred_targets(parameters, y, means), parameters.row_weights(y)
    losses = np.zeros(len(parameters.regularization))
    features = centred_features(parameters, means)
    with single_blas_thread():
        for block in row_blocks(len(X)):
            rows = (X[block] if features is None else features(X[block])).astype(np.float64, copy=False)
            c = np.ones(len(rows)) if weights is None else weights[block]
            squared = (rows @ factor.basis) ** 2 * (c / local.mass)[:, None]
            for place, value in enumerate(parameters.regularization):
                leverage = (squared / (factor.values + value)).sum(axis=1)
                shift = share * leverage / np.maximum(1 - leverage, _FREE)
                own = targets[block] - rows @ local.solutions[place]
                error = targets[block] - rows @ averages[place] + shift[:, None] * own
                losses[place] += float(c @ (error**2).sum(axis=1))
    return losses
