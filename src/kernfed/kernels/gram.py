"""Gram matrices of the Gaussian and the polynomial kernel, stable distances and the median bandwidth.

Everything is computed in float64 in row blocks and returned in the precision of the rows: float32 if both
arguments are float32, float64 otherwise. Beside the result (n, m) the memory needed is a copy of the rows and
one block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.errors import InputError
from kernfed.kernels._rows import (
    Float64Array,
    plain_scalar,
    row_blocks,
    stable_mean,
    working_rows,
    working_vector,
)

# Entries of one block: 32 MB in float64.
_BLOCK_ENTRIES = 2**22

Bandwidth = float | npt.ArrayLike


def squared_distances(X: npt.ArrayLike, Y: npt.ArrayLike | None = None) -> FloatArray:
    """Squared Euclidean distances (n, m) between the rows of ``X`` (n, p) and ``Y`` (m, p), never negative.

    Without ``Y`` the distances within ``X``: exactly symmetric with an exactly zero diagonal. The rows are
    centred first, so the absolute error is about 1e-16 times the squared spread of the rows, whatever their
    offset.
    """
    rows, columns = _check_pair(X, Y)
    return _distance_matrix(rows, columns, np.ones(rows.shape[1]), lambda block: block)


def gaussian_gram(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, bandwidth: Bandwidth) -> FloatArray:
    """Gaussian Gram matrix (n, m), ``exp(-|x - y|^2 / (2 bandwidth^2))``.

    ``bandwidth`` is a positive number, or one per column: ``exp(-sum_c (x_c - y_c)^2 / (2 bandwidth_c^2))``.
    That is how a kernel on (x, y) gives the target its own weight under concept shift (KME Section 5).
    Without ``Y`` the matrix is exactly symmetric and its diagonal exactly 1.

    >>> gaussian_gram([[0.0], [1.0]], bandwidth=1.0).round(4).tolist()
    [[1.0, 0.6065], [0.6065, 1.0]]
    """
    rows, columns = _check_pair(X, Y)
    scale = column_bandwidths(bandwidth, rows.shape[1])

    def gaussian(block: Float64Array) -> Float64Array:
        block *= -0.5
        return np.exp(block, out=block)

    return _distance_matrix(rows, columns, scale, gaussian)


def polynomial_gram(X: npt.ArrayLike, Y: npt.ArrayLike | None = None, *, degree: int, offset: float) -> FloatArray:
    """Polynomial Gram matrix (n, m), ``(x'y + offset)^degree``; KME Example 4.2 has degree 2 and offset 1.

    ``offset`` is at least 0, otherwise the kernel is not positive definite.
    """
    rows, columns = _check_pair(X, Y)
    power, shift = check_count(degree, "degree"), check_number(offset, "offset", at_least=0)
    A = rows.astype(np.float64, copy=False)
    B = None if columns is None else columns.astype(np.float64, copy=False)
    return _from_products(A, B, lambda block, _: (block + shift) ** power, _result_type(rows, columns))


def quadratic_features(X: npt.ArrayLike, *, offset: float = 1.0) -> FloatArray:
    """Explicit features (n, (p+1)(p+2)/2) of the polynomial kernel of degree 2, KME Examples 4.2 and 5.1.

    Inner products are ``(x'y + offset)^2``; those of mean embeddings in this space are KME (18) (offset 1).
    Columns: the constant ``offset``, ``sqrt(2 offset) x_c``, ``x_c^2``, then ``sqrt(2) x_c x_d`` for c < d.
    """
    rows = working_rows(X)
    shift = check_number(offset, "offset", at_least=0)
    first, second = np.triu_indices(rows.shape[1], k=1)
    with np.errstate(over="ignore"):
        constant = np.full((len(rows), 1), shift, dtype=rows.dtype)
        linear = rows * rows.dtype.type(np.sqrt(2 * shift))
        products = rows[:, first] * rows[:, second] * rows.dtype.type(np.sqrt(2))
        features = np.hstack([constant, linear, rows**2, products])
    _check_overflow(features)
    return features


def median_bandwidth(X: npt.ArrayLike, rng: np.random.Generator, max_rows: int = 1000) -> float:
    """Median distance between pairs of rows of ``X`` (n, p), on at most ``max_rows`` rows drawn with ``rng``.

    Always positive: if most distances are 0 (duplicate rows) it is the median of the positive ones, and if no
    two rows differ, or there is only one, it is 1.0.
    """
    rows = working_rows(X, min_rows=1)
    limit = check_count(max_rows, "max_rows", at_least=2)
    if not isinstance(rng, np.random.Generator):
        raise InputError(f"rng must be a numpy.random.Generator, got {rng!r}; use numpy.random.default_rng(seed)")
    if len(rows) > limit:
        rows = rows[rng.choice(len(rows), size=limit, replace=False)]
    # Explicit differences: through inner products a duplicate pair has the distance of a rounding error.
    distances = scipy.spatial.distance.pdist(rows.astype(np.float64, copy=False))
    if distances.size and np.median(distances) == 0:
        distances = distances[distances > 0]
    _check_overflow(distances)
    return float(np.median(distances)) if distances.size else 1.0


def column_bandwidths(bandwidth: Bandwidth, width: int) -> Float64Array:
    """Positive bandwidths (width,), from one number for all columns or one per column."""
    if np.ndim(bandwidth) == 0:
        return np.full(width, check_number(plain_scalar(bandwidth), "bandwidth", above=0))
    scale = working_vector(bandwidth, "bandwidth", length=width)
    if scale.min() <= 0:
        raise InputError(f"bandwidth must be > 0 in every column, got {scale.min()} in column {scale.argmin()}")
    return scale


def _check_pair(X: npt.ArrayLike, Y: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray | None]:
    rows = working_rows(X, "X")
    if Y is None:
        return rows, None
    columns = working_rows(Y, "Y")
    if columns.shape[1] != rows.shape[1]:
        raise InputError(f"Y must have as many columns as X, {rows.shape[1]}, got {columns.shape[1]}")
    return rows, columns


def _result_type(rows: FloatArray, columns: FloatArray | None) -> np.dtype[np.floating[Any]]:
    return rows.dtype if columns is None else np.result_type(rows, columns)


def _distance_matrix(
    rows: FloatArray,
    columns: FloatArray | None,
    scale: Float64Array,
    finish: Callable[[Float64Array], Float64Array],
) -> FloatArray:
    """``finish`` of the squared distances of rows / scale, ``|x|^2 + |y|^2 - 2 x'y`` around the mean of X."""
    # Any centre is right; the mean of X keeps |x| small, and then |y| is large only where the distance is.
    with np.errstate(over="ignore", invalid="ignore"):
        centre = stable_mean(rows)
        A = (rows - centre) / scale
        B = None if columns is None else (columns - centre) / scale
        a = np.einsum("ij,ij->i", A, A)
        b = a if B is None else np.einsum("ij,ij->i", B, B)

    def distances(block: Float64Array, place: slice) -> Float64Array:
        block *= -2.0
        block += a[place, None]
        block += b[: block.shape[1]]
        np.maximum(block, 0.0, out=block)
        if B is None:
            block[np.arange(len(block)), np.arange(place.start, place.stop)] = 0.0
        return finish(block)

    return _from_products(A, B, distances, _result_type(rows, columns))


def _from_products(
    A: Float64Array,
    B: Float64Array | None,
    finish: Callable[[Float64Array, slice], Float64Array],
    dtype: np.dtype[np.floating[Any]],
) -> FloatArray:
    """Matrix ``finish(A B')`` in row blocks; without ``B`` every pair within ``A`` once, and mirrored."""
    columns = A if B is None else B
    out = np.empty((len(A), len(columns)), dtype=dtype)
    for place in row_blocks(len(A), max(1, _BLOCK_ENTRIES // max(1, len(columns)))):
        stop = place.stop if B is None else len(columns)
        with np.errstate(over="ignore", invalid="ignore"):
            out[place, :stop] = finish(A[place] @ columns[:stop].T, place)
        _check_overflow(out[place, :stop])
        if B is None:
            out[: place.start, place] = out[place, : place.start].T
            corner = out[place, place]
            out[place, place] = np.tril(corner) + np.tril(corner, -1).T
    return out


def _check_overflow(values: FloatArray) -> None:
    if not np.isfinite(values).all():
        raise InputError(f"distances and kernel values must fit {values.dtype}, got an overflow; rescale the rows")
