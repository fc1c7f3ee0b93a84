"""First and second moments of rows and targets that can be added, subtracted and sent.

Kept centred: ``X'X`` of rows at offset 1e6 has few digits left for their spread, the scatter around the mean
has all of them. Blocks and sites are merged by the formula of Chan, Golub and LeVeque (1983).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import FloatArray, check_count
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels.rows import (
    BLOCK_ROWS,
    FeatureMap,
    Float64Array,
    feature_rows,
    plain_scalar,
    row_blocks,
    stable_mean,
    working_rows,
    working_vector,
)

Block = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike | None]

# What may be negative by rounding, relative to the diagonal.
_PSD_TOLERANCE = 1e-9
# Taking everything away leaves the rounding of all additions before: a looser look at whether it is zero.
_ZERO_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and scatter of ``n`` rows x (width p) with targets y (width q, perhaps 0), in float64.

    Built by ``zero``, ``from_rows``, ``from_blocks`` or ``from_arrays``. ``a + b`` are the moments of both
    sets of rows, ``(a + b) - b`` those of the first to rounding; ``sum(parts, Moments.zero(width, targets))``
    adds many. Every array is read-only.

    The fields hold z = (x, y) together: ``joint_mean`` (p+q,) and ``joint_scatter`` (p+q, p+q), the sum of
    ``(z - mean)(z - mean)'``. Read them through the properties.

    Weighted sums: scale the rows of X and y by the root of their weights; ``second``, ``cross`` and
    ``y_second`` are then the weighted sums (``mean`` and ``covariance`` have no meaning).

    >>> a, b = Moments.from_rows([[1.0], [2.0]], [1.0, 0.0]), Moments.from_rows([[3.0]], [1.0])
    >>> (a + b).n, (a + b).second.tolist(), (a + b).cross.tolist(), ((a + b) - b).n
    (3, [[14.0]], [[4.0]], 2)
    """

    n: int
    width: int
    joint_mean: Float64Array
    joint_scatter: Float64Array

    def __post_init__(self) -> None:
        for name in ("joint_mean", "joint_scatter"):
            view = getattr(self, name).view()
            view.setflags(write=False)
            object.__setattr__(self, name, view)

    @classmethod
    def zero(cls, width: int, targets: int = 0) -> "Moments":
        """Moments of no rows: adding them changes nothing."""
        size = check_count(width, "width") + check_count(targets, "targets", at_least=0)
        return cls(0, int(width), np.zeros(size), np.zeros((size, size)))

    @classmethod
    def from_rows(
        cls,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        *,
        features: FeatureMap | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> "Moments":
        """Moments of ``X`` (n, p), with targets ``y`` (n,) or (n, q) if given; n = 0 gives ``zero``.

        ``features`` maps a block of rows (b, p) to (b, M), for example ``FourierFeatures(...).transform``:
        these are then the moments of the features, which are never held for all rows at once.
        """
        rows = working_rows(X)
        targets = _check_targets(y, len(rows))
        blocks = row_blocks(len(rows), block_rows)
        parts = (cls._from_block(feature_rows(rows[block], features), targets[block]) for block in blocks)
        return reduce(lambda a, b: a + b, parts)

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], *, width: int, targets: int = 0) -> "Moments":
        """Moments of a stream of ``X`` (b, width), or of tuples ``(X, y)`` where there are targets."""
        total = cls.zero(width, targets)
        for block in blocks:
            X, y = block if isinstance(block, tuple) else (block, None)
            rows = working_rows(X, width=width)
            total += cls._from_block(rows, _check_targets(y, len(rows)))
        return total

    @classmethod
    def _from_block(cls, rows: FloatArray, targets: FloatArray) -> "Moments":
        joint = np.hstack([rows, targets], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = stable_mean(joint)
            joint -= mean
            scatter = joint.T @ joint
        if not np.isfinite(np.trace(scatter)):
            raise InputError("the scatter of the rows must fit float64, got an overflow; rescale the rows")
        return cls(len(rows), rows.shape[1], mean, scatter)

    @property
    def targets(self) -> int:
        """Number of target columns q; 0 without targets."""
        return len(self.joint_mean) - self.width

    @property
    def mean(self) -> Float64Array:
        """Mean of x (p,); zero if n = 0."""
        return self.joint_mean[: self.width]

    @property
    def y_mean(self) -> Float64Array:
        """Mean of y (q,); zero if n = 0."""
        return self.joint_mean[self.width :]

    @property
    def scatter(self) -> Float64Array:
        """Centred ``sum (x - mean)(x - mean)'`` (p, p)."""
        return self.joint_scatter[: self.width, : self.width]

    @property
    def cross_scatter(self) -> Float64Array:
        """Centred ``sum (x - mean)(y - y_mean)'`` (p, q)."""
        return self.joint_scatter[: self.width, self.width :]

    @property
    def y_scatter(self) -> Float64Array:
        """Centred ``sum (y - y_mean)(y - y_mean)'`` (q, q)."""
        return self.joint_scatter[self.width :, self.width :]

    @property
    def second(self) -> Float64Array:
        """Raw ``X'X`` (p, p): the local Gram matrix whose sum over sites is exact in one round."""
        return self.scatter + self.n * np.outer(self.mean, self.mean)

    @property
    def cross(self) -> Float64Array:
        """Raw ``X'y`` (p, q)."""
        return self.cross_scatter + self.n * np.outer(self.mean, self.y_mean)

    @property
    def y_second(self) -> Float64Array:
        """Raw ``y'y`` (q, q)."""
        return self.y_scatter + self.n * np.outer(self.y_mean, self.y_mean)

    @property
    def covariance(self) -> Float64Array:
        """Unbiased covariance of x (p, p), scatter over n - 1; needs two rows."""
        if self.n < 2:
            raise InputError(f"a covariance needs at least 2 rows, got {self.n}")
        return self.scatter / (self.n - 1)

    def __add__(self, other: object) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        self._check_alike(other)
        if self.n == 0 or other.n == 0:
            return self if other.n == 0 else other
        n = self.n + other.n
        step = other.joint_mean - self.joint_mean
        mean = self.joint_mean + step * (other.n / n)
        between = np.outer(step, step) * (self.n * other.n / n)
        return Moments(n, self.width, mean, self.joint_scatter + other.joint_scatter + between)

    def __sub__(self, other: object) -> "Moments":
        """Moments without the rows of ``other``; ValueError if ``other`` cannot have been part of these.

        The count must not become negative nor the scatter indefinite. That is necessary, not sufficient:
        other rows of a similar spread go unnoticed.
        """
        if not isinstance(other, Moments):
            return NotImplemented
        self._check_alike(other)
        n = self.n - other.n
        if n < 0:
            raise InputError(f"cannot take {other.n} rows out of the moments of {self.n}")
        if n == 0:
            _check_same(self, other)
            return self.zero(self.width, self.targets)
        if other.n == 0:
            return self
        step = self.joint_mean - other.joint_mean
        factor = self.n * other.n / n
        scatter = self.joint_scatter - other.joint_scatter - np.outer(step, step) * factor
        # A mean is known to a few units in its last place, which its step times the factor carries into the scatter.
        blur = 16 * np.finfo(np.float64).eps * np.maximum(np.abs(self.joint_mean), np.abs(other.joint_mean))
        size = np.diag(self.joint_scatter) + factor * (blur / _PSD_TOLERANCE) ** 2
        _check_psd(scatter, size, "the rows taken out cannot have been part of these moments")
        if n == 1:
            scatter[:] = 0.0  # one row has no scatter; what is left is rounding
        np.fill_diagonal(scatter, np.maximum(np.diag(scatter), 0.0))
        return Moments(n, self.width, self.joint_mean + step * (other.n / n), scatter)

    def __eq__(self, other: object) -> bool:
        """Equal to the last bit; sums of the same rows in another order are equal to rounding only."""
        if not isinstance(other, Moments):
            return NotImplemented
        return (
            self.n == other.n
            and self.width == other.width
            and np.array_equal(self.joint_mean, other.joint_mean)
            and np.array_equal(self.joint_scatter, other.joint_scatter)
        )

    __hash__ = None  # type: ignore[assignment]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays for a message: ``n``, ``width``, ``mean`` (k,), ``scatter`` (k(k+1)/2,), k = p + q.

        Mean and scatter are the joint ones; of the symmetric scatter the upper triangle travels, row by row.
        """
        triangle = self.joint_scatter[np.triu_indices(len(self.joint_mean))]
        return {
            "n": np.asarray(self.n),
            "width": np.asarray(self.width),
            "mean": self.joint_mean,
            "scatter": triangle,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.ArrayLike], *, noisy: bool = False) -> "Moments":
        """Moments from the arrays of ``to_arrays``, which are checked and refused with the reason.

        A scatter that is indefinite by more than 1e-9 of ``X'X`` is refused, unless ``noisy``: noise added for
        privacy can cause negative eigenvalues.
        """
        names = {"n", "width", "mean", "scatter"}
        if set(arrays) != names:
            raise InputError(f"moments must have exactly {sorted(names)}, got {sorted(map(str, arrays))}")
        n = check_count(plain_scalar(arrays["n"]), "n", at_least=0)
        k = np.size(arrays["mean"])
        width = check_count(plain_scalar(arrays["width"]), "width", at_most=k)
        mean = working_vector(arrays["mean"], "mean", length=k)
        triangle = working_vector(arrays["scatter"], "scatter", length=k * (k + 1) // 2)
        if n == 0 and (mean.any() or triangle.any()):
            raise InputError("moments of no rows must be zero, got a mean or scatter that is not")
        scatter = np.zeros((k, k))
        scatter[np.triu_indices(k)] = triangle
        scatter += np.triu(scatter, 1).T
        if not noisy:
            # Relative to X'X: what is left after rows were taken out is rounded by more than its own scatter.
            with np.errstate(over="ignore"):
                size = np.diag(scatter) + n * mean**2
            _check_psd(scatter, size, "no rows have these moments; with privacy noise pass noisy=True")
        return cls(n, width, mean, scatter)

    def _check_alike(self, other: "Moments") -> None:
        mine, theirs = (self.width, self.targets), (other.width, other.targets)
        if mine != theirs:
            raise InputError(f"moments must have the same (width, targets) {mine}, got {theirs}")


def _check_targets(y: npt.ArrayLike | None, n: int) -> FloatArray:
    """Targets as (n, q); without any, q = 0."""
    if y is None:
        return np.zeros((n, 0))
    array = np.asarray(y)
    targets = working_rows(array[:, None] if array.ndim == 1 else array, "y")
    if len(targets) != n:
        raise InputError(f"y must have a row for each of the {n} rows of X, got {len(targets)}")
    return targets


def _check_psd(scatter: Float64Array, size: Float64Array, reason: str) -> None:
    """Refuse a scatter (k, k) that is indefinite beyond ``_PSD_TOLERANCE`` of the columns' ``size`` (k,)."""
    unit = np.sqrt(np.where(size > 0, size, 1.0))
    scaled = scatter / unit
    scaled /= unit[:, None]
    scaled[np.diag_indices_from(scaled)] += _PSD_TOLERANCE
    with single_blas_thread():
        # In place, of the transpose, which lies in memory as LAPACK wants it; only whether it succeeds is of interest.
        _, failed = scipy.linalg.lapack.dpotrf(scaled.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        raise InputError(f"the scatter must be positive semi-definite, got a negative eigenvalue: {reason}")


def _check_same(a: Moments, b: Moments) -> None:
    """Refuse to call the difference of two moments of the same count zero when they differ."""
    spread = np.sqrt(np.maximum(np.diag(a.joint_scatter), 0.0))
    near = _ZERO_TOLERANCE * (np.abs(a.joint_mean) + spread)
    if (np.abs(a.joint_mean - b.joint_mean) > near).any() or (
        np.abs(a.joint_scatter - b.joint_scatter)
        > _ZERO_TOLERANCE * np.outer(spread, spread) + a.n * np.outer(near, near)
    ).any():
        raise InputError(f"cannot take all {a.n} rows out: the rows taken out are not the rows of these moments")
