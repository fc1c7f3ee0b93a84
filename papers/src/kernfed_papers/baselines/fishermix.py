"""FisherMix of GH-OFL (Turazza et al., arXiv 2602.01186): a cosine head trained on rows drawn from Gaussians.

From counts, sums and outer products by class, the server finds the Fisher subspace, draws synthetic rows of each class
in it, and trains a linear head with a cosine margin on them; no row of a site is seen. Written from the paper's
description: the dimension is C - 1, beyond which the class means do not vary; the scale of the cosines, the number of
synthetic rows and of steps, and the even mixture of covariances are our reading; margin and ridge are tuned.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import scipy  # its parts are loaded when they are used

from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.heads import Head, SumPeer
from kernfed_papers.baselines.sums import ClassSums
from kernfed_papers.baselines.tuning import Axis, Point
from kernfed_papers.draws import generator

_SCALE = 20.0
_ROWS = 200  # drawn of each class
_STEPS = 150
_RATE = 0.05


def fishermix(seed: int) -> SumPeer:
    """The peer whose synthetic rows are drawn under ``seed``."""
    axes = (
        Axis("ridge", (1e-3, 1e-2, 1e-1), lowest=1e-9),
        Axis("margin", (0.05, 0.1, 0.2), step=2, lowest=0.003, highest=1.0),
    )

    def heads(sums: ClassSums, points: Sequence[Point]) -> Iterable[Head]:
        for ridge, margin in points:
            yield _head(sums, ridge, margin, generator(seed, "fishermix"))

    return SumPeer(axes, heads, by_class=True)


def _head(sums: ClassSums, ridge: float, margin: float, draws: np.random.Generator) -> Head:
    basis = fisher_basis(sums, ridge)
    centre = sums.means[sums.counts > 0].mean(axis=0)
    rows, labels = _synthetic(sums, basis, centre, draws)
    weights = train_cosine(rows, labels, (sums.means - centre) @ basis, margin)
    return lambda x: np.asarray((((x - centre) @ basis) @ weights.T).argmax(axis=1))


def fisher_basis(sums: ClassSums, ridge: float) -> FloatArray:
    """Directions V (p, k) of the largest ratio of covariance between to within classes, V' S_W V = I, k < C."""
    within = sums.within.copy()
    level = float(np.trace(within)) / len(within)
    within[np.diag_indices_from(within)] += max(ridge, 1e-9) * level
    size = min(len(within), max(1, int((sums.counts > 0).sum()) - 1))
    last = len(within) - 1
    _, vectors = scipy.linalg.eigh(sums.between, within, subset_by_index=(last - size + 1, last))
    return np.asarray(vectors[:, ::-1])


def _synthetic(
    sums: ClassSums, basis: FloatArray, centre: FloatArray, draws: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """As many rows (n, k) of each class, from a Gaussian with its mean and half its own, half the pooled covariance."""
    pooled: FloatArray = basis.T @ sums.within @ basis
    rows, labels = [], []
    for number in map(int, np.flatnonzero(sums.counts)):
        own: FloatArray = basis.T @ sums.covariance(number) @ basis
        mixed = (own + pooled) / 2
        mean = (sums.means[number] - centre) @ basis
        rows.append(draws.multivariate_normal(mean, mixed, size=_ROWS, check_valid="ignore", method="eigh"))
        labels += [number] * _ROWS
    return np.vstack(rows), np.array(labels)


def train_cosine(rows: FloatArray, labels: IntArray, start: FloatArray, margin: float) -> FloatArray:
    """Weights (C, k) of length one that minimise the cross-entropy of s (cos(x, w_c) - margin [c is the label]).

    Adam on all rows at once, from the class means; cosines do not notice the length of rows or weights.
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    places = np.arange(len(labels))
    weights = _normalised(start)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, _STEPS + 1):
        directions = _normalised(weights)
        logits = _SCALE * (unit @ directions.T)
        logits[places, labels] -= _SCALE * margin
        slope = scipy.special.softmax(logits, axis=1)
        slope[places, labels] -= 1
        gradient = _SCALE * slope.T @ unit / len(labels)
        gradient -= (gradient * directions).sum(axis=1, keepdims=True) * directions  # length does not matter
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        weights = directions - _RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return _normalised(weights)


def _normalised(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-12))
