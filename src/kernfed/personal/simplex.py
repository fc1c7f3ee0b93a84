"""Quadratic programmes on the simplex that share their matrix, solved for many linear terms at once.

    minimise  w'G w + b_t'w   over w >= 0 with sum 1,   for every row b_t

First all of them together, by the alternating direction method of multipliers (Boyd et al. 2011): one product with a
(B, B) matrix per step. That finds which weights are zero. Then each by itself, by the primal active-set method for
convex programmes (Nocedal and Wright 2006, Section 16.5), which ends at the exact solution.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_rows
from kernfed.base.threads import in_threads
from kernfed.errors import InputError
from kernfed.kernels.simplex import project_on_simplex

#: Gap to the minimum, in units of the largest entry of the centred G, at which a solution is taken.
TOLERANCE = 1e-10
_STEPS = 40
#: Added to the diagonal, in units of G: makes identical sites solvable and moves the gradient by less than the gap.
_SHIFT = 1e-13
_BLOCK = 64


@dataclass(frozen=True, eq=False)
class SimplexSolution:
    """Weights (T, B), and for each row a proven bound (T,) on how far its objective is above the minimum."""

    weights: FloatArray
    gaps: FloatArray


def minimise_on_simplex(gram: npt.ArrayLike, linear: npt.ArrayLike, *, n_jobs: int | None = None) -> SimplexSolution:
    """Minimisers of ``w'G w + b_t'w`` on the simplex for G (B, B), positive semi-definite, and b (T, B).

    >>> minimise_on_simplex([[1.0, 0.0], [0.0, 3.0]], [[0.0, 0.0]]).weights.round(9).tolist()
    [[0.75, 0.25]]
    """
    b = check_rows(linear, "linear").astype(np.float64, copy=False)
    G = check_rows(gram, "gram", width=b.shape[1]).astype(np.float64, copy=False)
    if G.shape != (b.shape[1], b.shape[1]) or not np.allclose(G, G.T, rtol=1e-8, atol=1e-10 * np.abs(G).max()):
        raise InputError(f"gram must be a symmetric matrix of {b.shape[1]} rows and columns, got shape {G.shape}")
    # Subtracting a vector from all embeddings changes nothing on the simplex, and takes out what they have in common.
    centre = G.mean(axis=0)
    b = b + 2 * (centre - centre.mean())
    G = G - centre - centre[:, None] + centre.mean()
    G = (G + G.T) / 2
    scale = float(max(np.abs(G).max(), np.abs(b - b.min(axis=1, keepdims=True)).max(), np.finfo(float).tiny))
    G, b = G / scale, (b - b.min(axis=1, keepdims=True)) / scale
    weights, open_rows = _vertices(G, b)
    if open_rows.size:
        weights[open_rows] = _finish(G, b[open_rows], _alternate(G, b[open_rows]), n_jobs)
    gradient = 2 * (weights @ G) + b
    gaps = np.einsum("tk,tk->t", weights, gradient) - gradient.min(axis=1)
    return SimplexSolution(weights, scale * np.maximum(gaps, 0.0))


def _vertices(G: FloatArray, b: FloatArray) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    """The best vertex for every row, and the rows whose minimum is elsewhere; sites that learn alone end here."""
    best = (np.diag(G) + b).argmin(axis=1)
    gradient = 2 * G[best] + b
    rows = np.arange(len(b))
    weights = np.zeros_like(b)
    weights[rows, best] = 1.0
    return weights, np.flatnonzero(gradient[rows, best] - gradient.min(axis=1) > TOLERANCE)


def _finish(G: FloatArray, b: FloatArray, start: FloatArray, n_jobs: int | None) -> FloatArray:
    """Exact minimisers (T, B) from feasible starts."""
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(b), _BLOCK)]

    def solve(block: slice) -> list[FloatArray]:
        factors: dict[bytes, FloatArray] = {}
        return [_active_set(G, row, w, factors) for row, w in zip(b[block], start[block], strict=True)]

    return np.stack([w for part in in_threads(solve, blocks, n_jobs) for w in part])


def _alternate(G: FloatArray, b: FloatArray) -> FloatArray:
    """Feasible weights (T, B) close to the minimisers."""
    values, vectors = scipy.linalg.eigh(G)
    values = np.maximum(values, 0.0)
    weights = np.full(b.shape, 1.0 / len(G))
    # The geometric middle of the curvatures is the classical choice of the penalty.
    rho = float(np.sqrt(max(2 * values[-1], 1e-12) * max(2 * np.median(values), 1e-9)))
    inverse = (vectors / (2 * values + rho)) @ vectors.T
    dual = np.zeros_like(b)
    for _ in range(_STEPS):
        inner = (rho * (weights - dual) - b) @ inverse
        weights = project_on_simplex(inner + dual)
        dual += inner - weights
    return weights


def _active_set(G: FloatArray, b: FloatArray, start: FloatArray, factors: dict[bytes, FloatArray]) -> FloatArray:
    """Minimiser (B,) of one programme from a feasible start."""
    w = start.copy()
    free = w > 1e-12
    w[~free] = 0.0
    w /= w.sum()
    for _ in range(20 * len(b)):
        goal = _minimum_on(G, b, free, factors)
        step = goal - w
        falling = free & (step < 0)
        ratios = np.full(len(w), np.inf)
        ratios[falling] = w[falling] / -step[falling]
        length = float(ratios.min())
        if length < 1.0:  # a weight reaches zero on the way, and stays there
            w = np.maximum(w + length * step, 0.0)
            hit = ratios <= length * (1 + 1e-12)
            w[hit], free[hit] = 0.0, False
            w /= w.sum()
            continue
        w = np.maximum(goal, 0.0)
        w /= w.sum()
        gradient = 2 * (G @ w) + b
        if w @ gradient - gradient.min() <= TOLERANCE:
            break
        free[np.where(free, np.inf, gradient).argmin()] = True
    return w


def _minimum_on(
    G: FloatArray, b: FloatArray, free: npt.NDArray[np.bool_], factors: dict[bytes, FloatArray]
) -> FloatArray:
    """Minimiser (B,) with sum 1 and zeros outside ``free``, whatever its signs."""
    places = np.flatnonzero(free)
    key = np.packbits(free).tobytes()
    factor = factors.get(key)
    if factor is None:
        part = 2 * G[np.ix_(places, places)]
        # The sum is 1, so adding a constant to every entry changes nothing and keeps the factor well conditioned.
        part += max(1.0, float(np.abs(part).max()))
        part[np.diag_indices_from(part)] += 2 * _SHIFT * max(1.0, len(places))
        factor = scipy.linalg.cholesky(part, lower=True, check_finite=False)
        if len(factors) > 8:
            factors.pop(next(iter(factors)))
        factors[key] = factor
    right = np.column_stack([np.ones(len(places)), b[places]])
    ones, along = scipy.linalg.cho_solve((factor, True), right, check_finite=False).T
    goal = np.zeros(len(b))
    goal[places] = ones * ((1 + along.sum()) / ones.sum()) - along
    return goal
