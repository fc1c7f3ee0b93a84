"""Whom each site learns from, by every rule that the KME studies compare; weights are (B, B), row t for target t."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from kernfed._validation import FloatArray, IntArray
from kernfed.personal.gradient import exponentiated_gradient, printed_rates
from kernfed.personal.weights import (
    Comparison,
    Constants,
    EmbeddingKernel,
    aggregate,
    compare,
    linear_terms,
    penalty_constants,
)

Rows = tuple[FloatArray, FloatArray]


def grand_mean(counts: npt.ArrayLike) -> FloatArray:
    """Everybody learns from all rows alike (KME 6): row (1, B)."""
    n = np.asarray(counts, dtype=np.float64)
    return np.asarray(n / n.sum())[None]


def oracle(groups: IntArray, counts: npt.ArrayLike) -> FloatArray:
    """Everybody learns from all rows of its true group alike: (B, B)."""
    same = (groups[:, None] == groups) * np.asarray(counts, dtype=np.float64)
    return np.asarray(same / same.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Aggregation:
    """Q-aggregation of a federation under one kernel: the exact minimum, and what KME's own solver makes of it."""

    comparison: Comparison

    @classmethod
    def of(cls, kernel: EmbeddingKernel, sites: Sequence[Rows]) -> "Aggregation":
        """Compare sites (X, Y) by random features in pairs, whose rows have norm 1."""
        embeddings = [kernel.embed(X, Y) for X, Y in sites]
        means = np.stack([embedding.mean for embedding in embeddings])
        return cls(compare(embeddings, np.stack([kernel.forms(X, Y, means) for X, Y in sites])))

    def exact(self, constants: str | Constants) -> FloatArray:
        """Weights (B, B) of KME Algorithm 1; "printed" are the constants of KME Table 1."""
        return aggregate(self.comparison, penalty_constants(constants, len(self.comparison.gram))).weights

    def printed_solver(self, constants: str | Constants) -> FloatArray:
        """Weights (B, B) after the 1,000 steps of KME Algorithm 3 (c = 0.5, from equal weights)."""
        linear = linear_terms(self.comparison, penalty_constants(constants, len(self.comparison.gram)))
        gram = self.comparison.gram
        return exponentiated_gradient(gram, linear, printed_rates(gram, linear + 2 * gram))


def mean_groups(features: Sequence[FloatArray], max_groups: int = 8) -> tuple[IntArray, FloatArray]:
    """``auto`` for covariate shift: groups (B,) of mean embeddings and weights (B, B), from features (n_k, D).

    Sites are grouped by k-means of their mean embeddings. The number of groups is the one whose centres, made from one
    half of every site's rows, predict best the means of the other halves: noise is drawn anew there, so groups of noise
    do not pay. Within a group, means spread by t around a common one, which is known with noise Tr(Sigma_k)/n_k from
    site k (KME (6)): site j gives itself ``a_j = t / (t + noise_j)`` and the rest to all, by ``1 / (t + noise_k)``.
    """
    n = np.array([len(rows) for rows in features])
    if n.min() < 2:
        raise ValueError(f"every site must have at least 2 rows, got {n.min()}")
    halves = [np.stack([rows[half::2].mean(axis=0) for rows in features]) for half in (0, 1)]
    losses = [_prediction_loss(halves, n, count) for count in range(1, min(max_groups, len(n)) + 1)]
    means = np.stack([rows.mean(axis=0) for rows in features])
    labels = _clusters(means, int(np.argmin(losses)) + 1)
    noise = np.array([rows.var(axis=0, ddof=1).sum() / len(rows) for rows in features])
    noise = np.maximum(noise, max(1e-12 * noise.max(), 1e-100))  # identical rows have none, and share alike
    weights = np.zeros((len(n), len(n)))
    for group in np.unique(labels):
        members = np.flatnonzero(labels == group)
        scatter = means[members].var(axis=0, ddof=1).sum() if len(members) > 1 else 0.0
        spread = max(float(scatter - noise[members].mean()), 0.0)
        own, shares = spread / (spread + noise[members]), 1 / (spread + noise[members])
        weights[np.ix_(members, members)] = (1 - own)[:, None] * shares / shares.sum()
        weights[members, members] += own
    return labels, weights


def _prediction_loss(halves: Sequence[FloatArray], n: IntArray, count: int) -> float:
    """Mean squared distance from centres of one half to means (B, D) of the other, both ways."""
    total = 0.0
    for one, other in (halves, halves[::-1]):
        labels = _clusters(one, count)
        groups = range(labels.max() + 1)
        centres = np.stack([np.average(one[labels == g], axis=0, weights=n[labels == g]) for g in groups])
        total += float(n @ np.square(centres[labels] - other).sum(axis=1))
    return total


def _clusters(points: FloatArray, count: int) -> IntArray:
    """Groups (B,) of points (B, D) by k-means, at most ``count`` and as many as there are different points."""
    count = min(count, len(np.unique(points, axis=0)))
    if count == 1:
        return np.zeros(len(points), dtype=np.intp)
    return np.asarray(KMeans(count, n_init=10, random_state=0).fit_predict(points))


def own_weight(weights: FloatArray) -> float:
    """Mean weight that a site gives to itself."""
    return float(np.diag(weights).mean())
