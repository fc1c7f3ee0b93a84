"""Ridge regression of the weighted risk, for all targets at once, from the sites' statistics (KME (2)).

Site t's coefficients minimise ``sum_k W_tk / n_k |y_k - X_k b|^2 + lambda_t |b|^2``, so they solve

    (sum_k W_tk X_k'X_k / n_k + lambda_t I) b = sum_k W_tk X_k'y_k / n_k

Every site sends its moments once, whatever the number of targets. With few rows at many sites the left side is a
product of the rows that stand for them (``statistics.py``), never of d x d matrices per site.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.personal.gradient import check_simplex
from kernfed.personal.statistics import Coordinates, SiteStatistics

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
