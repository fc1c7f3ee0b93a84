"""Groups of sites by their mean embeddings: whom to learn from where features shift and the rule is the same.

Q-aggregation (KME Algorithm 1) bounds the error of any weights; this rule estimates what it would bound. It needs of
every site the embeddings of two halves of its rows, and nothing of single rows.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans

from kernfed.base.checks import FloatArray, IntArray
from kernfed.kernels import MeanEmbedding

#: Embeddings of the even-numbered and of the odd-numbered rows of a site.
Halves = tuple[MeanEmbedding, MeanEmbedding]


def mean_groups(sites: Sequence[Halves], max_groups: int = 8) -> tuple[IntArray, FloatArray]:
    """Groups (B,) of sites and weights (B, B), row t for target t, from the embeddings of both halves of each site.

    Sites are grouped by k-means of their means. The number of groups is the one whose centres, made from one half of
    every site's rows, predict best the means of the other halves: noise is drawn anew there, so groups of noise do not
    pay. Within a group, means spread by t around a common one, which is known with noise Tr(Sigma_k)/n_k from site k
    (KME (6)): site j gives itself ``a_j = t / (t + noise_j)`` and the rest to all, by ``1 / (t + noise_k)``.
    """
    n = np.array([one.weight + other.weight for one, other in sites])
    halves = [np.stack([site[half].mean for site in sites]) for half in (0, 1)]
    losses = [_prediction_loss(halves, n, count) for count in range(1, min(max_groups, len(n)) + 1)]
    whole = [one + other for one, other in sites]
    means = np.stack([site.mean for site in whole])
    labels = _clusters(means, int(np.argmin(losses)) + 1 if losses else 1)
    noise = np.array([site.noise for site in whole])
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


def _prediction_loss(halves: Sequence[FloatArray], n: FloatArray, count: int) -> float:
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
