"""Kernel mean embeddings in a feature space, and the maximum mean discrepancy (MMD), KME Section 2.2.

Biased is the squared distance of the two empirical means (a V-statistic, never negative). Unbiased takes out
what the sampling noise of the means adds to it, ``Tr(Sigma)/n`` per sample (KME (6)), so it has the right
expectation and may be negative. For equal weights it is the U-statistic of Gretton et al. (2012).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.kernels.rows import (
    BLOCK_ROWS,
    FeatureMap,
    Float64Array,
    feature_rows,
    plain_scalar,
    row_blocks,
    working_rows,
    working_vector,
)

Kernel = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class MeanEmbedding:
    """Weighted mean ``v`` of a feature map over rows, with what is needed to know its error.

    Fields: ``weight`` the sum of the row weights w_i and ``squared_weight`` of their squares (both n without
    weights), ``mean`` (M,), ``spread`` the sum of ``w_i |phi_i - v|^2``. ``a + b`` embeds both sets of rows.

    >>> MeanEmbedding.from_rows([[1.0], [3.0]]).noise
    1.0
    """

    weight: float
    squared_weight: float
    mean: Float64Array
    spread: float

    def __post_init__(self) -> None:
        view = self.mean.view()
        view.setflags(write=False)
        object.__setattr__(self, "mean", view)

    @classmethod
    def from_rows(
        cls,
        X: npt.ArrayLike,
        *,
        features: FeatureMap | None = None,
        weights: npt.ArrayLike | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> Self:
        """Embedding of the rows ``X`` (n, p), n >= 1, or of ``features`` of them, block by block.

        ``weights`` (n,) are not negative and not all 0; only their ratios matter.
        """
        rows = working_rows(X, min_rows=1)
        w = _check_weights(weights, len(rows), "weights")
        blocks = (block for block in row_blocks(len(rows), block_rows) if w[block].any())
        parts = (cls._from_block(feature_rows(rows[block], features), w[block]) for block in blocks)
        return reduce(lambda a, b: a + b, parts)

    @classmethod
    def from_moments(cls, moments: Moments) -> Self:
        """Embedding of the rows (or features) that ``moments`` describe."""
        if moments.n < 1:
            raise InputError("a mean embedding needs at least 1 row, got moments of 0")
        return cls(float(moments.n), float(moments.n), moments.mean, float(np.trace(moments.scatter)))

    @classmethod
    def _from_block(cls, rows: FloatArray, w: Float64Array) -> Self:
        phi = rows.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            weight, squared_weight = float(w.sum()), float(w @ w)
            mean = w @ phi / weight
            spread = float(w @ np.square(phi - mean).sum(axis=1))
        if not np.isfinite([weight, squared_weight, spread]).all():
            raise InputError("weights and squared distances must fit float64, got an overflow; rescale them")
        return cls(weight, squared_weight, mean, spread)

    def __add__(self, other: object) -> Self:
        if not isinstance(other, MeanEmbedding):
            return NotImplemented
        step = _difference(other, self)
        weight = self.weight + other.weight
        spread = self.spread + other.spread + self.weight * other.weight / weight * float(step @ step)
        mean = self.mean + step * (other.weight / weight)
        return type(self)(weight, self.squared_weight + other.squared_weight, mean, spread)

    @property
    def size(self) -> float:
        """Effective number of rows, ``weight^2 / squared_weight``; n without weights."""
        return self.weight / (self.squared_weight / self.weight)

    @property
    def trace(self) -> float:
        """Unbiased estimate of ``Tr(Sigma)``, the trace of the covariance of the features, KME (22)."""
        return self.noise * self.size

    @property
    def noise(self) -> float:
        """Unbiased estimate of ``E |v - mu|^2 = Tr(Sigma)/n``, the squared error of ``mean``, KME (6)."""
        if not self.size > 1.0:
            raise InputError("the error of a mean needs at least 2 rows with weight, got 1")
        return self.spread / self.weight / (self.size - 1.0)

    def norm_squared(self, *, unbiased: bool = False) -> float:
        """``|v|^2``, or minus ``noise`` the unbiased estimate of ``|mu|^2``."""
        return float(self.mean @ self.mean) - (self.noise if unbiased else 0.0)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays for a message: ``mean`` (M,) and three numbers."""
        scalars = {name: np.asarray(getattr(self, name)) for name in ("weight", "squared_weight", "spread")}
        return {**scalars, "mean": self.mean}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.ArrayLike]) -> Self:
        """Embedding from the arrays of ``to_arrays``, which are checked and refused with the reason."""
        names = {"weight", "squared_weight", "spread", "mean"}
        if set(arrays) != names:
            raise InputError(f"an embedding must have exactly {sorted(names)}, got {sorted(map(str, arrays))}")
        weight = check_number(plain_scalar(arrays["weight"]), "weight", above=0)
        squared = plain_scalar(arrays["squared_weight"])
        return cls(
            weight,
            check_number(squared, "squared_weight", above=0, at_most=weight * weight),
            working_vector(arrays["mean"], "mean", length=max(1, np.size(arrays["mean"]))),
            check_number(plain_scalar(arrays["spread"]), "spread", at_least=0),
        )


