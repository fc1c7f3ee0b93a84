"""Naive twins of ``kernfed.kernels``: one loop per sum, no centring, no blocks."""

from collections.abc import Callable
from math import cos, exp, fsum, sin
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Kernel = Callable[[Array, Array], float]


def squared_distance(x: Array, y: Array) -> float:
    """Sum of squared differences of two vectors."""
    return fsum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True))


def gaussian(x: Array, y: Array, bandwidth: Array) -> float:
    """Gaussian kernel with one bandwidth per column."""
    return exp(-fsum((float(a) - float(b)) ** 2 / (2 * float(h) ** 2) for a, b, h in zip(x, y, bandwidth, strict=True)))


def polynomial(x: Array, y: Array, degree: int, offset: float) -> float:
    """``(x'y + offset)^degree``."""
    return float((fsum(float(a) * float(b) for a, b in zip(x, y, strict=True)) + offset) ** degree)


def matrix(function: Kernel, X: Array, Y: Array) -> Array:
    """Every pair of rows, one by one."""
    return np.array([[function(x, y) for y in Y] for x in X], dtype=np.float64).reshape(len(X), len(Y))


def fourier_phase(X: Array, W: Array, b: Array, scale: float) -> Array:
    """``scale cos(x W + b)`` entry by entry, KME (7) for scale = sqrt(2/M)."""
    angles = [
        [fsum(float(a) * float(w) for a, w in zip(x, W[:, j], strict=True)) for j in range(W.shape[1])] for x in X
    ]
    return np.array([[scale * cos(angle + float(c)) for angle, c in zip(row, b, strict=True)] for row in angles])


def fourier_paired(X: Array, W: Array, scale: float) -> Array:
    """``scale [cos(x W), sin(x W)]`` entry by entry."""
    angles = [
        [fsum(float(a) * float(w) for a, w in zip(x, W[:, j], strict=True)) for j in range(W.shape[1])] for x in X
    ]
    return np.array([[scale * cos(a) for a in row] + [scale * sin(a) for a in row] for row in angles])


def mean_of(rows: Array) -> list[float]:
    """Column means by exact sums."""
    return [fsum(map(float, column)) / len(rows) for column in rows.T]


def scatter_of(A: Array, B: Array) -> Array:
    """``sum (a - mean a)(b - mean b)'`` by exact sums."""
    a, b = mean_of(A), mean_of(B)
    return np.array(
        [
            [
                fsum((float(x) - a[i]) * (float(y) - b[j]) for x, y in zip(A[:, i], B[:, j], strict=True))
                for j in range(B.shape[1])
            ]
            for i in range(A.shape[1])
        ]
    ).reshape(A.shape[1], B.shape[1])


def trace_of_covariance(features: Array) -> float:
    """KME (22)."""
    centre = np.array(mean_of(features))
    return fsum(squared_distance(row, centre) for row in features) / (len(features) - 1)


def trace_of_covariance_kernel(kernel: Kernel, Z: Array) -> float:
    """KME (24) with the factor 1/n that is missing in print."""
    n = len(Z)
    pairs = fsum(
        kernel(Z[i], Z[i]) - 2 * kernel(Z[i], Z[j]) + kernel(Z[j], Z[j]) for i in range(n) for j in range(n) if i != j
    )
    return pairs / (2 * n * (n - 1))


def mmd_v_statistic(kernel: Kernel, X: Array, Y: Array, u: Array, v: Array) -> float:
    """Weighted squared MMD of the empirical distributions; the weights sum to 1."""
    return fsum(
        sign * float(a[i]) * float(b[j]) * kernel(P[i], Q[j])
        for sign, P, Q, a, b in ((1, X, X, u, u), (1, Y, Y, v, v), (-2, X, Y, u, v))
        for i in range(len(P))
        for j in range(len(Q))
    )


def mmd_u_statistic(kernel: Kernel, X: Array, Y: Array) -> float:
    """Unbiased squared MMD of Gretton et al. (2012): the diagonals are left out."""
    total = 0.0
    for P in (X, Y):
        n = len(P)
        total += fsum(kernel(P[i], P[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return total - 2 * fsum(kernel(x, y) for x in X for y in Y) / (len(X) * len(Y))
