"""Multinomial logistic regression from the Gram matrix of round one: a few gradients, one exchange each.

Rows z_i (M,) around the pooled means, one-hot targets y_i (C,), weights c_i with mass m; W (M, C) and a (C,)::

    G(W, a) = sum_i c_i (log sum_k exp(v_ik) - y_i' v_i) / m + lambda/2 |W|^2,   v_i = W'z_i + a

Its Hessian is nowhere above ``(I - 11'/C)/2 (x) C_aug`` (Boehning 1992), whose part in W is ``C / 2 + lambda I`` with
the second moments C of the rows, so steps with that matrix descend without a line search; Nesterov's momentum, begun
again where it points uphill (O'Donoghue and Candes 2015), makes few of them enough.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels import Moments
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means, centred_features, over_blocks


@dataclass(frozen=True, eq=False)
class LogisticSums:
    """Sums over rows: losses, and gradients by W (M, C) and a (C,)."""

    loss: float
    weights: FloatArray
    intercept: FloatArray

    def __add__(self, other: "LogisticSums") -> "LogisticSums":
        return LogisticSums(self.loss + other.loss, self.weights + other.weights, self.intercept + other.intercept)

    def to_array(self) -> FloatArray:
        """One array (M C + C + 1,) for a message."""
        return np.concatenate([self.weights.ravel(), self.intercept, [self.loss]])

    @classmethod
    def from_array(cls, array: npt.NDArray[np.float64], parameters: RidgeParameters) -> "LogisticSums":
        """Sums from ``to_array``, checked."""
        M, C = parameters.n_features, parameters.n_targets
        if array.shape != (M * C + C + 1,) or array.dtype != np.float64 or not np.isfinite(array).all():
            raise InputError(f"sums must be {M * C + C + 1} finite float64, got {array.dtype} of {array.shape}")
        return cls(float(array[-1]), array[: M * C].reshape(M, C), array[M * C : -1])


def logistic_sums(
    X: FloatArray,
    y: npt.NDArray[np.generic],
    parameters: RidgeParameters,
    weights: FloatArray,
    intercept: FloatArray,
    means: Means | None,
) -> LogisticSums:
    """Sums of a site's rows (n, p) at W (M, C) and a (C,), features taken around ``means``."""
    targets, row_weights = parameters.targets(y), parameters.row_weights(y)
    features = centred_features(parameters, means)

    def part(block: slice) -> LogisticSums:
        rows = (X[block] if features is None else features(X[block])).astype(np.float64, copy=False)
        c = np.ones(len(rows)) if row_weights is None else row_weights[block]
        values = rows @ weights + intercept
        values -= values.max(axis=1, keepdims=True)
        raised = np.exp(values)
        total = raised.sum(axis=1, keepdims=True)
        loss = float(c @ (np.log(total[:, 0]) - (values * targets[block]).sum(axis=1)))
        slope = (raised / total - targets[block]) * c[:, None]
        return LogisticSums(max(loss, 0.0), rows.T @ slope, slope.sum(axis=0))

    with single_blas_thread():
        return over_blocks(len(X), part)


@dataclass(frozen=True, eq=False)
class LogisticProblem:
    """What the coordinator keeps: the factor of ``C / 2 + lambda D``, lambda D (M,), mass, and whether a is learned."""

    upper: FloatArray
    penalty: FloatArray
    mass: float
    fit_intercept: bool

    @classmethod
    def of(
        cls, moments: Moments, mass: float, regularization: float, penalty: FloatArray | None, fit_intercept: bool
    ) -> "LogisticProblem":
        """From the sums that made the squared head."""
        weighed = regularization * (np.ones(moments.width) if penalty is None else penalty)
        with single_blas_thread():
            bound = moments.second / (2 * mass)
            # A tiny share of the trace keeps columns that depend on each other solvable; the fixed point is the same.
            bound[np.diag_indices_from(bound)] += weighed + 1e-12 * np.trace(bound) / max(1, len(bound))
            return cls(np.linalg.cholesky(bound).T, weighed, mass, fit_intercept)

    def solve(self, weights: FloatArray, intercept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The bound's inverse times a gradient; its part in a is ``(I - 11'/C) / 2``."""
        with single_blas_thread():
            step = np.asarray(_linalg.cho_solve((self.upper, False), weights, check_finite=False))
        return step, 2 * intercept if self.fit_intercept else np.zeros_like(intercept)

    def gradient(self, sums: LogisticSums, at: "LogisticState") -> tuple[FloatArray, FloatArray, float]:
        """Gradients of G by W and a, and G, where the sums were asked for."""
        look = at.look
        by_weights = sums.weights / self.mass + self.penalty[:, None] * look[0]
        objective = sums.loss / self.mass + float((self.penalty[:, None] * look[0] ** 2).sum()) / 2
        return by_weights, sums.intercept / self.mass, objective

    def size(self, weights: FloatArray, intercept: FloatArray) -> float:
        """Norm of a gradient in the bound's inverse: what a step can gain is half its square."""
        step = self.solve(weights, intercept)
        return float(np.sqrt(max(0.0, float(np.vdot(weights, step[0]) + np.vdot(intercept, step[1])))))


@dataclass(frozen=True, eq=False)
class LogisticState:
    """Weights and intercept, where to look next (``look``), and Nesterov's sequence t."""

    weights: FloatArray
    intercept: FloatArray
    look: tuple[FloatArray, FloatArray]
    t: float = 1.0

    @classmethod
    def start(cls, weights: FloatArray, intercept: FloatArray) -> "LogisticState":
        """At given weights; a constant that all classes share changes nothing and is taken out."""
        centred = weights - weights.mean(axis=1, keepdims=True), intercept - intercept.mean()
        return cls(*centred, centred)


def logistic_step(
    problem: LogisticProblem, state: LogisticState, by_weights: FloatArray, by_intercept: FloatArray
) -> LogisticState:
    """The state after a step with the gradient at ``state.look``."""
    step = problem.solve(by_weights, by_intercept)
    weights, intercept = state.look[0] - step[0], state.look[1] - step[1]
    moved = weights - state.weights, intercept - state.intercept
    uphill = float(np.vdot(by_weights, moved[0]) + np.vdot(by_intercept, moved[1])) > 0
    t = 1.0 if uphill else state.t
    following = (1 + np.sqrt(1 + 4 * t**2)) / 2
    share = 0.0 if uphill else (t - 1) / following
    look = weights + share * moved[0], intercept + share * moved[1]
    return replace(state, weights=weights, intercept=intercept, look=look, t=float(following))
