"""Groups of sites that have nearly the same coefficients: the rule behind ``weights="auto"``.

KME compares every site with the target alone, so two noisy sites cannot recognise each other. All sites together can:

    y_j = X_j beta_j + noise of variance s k_j     k_j one of nine levels, with probability w_l
    beta_j ~ N(m_g, t I),  m_g ~ N(0, v I)         site j in group g, with probability pi_g
    beta_j ~ N(0, u I)                             site j alone, with probability pi_0

Groups and their means m_g are found by expectation maximisation with means integrated out (variational Bayes, Attias
2000); spreads t and u, scale v, noise s and levels by marginal likelihood over all sites (empirical Bayes). The lower
bound on the evidence chooses the number of groups; because the means are integrated out it needs no count of parameters
as the BIC does, which would be wrong for a thousand random features. *No group* (sites share only how much to shrink)
and *one group* are candidates, and in any case a site can be alone: sites that have nothing in common are not drawn
together. Without levels, sites that are noisier than others would be taken for sites with coefficients of their own.

Groups of sites by their mean embeddings: whom to learn from where features shift and the rule is the same.

Q-aggregation (KME Algorithm 1) bounds the error of any weights; this rule estimates what it would bound. It needs of
every site the embeddings of two halves of its rows, and nothing of single rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sklearn.cluster import KMeans

from kernfed.base.checks import FloatArray, IntArray, check_count
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import MeanEmbedding
from kernfed.personal.statistics import LEVELS, Coordinates, SiteStatistics, Spectra

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


#: Above so many coefficients, groups are sought in the leading directions of all sites' rows.
_SEARCH_WIDTH = 100
_ITERATIONS = 60
#: Iterations in which spread and scale stay at their start, so that groups form before spread explains them away.
_HOLD = 12
#: Spreads to start from, as shares of the spread without groups.
_STARTS = (0.02, 0.3)
#: Probability to be alone that every site starts with.
_ALONE = 0.05
#: Sites that the usual level of noise is believed to have beside those seen.
_USUAL = 5.0
#: Gain in evidence (nats) below which an iteration ends.
_ENOUGH = 1e-3
#: Gain in evidence that a further group must bring: odds of 20, strong evidence by Kass and Raftery (1995).
_WORTH = 3.0


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups over B sites in d coefficients of q targets; K of them, perhaps 0.

    shares : (K + 1,) of the groups, and last of sites that are alone. levels : (L,) probability of every level of
    noise. joint : (B, K + 1, L) probability that a site is in a group, or alone, and at a level. means : (K, d, q).
    precisions : (K, d, d) of a mean, per target. spread t within groups, own_spread u of sites alone, scale v, noise s.
    evidence : lower bound on the log evidence; evidences : by number of groups.
    """

    shares: FloatArray
    levels: FloatArray
    joint: FloatArray
    means: FloatArray
    precisions: FloatArray
    spread: float
    own_spread: float
    scale: float
    noise: float
    evidence: float = -np.inf
    evidences: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of groups K."""
        return len(self.shares) - 1

    @property
    def members(self) -> FloatArray:
        """Probability (B, K + 1) that a site is in a group, and last that it is alone."""
        return np.asarray(self.joint.sum(axis=2))

    @property
    def usual_noise(self) -> float:
        """Geometric mean of the sites' noise."""
        return float(self.noise * np.exp(self.levels @ np.log(LEVELS)))


def find_groups(sites: Sequence[SiteStatistics], coordinates: Coordinates, *, max_groups: int = 8) -> Groups:
    """Groups of the sites, in the given coordinates; at most ``max_groups``."""
    check_count(max_groups, "max_groups", at_least=0)
    rows = [coordinates.compress(site) for site in sites]
    counts = [site.n for site in sites]
    with single_blas_thread():
        whole = Spectra.from_rows(rows, counts)
        if coordinates.dimension <= _SEARCH_WIDTH:
            return search_groups(whole, max_groups)
        directions = _leading(whole)
        narrow = search_groups(Spectra.from_rows([(X @ directions, Y) for X, Y in rows], counts), max_groups)
        return _widen(whole, narrow)


