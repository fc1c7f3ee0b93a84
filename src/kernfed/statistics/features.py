"""Sums over features of rows: the products of ridge regression, and the mean of a kernel's features."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.moments import Moments
from kernfed.kernels.predictor import FeatureProblem
from kernfed.statistics.bounds import (
    MOST_NUMBERS,
    Floats,
    check_features,
    check_scale,
    clip_rows,
    product,
    saturate,
)
from kernfed.statistics.statistic import MOST_CLASSES, Numbers, Part, Statistic, check_classes, label_places

#: How far ``x x'`` and ``x y'`` move in the Frobenius norm where a row of the unit balls is replaced.
SECOND_SENSITIVITY, CROSS_SENSITIVITY = math.sqrt(2.0), 2.0
# The regularisation of AdaSSP suffices with probability 1 - _FAILURE.
_FAILURE = 0.05


@dataclass(frozen=True, eq=False)
class RidgeTotals:
    """Products of features and targets over rows.

    moments : around 0, of which ``second`` (M, M) and ``cross`` (M, C) are summed, and ``y_second`` (C, C) with means.
    mass : sum of the rows' weights; their number where there are no means. means : weighted means (M + C,) of features
    and targets, None without. regularization : what AdaSSP adds to ``X'X`` against the noise, 0 without noise.
    """

    moments: Moments
    mass: float
    means: Floats | None
    regularization: float


@dataclass(frozen=True)
class RidgeSums(Statistic[RidgeTotals]):
    """``X'X`` and ``X'y`` of features and targets, each row with the square root of its weight.

    width : columns of the rows. features : Fourier features of them, or None for the columns as they are. classes :
    labels, whose targets are 1 for the row's own and 0 otherwise; () for values to regress, of which there are
    ``targets`` columns. radius, target_radius : norms to which features and targets of a row are clipped. weights :
    of the rows of each class, above 0 and at most 1; None for 1. means : whether ``y'y`` and the sums of features,
    targets and weights are summed beside.
    """

    name: ClassVar[str] = "ridge_sums"

    width: int
    features: FourierFeatures | None
    classes: tuple[Any, ...]
    radius: float
    target_radius: float
    targets: int = 1
    weights: tuple[float, ...] | None = None
    means: bool = False

    def __post_init__(self) -> None:
        check_count(self.width, "width", at_most=MOST_NUMBERS)
        check_count(self.targets, "targets", at_most=MOST_CLASSES)
        check_classes(self.classes, at_least=0)
        check_scale(self.radius, "radius")
        check_scale(self.target_radius, "target_radius")
        if self.features is not None and check_features(self.features).width != self.width:
            raise InputError(f"features must be of {self.width} columns, got {self.features.width}")
        if type(self.means) is not bool:
            raise InputError(f"means must be True or False, got {self.means!r:.40}")
        if self.weights is not None:
            if not isinstance(self.weights, tuple) or len(self.weights) != len(self.classes):
                raise InputError(f"weights must be one per class, got {self.weights!r:.80}")
            if not all(check_scale(weight, "a weight") <= 1 for weight in self.weights):
                raise InputError("weights of classes must be at most 1: divide them by the largest")

    @classmethod
    def of(cls, problem: FeatureProblem, radius: float, target_radius: float, **options: Any) -> Self:
        """The sums of a public problem: its columns, feature map and classes."""
        return cls(problem.width, problem.feature_map(), problem.classes, radius, target_radius, **options)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of features M and of targets C."""
        features = self.width if self.features is None else self.features.n_components
        return features, len(self.classes) or self.targets

    @property
    def parts(self) -> Mapping[str, Part]:
        """``second`` (M, M) and ``cross`` (M, C) with half of the squared mu each, or 0.4 with means."""
        M, C = self.shape
        share = 0.4 if self.means else 0.5
        parts = {
            "second": Part((M, M), SECOND_SENSITIVITY, 1.0, share, 2, symmetric=True),
            "cross": Part((M, C), CROSS_SENSITIVITY, 1.0, share, 2),
        }
        if self.means:
            parts["squares"] = Part((C, C), SECOND_SENSITIVITY, 1.0, 0.05, 2, symmetric=True)
            parts["features"] = Part((M,), 2.0, 1.0, 0.05, 2)
            parts["targets"] = Part((C,), 2.0, 1.0, 0.05, 2)
            parts["mass"] = Part((1,), 1.0, 1.0, 0.05, 2)
        return parts

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Features (n, M) and targets (n, C) in the unit ball and roots of weights (n, 1), each times the last."""
        mapped = saturate(X) if self.features is None else self.features.transform(saturate(X))
        weights, targets = np.ones(len(X)), self._values(y, len(X))
        if self.classes:
            places = label_places(y, self.classes)
            targets = (places[:, None] == np.arange(len(self.classes))).astype(np.float64)
            if self.weights is not None:
                weights = np.append(np.sqrt(self.weights), 1.0)[places]
        points, goals = clip_rows(mapped, self.radius) / self.radius, clip_rows(targets, self.target_radius)
        return tuple(factor * weights[:, None] for factor in (points, goals / self.target_radius, np.ones((len(X), 1))))

    def _values(self, y: npt.NDArray[Any], n: int) -> Floats:
        """Targets (n, targets) to regress, 0 where they are no numbers."""
        if y.dtype.kind not in "fiub" or y.size != n * self.targets:
            return np.zeros((n, self.targets))
        return saturate(y.reshape(n, self.targets))

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Products of features, targets and constants."""
        points, goals, ones = factors
        added = {"second": product(points, points), "cross": product(points, goals)}
        if self.means:
            added["squares"] = product(goals, goals)
            added["features"], added["targets"] = product(points, ones)[:, 0], product(goals, ones)[:, 0]
            added["mass"] = product(ones, ones)[:, 0]
        return added

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> RidgeTotals:
        """Moments around 0, means where they are summed, and what the noise asks for."""
        M, C = self.shape
        joint = np.zeros((M + C, M + C))
        joint[:M, :M] = self.radius**2 * sums["second"]
        joint[:M, M:] = self.radius * self.target_radius * sums["cross"]
        joint[M:, :M] = joint[:M, M:].T
        mass, means = float(rows), None
        if self.means:
            joint[M:, M:] = self.target_radius**2 * sums["squares"]
            mass = float(sums["mass"][0])
            scaled = np.concatenate([self.radius * sums["features"], self.target_radius * sums["targets"]])
            means = scaled / mass if mass > 0 else scaled
        moments = Moments(rows, M, np.zeros(M + C), joint)
        noise = self.radius**2 * deviation.get("second", 0.0)
        return RidgeTotals(moments, mass, means, noise_regularization(moments.second, noise))


