"""One fitted machine: a kernel affine hull machine, or a conditionally deep one of several layers.

Symbols of MATH: rows X (N, p), encodings u of dimension n, kernel matrix K, regulariser lambda, R = (K + lambda I)^-1,
memberships h(y) = R k(y), image A(y) = X' h / sum(h). All arrays live in the machine's frame (``spectrum.py``), where
``rows`` are L (N, r), so the image is ``mean + L' R k / (1' R k)``: one product with a stored (r, N) matrix.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.kahm.products import multiply, multiply_rows
from kernfed.kahm.spectrum import Frame, fit_frame, regularization

#: Weights fall back to k / sum(k) where sum(h) <= FALLBACK_RATIO * sum(|h|): there the image is unbounded.
FALLBACK_RATIO = 1e-6
#: Longest centred query, per dtype, for which squares and exponents stay finite; longer ones are shortened to it.
LONGEST = {np.dtype(np.float32): 1e12, np.dtype(np.float64): 1e100}
#: Rows behind the r rows of ``Layer.image``: totals 1'R, bounds on column sums of |R|, mean' L'R.
EXTRA_ROWS = 3


@dataclass(frozen=True)
class Layer:
    """One KAHM in the frame of its machine.

    exponent : (N, n + 1). ``exponent @ [1, t]`` is ``-|u - u_i|^2 / (2n)`` up to a constant of the query, for principal
        coordinates t: whitening, scale and the rows' own norms are folded in. The constant cancels in the weights.
    image : (r + 3, N). Rows 0..r-1 are L'R, then 1'R, then an upper bound on the column sums of
        |R|, then mean' L'R.
    regularization : lambda of SFM (149).
    """

    exponent: FloatArray
    image: FloatArray
    regularization: float


@dataclass(frozen=True, eq=False)
class Machine:
    """A fitted machine, equal to itself alone. ``mean`` is float64; the other arrays have the dtype asked for.

    mean (p,), directions (k, p), scores (N, n) as in ``Frame``; ``spanning`` says whether images live in the k
    coordinates of ``directions`` or in all p.
    """

    mean: FloatArray
    directions: FloatArray
    spanning: bool
    scores: FloatArray
    layers: tuple[Layer, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows N it was fitted on."""
        return int(self.scores.shape[0])

    @property
    def width(self) -> int:
        """Number of columns p."""
        return int(self.mean.shape[0])

    @property
    def subspace_dim(self) -> int:
        """Dimension n of the first layer's encodings."""
        return int(self.scores.shape[1])


