"""Weights by Q-aggregation of kernel mean embeddings: whose rows, mixed, look like the target's (KME Section 4).

KME Algorithm 1 for target t, embeddings v_k of n_k rows with covariance Sigma_k:

    L_t(w) = |sum_k w_k v_k - v_t|^2 + 2 w_t Tr(Sigma_t)/n_t                       unbiased for the squared error
    Q_t(w) = sum_(k != t) w_k sqrt(q_tk / n_t),   q_tk = <v_t - v_k, Sigma_t (v_t - v_k)>
    P_t(w) = M / n_t sum_(k != t) w_k |v_k - v_t|
    w_t    = argmin over the simplex of L_t + C_Q Q_t + C_P P_t

On the simplex the first term is ``w'G w - 2 G_t w`` and a constant, with G the inner products of all embeddings: all
targets share it. (KME Appendix A prints Tr/n_t in place of 2 Tr/n_t, and (24) lacks a factor 1/n_1.)

Quadratic programmes on the simplex that share their matrix, solved for many linear terms at once.

    minimise  w'G w + b_t'w   over w >= 0 with sum 1,   for every row b_t

First all of them together, by the alternating direction method of multipliers (Boyd et al. 2011): one product with a
(B, B) matrix per step. That finds which weights are zero. Then each by itself, by the primal active-set method for
convex programmes (Nocedal and Wright 2006, Section 16.5), which ends at the exact solution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number, check_rows
from kernfed.base.plain import MOST_COLUMNS
from kernfed.base.threads import in_threads
from kernfed.errors import InputError
from kernfed.kernels import FeatureMap, FourierFeatures, MeanEmbedding, column_bandwidths, quadratic_features
from kernfed.kernels.predictor import project_on_simplex

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


KERNELS = ("polynomial", "fourier")
COLUMNS = ("features", "both")
Constants = tuple[float, float]


@dataclass(frozen=True)
class EmbeddingKernel:
    """The kernel by which sites are compared, the same at every site.

    width : columns of x. targets : columns of y (one per class, or 1). kind : "polynomial" is ``(z'z' + 1)^2`` with
    exact features (KME Example 5.1), "fourier" random features of the Gaussian kernel in pairs of cosine and sine.
    columns : "features" compares x alone (covariate shift), "both" (x, y) (concept shift), or numbers of columns of
    (x, y). bandwidth : scale of x, one number or one per column; target_bandwidth : scale of y. n_components, seed : of
    "fourier". KME Table 1 has bandwidth sqrt(d + 1), target_bandwidth 1 and 500 features.
    """

    width: int
    targets: int
    kind: str = "fourier"
    columns: str | tuple[int, ...] = "both"
    bandwidth: float | tuple[float, ...] = 1.0
    target_bandwidth: float = 1.0
    n_components: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.width, "width", at_most=MOST_COLUMNS)
        check_count(self.targets, "targets", at_least=0, at_most=MOST_COLUMNS)
        check_choice(self.kind, "kernel", KERNELS)
        check_columns(self.columns)
        scales = column_bandwidths(self.bandwidth, self.width)
        if np.ndim(self.bandwidth) > 0:
            object.__setattr__(self, "bandwidth", tuple(scales.tolist()))
        check_number(self.target_bandwidth, "target_bandwidth", above=0)
        if len(self._places) == 0 or self._places.max() >= self.width + self.targets:
            raise InputError(f"columns must be among the {self.width + self.targets} of (x, y), got {self.columns}")
        if self.kind == "fourier":
            _ = self._fourier  # checks the number of features and the seed

    @property
    def _places(self) -> npt.NDArray[np.intp]:
        if self.columns == "features":
            return np.arange(self.width)
        if self.columns == "both":
            return np.arange(self.width + self.targets)
        return np.array(self.columns, dtype=np.intp)

    @property
    def dimension(self) -> int:
        """Numbers D of an embedding."""
        k = len(self._places)
        return self.n_components if self.kind == "fourier" else (k + 1) * (k + 2) // 2

    @cached_property
    def _fourier(self) -> FourierFeatures:
        return FourierFeatures(len(self._places), self.n_components, 1.0, self.seed, kind="paired")

    def rows(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> FloatArray:
        """The compared columns of (x, y), in units of their bandwidths (n, k)."""
        scales = np.concatenate(
            [column_bandwidths(self.bandwidth, self.width), np.full(self.targets, self.target_bandwidth)]
        )
        x = check_rows(X, width=self.width).astype(np.float64, copy=False)
        y = np.asarray(Y, dtype=np.float64).reshape(len(x), self.targets)
        return np.asarray((np.hstack([x, y]) / scales)[:, self._places])

    @property
    def features(self) -> FeatureMap:
        """Map from ``rows`` to features (n, D)."""
        return quadratic_features if self.kind == "polynomial" else self._fourier.transform

    def embed(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> MeanEmbedding:
        """Embedding of a site's rows x (n, p) and targets y (n, q)."""
        return MeanEmbedding.from_rows(self.rows(X, Y), features=self.features)

    def halves(self, X: npt.ArrayLike, Y: npt.ArrayLike) -> tuple[MeanEmbedding, MeanEmbedding]:
        """Embeddings of the even-numbered and of the odd-numbered rows; needs 2 rows."""
        rows = self.rows(X, Y)
        if len(rows) < 2:
            raise InputError("two halves need at least 2 rows, got 1")
        one, other = (MeanEmbedding.from_rows(rows[half::2], features=self.features) for half in (0, 1))
        return one, other

    def forms(self, X: npt.ArrayLike, Y: npt.ArrayLike, means: FloatArray) -> FloatArray:
        """q_tk (B,) of this site t against embeddings (B, D), KME (23); needs 2 rows."""
        phi = self.features(self.rows(X, Y))
        if len(phi) < 2:
            raise InputError("the spread of features needs at least 2 rows, got 1")
        centre = phi.mean(axis=0)
        return np.asarray(np.square((phi - centre) @ (means - centre).T).sum(axis=0) / (len(phi) - 1))

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "EmbeddingKernel":
        """Kernel from ``to_values``, checked."""
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