def mmd_squared(a: MeanEmbedding, b: MeanEmbedding, *, unbiased: bool = False) -> float:
    """Squared MMD of two samples by their embeddings in the same feature space, KME (5)."""
    step = _difference(a, b)
    return float(step @ step) - (a.noise + b.noise if unbiased else 0.0)


def mmd_squared_gram(
    xx: npt.ArrayLike,
    xy: npt.ArrayLike,
    yy: npt.ArrayLike,
    *,
    unbiased: bool = False,
    x_weights: npt.ArrayLike | None = None,
    y_weights: npt.ArrayLike | None = None,
) -> float:
    """Squared MMD from the Gram matrices ``xx`` (n, n), ``xy`` (n, m) and ``yy`` (m, m), KME (5).

    Equal to ``mmd_squared`` where the Gram matrices are inner products of features.
    """
    K_xy = working_rows(xy, "xy", min_rows=1)
    n, m = K_xy.shape
    K_xx, K_yy = (working_rows(K, name, min_rows=1) for K, name in ((xx, "xx"), (yy, "yy")))
    if K_xx.shape != (n, n) or K_yy.shape != (m, m):
        raise InputError(f"xx and yy must have shapes {(n, n)} and {(m, m)} as xy says, got {K_xx.shape}, {K_yy.shape}")
    u, v = _shares(x_weights, n, "x_weights"), _shares(y_weights, m, "y_weights")
    own = [(_form(w, K, w), float(w @ np.diag(K)), w) for K, w in ((K_xx, u), (K_yy, v))]
    return _combine(own, _form(u, K_xy, v), unbiased)


def mmd_squared_rows(
    X: npt.ArrayLike,
    Y: npt.ArrayLike,
    kernel: Kernel,
    *,
    unbiased: bool = False,
    x_weights: npt.ArrayLike | None = None,
    y_weights: npt.ArrayLike | None = None,
    block_rows: int = 512,
) -> float:
    """Squared MMD of the rows ``X`` (n, p) and ``Y`` (m, p) under ``kernel``, one block of Gram at a time.

    ``kernel(A, B)`` is the Gram matrix of two sets of rows, for example
    ``functools.partial(gaussian_gram, bandwidth=1.0)``.
    """
    A = working_rows(X, "X", min_rows=1)
    B = working_rows(Y, "Y", min_rows=1)
    u, v = _shares(x_weights, len(A), "x_weights"), _shares(y_weights, len(B), "y_weights")
    own = []
    for rows, w in ((A, u), (B, v)):
        total = diagonal = 0.0
        for place in row_blocks(len(rows), block_rows):
            gram = kernel(rows[place], rows)
            total += _form(w[place], gram, w)
            diagonal += float(w[place] @ np.diag(gram, place.start))
        own.append((total, diagonal, w))
    cross = sum(_form(u[place], kernel(A[place], B), v) for place in row_blocks(len(A), block_rows))
    return _combine(own, cross, unbiased)


def _combine(own: list[tuple[float, float, Float64Array]], cross: float, unbiased: bool) -> float:
    """Squared MMD from ``(w'Kw, w'diag(K), w)`` of each sample and ``u'Kv``, weights summing to 1."""
    value = sum(total for total, _, _ in own) - 2.0 * cross
    if not unbiased:
        return max(value, 0.0)
    for total, diagonal, w in own:
        share = float(w @ w)
        if not share < 1.0:
            raise InputError("an unbiased MMD needs at least 2 rows with weight in each sample, got 1")
        value -= (diagonal - total) * share / (1.0 - share)
    return value


def _form(u: Float64Array, gram: FloatArray, v: Float64Array) -> float:
    return float(u @ (gram.astype(np.float64, copy=False) @ v))


def _difference(a: MeanEmbedding, b: MeanEmbedding) -> Float64Array:
    if a.mean.shape != b.mean.shape:
        raise InputError(f"embeddings must share one feature space, got widths {len(a.mean)} and {len(b.mean)}")
    return a.mean - b.mean


def _shares(weights: npt.ArrayLike | None, n: int, name: str) -> Float64Array:
    w = _check_weights(weights, n, name)
    return np.asarray(w / w.sum(), dtype=np.float64)


def _check_weights(weights: npt.ArrayLike | None, n: int, name: str) -> Float64Array:
    if weights is None:
        return np.ones(n)
    w = working_vector(weights, name, length=n)
    if w.min() < 0 or not w.any():
        raise InputError(f"{name} must be >= 0 and not all 0, got a smallest of {w.min()} and a sum of {w.sum()}")
    return w
