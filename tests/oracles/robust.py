"""Naive twins of ``kernfed.ridge.robust``: full vectors, rows of sites, loops."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def geometric_median(points: Array, weights: Array, steps: int = 2000) -> Array:
    """Weiszfeld on points (Q, k)."""
    x = np.average(points, axis=0, weights=weights)
    for _ in range(steps):
        away = np.maximum(np.linalg.norm(points - x, axis=1), 1e-12)
        x = np.average(points, axis=0, weights=weights / away)
    return np.asarray(x)


def middle(values: Array, weights: Array) -> float:
    """The value at which half of the weight is reached; between two halves their mean."""
    order = np.argsort(values)
    half = sum(weights) / 2
    reached = 0.0
    for rank, place in enumerate(order):
        reached += weights[place]
        if np.isclose(reached, half):
            return float(values[place] + values[order[rank + 1]]) / 2
        if reached > half:
            return float(values[place])
    raise AssertionError


def clipped_mean(points: Array, weights: Array, steps: int = 2000) -> Array:
    """Points (Q, k) that count by ``min(1, r / d)^2``, r the radius that half of the weight is within."""
    flat = points.reshape(len(points), -1)
    x = geometric_median(flat, weights)
    radius = max(middle(np.linalg.norm(flat - x, axis=1), weights), 1e-12)
    for _ in range(steps):
        away = np.linalg.norm(flat - x, axis=1)
        shares = [w * (1.0 if d <= radius else radius / d) ** 2 for w, d in zip(weights, away, strict=True)]
        x = np.average(flat, axis=0, weights=shares)
    return np.asarray(x.reshape(points.shape[1:]))


def capped(weights: Array, cap: float) -> Array:
    return np.minimum(weights, cap * np.median(weights[weights > 0]))


def classes(
    sites: list[tuple[Array, Array]], cap: float, weights: Array, *, intercept: bool
) -> tuple[Array, Array, Array, Array]:
    """C (M, M), b (M, C), means (M,) and shares (C,) of sites' rows phi (n, M) with targets (n, C) of 0 and 1.

    ``weights`` (C,) are those of rows by class.
    """
    n = np.array([float(len(phi)) for phi, _ in sites])
    held = np.array([targets.sum(axis=0) * weights for _, targets in sites]) * (capped(n, cap) / n)[:, None]
    shares = held.sum(axis=0) / held.sum()
    centres = []
    for c in range(held.shape[1]):
        holders = [place for place in range(len(sites)) if held[place, c] > 0]
        means = np.array([sites[place][0][sites[place][1][:, c] > 0].mean(axis=0) for place in holders])
        centres.append(clipped_mean(means, capped(held[holders, c], cap)))
    middle_point = shares @ np.array(centres) if intercept else np.zeros(len(centres[0]))
    within = []
    for phi, targets in sites:
        apart = phi - np.array(centres)[targets.argmax(axis=1)]
        own = weights[targets.argmax(axis=1)]
        within.append((own[:, None] * apart).T @ apart / own.sum())
    second = clipped_mean(np.array(within), held.sum(axis=1))
    for share, centre in zip(shares, centres, strict=True):
        second = second + share * np.outer(centre - middle_point, centre - middle_point)
    b = np.array([share * (centre - middle_point) for share, centre in zip(shares, centres, strict=True)]).T
    return second, b, middle_point, shares


def values(sites: list[tuple[Array, Array]], cap: float, *, intercept: bool) -> tuple[Array, Array, Array, Array]:
    """C, b, means of features and of targets of sites' rows phi (n, M) with values (n, 1)."""
    weights = capped(np.array([float(len(phi)) for phi, _ in sites]), cap)
    x, y = np.zeros(sites[0][0].shape[1]), np.zeros(1)
    if intercept:
        spread = middle(np.array([phi.var(axis=0).sum() for phi, _ in sites]), weights) ** 0.5
        unit = middle(np.array([own.var() for _, own in sites]), weights) ** 0.5
        points = np.array([[*(phi.mean(axis=0) / spread), own.mean() / unit] for phi, own in sites])
        common = clipped_mean(points, weights)
        x, y = common[:-1] * spread, common[-1:] * unit
    seconds = np.array([(phi - x).T @ (phi - x) / len(phi) for phi, _ in sites])
    crosses = np.array([(phi - x).T @ (own - y) / len(phi) for phi, own in sites])
    sizes = [middle(np.array([np.linalg.norm(one) for one in many]), weights) for many in (seconds, crosses)]
    flat = [many.reshape(len(sites), -1) / size for many, size in zip((seconds, crosses), sizes, strict=True)]
    found = clipped_mean(np.concatenate(flat, axis=1), weights)
    M = len(x)
    return found[: M * M].reshape(M, M) * sizes[0], found[M * M :].reshape(M, 1) * sizes[1], x, y
