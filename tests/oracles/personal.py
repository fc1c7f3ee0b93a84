"""Naive transcriptions of KME and of the rule behind ``weights="auto"``: loops, dense matrices, a general solver."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Array = npt.NDArray[np.float64]


def aggregation_objective(
    phis: Sequence[Array], t: int, constants: tuple[float, float], bound: float
) -> Callable[[Array], float]:
    """L + C_Q Q + C_P P of KME Algorithm 1 for target t, from the feature rows of every site, with covariances."""
    means = [phi.mean(axis=0) for phi in phis]
    n = len(phis[t])
    Sigma = np.cov(phis[t], rowvar=False, ddof=1).reshape(len(means[t]), -1)

    def objective(w: Array) -> float:
        mixed = sum((w[k] * mean for k, mean in enumerate(means)), np.zeros_like(means[t]))
        value = float(np.sum((mixed - means[t]) ** 2)) + 2 * w[t] * np.trace(Sigma) / n
        for k, mean in enumerate(means):
            if k != t:
                step = means[t] - mean
                value += constants[0] * w[k] * np.sqrt(max(step @ Sigma @ step, 0.0)) / np.sqrt(n)
                value += constants[1] * bound / n * w[k] * np.sqrt(step @ step)
        return float(value)

    return objective


def minimise_simplex(objective: Callable[[Array], float], size: int) -> Array:
    """Minimiser on the simplex by sequential quadratic programming."""
    found: Any = minimize(
        objective,
        np.full(size, 1 / size),
        method="SLSQP",
        bounds=[(0, 1)] * size,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    return np.asarray(found.x)


def weighted_ridge(sites: Sequence[tuple[Array, Array]], weights: Array, ridge: float) -> Array:
    """Minimiser of sum_k w_k mean squared error at site k + ridge |b|^2, from the rows."""
    d = sites[0][0].shape[1]
    left, right = ridge * np.eye(d), np.zeros((d, sites[0][1].shape[1]))
    for (X, Y), w in zip(sites, weights, strict=True):
        left = left + w * X.T @ X / len(X)
        right = right + w * X.T @ Y / len(X)
    return np.asarray(np.linalg.solve(left, right))


def marginal_log_likelihood(sites: Sequence[tuple[Array, Array]], mean: Array, spread: float, noise: float) -> float:
    """Log density of all targets for coefficients N(mean, spread I), from dense covariances of the rows."""
    total = 0.0
    for X, Y in sites:
        V = noise * np.eye(len(X)) + spread * X @ X.T
        R = Y - X @ mean
        determinant = np.linalg.slogdet(V)[1] + len(X) * np.log(2 * np.pi)
        total -= 0.5 * (R.shape[1] * determinant + float(np.trace(R.T @ np.linalg.solve(V, R))))
    return float(total)


def posterior_mean(X: Array, Y: Array, mean: Array, covariance: Array, noise: float) -> Array:
    """Posterior mean of coefficients N(mean, covariance) given rows with targets of variance noise."""
    precision = np.linalg.inv(covariance)
    return np.asarray(np.linalg.solve(X.T @ X / noise + precision, X.T @ Y / noise + precision @ mean))


def concept_shift(
    sigma: float, seed: int, B: int = 100, n: int = 10, d: int = 20
) -> tuple[list[tuple[Array, Array]], Array, Array]:
    """KME (20)-(21): sites (X, y), their coefficients (B, d) and groups (B,)."""
    rng = np.random.default_rng(seed)
    base, groups = rng.standard_normal(d), rng.choice([-1, 1], B)
    beta = groups[:, None] * np.sqrt(1 - sigma) * base + np.sqrt(sigma) * rng.standard_normal((B, d))
    X = 1 + rng.standard_normal((B, n, d))
    y = np.einsum("bnd,bd->bn", X, beta) + np.sqrt(2) * rng.standard_normal((B, n))
    return list(zip(X, y, strict=True)), beta, groups


def concept_risk(beta: Array, found: Array) -> float:
    """Expected squared error over sites for new rows N(1, I), noise variance 2 included."""
    error = found - beta
    return float((2 + (error**2).sum(axis=1) + error.sum(axis=1) ** 2).mean())