def fit_machine(
    rows: FloatArray,
    *,
    subspace_dim: int | None = None,
    layers: int = 1,
    dtype: npt.DTypeLike = np.float64,
    threads: int = 1,
) -> Machine:
    """Fit a KAHM (``layers=1``) or a conditionally deep KAHM (DP-KAHM Definition 3) on ``rows`` (N, p).

    Layers use the same rows and dimensions n, n-1, ...; at most as many layers as there are dimensions. Everything is
    computed in float64 and stored in ``dtype``. ``threads`` may help with a single large machine; no bit depends on it.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    kind = np.dtype(dtype)
    largest = max(float(rows.max()), -float(rows.min()))
    if largest > LONGEST[kind]:
        raise InputError(f"X must stay below {LONGEST[kind]:.0e} in {kind}, got {largest:.1e}; rescale it")
    frame = fit_frame(rows, subspace_dim, threads)
    dim = frame.scores.shape[1]
    depth = max(1, min(layers, dim))
    fitted = tuple(_fit_layer(frame, dim - level, threads) for level in range(depth))
    return Machine(
        mean=frame.mean,
        directions=_stored(frame.directions, kind),
        spanning=frame.spanning,
        scores=_stored(frame.scores, kind),
        layers=tuple(
            replace(layer, exponent=_stored(layer.exponent, kind), image=_stored(layer.image, kind)) for layer in fitted
        ),
    )


def _stored(array: FloatArray, kind: np.dtype[Any]) -> FloatArray:
    """The array in its final type, contiguous and holding on to nothing larger."""
    final = np.ascontiguousarray(array, dtype=kind)
    return final if final.base is None else final.copy()


def _fit_layer(frame: Frame, dim: int, threads: int) -> Layer:
    """Layer of dimension ``dim`` on the frame; SFM (147)-(155)."""
    count = frame.rows.shape[0]
    exponent = layer_exponents(frame.scores[:, :dim])
    spectrum, basis = np.linalg.eigh(layer_kernel(exponent, frame.scores[:, :dim]))
    ones = basis.sum(axis=0)  # Q'1
    mean = frame.directions @ frame.mean if frame.spanning else frame.mean
    if frame.gram is None:
        turned = basis.T @ frame.rows  # Q'L
        inner = np.einsum("ij,ij->i", turned, turned)
    else:  # diagonal of Q'GQ
        turned = np.empty_like(basis)
        multiply(frame.gram, basis, turned, threads)
        inner = np.einsum("ij,ij->j", basis, turned)
    # Energies |q_i' X|^2 of the raw rows X = 1 mean' + L, as (151) has it.
    energies = inner + 2 * ones * (basis.T @ (frame.rows @ mean)) + ones**2 * (frame.mean @ frame.mean)
    energies = np.maximum(energies, 0.0)
    level = regularization(spectrum, energies, frame.mean.size) if energies.any() else 0.0
    image = np.zeros((frame.rows.shape[1] + EXTRA_ROWS, count))
    if dim == 0:
        image[-3] = image[-2] = 1.0 / count  # no usable dimension: the image is the row mean
        return Layer(exponent, image, level)
    inverse = 1.0 / (np.maximum(spectrum, 0.0) + level)
    if frame.gram is None:  # L'R = (Q'L)' (S + lambda)^-1 Q'
        np.matmul((turned * inverse[:, None]).T, basis.T, out=image[:-EXTRA_ROWS])
    else:  # fewer rows than columns: R is the smaller factor
        resolvent = np.empty_like(basis)
        multiply(basis * inverse, basis.T, resolvent, threads)
        multiply(frame.rows.T, resolvent, image[:-EXTRA_ROWS], threads)
    image[-3] = basis @ (inverse * ones)
    # |R e_i|_1 <= sqrt(N) |R e_i|_2, the diagonal of R^2.
    image[-2] = np.sqrt(count * (basis**2 @ inverse**2))
    image[-1] = mean @ image[:-EXTRA_ROWS]
    return Layer(exponent, image, level)


def layer_exponents(scores: FloatArray) -> FloatArray:
    """Matrix (N, n + 1) that turns ``[1, t]`` into kernel exponents; theta of SFM (147) is diagonal in this frame."""
    count, dim = scores.shape
    if dim == 0:
        return np.zeros((count, 1))
    deviations = np.sqrt(np.einsum("ij,ij->j", scores, scores) / (count - 1))
    whitened = scores / deviations
    offsets = -np.einsum("ij,ij->i", whitened, whitened) / (2 * dim)
    return np.column_stack([offsets, whitened / (deviations * dim)])


def layer_kernel(exponent: FloatArray, scores: FloatArray) -> FloatArray:
    """Kernel matrix K of SFM (152) from a layer's exponents and its rows' coordinates."""
    dim = exponent.shape[1] - 1
    products = exponent[:, 1:] @ scores[:, :dim].T
    products += exponent[:, :1]
    products += exponent[:, 0]
    products = (products + products.T) / 2
    np.fill_diagonal(products, 0.0)
    kernel: FloatArray = np.exp(np.minimum(products, 0.0))
    return kernel


@dataclass(frozen=True)
class Images:
    """Explicit float64 images of some queries.

    image (n, p), squared_distance (n,), memberships h (n, N), fallback (n,) and layer (n,).
    """

    image: FloatArray
    squared_distance: FloatArray
    memberships: FloatArray
    fallback: npt.NDArray[np.bool_]
    layer: npt.NDArray[np.intp]


def explicit_images(machine: Machine, queries: FloatArray) -> Images:
    """Images of ``queries`` (n, p) written out in float64, layer by layer, the best layer per query.

    The slow and careful twin of the bank: it decides the fallback exactly and is used where the bank's own digits or
    the sum of memberships call for it. Memberships are raw, SFM (155): far from the data they underflow to zero. No bit
    of one query's image depends on the others.
    """
    centred = np.asarray(queries, dtype=np.float64) - machine.mean
    limit = LONGEST[machine.directions.dtype]
    shortened = centred / np.maximum(row_lengths(centred) / limit, 1.0)[:, None]
    directions = machine.directions.astype(np.float64)
    coordinates = multiply_rows(shortened, directions.T)
    result: Images | None = None
    fallback = np.zeros(len(centred), dtype=bool)
    for level, layer in enumerate(machine.layers):
        weights, memberships, fell = hull_weights(machine, layer, coordinates)
        fallback = fallback | fell
        inner = multiply_rows(weights, _layer_rows(machine, layer))
        image = multiply_rows(inner, directions) if machine.spanning else inner
        squared = np.square(shortened - image).sum(axis=1)
        own = Images(machine.mean + image, squared, memberships, fallback, np.full(len(centred), level))
        result = own if result is None else _choose(squared < result.squared_distance, own, result)
        coordinates = inner if machine.spanning else multiply_rows(inner, directions.T)
    assert result is not None
    return result


def row_lengths(rows: FloatArray) -> FloatArray:
    """Euclidean lengths (n,) of rows (n, p), without overflow on the way."""
    largest = np.abs(rows).max(axis=1)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    lengths: FloatArray = largest * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return lengths


def _choose(mask: npt.NDArray[np.bool_], first: Images, second: Images) -> Images:
    return Images(
        np.where(mask[:, None], first.image, second.image),
        np.where(mask, first.squared_distance, second.squared_distance),
        np.where(mask[:, None], first.memberships, second.memberships),
        np.where(mask, first.fallback, second.fallback),
        np.where(mask, first.layer, second.layer),
    )


def hull_weights(machine: Machine, layer: Layer, coordinates: FloatArray) -> tuple[FloatArray, FloatArray, Any]:
    """Weights (n, N) that sum to one, raw memberships (n, N), and where the fallback applied (n,)."""
    exponent = layer.exponent.astype(np.float64)
    dim = exponent.shape[1] - 1
    leading = coordinates[:, :dim]
    powers = multiply_rows(leading, exponent[:, 1:].T) + exponent[:, 0]
    peak = powers.max(axis=1, keepdims=True)
    kernel = np.exp(powers - peak)
    scaled = multiply_rows(kernel, _inverse(machine, layer))  # h up to the positive factor exp(peak - constant)
    fell = scaled.sum(axis=1) <= FALLBACK_RATIO * np.abs(scaled).sum(axis=1)
    weights = np.where(fell[:, None], kernel, scaled)
    weights = weights / weights.sum(axis=1, keepdims=True)
    # The constant dropped from the exponents is |u|^2 / (2n); it is needed for the raw memberships only.
    squares = np.square(leading / _deviations(machine.scores[:, :dim])).sum(axis=1, keepdims=True) / (2 * max(dim, 1))
    return weights, scaled * np.exp(np.minimum(peak - squares, 0.0)), fell


def _deviations(scores: FloatArray) -> FloatArray:
    deviations: FloatArray = np.sqrt(np.square(scores.astype(np.float64)).sum(axis=0) / max(len(scores) - 1, 1))
    return deviations


def _inverse(machine: Machine, layer: Layer) -> FloatArray:
    """R = (K + lambda I)^-1, rebuilt; the identity where there is no usable dimension and all rows weigh the same."""
    count = machine.n_rows
    if layer.exponent.shape[1] == 1:
        return np.eye(count)
    kernel = layer_kernel(layer.exponent.astype(np.float64), machine.scores.astype(np.float64))
    inverse: FloatArray = np.linalg.inv(kernel + layer.regularization * np.eye(count))
    return (inverse + inverse.T) / 2


def _layer_rows(machine: Machine, layer: Layer) -> FloatArray:
    """Centred rows L (N, r), recovered from L'R; zero where the image is the row mean."""
    images = layer.image[:-EXTRA_ROWS].astype(np.float64)
    if layer.exponent.shape[1] == 1:
        return images.T
    kernel = layer_kernel(layer.exponent.astype(np.float64), machine.scores.astype(np.float64))
    recovered: FloatArray = (images @ kernel + layer.regularization * images).T
    return recovered


def recover_rows(machine: Machine) -> FloatArray:
    """The rows (N, p) the machine was fitted on, to the precision of its dtype: a machine contains its rows."""
    rows = _layer_rows(machine, machine.layers[0])
    centred = rows @ machine.directions.astype(np.float64) if machine.spanning else rows
    return np.asarray(machine.mean + centred)
