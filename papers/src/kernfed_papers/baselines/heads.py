"""Peers that make a linear or quadratic head of sums in one round, written from the formulas of their papers.

AFL: He et al., arXiv 2405.16240. Fed3R: Fani et al., arXiv 2406.01116. FedCGS: Guan et al., arXiv 2503.06962. Linear
and quadratic discriminants of GH-OFL: Turazza et al., arXiv 2602.01186, with the shrinkage of Friedman (1989). Each
function takes the sums of all sites and some points of a grid, and gives a head for each point. Strengths are
relative to the mean of the diagonal they are added to, so that they do not depend on the unit of the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used

from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.sums import ClassSums
from kernfed_papers.baselines.tuning import Axis, Point

#: Queries (m, p) to class numbers (m,).
Head = Callable[[FloatArray], IntArray]


@dataclass(frozen=True)
class SumPeer:
    """A head of sums: its grid, whether outer products are needed by class, and how heads come of sums and points."""

    axes: tuple[Axis, ...]
    heads: Callable[[ClassSums, Sequence[Point]], Iterable[Head]]
    by_class: bool = False


def linear_head(weights: FloatArray, offset: FloatArray) -> Head:
    """Largest of x W + b with W (p, C) and b (C,); ties go to the first class."""
    return lambda x: np.asarray((x @ weights + offset).argmax(axis=1))


def afl_heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
    """AFL: least squares on one-hot labels, W = (X'X + gamma I)^-1 X'Y.

    AFL takes each site's gamma off again after adding up (its equation 16), which leaves what is chosen here. It has no
    intercept, since the features it is made for are not centred; ours may be, so a constant column is among them.
    """
    for weights in _ridge_weights(sums, points):
        yield linear_head(weights[:-1], weights[-1])


def fed3r_heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
    """Fed3R: ridge regression with a constant column, W = (A + lambda I)^-1 b, each class's weights of length one."""
    for weights in _ridge_weights(sums, points):
        norms = np.maximum(np.linalg.norm(weights[:-1], axis=0), 1e-12)
        yield linear_head(weights[:-1] / norms, weights[-1] / norms)


def _ridge_weights(sums: ClassSums, points: Sequence[Point]) -> Iterable[FloatArray]:
    """Weights (p + 1, C) of rows with a constant column, for each strength."""
    column = sums.totals.sum(axis=0)
    gram = np.block([[sums.gram, column[:, None]], [column[None], np.array([[sums.rows]])]])
    values, vectors = np.linalg.eigh(gram)
    targets = vectors.T @ np.vstack([sums.totals.T, sums.counts])
    for (strength,) in points:
        yield vectors @ (targets / (np.maximum(values, 0) + strength * values.mean())[:, None])


def fedcgs_heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
    """FedCGS: a Gaussian of each class around its mean, all with the covariance of all rows."""
    return _discriminants(sums, sums.total, points)


def lda_heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
    """Linear discriminant: a Gaussian of each class, all with the pooled covariance within classes."""
    return _discriminants(sums, sums.within, points)


def _discriminants(sums: ClassSums, covariance: FloatArray, points: Sequence[Point]) -> Iterable[Head]:
    """W = S^-1 m_c, b = log pi_c - m_c' S^-1 m_c / 2, S = (1 - a) covariance + a mean variance I."""
    values, vectors = np.linalg.eigh(covariance)
    means = sums.means @ vectors
    for (share,) in points:
        shrunk = (1 - share) * np.maximum(values, 0) + share * values.mean()
        weights = vectors @ (means / shrunk).T
        yield linear_head(weights, sums.log_priors - (means**2 / shrunk).sum(axis=1) / 2)


def qda_heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
    """Quadratic discriminant: S_c = (1 - a) ((1 - b) covariance of c + b pooled) + a mean variance I."""
    for pooled, share in points:
        factors = []
        for number in range(len(sums.counts)):
            mixed = (1 - pooled) * sums.covariance(number) + pooled * sums.within
            level = float(np.trace(mixed)) / len(mixed)
            mixed *= 1 - share
            mixed[np.diag_indices_from(mixed)] += share * level + 1e-12 * level
            factors.append(scipy.linalg.cholesky(mixed, lower=True))
        yield _quadratic(factors, sums.means, sums.log_priors)


def _quadratic(factors: Sequence[FloatArray], means: FloatArray, log_priors: FloatArray) -> Head:
    """Largest of log pi_c - log det S_c / 2 - |L_c^-1 (x - m_c)|^2 / 2."""

    def head(x: FloatArray) -> IntArray:
        scores = []
        for factor, mean, prior in zip(factors, means, log_priors, strict=True):
            apart = scipy.linalg.solve_triangular(factor, (x - mean).T, lower=True)
            scores.append(prior - np.log(np.diag(factor)).sum() - (apart**2).sum(axis=0) / 2)
        return np.asarray(np.stack(scores, axis=1).argmax(axis=1))

    return head


_STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SUM_PEERS = {
    "AFL": SumPeer((Axis("gamma", _STRENGTHS, lowest=1e-12),), afl_heads),
    "Fed3R": SumPeer((Axis("lambda", _STRENGTHS, lowest=1e-12),), fed3r_heads),
    "FedCGS": SumPeer((Axis("shrinkage", _STRENGTHS, lowest=1e-12, highest=1.0),), fedcgs_heads),
    "GH-LDA": SumPeer((Axis("shrinkage", _STRENGTHS, lowest=1e-12, highest=1.0),), lda_heads),
    "GH-QDA": SumPeer(
        (
            Axis("to pooled", (0.05, 0.2, 0.8), step=4, lowest=1e-3, highest=1.0),
            Axis("shrinkage", (1e-3, 1e-2, 1e-1), lowest=1e-6, highest=1.0),
        ),
        qda_heads,
        by_class=True,
    ),
}
