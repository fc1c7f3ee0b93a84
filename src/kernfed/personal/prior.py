"""What a site may learn from the others, as a prior for its own rows; whatever the rule behind it.

Rows X (n, d) with targets Y (n, q) have coefficients b ~ sum_g pi_g N(m_g, C_g), and noise s_l with probability w_l.
The posterior mean, with ``V_gl = s_l I + X C_g X'``, is

    b = sum_gl r_gl [m_g + C_g X' V_gl^-1 (Y - X m_g)],   r_gl proportional to pi_g w_l N(Y; X m_g, V_gl)

Groups give one term per group, and one for sites that are alone. The weighted risk of KME gives one term in all: with
the other sites' part ``H = sum_(k != t) W_tk X_k'X_k/n_k + lambda I`` it is ``C = H^-1``,
``m = H^-1 sum W_tk X_k'Y_k/n_k`` and ``s = n_t/W_tt``.
A site that has its prior can fit itself, fit a part of its rows to see what the others are worth, or join later.

Ridge regression of the weighted risk, for all targets at once, from the sites' statistics (KME (2)).

Site t's coefficients minimise ``sum_k W_tk / n_k |y_k - X_k b|^2 + lambda_t |b|^2``, so they solve

    (sum_k W_tk X_k'X_k / n_k + lambda_t I) b = sum_k W_tk X_k'y_k / n_k

Every site sends its moments once, whatever the number of targets. With few rows at many sites the left side is a
product of the rows that stand for them (``statistics.py``), never of d x d matrices per site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_finite
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.personal.gradient import check_simplex
from kernfed.personal.groups import Groups
from kernfed.personal.statistics import LEVELS, Coordinates, SiteStatistics, Spectra

#: Candidates for a site's own penalty, times the mean square norm of its rows.
PENALTIES = np.logspace(-6.0, 4.0, 41)
#: Penalty that stands for none, as a share of the mean square of a row: keeps singular systems solvable.
_LEAST = 1e-12


def check_weights(weights: npt.ArrayLike, sites: int) -> FloatArray:
    """Weights (T, B) whose rows are on the simplex, with a column for each of so many sites."""
    W = check_simplex(weights)
    if W.shape[1] != sites:
        raise InputError(f"weights must have a column for each of the {sites} sites, got {W.shape[1]}")
    return W


def effective_rows(weights: FloatArray, counts: npt.ArrayLike) -> FloatArray:
    """Rows (T,) that a weighted risk is worth: ``1 / sum_k W_tk^2 / n_k``."""
    return np.asarray(1.0 / (np.square(weights) / np.asarray(counts, dtype=np.float64)).sum(axis=1))


def common_regularization(
    weights: FloatArray, counts: npt.ArrayLike, penalties: npt.ArrayLike, ratio: float
) -> FloatArray:
    """Regularisation lambda_t (T,) of each weighted risk: a penalty over the rows that the risk is worth.

    A target that learns alone has its own leave-one-out penalty, of ``penalties`` (B,). One that learns from others has
    ``ratio``, the ratio of noise to the size of coefficients: leaving out one of a few own rows says nothing of a
    mixture (with fewer rows than coefficients it often finds no penalty best, and rows of one other site then make an
    interpolation that is far off).
    """
    alone = np.isclose(weights.max(axis=1), 1.0, rtol=0, atol=1e-9)
    own = np.asarray(penalties, dtype=np.float64)[weights.argmax(axis=1)]
    return np.asarray(np.where(alone, own, ratio) / effective_rows(weights, counts))


def own_penalty(X: FloatArray, Y: FloatArray) -> float:
    """Penalty on ``|Y - X b|^2`` with the smallest leave-one-out error on rows (n, d) with targets (n, q), n >= 1.

    With hat matrix H the residual of a left-out row is ``e_i / (1 - H_ii)`` (Allen 1974).
    """
    unit = float(np.square(X).sum()) / len(X) or 1.0
    if len(X) < 2:
        return unit
    left, values, _ = np.linalg.svd(X, full_matrices=False)
    along, outside = left.T @ Y, Y - left @ (left.T @ Y)
    losses = []
    for penalty in unit * PENALTIES:
        shrink = penalty / (np.square(values) + penalty)
        residuals = outside + left @ (shrink[:, None] * along)
        leverage = np.square(left) @ (1 - shrink)
        losses.append(float(np.square(residuals / np.maximum(1 - leverage, 1e-9)[:, None]).sum()))
    return unit * float(PENALTIES[int(np.argmin(losses))])


def weighted_ridge(
    sites: Sequence[SiteStatistics], weights: npt.ArrayLike, regularization: npt.ArrayLike, coordinates: Coordinates
) -> FloatArray:
    """Coefficients (T, d, q) of the weighted risks for W (T, B) and lambda, one number or (T,).

    The column of the intercept is penalised as the others are; its constant makes that little.
    """
    W = check_weights(weights, len(sites))
    ridge = np.broadcast_to(np.asarray(regularization, dtype=np.float64), (len(W),))
    if not np.isfinite(ridge).all() or ridge.min() < 0:
        raise InputError(f"regularization must be at least 0, got {ridge.min()}")
    with single_blas_thread():
        rows = [coordinates.compress(site) for site in sites]
        scaled = [(X / np.sqrt(site.n), Y / np.sqrt(site.n)) for (X, Y), site in zip(rows, sites, strict=True)]
        return np.stack([_solve(scaled, w, float(value)) for w, value in zip(W, ridge, strict=True)])


def weighted_moments(
    rows: Sequence[tuple[FloatArray, FloatArray]], weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """``sum_k w_k X_k'X_k`` (d, d) and ``sum_k w_k X_k'Y_k`` (d, q) over sites whose weight is not 0."""
    used = np.flatnonzero(weights)
    X = np.concatenate([np.sqrt(weights[k]) * rows[int(k)][0] for k in used])
    Y = np.concatenate([np.sqrt(weights[k]) * rows[int(k)][1] for k in used])
    return X.T @ X, X.T @ Y


def _solve(rows: Sequence[tuple[FloatArray, FloatArray]], weights: FloatArray, ridge: float) -> FloatArray:
    second, cross = weighted_moments(rows, weights)
    d = len(second)
    shift = max(ridge, _LEAST * float(np.trace(second)) / d)
    second[np.diag_indices(d)] += shift if shift > 0 else 1.0
    return np.asarray(scipy.linalg.solve(second, cross, assume_a="pos", check_finite=False))


#: Parts that a site's rows are divided into, to fit on all but one and test on that.
FOLDS = 10


@dataclass(frozen=True, eq=False)
class SitePrior:
    """Terms of a prior: shares (K, L), means (K, d, q), covariances (K, d, d), and noises (L,) of the site's targets.

    Infinite noise says that the site's own rows do not count.
    """

    shares: FloatArray
    means: FloatArray
    covariances: FloatArray
    noises: FloatArray

    def fit(self, X: FloatArray, Y: FloatArray, n: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Coefficients (d, q) and memberships r (K, L) from rows (r, d), targets (r, q) that stand for n rows."""
        if not np.isfinite(self.noises).all():
            return np.einsum("gl,gdq->dq", self.shares, self.means), self.shares
        count, q = len(X) if n is None else n, Y.shape[1]
        logs, parts = [], []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            along = X @ covariance
            values, vectors = np.linalg.eigh(along @ X.T)
            residuals = vectors.T @ (Y - X @ mean)
            variances = np.maximum(values, 0.0)[:, None] + self.noises
            inner = q * np.log(variances) + np.square(residuals).sum(axis=1)[:, None] / variances
            logs.append(-0.5 * (inner.sum(axis=0) + q * (count - len(X)) * np.log(self.noises)))
            parts.append((mean, along.T @ vectors, residuals, variances))
        logits = np.log(np.maximum(self.shares, 1e-300)) + np.stack(logs)
        members = np.exp(logits - logits.max())
        members /= members.sum()
        fits = [
            share.sum() * mean + along @ ((share / variances).sum(axis=1)[:, None] * residuals)
            for share, (mean, along, residuals, variances) in zip(members, parts, strict=True)
        ]
        return np.asarray(sum(fits)), members

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays for a message."""
        return {"shares": self.shares, "means": self.means, "covariances": self.covariances, "noises": self.noises}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "SitePrior":
        """Prior from ``to_arrays``, checked."""
        prior = cls(arrays["shares"], arrays["means"], arrays["covariances"], arrays["noises"])
        K, d = len(prior.means), prior.means.shape[1] if prior.means.ndim == 3 else -1
        if prior.shares.shape != (K, prior.noises.size) or prior.covariances.shape != (K, d, d):
            raise InputError(
                f"a prior needs means (K, d, q) and covariances (K, d, d), got {prior.means.shape} and "
                f"{prior.covariances.shape}"
            )
        for name in ("shares", "means", "covariances"):
            check_finite(arrays[name], name)
        if not (prior.noises > 0).all():
            raise InputError(f"noises must be > 0, got {prior.noises}")
        return prior


@dataclass(frozen=True)
class Gain:
    """What the others are worth to a site: error ``alone`` and ``together`` on its own rows that were left out.

    Mean squared error, or share of wrong labels. ``rows`` were tested, each once.
    """

    alone: float
    together: float
    rows: int

    @property
    def gain(self) -> float:
        """How much smaller the error is together; negative where the others do harm."""
        return self.alone - self.together


def group_prior(
    sites: Sequence[SiteStatistics], coordinates: Coordinates, groups: Groups, site: int | None = None
) -> SitePrior:
    """Prior of a new site, or of one that takes part, from the other sites only.

    A mean m_g known with precision P_g is uncertain by P_g^-1, and coefficients spread by t around it.
    """
    d, q = groups.means.shape[1:]
    precisions, linear = groups.precisions.copy(), groups.precisions @ groups.means
    if site is not None:
        spectra = Spectra.from_rows([coordinates.compress(sites[site])], [sites[site].n])
        inverse = groups.joint[site, :-1] @ (1 / spectra.variances(groups.spread, groups.noise)).T  # (K, R)
        for number, weight in enumerate(inverse):
            precisions[number] -= (spectra.axes * (weight * spectra.values)[:, None]).T @ spectra.axes
            linear[number] -= spectra.axes.T @ ((weight * np.sqrt(spectra.values))[:, None] * spectra.targets)
    others = groups.members if site is None or len(groups.joint) < 2 else np.delete(groups.members, site, axis=0)
    covariances = np.linalg.inv(precisions)
    means = np.concatenate([covariances @ linear, np.zeros((1, d, q))])
    covariances[:, np.arange(d), np.arange(d)] += groups.spread
    covariances = np.concatenate([covariances, groups.own_spread * np.eye(d)[None]])
    return SitePrior(np.outer(others.mean(axis=0), groups.levels), means, covariances, groups.noise * LEVELS)


def weighted_prior(
    sites: Sequence[SiteStatistics], coordinates: Coordinates, weights: FloatArray, own: float, count: int, ridge: float
) -> SitePrior:
    """Prior of a site with ``count`` rows that weighs itself by ``own`` and the others by weights (B,)."""
    d, q = coordinates.dimension, len(coordinates.target_centre)
    second: FloatArray = np.zeros((d, d))
    cross: FloatArray = np.zeros((d, q))
    if weights.any():
        counts = np.array([float(site.n) for site in sites])
        second, cross = weighted_moments([coordinates.compress(site) for site in sites], weights / counts)
    least = 1e-10 * max(float(np.trace(second)) / d, 1e-300)
    second[np.diag_indices(d)] += max(ridge, least) if ridge or weights.any() else 1e-10
    covariance = np.linalg.inv(second)
    noise = count / own if own > 0 else np.inf
    return SitePrior(np.ones((1, 1)), (covariance @ cross)[None], covariance[None], np.array([noise]))


def cross_fitted_gain(X: FloatArray, Y: FloatArray, prior: SitePrior, centre: FloatArray | None = None) -> Gain:
    """Gain on a site's own rows X (n, d), Y (n, q): each is predicted by fits on other rows only.

    Rows are dealt in turn to at most ten parts. Alone is ridge regression with a leave-one-out penalty on the same
    rows as together. Of one row nothing can be left out: its prediction is the prior's, and 0 alone. ``centre`` (q,) is
    what was taken off the indicators of classes, to count wrong labels; without it errors are squared.
    """
    n = len(X)
    together, alone = np.empty_like(Y), np.empty_like(Y)
    with single_blas_thread():
        for part in range(min(FOLDS, n)):
            test = np.arange(n) % FOLDS == part
            together[test] = X[test] @ prior.fit(X[~test], Y[~test])[0]
            alone[test] = X[test] @ ridge_alone(X[~test], Y[~test])
    if centre is None:
        return Gain(float(np.square(alone - Y).mean()), float(np.square(together - Y).mean()), n)
    observed, alone, together = (part + centre for part in (Y, alone, together))
    truth = observed.argmax(axis=1)
    return Gain(float((alone.argmax(axis=1) != truth).mean()), float((together.argmax(axis=1) != truth).mean()), n)


def ridge_alone(X: FloatArray, Y: FloatArray) -> FloatArray:
    """Coefficients (d, q) of ridge regression on these rows only, with a leave-one-out penalty; 0 without rows."""
    if not len(X):
        return np.zeros((X.shape[1], Y.shape[1]))
    penalty = own_penalty(X, Y)
    left, values, axes = np.linalg.svd(X, full_matrices=False)
    return np.asarray(axes.T @ ((values / (np.square(values) + penalty))[:, None] * (left.T @ Y)))