def search_groups(spectra: Spectra, max_groups: int = 8) -> Groups:
    """The candidate with the largest evidence; the search ends when a further group brings none."""
    alone = no_group(spectra)
    best, evidences = alone, {0: alone.evidence}
    for count in range(1, min(max_groups, len(spectra.counts)) + 1):
        iterated = (_iterate(spectra, start) for start in _starts(spectra, alone, count))
        candidate = max(iterated, key=lambda groups: groups.evidence)
        evidences[count] = candidate.evidence
        if candidate.evidence > best.evidence + _WORTH:
            best = candidate
        if count >= max(2, best.count + 1):
            break
    return replace(best, evidences=evidences)


def no_group(spectra: Spectra) -> Groups:
    """Every site for itself, with the common amount of shrinkage towards 0."""
    d, B = spectra.axes.shape[1], len(spectra.counts)
    levels = np.where(LEVELS == 1.0, 0.9, 0.1 / (len(LEVELS) - 1))
    usual = np.where(LEVELS == 1.0, 1.0, 0.0) * np.ones((len(spectra.values), 1))
    squares = np.square(spectra.targets).sum(axis=1)[:, None] * usual
    ratios, noise = spectra.fit([usual], [squares], np.ones(1), 0, wide=True)
    spread = float(ratios[0] * noise)
    start = Groups(
        np.ones(1),
        levels,
        np.tile(levels, (B, 1, 1)),
        np.zeros((0, d, spectra.n_targets)),
        np.zeros((0, d, d)),
        spread,
        spread,
        0.0,
        noise,
    )
    return _iterate(spectra, start, hold=1)


# Iteration --------------------------------------------------------------------------------------------------------


def _starts(spectra: Spectra, alone: Groups, count: int) -> list[Groups]:
    """Groups by k-means on the sites' own shrunken fits, at several spreads."""
    B = len(spectra.counts)
    hard = np.ones((B, 1))
    if count > 1:
        own = _coefficients(spectra, alone).reshape(B, -1)
        leading = np.linalg.svd(own, full_matrices=False)
        points = leading[0][:, :count] * leading[1][:count]
        distinct = len(np.unique(points.round(12), axis=0))
        labels = KMeans(min(count, distinct), n_init=5, random_state=0).fit_predict(points)
        hard = np.eye(count)[labels]
    members = np.hstack([(1 - _ALONE) * (0.8 * hard + 0.2 / count), np.full((B, 1), _ALONE)])
    joint = members[:, :, None] * alone.joint
    blank = replace(alone, shares=members.mean(axis=0), joint=joint, scale=alone.own_spread)
    return [replace(blank, spread=share * alone.own_spread) for share in (_STARTS if count > 1 else _STARTS[-1:])]


def _iterate(spectra: Spectra, start: Groups, hold: int = _HOLD) -> Groups:
    """Groups from a start until the evidence stays."""
    groups, last = start, -np.inf
    for number in range(_ITERATIONS):
        groups = _improve(spectra, groups, free=number >= hold)
        if number > hold and groups.evidence - last < _ENOUGH:
            break
        last = groups.evidence
    return groups


def _improve(spectra: Spectra, groups: Groups, *, free: bool) -> Groups:
    """Means given members, then scale, spreads and noise if they are ``free``, then members given means."""
    B = len(spectra.counts)
    shares = np.maximum(groups.members.mean(axis=0), 1e-12)
    seen = groups.joint.sum(axis=(0, 1)) + np.where(LEVELS == 1.0, _USUAL, 0.0)
    levels = np.maximum(seen / (B + _USUAL), 1e-12)
    precisions, covariances, means = _means(spectra, groups)
    squares = [_squares(spectra, m, C) for m, C in zip(means, covariances, strict=True)]
    squares.append(np.square(spectra.targets).sum(axis=1))
    updated = replace(groups, shares=shares, levels=levels, means=means, precisions=precisions)
    if free:
        updated = _rescale(spectra, updated, squares, covariances)
    spreads = [updated.spread] * updated.count + [updated.own_spread]
    logs = np.stack(
        [spectra.log_densities(part, spread, updated.noise) for part, spread in zip(squares, spreads, strict=True)],
        axis=1,
    )
    logs += np.log(shares)[:, None] + np.log(levels)
    top = logs.max(axis=(1, 2), keepdims=True)
    joint = np.exp(logs - top)
    sums = joint.sum(axis=(1, 2), keepdims=True)
    # At the best members the bound is the sum of the sites' log densities, less what the means cost.
    evidence = float((np.log(sums) + top).sum())
    evidence -= sum(_divergence(m, C, updated.scale) for m, C in zip(means, covariances, strict=True))
    return replace(updated, joint=joint / sums, evidence=evidence)


