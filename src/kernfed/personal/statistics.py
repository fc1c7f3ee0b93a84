"""What a site says of its rows for squared loss: their first and second moments, as few numbers as hold them.

The joint scatter of features and targets is kept as a factor R (r, k) with ``R'R = scatter``, r <= n - 1: for few rows
it is far smaller than the matrix. With the mean it makes rows that have the same ``X'X``, ``X'y`` and ``y'y``, so
whatever works on rows works on statistics. It tells as much of the rows as their moments do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_finite, check_rows
from kernfed.errors import InputError
from kernfed.kernels import FeatureMap, Moments

#: Singular values below this share of the largest are rounding.
_RANK = 1e-13


@dataclass(frozen=True, eq=False)
class SiteStatistics:
    """Count, joint mean (k,) and factor (r, k) of the scatter of n rows with p = ``width`` features and k - p targets.

    >>> site = SiteStatistics.from_rows([[1.0, 2.0], [3.0, 4.0]], [1.0, 0.0])
    >>> rows = site.rows()
    >>> (rows.T @ rows).round(12).tolist()
    [[10.0, 14.0, 1.0], [14.0, 20.0, 2.0], [1.0, 2.0, 1.0]]
    """

    n: int
    width: int
    mean: FloatArray
    factor: FloatArray

    @property
    def targets(self) -> int:
        """Number of target columns."""
        return len(self.mean) - self.width

    @classmethod
    def from_rows(cls, X: npt.ArrayLike, y: npt.ArrayLike, *, features: FeatureMap | None = None) -> "SiteStatistics":
        """Statistics of X (n, p), or of ``features`` of it, with targets y (n,) or (n, q)."""
        rows = check_rows(X)
        targets = np.asarray(y, dtype=np.float64)
        targets = targets[:, None] if targets.ndim == 1 else targets
        width = rows.shape[1] if features is None else np.shape(features(rows[:1]))[1]
        if len(rows) > width + targets.shape[1]:
            return cls.from_moments(Moments.from_rows(rows, targets, features=features))
        check_rows(targets, "y", min_rows=len(rows))
        if len(targets) != len(rows):
            raise InputError(f"y must have a row for each of the {len(rows)} rows of X, got {len(targets)}")
        joint = np.hstack([rows if features is None else features(rows), targets], dtype=np.float64)
        mean = joint.mean(axis=0)
        _, values, axes = np.linalg.svd(joint - mean, full_matrices=False)
        kept = values > _RANK * values[0]
        return cls(len(rows), width, mean, values[kept, None] * axes[kept])

    @classmethod
    def from_moments(cls, moments: Moments) -> "SiteStatistics":
        """Statistics of the rows that ``moments`` describe, at least 1."""
        if moments.n < 1:
            raise InputError("statistics need at least 1 row, got moments of 0")
        values, vectors = np.linalg.eigh(moments.joint_scatter)
        kept = values > _RANK * max(float(values[-1]), 0.0)
        factor = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
        return cls(moments.n, moments.width, np.array(moments.joint_mean), factor[::-1])

    def rows(self) -> FloatArray:
        """Rows (r + 1, k) with the raw second moments ``sum z z'`` of the n rows."""
        return np.vstack([self.factor, np.sqrt(self.n) * self.mean])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays for a message: counts (2,), mean (k,), and the factor (r, k) or the scatter's upper triangle.

        Whichever is smaller travels.
        """
        k = len(self.mean)
        counts = np.array([float(self.n), float(self.width)])
        if self.factor.size <= k * (k + 1) // 2:
            return {"counts": counts, "mean": self.mean, "factor": self.factor}
        return {"counts": counts, "mean": self.mean, "scatter": (self.factor.T @ self.factor)[np.triu_indices(k)]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "SiteStatistics":
        """Statistics from ``to_arrays``, checked and refused with the reason."""
        if set(arrays) not in ({"counts", "mean", "factor"}, {"counts", "mean", "scatter"}):
            raise InputError(f"statistics must have counts, mean and factor or scatter, got {sorted(arrays)}")
        counts = np.asarray(arrays["counts"], dtype=np.float64)
        if counts.shape != (2,) or not np.isfinite(counts).all() or (counts != np.floor(counts)).any():
            raise InputError(f"counts must be two whole numbers, got {counts}")
        n, width = check_count(int(counts[0]), "n", at_most=2**40), check_count(int(counts[1]), "width")
        if "scatter" in arrays:
            parts = {"n": np.asarray(n), "width": np.asarray(width), "mean": arrays["mean"]}
            return cls.from_moments(Moments.from_arrays({**parts, "scatter": arrays["scatter"]}))
        mean, factor = arrays["mean"], arrays["factor"]
        if mean.ndim != 1 or factor.ndim != 2 or factor.shape[1] != len(mean) or len(mean) <= width:
            raise InputError(f"mean and factor must have more than {width} columns, got {mean.shape}, {factor.shape}")
        if len(factor) > min(n - 1, len(mean)):
            raise InputError(f"a factor of {n} rows has at most {min(n - 1, len(mean))} rows, got {len(factor)}")
        for name in ("mean", "factor"):
            if arrays[name].dtype != np.float64:
                raise InputError(f"{name} must be float64, got {arrays[name].dtype}")
            check_finite(arrays[name], name)
        return cls(n, width, mean, factor)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Common coordinates of all sites.

    Features minus ``centre`` (p,) with a last column ``constant``, targets minus ``target_centre`` (q,). Without an
    intercept both centres and the constant are 0, and there is no last column.
    """

    centre: FloatArray
    target_centre: FloatArray
    constant: float

    @classmethod
    def pooled(cls, sites: Sequence[SiteStatistics], *, intercept: bool = True) -> "Coordinates":
        """Coordinates around the mean of all sites' rows.

        The constant is the root mean square norm of a centred row: an offset is then expected to be as large as what
        the features explain together.
        """
        if not sites:
            raise InputError("at least 1 site is needed, got none")
        shapes = {(site.width, site.targets) for site in sites}
        if len(shapes) != 1:
            raise InputError(f"sites must have the same numbers of features and targets, got {sorted(shapes)}")
        p, q = shapes.pop()
        if not intercept:
            return cls(np.zeros(p), np.zeros(q), 0.0)
        counts = np.array([float(site.n) for site in sites])
        mean = counts @ np.stack([site.mean for site in sites]) / counts.sum()
        within = sum(float(np.square(site.factor[:, :p]).sum()) for site in sites)
        between = sum(site.n * float(np.square(site.mean[:p] - mean[:p]).sum()) for site in sites)
        spread = float(np.sqrt((within + between) / counts.sum()))
        return cls(mean[:p], mean[p:], spread if spread > 0 else 1.0)

    @property
    def dimension(self) -> int:
        """Number of coefficients d."""
        return len(self.centre) + (self.constant > 0)

    def design(self, features: FloatArray) -> FloatArray:
        """Rows (n, d) of features (n, p) in these coordinates."""
        rows = np.asarray(features - self.centre, dtype=np.float64)
        return np.hstack([rows, np.full((len(rows), 1), self.constant)]) if self.constant else rows

    def compress(self, site: SiteStatistics) -> tuple[FloatArray, FloatArray]:
        """Design rows (r + 1, d) and targets (r + 1, q) that stand for the n rows of a site."""
        p, root = len(self.centre), np.sqrt(site.n)
        last = root * (site.mean - np.concatenate([self.centre, self.target_centre]))
        rows = np.vstack([site.factor, last])
        X = rows[:, :p]
        if self.constant:
            ones = np.zeros((len(rows), 1))
            ones[-1] = root * self.constant
            X = np.hstack([X, ones])
        return X, rows[:, p:]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays."""
        return {"centre": self.centre, "target_centre": self.target_centre, "constant": np.array([self.constant])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Coordinates":
        """Coordinates from ``to_arrays``, checked."""
        coordinates = cls(arrays["centre"], arrays["target_centre"], float(arrays["constant"][0]))
        for name in ("centre", "target_centre"):
            check_finite(arrays[name], name)
            if arrays[name].ndim != 1:
                raise InputError(f"{name} must be a vector, got shape {arrays[name].shape}")
        if not 0 <= coordinates.constant < np.inf:
            raise InputError(f"constant must be at least 0, got {coordinates.constant}")
        return coordinates
