"""Principal coordinates of a machine's rows and the parameter-free choices made from them.

The frame is the heart of the speed: in an orthonormal frame of the rows' span, encodings are the leading coordinates,
images need one small product, and the part of a query outside the span is one subtraction. So scoring costs one
product of the queries with the frames of all machines, and little else.
"""

from dataclasses import dataclass

import numpy as np

from kernfed.base import linalg as _linalg
from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.kahm.products import gram_matrix

#: Precisions that machines may be made in.
DTYPES = ("float64", "float32")
#: SFM Algorithm 1: at most this many dimensions unless the caller asks for more.
MAX_SUBSPACE_DIM = 20
#: SFM Algorithm 1: every kept coordinate spans at least this much.
MIN_SPAN = 1e-3
#: A frame of the span costs N^2 more per query than the plain image, the plain image about this many passes over p.
_PASSES_OVER_WIDTH = 100
#: Below this ratio of eigenvalues the Gram matrix has lost the small directions and the rows themselves are decomposed.
_WELL_CONDITIONED = 1e-6
#: From this size on a few eigenvectors are computed by themselves.
_LARGE = 256


def check_subspace_dim(value: object) -> int | None:
    """``"auto"`` as None, otherwise a positive integer."""
    if isinstance(value, str):
        check_choice(value, "subspace_dim", ("auto",))
        return None
    return check_count(value, "subspace_dim")


@dataclass(frozen=True)
class Frame:
    """Coordinates for one machine.

    mean : (p,) mean row; coordinates are of rows minus mean.
    directions : (k, p) orthonormal principal directions, by falling variance.
    spanning : whether ``directions`` span the centred rows; then images live in these k coordinates, else in all p.
    rows : (N, k) or (N, p), the centred rows in the coordinates of the images.
    scores : (N, n) leading principal coordinates of the rows, n the subspace dimension.
    gram : (N, N) products of the centred rows, kept where they are shorter than the rows (N <= p, not spanning).
    """

    mean: FloatArray
    directions: FloatArray
    spanning: bool
    rows: FloatArray
    scores: FloatArray
    gram: FloatArray | None = None


def fit_frame(rows: FloatArray, subspace_dim: int | None, threads: int = 1) -> Frame:
    """Frame of ``rows`` (N, p) with the subspace dimension of SFM Algorithm 1 (``None``) or at most the given one."""
    count, width = rows.shape
    mean = rows.mean(axis=0)
    centred = rows - mean
    limit = min(MAX_SUBSPACE_DIM if subspace_dim is None else subspace_dim, width, count - 1)
    if spans(count, width):
        directions, scores = _span(centred)
        kept = scores[:, : _usable(scores[:, :limit])].copy()
        return Frame(mean, directions, True, scores, kept)
    gram = gram_matrix(centred, threads) if count <= width else None
    directions, scores = _leading(centred, gram, limit)
    dim = _usable(scores)
    return Frame(mean, directions[:dim], False, centred, scores[:, :dim].copy(), gram)


def spans(count: int, width: int) -> bool:
    """Whether N rows of width p are better served by a frame of their span than by images in all p coordinates."""
    return count <= width and count * count <= _PASSES_OVER_WIDTH * width


def _usable(scores: FloatArray) -> int:
    """SFM Algorithm 1, lines 3-6: how many leading coordinates (N, n) all span at least ``MIN_SPAN``."""
    too_narrow = np.flatnonzero(np.ptp(scores, axis=0) < MIN_SPAN)
    return int(too_narrow[0]) if too_narrow.size else int(scores.shape[1])


def _span(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Orthonormal basis (r, p) of the row space and coordinates (N, r), for N <= p."""
    count = centred.shape[0]
    if count == 1:
        return np.zeros((0, centred.shape[1])), np.zeros((1, 0))
    values, vectors = np.linalg.eigh(centred @ centred.T)
    # Centred rows have rank N - 1: the smallest eigenvalue is zero and its vector is left out. With a large offset the
    # mean itself is rounded, and what remains of it is one more direction, too short for the Gram matrix to show.
    values, vectors = values[:0:-1], vectors[:, :0:-1]
    drift = np.linalg.norm(centred.mean(axis=0))
    if values[-1] > _WELL_CONDITIONED * values[0] and drift <= 1e-14 * np.sqrt(values[0]):
        roots = np.sqrt(values)
        return (vectors / roots).T @ centred, vectors * roots
    directions, scores = _decompose(centred)
    rank = int(np.count_nonzero(np.linalg.norm(scores, axis=0) > np.sqrt(values[0]) * np.finfo(np.float64).eps))
    return directions[:rank], scores[:, :rank]


def _leading(centred: FloatArray, gram: FloatArray | None, limit: int) -> tuple[FloatArray, FloatArray]:
    """The first ``limit`` principal directions (limit, p) and coordinates (N, limit)."""
    values, vectors = _largest(centred.T @ centred if gram is None else gram, limit)
    if not (values > _WELL_CONDITIONED * values[0]).all():
        directions, scores = _decompose(centred)
        return directions[:limit], scores[:, :limit]
    if gram is None:
        return np.ascontiguousarray(vectors.T), centred @ vectors
    roots = np.sqrt(values)
    return (vectors / roots).T @ centred, vectors * roots


def _largest(matrix: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """The ``count`` largest eigenvalues, falling, and their eigenvectors (m, count)."""
    size = len(matrix)
    if size >= _LARGE and 4 * count <= size:
        # A few of many: much less work than all, though scipy does not let other threads run meanwhile.
        wanted = [size - count, size - 1]
        values, vectors = _linalg.eigh(matrix, subset_by_index=wanted, driver="evr", check_finite=False)
        return values[::-1], vectors[:, ::-1]
    values, vectors = np.linalg.eigh(matrix)
    return values[: -count - 1 : -1], vectors[:, : -count - 1 : -1]


def _decompose(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Principal directions (m, p) and coordinates (N, m) by the singular value decomposition: slower, all digits."""
    left, singular, right = np.linalg.svd(centred, full_matrices=False)
    return right, left * singular


def regularization(eigenvalues: FloatArray, energies: FloatArray, width: int) -> float:
    """Regulariser SFM (149): ``lambda = e + tau`` with e the unique fixed point of (151), tau = 2 |X|_F^2 / (pN).

    In the eigenbasis of the kernel matrix (eigenvalues s, energies c_i = |q_i' X|^2) equation (151) is the scalar
    ``r(e) = sum_i (lambda / (s_i + lambda))^2 c_i / (pN)``. Newton's method on ``e - r(e)``, kept inside (0, tau/2);
    its slope is positive there because r' < 1 (DP-KAHM Theorem 1).
    """
    scale = width * eigenvalues.size
    spectrum = np.maximum(eigenvalues, 0.0)
    power = float(energies.sum()) / scale
    low, high = 0.0, power
    error = power
    for _ in range(200):
        level = error + 2 * power
        shrink = level / (spectrum + level)
        value = float(np.dot(shrink**2, energies)) / scale
        slope = float(np.dot(2 * level * spectrum / (spectrum + level) ** 3, energies)) / scale
        gap = error - value
        low, high = (low, error) if gap > 0 else (error, high)
        step = error - gap / (1 - slope)
        step = step if low < step < high else (low + high) / 2
        if abs(step - error) <= 4e-16 * level:
            break
        error = step
    return error + 2 * power