def _rescale(spectra: Spectra, groups: Groups, squares: list[FloatArray], covariances: FloatArray) -> Groups:
    """Scale of the means, both spreads and the noise, given members and means."""
    masses = groups.joint[spectra.sites]
    alone, own = masses[:, -1], masses[:, -1] * squares[-1][:, None]
    if groups.count == 0:
        ratios, noise = spectra.fit([alone], [own], np.array([groups.own_spread / groups.noise]), 0)
        spread = float(ratios[0] * noise)
        return replace(groups, spread=spread, own_spread=spread, noise=noise)
    # MacKay's step: squared size of the means over the number of directions that the rows determine.
    d, q = groups.means.shape[1:]
    determined = q * float((d - np.trace(covariances, axis1=1, axis2=2) / groups.scale).sum())
    size = float(np.square(groups.means).sum())
    scale = max(size / max(determined, 1e-9), 1e-8 * size / groups.means.size, 1e-12 * (groups.spread + groups.noise))
    grouped = masses[:, :-1].sum(axis=1)  # groups have one spread, so they are taken together
    theirs = np.einsum("rgl,gr->rl", masses[:, :-1], np.stack(squares[:-1]))
    ratios, noise = np.array([groups.spread, groups.own_spread]) / groups.noise, groups.noise
    for turn in (0, 1):
        ratios, noise = spectra.fit([grouped, alone], [theirs, own], ratios, turn)
    spread, own_spread = (ratios * noise).tolist()
    return replace(groups, spread=spread, own_spread=own_spread, scale=scale, noise=noise)


def _precision_weights(spectra: Spectra, groups: Groups) -> FloatArray:
    """``sum_l r_jgl / (s k_l + t e)`` (R, K): what an axis counts for a group's mean, over its eigenvalue."""
    inverse = 1 / spectra.variances(groups.spread, groups.noise)
    return np.asarray(np.einsum("rgl,rl->rg", groups.joint[spectra.sites, :-1], inverse))


def _means(spectra: Spectra, groups: Groups) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Precisions and covariances (K, d, d), and means (K, d, q) of the groups' means given their members."""
    d = spectra.axes.shape[1]
    precisions = np.empty((groups.count, d, d))
    linear = np.empty((groups.count, d, spectra.n_targets))
    for number, weight in enumerate(_precision_weights(spectra, groups).T):
        precisions[number] = (spectra.axes * (weight * spectra.values)[:, None]).T @ spectra.axes
        linear[number] = spectra.axes.T @ ((weight * np.sqrt(spectra.values))[:, None] * spectra.targets)
    if groups.count:
        precisions[:, np.arange(d), np.arange(d)] += 1 / groups.scale
    covariances = np.linalg.inv(precisions)
    return precisions, covariances, covariances @ linear


