"""Naive twins of ``kernfed.ridge``: explicit inverses on explicit features, line by line as FedNewton has them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Sites = list[tuple[Array, Array]]


def weights_of(sites: Sites) -> list[float]:
    """Shares p_j = |D_j| / |D|."""
    total = sum(len(phi) for phi, _ in sites)
    return [len(phi) / total for phi, _ in sites]


def hessian(phi: Array, regularization: float) -> Array:
    """``Phi' Phi / n + lambda I``, FedNewton below (3)."""
    return np.asarray(phi.T @ phi / len(phi) + regularization * np.eye(phi.shape[1]))


def closed_form(phi: Array, targets: Array, regularization: float) -> Array:
    """FedNewton (2)."""
    return np.asarray(np.linalg.solve(hessian(phi, regularization), phi.T @ targets / len(phi)))


def pooled(sites: Sites) -> tuple[Array, Array]:
    """All rows and targets."""
    return np.concatenate([phi for phi, _ in sites]), np.concatenate([targets for _, targets in sites])


def dkrr(sites: Sites, regularization: float) -> Array:
    """Average of the local closed forms."""
    parts = [p * closed_form(phi, y, regularization) for p, (phi, y) in zip(weights_of(sites), sites, strict=True)]
    return np.asarray(sum(parts))


def newton(sites: Sites, regularization: float, start: Array, rounds: int, *, local_gradient: bool = False) -> Array:
    """FedNewton Algorithm 1, lines 4-9; with ``local_gradient`` lines 7-8 exactly as printed."""
    shares = weights_of(sites)
    w = start
    for _ in range(rounds):
        local = [hessian(phi, regularization) @ w - phi.T @ y / len(phi) for phi, y in sites]
        common = sum(p * g for p, g in zip(shares, local, strict=True))
        steps = [
            p * np.linalg.inv(hessian(phi, regularization)) @ (g if local_gradient else common)
            for p, g, (phi, _) in zip(shares, local, sites, strict=True)
        ]
        w = w - sum(steps)
    return np.asarray(w)


def preconditioned(sites: Sites, regularization: float) -> Array:
    """``P^-1 H = sum p_j H_j^-1 H``."""
    H = hessian(pooled(sites)[0], regularization)
    parts = [
        p * np.linalg.inv(hessian(phi, regularization)) for p, (phi, _) in zip(weights_of(sites), sites, strict=True)
    ]
    return np.asarray(sum(parts) @ H)


def fedavg(sites: Sites, regularization: float, start: Array, rounds: int, rate: float, mu: float = 0.0) -> Array:
    """FedAvg with two local gradient steps; FedProx for mu > 0."""
    w = start
    for _ in range(rounds):
        parts = []
        for p, (phi, y) in zip(weights_of(sites), sites, strict=True):
            v = w
            for _ in range(2):
                v = v - rate * (hessian(phi, regularization) @ v - phi.T @ y / len(phi) + mu * (v - w))
            parts.append(p * v)
        w = np.asarray(sum(parts))
    return np.asarray(w)


def fedprox(sites: Sites, regularization: float, start: Array, rounds: int, mu: float) -> Array:
    """FedProx with exact local solutions: argmin of (1) + mu |v - w|^2, as least squares with further rows."""
    w = start
    for _ in range(rounds):
        parts = []
        for p, (phi, y) in zip(weights_of(sites), sites, strict=True):
            identity = np.eye(phi.shape[1])
            rows = [phi / np.sqrt(len(phi)), np.sqrt(regularization) * identity, np.sqrt(mu) * identity]
            targets = [y / np.sqrt(len(phi)), 0 * w, np.sqrt(mu) * w]
            parts.append(p * np.linalg.lstsq(np.vstack(rows), np.vstack(targets), rcond=None)[0])
        w = np.asarray(sum(parts))
    return np.asarray(w)


def objective(phi: Array, targets: Array, weights: Array, regularization: float) -> float:
    """Mean squared loss + lambda |W|^2."""
    error = phi @ weights - targets
    return float((error**2).sum() / len(phi) + regularization * (weights**2).sum())


def leave_one_out(sites: Sites, regularization: float) -> float:
    """Mean squared error of every row under the average of local solutions whose own site was refitted without it."""
    shares = weights_of(sites)
    solutions = [closed_form(phi, y, regularization) for phi, y in sites]
    total = 0.0
    for place, (phi, y) in enumerate(sites):
        for row in range(len(phi)):
            rest = np.arange(len(phi)) != row
            left = phi[rest].T @ phi[rest] / len(phi) + regularization * np.eye(phi.shape[1])
            own = np.linalg.solve(left, phi[rest].T @ y[rest] / len(phi))
            average = sum(
                p * (own if number == place else w) for number, (p, w) in enumerate(zip(shares, solutions, strict=True))
            )
            total += float(((phi[row] @ average - y[row]) ** 2).sum())
    return total / sum(len(phi) for phi, _ in sites)


def weighted_ridge(phi: Array, targets: Array, weights: Array, alpha: float, intercept: bool) -> tuple[Array, Array]:
    """Minimiser (W, a) of ``sum c |W'phi + a - y|^2 + alpha |W|^2``, by the normal equations with a column of ones."""
    rows = np.hstack([phi, np.ones((len(phi), 1))]) if intercept else phi
    penalty = np.diag([alpha] * phi.shape[1] + [0.0] * intercept)
    solved = np.linalg.solve((rows * weights[:, None]).T @ rows + penalty, (rows * weights[:, None]).T @ targets)
    return (solved[:-1], solved[-1]) if intercept else (solved, np.zeros(targets.shape[1]))


def pooled_leave_one_out(
    phi: Array, targets: Array, regularization: float, weights: Array | None = None, *, intercept: bool = True
) -> tuple[float, float]:
    """Weighted mean squared error, and share of wrong classes, of every row under the solution without that row."""
    c = np.ones(len(phi)) if weights is None else weights
    squares = wrong = 0.0
    for row in range(len(phi)):
        rest = np.arange(len(phi)) != row
        W, a = weighted_ridge(phi[rest], targets[rest], c[rest], regularization * c.sum(), intercept)
        value = phi[row] @ W + a
        squares += c[row] * float(((value - targets[row]) ** 2).sum())
        wrong += c[row] * float(value.argmax() != targets[row].argmax())
    return squares / c.sum(), wrong / c.sum()
