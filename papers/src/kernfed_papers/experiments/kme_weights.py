"""Whom each site learns from, by every rule that the KME studies compare; weights are (B, B), row t for target t."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.personal import (
    Comparison,
    Constants,
    EmbeddingKernel,
    aggregate,
    compare,
    linear_terms,
    penalty_constants,
)
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.printed_weights import exponentiated_gradient, printed_rates

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


def own_weight(weights: FloatArray) -> float:
    """Mean weight that a site gives to itself."""
    return float(np.diag(weights).mean())