def _squares(spectra: Spectra, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Expected squared residuals (R,) along the axes, summed over targets."""
    inner = np.einsum("rd,rd->r", spectra.axes @ covariance, spectra.axes)
    return np.asarray(np.square(spectra.residuals(mean)).sum(axis=1) + spectra.n_targets * spectra.values * inner)


def _divergence(mean: FloatArray, covariance: FloatArray, scale: float) -> float:
    """Kullback-Leibler divergence of a group's mean from what it was before any rows were seen."""
    d, q = mean.shape
    spent = float(np.trace(covariance) / scale - d + d * np.log(scale) - np.linalg.slogdet(covariance)[1])
    return float(0.5 * (q * spent + np.square(mean).sum() / scale))


# Many coefficients ------------------------------------------------------------------------------------------------


def _leading(spectra: Spectra) -> FloatArray:
    """Orthonormal directions (d, w) with most of all sites' squares."""
    second = (spectra.axes * spectra.values[:, None]).T @ spectra.axes
    return np.asarray(np.linalg.eigh(second)[1][:, : -_SEARCH_WIDTH - 1 : -1])


def _widen(spectra: Spectra, narrow: Groups) -> Groups:
    """Groups found in few directions, in all of them: a few more iterations from the members found."""
    if narrow.count == 0:
        return replace(no_group(spectra), evidences=narrow.evidences)
    groups = narrow
    for _ in range(5):
        groups = _improve(spectra, groups, free=True)
    return replace(groups, evidences=narrow.evidences)


# What comes out of it ---------------------------------------------------------------------------------------------


def group_coefficients(sites: Sequence[SiteStatistics], coordinates: Coordinates, groups: Groups) -> FloatArray:
    """Coefficients (B, d, q): each site's own fit shrunk towards its group, over groups by membership."""
    rows = [coordinates.compress(site) for site in sites]
    with single_blas_thread():
        return _coefficients(Spectra.from_rows(rows, [site.n for site in sites]), groups)


def _coefficients(spectra: Spectra, groups: Groups) -> FloatArray:
    means = [*groups.means, np.zeros((spectra.axes.shape[1], spectra.n_targets))]
    spreads = [groups.spread] * groups.count + [groups.own_spread]
    steps: FloatArray = np.zeros_like(spectra.targets)
    for number, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        inverse = (groups.joint[spectra.sites, number] / spectra.variances(spread, groups.noise)).sum(axis=1)
        gain = spread * np.sqrt(spectra.values) * inverse
        steps = steps + gain[:, None] * spectra.residuals(mean)
    return np.asarray(np.einsum("bg,gdq->bdq", groups.members, np.stack(means)) + spectra.combine(steps))


def group_weights(sites: Sequence[SiteStatistics], coordinates: Coordinates, groups: Groups) -> FloatArray:
    """How much each site learns from each other one: W (B, B), rows on the simplex.

    ``W_jk = c_j sum_g r_jg h_gk``, and to the own weight what is left to 1. c_j is what the groups add to the site's
    own rows: the share of its coefficients that its rows leave open, ``1 - tr(S K_j) / tr(S)`` with the gain
    ``K_j = t X_j'X_j (s + t X_j'X_j)^-1`` and S the second moment of all sites' rows (a direction counts as it does in
    predictions), times the share v / (v + t) of the variance of coefficients that the groups explain. h_gk is site k's
    share in the mean of group g, proportional to ``r_kg tr(C_g X_k'V_k^-1 X_k)``. What is left, with r_jg for a site
    that may be alone adding up to less than 1, is the site's own. Without groups everybody learns alone: W = I.
    """
    B = len(sites)
    if groups.count == 0:
        return np.eye(B)
    with single_blas_thread():
        spectra = Spectra.from_rows([coordinates.compress(site) for site in sites], [site.n for site in sites])
        learned, shares = learned_shares(spectra, groups), source_shares(spectra, groups)
    weights = learned[:, None] * (groups.members[:, :-1] @ shares)
    weights[np.diag_indices(B)] += 1 - weights.sum(axis=1)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def learned_shares(spectra: Spectra, groups: Groups) -> FloatArray:
    """c_j (B,) of ``group_weights``."""
    second = (spectra.axes * spectra.values[:, None]).T @ spectra.axes
    levels = groups.joint.sum(axis=1)[spectra.sites]
    inverse = (levels / spectra.variances(groups.spread, groups.noise)).sum(axis=1)
    along = np.einsum("rd,rd->r", spectra.axes @ second, spectra.axes)
    total = float(np.trace(second))
    own = spectra.per_site(groups.spread * spectra.values * inverse * along) / (total if total > 0 else 1.0)
    return np.asarray((1 - np.clip(own, 0.0, 1.0)) * groups.scale / (groups.scale + groups.spread))


def source_shares(spectra: Spectra, groups: Groups) -> FloatArray:
    """Shares h (K, B): whose rows a group's mean is made of; a group that no rows determine is everybody's."""
    by_group = []
    for precision, weight in zip(groups.precisions, _precision_weights(spectra, groups).T, strict=True):
        along = np.einsum("rd,rd->r", np.linalg.solve(precision, spectra.axes.T).T, spectra.axes)
        by_group.append(spectra.per_site(weight * spectra.values * along))
    shares = np.stack(by_group)
    totals = shares.sum(axis=1, keepdims=True)
    return np.asarray(np.where(totals > 0, shares / np.where(totals > 0, totals, 1.0), 1.0 / shares.shape[1]))
