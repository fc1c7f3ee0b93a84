"""What a site says of its rows for squared loss: their first and second moments, as few numbers as hold them.

The joint scatter of features and targets is kept as a factor R (r, k) with ``R'R = scatter``, r <= n - 1: for few rows
it is far smaller than the matrix. With the mean it makes rows that have the same ``X'X``, ``X'y`` and ``y'y``, so
whatever works on rows works on statistics. It tells as much of the rows as their moments do.

All sites in their own principal axes: what any spread of coefficients and noise of targets is worth.

Site j has rows ``y = X beta_j + noise`` with noise of variance s k and ``beta_j ~ N(m, t I)``. In the axes of X'X the
residuals ``y - X m`` are independent with variances ``s k + t e_i``, e_i the eigenvalues of X'X, and s k in the n - r
directions without features. Means and spreads by marginal likelihood need no more than these numbers, also where m and
t are those of one of several components and k one of several levels of noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from kernfed.base.checks import FloatArray, IntArray, check_choice, check_count, check_finite, check_rows
from kernfed.base.plain import MOST_COLUMNS
from kernfed.errors import InputError
from kernfed.kernels import FeatureMap, FourierFeatures, Moments, column_bandwidths
from kernfed.kernels.predictor import FEATURES, TASKS, FeatureProblem, fields_from_values

__all__ = ["FEATURES", "TASKS", "Problem"]


@dataclass(frozen=True)
class Problem(FeatureProblem):
    """Columns, features, task and classes.

    features : "given", the columns of X, or "fourier", random Fourier features in pairs of cosine and sine, made from
    ``seed`` with ``n_components`` (even) and ``bandwidth``. classes : sorted labels to classify, () to regress.
    """

    width: int
    task: str = "regress"
    classes: tuple[Any, ...] = ()
    features: str = "given"
    n_components: int = 200
    bandwidth: float | tuple[float, ...] = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.width, "width", at_most=MOST_COLUMNS)
        check_choice(self.task, "task", TASKS)
        check_choice(self.features, "features", FEATURES)
        column_bandwidths(self.bandwidth, self.width)  # features "given" need none, and the weights of sites do
        self.check_classes()

    def _fourier_features(self) -> FourierFeatures:
        """Features of rows, each row of norm 1."""
        return FourierFeatures(self.width, self.n_components, self.bandwidth, self.seed, kind="paired")

    def transform(self, X: FloatArray) -> FloatArray:
        """Features (n, M) of rows (n, p)."""
        features = self.feature_map()
        return X if features is None else features.transform(X)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return self.shared_values()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Problem":
        """Problem from ``to_values``, checked."""
        return cls(**fields_from_values(values))


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


#: Levels of noise k: how much noisier than others a site may be.
LEVELS = 10.0 ** np.linspace(-2.0, 2.0, 9)
#: The ratio of spread to noise is searched in this many units of the logarithm around the scale of the data.
_RANGE = 18.0
#: Noise is at least this share of the mean square of the targets: data without noise have a finite likelihood.
_LEAST_NOISE = 1e-10


@dataclass(frozen=True, eq=False)
class Spectra:
    """Sites one after another: axes (R, d), eigenvalues (R,) of X'X, targets (R, q) along the axes.

    sites : (R,) whose axis it is. starts : (B,) first axis of every site. counts : (B,) rows. rest : (B,) squares of
    the targets beside the axes.
    """

    axes: FloatArray
    values: FloatArray
    targets: FloatArray
    sites: IntArray
    starts: IntArray
    counts: IntArray
    rest: FloatArray

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[FloatArray, FloatArray]], counts: Sequence[int]) -> "Spectra":
        """Spectra of rows (r, d) with targets (r, q), each site's standing for ``counts`` rows."""
        parts = [_spectrum(X, Y) for X, Y in rows]
        sizes = [len(values) for _, values, _, _ in parts]
        return cls(
            np.concatenate([axes for axes, _, _, _ in parts]),
            np.concatenate([values for _, values, _, _ in parts]),
            np.concatenate([targets for _, _, targets, _ in parts]),
            np.repeat(np.arange(len(parts)), sizes),
            np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp),
            np.asarray(counts, dtype=np.int64),
            np.array([rest for _, _, _, rest in parts]),
        )

    @property
    def n_targets(self) -> int:
        """Number of target columns q."""
        return int(self.targets.shape[1])

    @property
    def beside(self) -> FloatArray:
        """Directions (B,) of every site's rows and targets that have no features."""
        sizes = np.diff(np.append(self.starts, len(self.values)))
        return np.asarray(self.n_targets * (self.counts - sizes), dtype=np.float64)

    def per_site(self, numbers: FloatArray) -> FloatArray:
        """Sums (B, ...) over each site's axes."""
        return np.asarray(np.add.reduceat(numbers, self.starts, axis=0))

    def residuals(self, mean: FloatArray) -> FloatArray:
        """``y - X m`` (R, q) along the axes, for coefficients m (d, q)."""
        return np.asarray(self.targets - np.sqrt(self.values)[:, None] * (self.axes @ mean))

    def combine(self, numbers: FloatArray) -> FloatArray:
        """Sums (B, d, q) over each site's axes of axis times numbers (R, q)."""
        ends = [*self.starts[1:].tolist(), len(self.values)]
        return np.stack([self.axes[a:b].T @ numbers[a:b] for a, b in zip(self.starts.tolist(), ends, strict=True)])

    def variances(self, spread: float, noise: float) -> FloatArray:
        """``s k + t e`` (R, L) of every axis and level."""
        return np.asarray(noise * LEVELS + spread * self.values[:, None])

    def log_densities(self, squares: FloatArray, spread: float, noise: float) -> FloatArray:
        """Log density (B, L) of each site's targets at every level, for squared residuals (R,) summed over targets."""
        variance = self.variances(spread, noise)
        inner = self.per_site(self.n_targets * np.log(variance) + squares[:, None] / variance)
        outer = self.beside[:, None] * np.log(noise * LEVELS) + self.rest[:, None] / (noise * LEVELS)
        return np.asarray(-0.5 * (inner + outer + self.n_targets * self.counts[:, None] * np.log(2 * np.pi)))

    def fit(
        self,
        masses: Sequence[FloatArray],
        squares: Sequence[FloatArray],
        ratios: FloatArray,
        turn: int,
        *,
        wide: bool = False,
    ) -> tuple[FloatArray, float]:
        """Ratios t/s (C,) of C components and noise s that are likelier than those given.

        masses : of each component (R, L), the probability that an axis' site is in it at a level. squares : the same
        times expected squared residuals. For given ratios the best noise has a closed form, so a search over one of
        them, number ``turn``, is in one dimension: near the one given, or ``wide`` around the scale of the data.
        """
        total = float(self.counts.sum()) * self.n_targets
        size = float(np.square(self.targets).sum() + self.rest.sum()) / total
        least = _LEAST_NOISE * (size if size > 1e-250 else 1.0)
        weights = sum((self.per_site(mass) for mass in masses), np.zeros((len(self.counts), len(LEVELS))))
        sizes = np.diff(np.append(self.starts, len(self.values)))[:, None]
        base, fixed = float((self.rest[:, None] * weights / sizes / LEVELS).sum()), 0.0

        def terms(number: int, ratio: float) -> tuple[float, float]:
            factor = LEVELS + ratio * self.values[:, None]
            return float((squares[number] / factor).sum()), float((masses[number] * np.log(factor)).sum())

        for number, ratio in enumerate(ratios):
            if number != turn:
                square, logs = terms(number, float(ratio))
                base, fixed = base + square, fixed + logs

        def loss(log_ratio: float) -> float:
            square, logs = terms(turn, float(np.exp(log_ratio)))
            noise = max((base + square) / total, least)
            return 0.5 * (total * float(np.log(noise)) + self.n_targets * (fixed + logs) + (base + square) / noise)

        middle = -np.log(float(self.values.mean()) or 1.0)
        if wide:
            grid = np.linspace(middle - _RANGE, middle + _RANGE, 25)
            centre = grid[int(np.argmin([loss(point) for point in grid]))]
        else:
            centre = float(np.clip(np.log(max(ratios[turn], 1e-300)), middle - _RANGE, middle + _RANGE))
        minimum = minimize_scalar(loss, bounds=(centre - 2, centre + 2), method="bounded", options={"xatol": 1e-3})
        best = np.array(ratios, dtype=np.float64)
        best[turn] = np.exp(minimum.x)
        return best, max((base + terms(turn, float(best[turn]))[0]) / total, least)


def _spectrum(X: FloatArray, Y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Axes (r, d), eigenvalues (r,), targets (r, q) along the axes and squares beside; at least one axis."""
    left, values, axes = np.linalg.svd(X, full_matrices=False)
    kept = values > 1e-12 * values[0]
    kept[0] = True
    targets = left[:, kept].T @ Y
    rest = max(0.0, float(np.square(Y).sum() - np.square(targets).sum()))
    return axes[kept], values[kept] ** 2, targets, rest
