"""The papers' membership score: squared L2 distance of two densities, from samples (DP-KAHM (69)).

The distance is estimated without estimating either density, by a least-squares fit of their difference (LSDD, Sugiyama
et al. 2013). The score of the paper grows as distances shrink in scale and hardly sees a small share of fully exposed
members, so it is for comparison only: values are standardised first and a permutation p-value says what chance gives.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from kernfed.base.checks import check_count
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.privacy.noise import Floats
from kernfed.privacy.roc import check_scores

#: Kernel widths, in standard deviations of the pooled values, and regularisations among which cross-validation chooses.
WIDTHS = tuple(float(width) for width in np.logspace(-1.5, 0.5, 9))
REGULARIZATIONS = tuple(float(value) for value in np.logspace(-4, 1, 11))
#: Most kernels in a fit; their centres are quantiles of the pooled values.
_CENTRES = 100
_FOLDS = 5
# Labellings that are worked on at a time: bounds the memory at a few times that many copies of the values.
_BLOCK = 32


@dataclass(frozen=True)
class MembershipScore:
    """``value`` of DP-KAHM (69) on standardised values, and how often relabelled values reach it, ``p_value``.

    ``width`` and ``regularization`` are what cross-validation chose, ``scale`` the standard deviation divided by.
    """

    value: float
    p_value: float
    width: float
    regularization: float
    scale: float
    permutations: int

    def __str__(self) -> str:
        return (
            f"mis {self.value:.4g} on standardised distances, p = {self.p_value:.3g} ({self.permutations} relabellings)"
        )


def membership_score(
    members: npt.ArrayLike, others: npt.ArrayLike, *, permutations: int = 200, seed: int = 0
) -> MembershipScore:
    """Score of distances at training rows ``members`` (n,) against those at other rows ``others`` (m,).

    Width and regularisation are chosen anew for every relabelling, as they were for the true labels: so the p-value is
    exact, P(p <= a) <= a if members and others are alike.
    """
    inside = check_scores(members, "members", at_least=_FOLDS)
    outside = check_scores(others, "others", at_least=_FOLDS)
    check_count(permutations, "permutations")
    pooled = np.concatenate([inside, outside])
    # In units of the largest value: the squares of huge ones overflow.
    unit = float(np.abs(pooled).max()) or 1.0
    spread = float((pooled / unit).std())
    if spread <= 1e-12:  # equal up to rounding: nothing to tell apart
        return MembershipScore(0.0, 1.0, WIDTHS[0], REGULARIZATIONS[0], 0.0, permutations)
    points = (pooled / unit - (pooled / unit).mean()) / spread
    rng = generator(seed, "privacy", "membership score")
    first = np.concatenate([rng.permutation(len(inside)), len(inside) + rng.permutation(len(outside))])
    orders = np.vstack([first, *(rng.permutation(len(points)) for _ in range(permutations))])
    with single_blas_thread():
        values, widths, regularizations = density_differences(points, orders, len(inside))
    # A relabelling that repeats the true one up to rounding must count as reaching it.
    reached = int((values[1:] >= values[0] * (1 - 1e-9)).sum())
    return MembershipScore(
        float(values[0]),
        (1 + reached) / (1 + permutations),
        float(widths[0]),
        float(regularizations[0]),
        spread * unit,
        permutations,
    )


def density_differences(points: Floats, orders: npt.NDArray[np.intp], count: int) -> tuple[Floats, Floats, Floats]:
    """LSDD estimates (R,) for R ways to divide ``points`` (n,): row r of ``orders`` (R, n) names the first ``count``.

    Returns the estimates with the width and the regularisation chosen for each.
    """
    best = np.full(len(orders), np.inf)
    values, widths, chosen = np.zeros((3, len(orders)))
    centres = np.quantile(points, (np.arange(_CENTRES) + 0.5) / _CENTRES)
    for width in WIDTHS:
        eigenvalues, features = _features(points, centres, width)
        for start in range(0, len(orders), _BLOCK):
            block = slice(start, start + _BLOCK)
            total, train, test = _mean_differences(features, orders[block], count)
            for regularization in REGULARIZATIONS:
                theta = train / (eigenvalues + regularization)
                error = (theta * (eigenvalues * theta - 2.0 * test)).sum(axis=(1, 2))
                theta = total / (eigenvalues + regularization)
                better = error < best[block]
                estimate = (theta * (2.0 * total - eigenvalues * theta)).sum(axis=1)
                values[block] = np.where(better, estimate, values[block])
                widths[block] = np.where(better, width, widths[block])
                chosen[block] = np.where(better, regularization, chosen[block])
                best[block] = np.minimum(best[block], error)
    return values, widths, chosen


def _features(points: Floats, centres: Floats, width: float) -> tuple[Floats, Floats]:
    """Gaussian kernels at the points, in the eigenbasis of their inner products H, and the eigenvalues of H.

    ``H_ij = width sqrt(pi) exp(-(c_i - c_j)^2 / (4 width^2))``, the integral of kernel i times kernel j. In this basis
    the fit ``theta = (H + lambda I)^-1 h`` is a division for every lambda.
    """
    gaps = (centres[:, None] - centres) / width
    eigenvalues, vectors = np.linalg.eigh(width * np.sqrt(np.pi) * np.exp(-np.square(gaps) / 4))
    kernels = np.exp(-np.square((points[:, None] - centres) / width) / 2)
    return np.maximum(eigenvalues, 0.0), kernels @ vectors


def _mean_differences(features: Floats, orders: npt.NDArray[np.intp], count: int) -> tuple[Floats, Floats, Floats]:
    """``h``: mean feature of the first kind minus that of the second, for each labelling.

    Returns it over all points (R, b), over all but one fold (R, folds, b), and over that fold (R, folds, b).
    """
    R, n = orders.shape
    place = np.concatenate([np.arange(count) % _FOLDS, _FOLDS + np.arange(n - count) % _FOLDS])
    cells = np.arange(R)[:, None] * 2 * _FOLDS + place
    sums = csr_array((np.ones(R * n), (cells.ravel(), orders.ravel())), shape=(R * 2 * _FOLDS, n)) @ features
    sums = sums.reshape(R, 2, _FOLDS, -1)
    sizes = np.bincount(place, minlength=2 * _FOLDS).reshape(2, _FOLDS, 1).astype(np.float64)
    totals, counts = sums.sum(axis=2, keepdims=True), sizes.sum(axis=1, keepdims=True)
    whole, rest, part = totals / counts, (totals - sums) / (counts - sizes), sums / sizes
    return (whole[:, 0] - whole[:, 1])[:, 0], rest[:, 0] - rest[:, 1], part[:, 0] - part[:, 1]
