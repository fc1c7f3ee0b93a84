"""Kernels: Gram matrices, the median bandwidth, and random Fourier features.

Gram matrices of the Gaussian and the polynomial kernel, stable distances and the median bandwidth.

Everything is computed in float64 in row blocks and returned in the precision of the rows: float32 if both
arguments are float32, float64 otherwise. Beside the result (n, m) the memory needed is a copy of the rows and
one block.

Random Fourier features of the Gaussian kernel, made from a seed (Rahimi and Recht 2007; KME (7)-(8)).

Sites that share the six numbers and words of a ``FourierFeatures`` share the map; no matrix travels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.kernels.rows import (
    BLOCK_ROWS,
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


#: Rows of a site whose median distance is the middle of the bandwidths that are tried.
MEDIAN_ROWS = 300


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


KINDS = ("phase", "paired")
SCALES = ("unbiased", "half")


@dataclass(frozen=True)
class FourierFeatures:
    """Map from rows (n, width) to features (n, n_components), for the kernel of ``gaussian_gram``.

    ``bandwidth``: a positive number or one per column (kept as a tuple). KME Table 1 draws frequencies on
    (x, y) from N(0, diag(I/(d+1), 1)): bandwidth ``(sqrt(d+1), ..., sqrt(d+1), 1)``.

    ``kind``, with frequencies W ~ N(0, 1/bandwidth^2):
        ``"phase"``   ``s cos(x W + b)``, b uniform on [0, 2 pi): one frequency per feature (KME, FedNewton)
        ``"paired"``  ``s [cos(x W), sin(x W)]``: one frequency per two features, so ``n_components`` is even.
        For this kernel the smaller variance (Sutherland and Schneider 2015); every row has the same norm

    ``scale``:
        ``"unbiased"``  s = sqrt(2/M): inner products are unbiased for the kernel (KME (7)). |row|^2 <= 2 for
        ``"phase"`` (the bound M = sqrt(2) of KME Algorithm 2, which omits s in print), 1 for ``"paired"``
        ``"half"``      s = 1/sqrt(M): unbiased for half the kernel (FedNewton, experimental settings). Ridge
        regression with ``"half"`` and regularisation a is ridge regression with ``"unbiased"`` and 2a

    The draws depend on ``seed`` and ``width`` only: standard normals, frequency by frequency, from the stream
    ``generator(seed, "fourier", "frequencies")``, divided by the bandwidth; phases from ``(seed, "fourier",
    "phases")``. So a larger map starts with the frequencies of a smaller one, whatever kind and bandwidth.

    ``dataclasses.asdict`` describes the map in plain values, for messages and files:

    >>> from dataclasses import asdict
    >>> features = FourierFeatures(width=2, n_components=4, bandwidth=[1.0, 3.0], seed=7)
    >>> asdict(features)["bandwidth"], FourierFeatures(**asdict(features)) == features
    ((1.0, 3.0), True)
    >>> features.transform([[0.5, 1.0]]).shape
    (1, 4)
    """

    width: int
    n_components: int
    bandwidth: float | Sequence[float] | npt.NDArray[np.floating[Any]] = 1.0
    seed: int = 0
    kind: str = "phase"
    scale: str = "unbiased"

    def __post_init__(self) -> None:
        width = check_count(self.width, "width")
        columns = column_bandwidths(self.bandwidth, width)
        checked = {
            "width": width,
            "n_components": check_count(self.n_components, "n_components"),
            "bandwidth": float(columns[0]) if np.ndim(self.bandwidth) == 0 else tuple(map(float, columns)),
            "seed": check_count(self.seed, "seed", at_least=0),
            "kind": check_choice(self.kind, "kind", KINDS),
            "scale": check_choice(self.scale, "scale", SCALES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.kind == "paired" and self.n_components % 2:
            raise InputError(f"n_components must be even for kind 'paired', got {self.n_components}")

    def __getstate__(self) -> dict[str, Any]:
        """The six fields: copies and pickles draw their frequencies from the seed again."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @cached_property
    def frequencies(self) -> Float64Array:
        """W (width, M) for ``"phase"``, (width, M/2) for ``"paired"``; read-only."""
        count = self.n_components // 2 if self.kind == "paired" else self.n_components
        normals = generator(self.seed, "fourier", "frequencies").standard_normal((count, self.width))
        with np.errstate(over="ignore"):  # a subnormal bandwidth: refused where rows meet the frequencies
            frequencies = np.ascontiguousarray(normals.T / column_bandwidths(self.bandwidth, self.width)[:, None])
        frequencies.setflags(write=False)
        return frequencies

    @cached_property
    def phases(self) -> Float64Array:
        """Phases b (M,) on [0, 2 pi) for ``"phase"``, empty for ``"paired"``; read-only."""
        count = 0 if self.kind == "paired" else self.n_components
        phases = generator(self.seed, "fourier", "phases").uniform(0.0, 2.0 * np.pi, count)
        phases.setflags(write=False)
        return phases

    @cached_property
    def _longest_frequency(self) -> float:
        """Largest sum over columns of |w|: no angle of rows with entries up to 1 is larger."""
        with np.errstate(over="ignore"):
            return float(np.abs(self.frequencies).sum(axis=0).max())

    def transform(self, X: npt.ArrayLike) -> FloatArray:
        """Features (n, n_components) of ``X`` (n, width), float32 for float32 rows and float64 otherwise.

        An entry is wrong by about the rounding error of the angle, eps |x| |w| (eps is 6e-8 in float32): rows
        far from the origin in units of the bandwidth deserve float64.
        """
        return self._transform(working_rows(X, width=self.width))

    def transform_blocks(self, X: npt.ArrayLike, block_rows: int = BLOCK_ROWS) -> Iterator[FloatArray]:
        """Features of consecutive blocks of at most ``block_rows`` rows, one block in memory at a time."""
        rows = working_rows(X, width=self.width)
        return (self._transform(rows[block]) for block in row_blocks(len(rows), block_rows))

    def _transform(self, rows: FloatArray) -> FloatArray:
        self._check_angles(rows)
        W = self.frequencies.astype(rows.dtype, copy=False)
        scale = rows.dtype.type(np.sqrt((2.0 if self.scale == "unbiased" else 1.0) / self.n_components))
        out = np.empty((len(rows), self.n_components), dtype=rows.dtype)
        angles = out[:, : W.shape[1]]
        np.matmul(rows, W, out=angles)
        if self.kind == "paired":
            np.sin(angles, out=out[:, W.shape[1] :])
        else:
            angles += self.phases.astype(rows.dtype, copy=False)
        np.cos(angles, out=angles)
        out *= scale
        return out

    def _check_angles(self, rows: FloatArray) -> None:
        """Refuse rows or frequencies so large that an angle would overflow and its cosine be NaN."""
        largest = float(max(1.0, rows.max(initial=0.0), -rows.min(initial=0.0)))
        bound = largest * self._longest_frequency
        if not bound < float(np.finfo(rows.dtype).max) / 2:
            raise InputError(f"angles x W must fit {rows.dtype}, got up to {bound:.3g}; rescale X or enlarge bandwidth")