def noise_regularization(second: Floats, deviation: float) -> float:
    """What AdaSSP (Wang 2018) adds to the noisy ``X'X`` (p, p): max(b - max(l - b, 0), 0).

    ``deviation`` is that of the noise on the diagonal; b bounds the spectral norm of the noise with probability
    1 - _FAILURE, and l is the smallest eigenvalue of the noisy matrix, so that l - b is at most that of the exact one.
    Nothing but the noisy matrix is used: this costs no budget.
    """
    if deviation == 0:
        return 0.0
    p = len(second)
    bound = deviation * math.sqrt(p * math.log(2 * p**2 / _FAILURE))
    smallest = max(float(np.linalg.eigvalsh(second)[0]) - bound, 0.0)
    return max(bound - smallest, 0.0)


@dataclass(frozen=True)
class MeanFeatures(Statistic[tuple[Floats, float]]):
    """Sum of paired Fourier features, whose rows have norm 1: the kernel mean embedding of the rows."""

    name: ClassVar[str] = "mean_features"

    features: FourierFeatures

    def __post_init__(self) -> None:
        if not isinstance(self.features, FourierFeatures) or (self.features.kind, self.features.scale) != (
            "paired",
            "unbiased",
        ):
            raise InputError(
                "features must be FourierFeatures(kind='paired', scale='unbiased'), whose rows have norm 1"
            )
        check_features(self.features)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``features`` (M,), the sum of rows of norm 1."""
        return {"features": Part((self.features.n_components,), 2.0, 1.0)}

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Features (n, M); labels play no part."""
        return (clip_rows(self.features.transform(saturate(X)), 1.0),)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """The sum (M,) of the features of all rows."""
        return {"features": factors[0].sum(axis=0)}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> tuple[Floats, float]:
        """Mean (M,) of the features, and the deviation of its noise."""
        return sums["features"] / rows, deviation.get("features", 0.0) / rows
