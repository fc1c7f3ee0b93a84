"""Sites' sums put together so that a few wrong sites move the result little: every site counts, within bounds.

A sum is whatever one site makes of it. Two things bound a site here. Nobody can count its rows, so no site weighs more
than ``CAP`` times the median site, and in a class no more than ``CAP`` times the median holder. And what it says is a
point x_j that counts the less in a mean the farther it is from where most points are::

    x = sum_j a_j x_j,   a_j ~ w_j min(1, r / |x_j - x|)^2

r is the weighted median of the distances from the geometric median, where the iteration starts. Without the square this
is Huber's location (1964), which a far point pulls as strongly as one at the distance r; here its pull falls as r / d.
All of it happens in the span of the points, so their inner products are enough, whatever their size. Points are the
means of features of every class, and the second moments around these common means, per row: sites of unlike shares of
classes agree in both, and the result is that of rows, with a matrix that has no negative eigenvalue. To regress, points
are means, then second moments and products with the targets, each in the unit of the median site.

Of all that was tried with one and two liars of ten (digits, letter, satimage; even and Dirichlet shares of classes) the
caps gave most, then the moments within classes, then the square. Medians of single numbers make matrices that are not
positive, and a geometric median by claimed rows is worse than the sum for a liar who claims many.

Where all sites say the same this is the sum. It survives wrong sites of less than half of all (bounded) weight; the
nearer they come to half, the farther they move it.
"""

from collections.abc import Sequence

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import Moments
from kernfed.ridge.leave_one_out import LeftOut
from kernfed.ridge.sums import Means, moved

#: How many times the median site one may weigh.
CAP = 1.5
#: Of fewer sites one is no minority.
FEWEST_SITES = 3
#: Iterations at most, and the change of shares at which they end.
_ITERATIONS, _ENOUGH = 1000, 1e-12
#: A share of rows that is a rounding error of none.
_NO_SHARE = 1e-8
#: Numbers of points whose products are added up at once.
_BLOCK = 1 << 16

#: A site's moments around its means, or around 0 without an intercept, their mass, and these means.
Part = tuple[Moments, float, Means | None]


def capped(weights: FloatArray) -> FloatArray:
    """Weights (Q,), none above ``CAP`` times the median of those that are not 0."""
    some = weights[weights > 0]
    return np.minimum(weights, CAP * np.median(some)) if len(some) else weights


