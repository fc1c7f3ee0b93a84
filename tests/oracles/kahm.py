"""KAHM as printed: explicit covariance, explicit inverse, explicit image (SFM Appendix A, DP-KAHM Definitions 1-6).

Sums, products and the inverse run in extended precision where numpy offers it, so that an offset of 1e6 in the
data costs the oracle nothing; the eigenvectors come from LAPACK in float64, as in any implementation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WIDE = np.longdouble


def _invert(matrix: Array) -> Array:
    """Gauss-Jordan with partial pivoting in extended precision."""
    size = len(matrix)
    work = np.concatenate([matrix.astype(WIDE), np.eye(size, dtype=WIDE)], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax(np.abs(work[column:, column])))
        work[[column, pivot]] = work[[pivot, column]]
        work[column] /= work[column, column]
        others = np.arange(size) != column
        work[others] -= np.outer(work[others, column], work[column])
    return work[:, size:]


@dataclass
class LiteralKAHM:
    """One KAHM; attributes carry the paper's names."""

    X: Array
    P: Array
    theta: Array
    lam: WIDE
    inverse: Array

    @property
    def n(self) -> int:
        return len(self.P)

    def kernel(self, first: Array, second: Array) -> Array:
        """SFM (147) on raw points, encoded by P."""
        differences = (first[:, None, :] - second[None, :, :]) @ self.P.T
        quadratic = np.einsum("abi,ij,abj->ab", differences, _invert(self.theta), differences)
        values: Array = np.exp(-quadratic / (2 * self.n))
        return values

    def memberships(self, Y: Array) -> Array:
        """SFM (155)."""
        return self.kernel(Y.astype(WIDE), self.X) @ self.inverse.T

    def image(self, Y: Array) -> Array:
        """DP-KAHM (33), with the kernel scaled per query so that it does not underflow."""
        Y = Y.astype(WIDE)
        if self.n == 0:
            return np.repeat(self.X.mean(axis=0, keepdims=True), len(Y), axis=0)
        differences = (Y[:, None, :] - self.X[None, :, :]) @ self.P.T
        quadratic = np.einsum("abi,ij,abj->ab", differences, _invert(self.theta), differences) / (2 * self.n)
        k = np.exp(-(quadratic - quadratic.min(axis=1, keepdims=True)))
        h = k @ self.inverse.T
        fall = h.sum(axis=1) <= 1e-6 * np.abs(h).sum(axis=1)
        w = np.where(fall[:, None], k, h)
        images: Array = (w / w.sum(axis=1, keepdims=True)) @ self.X
        return images

    def distance(self, Y: Array) -> Array:
        distances: Array = np.sqrt(((Y.astype(WIDE) - self.image(Y)) ** 2).sum(axis=1))
        return distances


def literal_encoding(X: Array, dim: int | None = None) -> Array:
    """SFM Algorithm 1: rows of P are leading eigenvectors of the sample covariance."""
    N, p = X.shape
    n = min(20 if dim is None else dim, p, N - 1)
    if n == 0:
        return np.zeros((0, p))
    centred = (X - X.astype(WIDE).mean(axis=0)).astype(np.float64)
    P = np.linalg.svd(centred)[2][:n]  # eigenvectors of the covariance, to more digits than through the covariance
    while n > 0 and np.ptp(centred @ P[:n].T, axis=0).min() < 1e-3:
        n -= 1
    return P[:n]


def literal_kahm(X: Array, dim: int | None = None, P: Array | None = None) -> LiteralKAHM:
    """DP-KAHM Definition 1 with the regulariser of (40)-(44) iterated to convergence."""
    X = X.astype(WIDE)
    N, p = X.shape
    P = literal_encoding(X.astype(np.float64), dim) if P is None else P
    machine = LiteralKAHM(X, P, np.eye(len(P), dtype=WIDE), WIDE(0), np.eye(N, dtype=WIDE))
    if len(P) == 0:
        return machine
    encoded = (X - X.mean(axis=0)) @ P.T
    machine.theta = encoded.T @ encoded / (N - 1)
    K = machine.kernel(X, X)
    tau = 2 * (X**2).sum() / (p * N)
    e = tau / 4
    for _ in range(500):
        residual = X - K @ (_invert(K + (e + tau) * np.eye(N)) @ X)
        new = (residual**2).sum() / (p * N)
        done = abs(new - e) <= 1e-17 * tau
        e = new
        if done:
            break
    machine.lam = e + tau
    machine.inverse = _invert(K + machine.lam * np.eye(N))
    return machine


def literal_deep(X: Array, Y: Array, layers: int, dim: int | None = None) -> tuple[Array, Array]:
    """DP-KAHM (50)-(52): image (n, p) and chosen layer (n,)."""
    P = literal_encoding(X.astype(np.float64), dim)
    depth = max(1, min(layers, len(P)))
    current = Y.astype(WIDE)
    images = []
    for level in range(depth):
        current = literal_kahm(X, P=P[: len(P) - level]).image(current)
        images.append(current)
    stack = np.stack(images)
    distances = np.sqrt(((Y.astype(WIDE) - stack) ** 2).sum(axis=2))
    chosen = distances.argmin(axis=0)
    return stack[chosen, np.arange(len(Y))], chosen


def literal_measure(measure: str, Y: Array, A: Array) -> Array:
    """SFM (102)-(104) from explicit queries and images."""
    Y, A = Y.astype(WIDE), A.astype(WIDE)
    distance = np.sqrt(((Y - A) ** 2).sum(axis=1))
    euc = 1 - np.exp(-distance)
    norms = np.sqrt((Y**2).sum(axis=1) * (A**2).sum(axis=1))
    cosine = np.where(norms > 0, (Y * A).sum(axis=1) / np.where(norms > 0, norms, 1), 0)
    cos = np.arccos(np.clip(cosine, -1, 1)) / np.pi
    table: dict[str, Array] = {
        "distance": distance,
        "euclidean": euc,
        "cosine": cos,
        "rms": np.sqrt((euc**2 + cos**2) / 2),
        "product": euc * cos,
        "min": np.minimum(euc, cos),
        "max": np.maximum(euc, cos),
    }
    return table[measure]