def check_columns(columns: Any) -> str | tuple[int, ...]:
    """Which columns are compared: a word, or different numbers from 0."""
    if isinstance(columns, str):
        return check_choice(columns, "columns", COLUMNS)
    if not isinstance(columns, (list, tuple)) or len(set(columns)) != len(columns) or not columns:
        raise InputError(f"columns must be 'features', 'both' or different numbers, got {columns!r}")
    return tuple(check_count(number, "column", at_least=0) for number in columns)


def penalty_constants(constants: Any, sites: int) -> Constants:
    """(C_Q, C_P): "printed" is C_Q^2 = C_P = log B, as in KME Table 1; or two numbers of at least 0."""
    if isinstance(constants, str):
        check_choice(constants, "weights", ("printed",))
        return float(np.sqrt(np.log(sites))), float(np.log(sites))
    if not isinstance(constants, (list, tuple)) or len(constants) != 2:
        raise InputError(f"weights must be 'auto', 'printed' or (C_Q, C_P), got {constants!r}")
    return check_number(constants[0], "C_Q", at_least=0), check_number(constants[1], "C_P", at_least=0)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What Q-aggregation needs of B sites.

    gram : (B, B) of embeddings. counts : (B,) rows. traces : (B,) of covariances. forms : (B, B) q_tk.
    """

    gram: FloatArray
    counts: FloatArray
    traces: FloatArray
    forms: FloatArray

    @property
    def distances(self) -> FloatArray:
        """|v_k - v_t| (B, B)."""
        squares = np.diag(self.gram)
        return np.asarray(np.sqrt(np.maximum(squares + squares[:, None] - 2 * self.gram, 0.0)))


def compare(embeddings: Sequence[MeanEmbedding], forms: npt.ArrayLike | None = None) -> Comparison:
    """Comparison of sites by their embeddings, with forms (B, B) if they are known.

    A site with one row has no variance estimate: it is given the median of the others'. Forms that are not known (all
    of them, or rows of NaN) are taken at their upper bound ``Tr(Sigma_t) |v_k - v_t|^2``.
    """
    if not embeddings:
        raise InputError("at least 1 site is needed, got none")
    means = np.stack([entry.mean for entry in embeddings])
    counts = np.array([entry.size for entry in embeddings])
    traces = np.array([entry.trace if entry.size > 1 else np.nan for entry in embeddings])
    known = np.isfinite(traces)
    if not known.any() and len(embeddings) > 1:
        raise InputError("at least 1 site must have 2 rows, got 1 row everywhere; weights need a variance estimate")
    traces = np.where(known, traces, np.median(traces[known]) if known.any() else 0.0)
    gram = means @ means.T
    blank = Comparison(gram, counts, traces, np.zeros_like(gram))
    upper = traces[:, None] * np.square(blank.distances)
    given = np.full_like(gram, np.nan) if forms is None else np.asarray(forms, dtype=np.float64)
    if given.shape != gram.shape:
        raise InputError(f"forms must have shape {gram.shape}, got {given.shape}")
    return Comparison(gram, counts, traces, np.where(np.isfinite(given), given, upper))


def compare_rows(rows: Sequence[npt.ArrayLike], kernel: Callable[[FloatArray, FloatArray], FloatArray]) -> Comparison:
    """Comparison under any kernel, from pooled rows z (n_k, p) of each site (KME Appendix A.1, (24) with 1/n_1).

    ``kernel(A, B)`` is the Gram matrix of two sets of rows. Each site needs 2 rows.
    """
    sites = [check_rows(z, "rows", min_rows=2) for z in rows]
    B = len(sites)
    gram, forms, traces = np.zeros((B, B)), np.zeros((B, B)), np.zeros(B)
    counts = np.array([float(len(z)) for z in sites])
    for t, target in enumerate(sites):
        inner = np.stack([np.asarray(kernel(target, z)).mean(axis=1) for z in sites], axis=1)  # <phi_i, v_k> (n_t, B)
        gram[t] = inner.mean(axis=0)
        steps = inner - inner[:, [t]]
        forms[t] = np.square(steps - steps.mean(axis=0)).sum(axis=0) / (len(target) - 1)
        own = float(sum(np.asarray(kernel(z[None], z[None]))[0, 0] for z in target))
        traces[t] = (own - counts[t] * gram[t, t]) / (counts[t] - 1)
    return Comparison((gram + gram.T) / 2, counts, traces, forms)


def aggregate(comparison: Comparison, constants: Constants, bound: float | npt.ArrayLike = 1.0) -> SimplexSolution:
    """Weights (B, B) of all targets, KME Algorithm 1, exact to 1e-10 of the largest inner product.

    bound : M, the largest norm of a row's features: 1 for pairs of cosine and sine, sqrt(2) for cosines with phases;
    one number or one per target (B,).
    """
    return minimise_on_simplex(comparison.gram, linear_terms(comparison, constants, bound))


def linear_terms(comparison: Comparison, constants: Constants, bound: float | npt.ArrayLike = 1.0) -> FloatArray:
    """Linear terms b (B, B): for target t the objective is ``w'G w + b_t'w`` and the constant ``G_tt``."""
    C_Q, C_P = constants
    n = comparison.counts[:, None]
    M = np.broadcast_to(np.asarray(bound, dtype=np.float64), len(n))[:, None]
    linear = C_Q * np.sqrt(np.maximum(comparison.forms, 0.0) / n) + C_P * M / n * comparison.distances
    linear[np.diag_indices_from(linear)] = 2 * comparison.traces / comparison.counts
    return np.asarray(linear - 2 * comparison.gram)


def embedding_bounds(kernel: EmbeddingKernel, embeddings: Sequence[MeanEmbedding]) -> FloatArray:
    """M (B,) for ``aggregate``: 1 for "fourier"; the polynomial kernel has no bound, the root mean square stands in."""
    if kernel.kind == "fourier":
        return np.ones(len(embeddings))
    return np.array([np.sqrt(entry.norm_squared() + entry.spread / entry.weight) for entry in embeddings])