def weighted_median(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Medians (...) of values (Q, ...), each of which counts by its weight (Q,); between two halves, their middle.

    >>> weighted_median(np.array([1.0, 2.0, 9.0, 4.0]), np.array([1.0, 1.0, 1.0, 1.0])).tolist()
    3.0
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    reached = np.cumsum(weights[order], axis=0) / weights.sum()
    # Half of the weight to rounding is half: equal weights have the plain median.
    lower, upper = ((reached < limit).sum(axis=0, keepdims=True) for limit in (0.5 - 1e-12, 0.5 + 1e-12))
    upper = np.minimum(upper, len(values) - 1)
    both = np.take_along_axis(ordered, lower, axis=0) + np.take_along_axis(ordered, upper, axis=0)
    return np.asarray(both[0] / 2)


# Clipped means of points ------------------------------------------------------------------------------------------


def products(points: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
    """Inner products (Q, Q) of points around their weighted mean, a block of numbers at a time."""
    flat = [point.reshape(-1) for point in points]
    shares = weights / weights.sum()
    total = np.zeros((len(flat), len(flat)))
    for start in range(0, flat[0].size, _BLOCK):
        block = np.stack([point[start : start + _BLOCK] for point in flat])
        block -= shares @ block
        total += block @ block.T
    return total


def distances(inner: FloatArray, shares: FloatArray) -> FloatArray:
    """How far points (Q,) with these inner products are from their mean with ``shares`` (Q,)."""
    along = inner @ shares
    squares = np.diagonal(inner) - 2 * along + shares @ along
    return np.sqrt(np.maximum(squares, 0.0))


def geometric_median(inner: FloatArray, weights: FloatArray) -> FloatArray:
    """Shares (Q,) of points in the point of the least weighted sum of distances (Weiszfeld 1937)."""
    least = _least_distance(inner)
    shares: FloatArray = weights / weights.sum()
    if not least > 0:
        return shares
    for _ in range(_ITERATIONS):
        further = weights / np.maximum(distances(inner, shares), least)
        further /= further.sum()
        change, shares = np.abs(further - shares).max(), further
        if change < _ENOUGH:
            break
    return shares


def _least_distance(inner: FloatArray) -> float:
    """What is nearer is at the same place, to rounding: a median may be one of the points, or several alike."""
    return 1e-9 * float(np.sqrt(np.diagonal(inner).max()))


def clipped_shares(inner: FloatArray, weights: FloatArray) -> FloatArray:
    """Shares (Q,) of points, with these inner products and weights, in their clipped mean."""
    shares = geometric_median(inner, weights)
    away = distances(inner, shares)
    radius = max(float(weighted_median(away, weights)), _least_distance(inner))
    for _ in range(_ITERATIONS):
        further = weights * np.where(away > radius, radius / np.where(away > radius, away, 1.0), 1.0) ** 2
        further /= further.sum()
        change, shares = np.abs(further - shares).max(), further
        if change < _ENOUGH:
            break
        away = distances(inner, shares)
    return shares


def clipped_mean(points: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
    """The clipped mean of points of one shape, by weights (Q,) of which one at least is above 0."""
    held = np.flatnonzero(weights > 0)
    some = [points[int(place)] for place in held]
    return _mean(some, clipped_shares(products(some, weights[held]), weights[held]))


def _mean(points: Sequence[FloatArray], shares: FloatArray) -> FloatArray:
    total = np.zeros(points[0].shape)
    for point, share in zip(points, shares.tolist(), strict=True):
        total += share * point
    return total


# Sums of sites ----------------------------------------------------------------------------------------------------


def counted_masses(parts: Sequence[Part]) -> FloatArray:
    """Mass (Q,) that each site counts with: its own, of no more rows than ``CAP`` times those of the median site."""
    rows = np.array([float(moments.n) for moments, _, _ in parts])
    return np.asarray(capped(rows) / rows * np.array([mass for _, mass, _ in parts]))


def robust_sums(parts: Sequence[Part], *, classify: bool) -> tuple[Part, FloatArray]:
    """The sites' parts put together, around the common means where they have an intercept; shares (Q,) in ``C``."""
    with single_blas_thread():
        return _of_classes(parts) if classify else _of_values(parts)


def _of_classes(parts: Sequence[Part]) -> tuple[Part, FloatArray]:
    """Common means of classes, then second moments around them: ``C = within + sum_c pi_c (m_c - mu)(m_c - mu)'``."""
    weights = counted_masses(parts)
    shares: FloatArray = np.stack([_class_shares(part) for part in parts])  # (Q, C)
    masses = weights[:, None] * shares
    total = float(weights.sum())
    pi = masses.sum(axis=0) / total
    own = [_class_means(part, share) for part, share in zip(parts, shares, strict=True)]
    centres = np.zeros(own[0].shape)  # (C, M)
    for place in np.flatnonzero(pi > 0):
        centres[place] = clipped_mean([means[place] for means in own], capped(masses[:, place]))
    within = [_within(*site, centres) for site in zip(parts, shares, own, strict=True)]
    intercept = parts[0][2] is not None
    mu: FloatArray = pi @ centres if intercept else np.zeros(parts[0][0].width)
    apart = centres - mu
    M = len(mu)
    joint = np.empty((M + len(pi), M + len(pi)))
    joint[:M, M:] = (pi[:, None] * apart).T
    joint[M:, :M] = joint[:M, M:].T
    counted = clipped_shares(products(within, weights), weights)
    joint[:M, :M] = _mean(within, counted) + joint[:M, M:] @ apart
    joint[M:, M:] = np.diag(pi) - intercept * np.outer(pi, pi)
    return (_moments(parts, total * joint), total, Means(total, mu, pi) if intercept else None), counted


def _class_shares(part: Part) -> FloatArray:
    """Shares (C,) of a site's mass by class; without an intercept the squares of its targets, which are 0 or 1."""
    moments, mass, means = part
    shares = np.diagonal(moments.y_second) / mass if means is None else means.targets
    return np.where(shares > _NO_SHARE, shares, 0.0)


def _class_means(part: Part, shares: FloatArray) -> FloatArray:
    """Means (C, M) of a site's features by class, 0 where it has none: ``mu_j + b_jc / p_jc``."""
    moments, mass, means = part
    held = shares > 0
    apart = (moments.cross / mass).T / np.where(held, shares, 1.0)[:, None]
    return np.where(held[:, None], apart if means is None else apart + means.features, 0.0)


def _within(part: Part, shares: FloatArray, own: FloatArray, centres: FloatArray) -> FloatArray:
    """Mean square (M, M) of a site's features around common means of classes ``centres`` (C, M), in place of its own.

    ``C_j - sum_c p_jc (m_jc - mu_j)(m_jc - mu_j)' + sum_c p_jc (m_jc - m_c)(m_jc - m_c)'``
    """
    moments, mass, means = part
    before = own if means is None else own - means.features
    after = own - centres
    second = moments.second / mass
    second -= (shares[:, None] * before).T @ before
    second += (shares[:, None] * after).T @ after
    return np.asarray(second)


def _of_values(parts: Sequence[Part]) -> tuple[Part, FloatArray]:
    """Common means, then second moments and products with targets around them, with the same shares of sites."""
    weights = counted_masses(parts)
    total = float(weights.sum())
    means, own = None, [part[2] for part in parts if part[2] is not None]
    around = [moments for moments, _, _ in parts]
    if own:
        means = _common_means(parts, own, weights)
        around = [moved(moments, mean, means) for moments, mean in zip(around, own, strict=True)]
    masses = [mass for _, mass, _ in parts]
    inner = np.zeros((len(parts), len(parts)))
    for name in ("second", "cross"):
        points = [getattr(moments, name) / mass for moments, mass in zip(around, masses, strict=True)]
        inner += _in_unit(points, weights, [float(np.vdot(point, point)) for point in points])
    shares = clipped_shares(inner, weights)
    joints = [
        (moments.joint_scatter + moments.n * np.outer(moments.joint_mean, moments.joint_mean)) / mass
        for moments, mass in zip(around, masses, strict=True)
    ]
    return (_moments(parts, total * _mean(joints, shares)), total, means), shares


def _common_means(parts: Sequence[Part], own: Sequence[Means], weights: FloatArray) -> Means:
    """Clipped means of features and of targets, with the same shares of sites, in the unit of their spread."""
    inner = np.zeros((len(parts), len(parts)))
    for name, second in (("features", "second"), ("targets", "y_second")):
        spreads = [float(np.trace(getattr(moments, second))) / mass for moments, mass, _ in parts]
        inner += _in_unit([getattr(mean, name) for mean in own], weights, spreads)
    shares = clipped_shares(inner, weights)
    features, targets = (_mean([getattr(mean, name) for mean in own], shares) for name in ("features", "targets"))
    return Means(float(weights.sum()), features, targets)


def _in_unit(points: Sequence[FloatArray], weights: FloatArray, squares: Sequence[float]) -> FloatArray:
    """Inner products of points in a unit, the root of the median of ``squares`` (Q,); as they are where that is 0."""
    square = float(weighted_median(np.array(squares), weights))
    return products(points, weights) / (square if square > 0 else 1.0)


def _moments(parts: Sequence[Part], joint: FloatArray) -> Moments:
    """Moments around 0 of the sites' rows with these sums of products."""
    n = sum(moments.n for moments, _, _ in parts)
    return Moments(n, parts[0][0].width, np.zeros(len(joint)), joint.astype(np.float64))


# What is chosen by ------------------------------------------------------------------------------------------------


def typical(sums: Sequence[FloatArray], masses: FloatArray) -> FloatArray:
    """Sums (...) of sites per unit of their mass (Q,), a mean in which none counts beyond the middle third.

    Losses of rows are small but for a few rows, so that the median over sites knows too little of these few.
    """
    held = masses > 0
    if not held.any():
        return np.zeros(sums[0].shape)
    each = np.stack([part / mass for part, mass in zip(sums, masses.tolist(), strict=True) if mass > 0])
    weights = capped(masses[held])
    return np.asarray(np.tensordot(weights / weights.sum(), np.clip(each, *_middle_third(each, weights)), axes=1))


def _middle_third(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Between what (...) the values (Q, ...) are of which no third of all weight is below, and none above."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    reached = np.cumsum(weights[order], axis=0) / weights.sum()
    ends = []
    for limit in (1 / 3 + 1e-12, 2 / 3 - 1e-12):
        place = np.minimum((reached < limit).sum(axis=0, keepdims=True), len(values) - 1)
        ends.append(np.take_along_axis(ordered, place, axis=0)[0])
    return ends[0], ends[1]


def typical_errors(parts: Sequence[LeftOut], masses: FloatArray, mass: float) -> LeftOut:
    """Errors left out as ``typical`` sites have them, of rows of ``mass``: one site cannot choose by its own."""
    some = np.array([part.some for part in parts])
    total = float(some.sum())
    return LeftOut(
        mass * typical([part.squares for part in parts], masses),
        mass * typical([part.wrong for part in parts], masses),
        total * typical([part.surprise for part in parts], some),
        total,
    )
