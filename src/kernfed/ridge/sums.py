"""Sums and means over rows of features and targets.

Sums over rows of features and targets, streamed in blocks that are worked on side by side and added in order.

Means that stand for the intercept: of an objective with a constant that is not penalised, it takes itself out.

``F(W, a) = sum_i c_i |W' phi_i + a - y_i|^2 / m + lambda |W|^2`` is smallest in a at ``a = y_mean - W' phi_mean``, the
means over the rows of all sites weighted by c_i. What is left is the objective without a constant on rows and targets
around these means, so every method that minimises that one has the intercept for two means of each site.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_finite, check_number
from kernfed.base.threads import resolve_jobs, single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels import FeatureMap, Moments, row_blocks
from kernfed.ridge.parameters import RidgeParameters

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class RowSums:
    """``sum c phi phi'`` (M, M), ``sum c phi y'`` (M, C) and ``sum c |y|^2``.

    A Hessian needs them as they are. ``Moments`` centres first, which costs a fifth of the time and, once the means
    are added again, gains nothing.
    """

    gram: FloatArray
    cross: FloatArray
    square: float

    def __add__(self, other: "RowSums") -> "RowSums":
        return RowSums(self.gram + other.gram, self.cross + other.cross, self.square + other.square)


def row_sums(X: FloatArray, targets: FloatArray, weights: FloatArray | None, features: FeatureMap | None) -> RowSums:
    """Sums of rows X (n, p), mapped by ``features``, with targets (n, C) and weights (n,)."""

    def part(block: slice) -> RowSums:
        phi, y = _scaled(X[block], targets[block], None if weights is None else weights[block], features)
        return RowSums(phi.T @ phi, phi.T @ y, float(np.vdot(y, y)))

    return over_blocks(len(X), part)


def weighted_moments(
    X: FloatArray, targets: FloatArray, weights: FloatArray | None, features: FeatureMap | None
) -> Moments:
    """The same as ``Moments``, which can travel: ``second``, ``cross`` and ``y_second`` are the weighted sums."""

    def part(block: slice) -> Moments:
        return Moments.from_rows(
            *_scaled(X[block], targets[block], None if weights is None else weights[block], features)
        )

    return over_blocks(len(X), part)


def _scaled(
    rows: FloatArray, targets: FloatArray, weights: FloatArray | None, features: FeatureMap | None
) -> tuple[FloatArray, FloatArray]:
    """Features and targets in float64, scaled by the roots of the weights."""
    phi = (rows if features is None else features(rows)).astype(np.float64, copy=False)
    if weights is None:
        return phi, targets
    root = np.sqrt(weights)[:, None]
    return phi * root, targets * root


def over_blocks(n: int, part: Callable[[slice], Part]) -> Part:
    """``part`` of every block of n rows, added up in their order."""
    from joblib import Parallel, delayed  # here, so that a site that does not add up rows is spared it

    jobs = resolve_jobs(None)
    with single_blas_thread():
        work = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem", return_as="generator")
        total: Part = reduce(add, work(delayed(part)(block) for block in row_blocks(n)))
    return total


@dataclass(frozen=True, eq=False)
class Means:
    """Mass of rows, and their weighted means of features (M,) and of targets (C,); ``a + b`` are those of both."""

    mass: float
    features: FloatArray
    targets: FloatArray

    def __add__(self, other: "Means") -> "Means":
        mass = self.mass + other.mass
        share = other.mass / mass
        return Means(
            mass,
            self.features + share * (other.features - self.features),
            self.targets + share * (other.targets - self.targets),
        )

    def intercept(self, weights: FloatArray) -> FloatArray:
        """The constant (C,) that is best with ``weights`` (M, C)."""
        return np.asarray(self.targets - self.features @ weights)

    def to_array(self) -> FloatArray:
        """One array (1 + M + C,) for a message."""
        return np.concatenate([[self.mass], self.features, self.targets])

    @classmethod
    def from_array(cls, array: npt.NDArray[Any], parameters: RidgeParameters) -> "Means":
        """Means from ``to_array``, checked."""
        M, C = parameters.n_features, parameters.n_targets
        if array.shape != (1 + M + C,) or array.dtype != np.float64:
            raise InputError(f"means must be float64 of shape {(1 + M + C,)}, got {array.dtype} of {array.shape}")
        check_finite(array, "means")
        return cls(check_number(float(array[0]), "mass", above=0), array[1 : 1 + M], array[1 + M :])


def row_means(X: FloatArray, targets: FloatArray, weights: FloatArray | None, features: FeatureMap | None) -> Means:
    """Means of rows X (n, p), mapped by ``features``, with targets (n, C) and weights (n,)."""

    def part(block: slice) -> Means:
        phi = (X[block] if features is None else features(X[block])).astype(np.float64, copy=False)
        c = np.ones(len(phi)) if weights is None else weights[block]
        mass = float(c.sum())
        return Means(mass, c @ phi / mass, c @ targets[block] / mass)

    return over_blocks(len(X), part)


def centred_features(parameters: RidgeParameters, means: Means | None) -> FeatureMap | None:
    """Features of rows around their means, as they are without means; None where that changes nothing."""
    features = parameters.feature_map()
    transform = None if features is None else features.transform
    if means is None:
        return transform
    return lambda rows: (rows if transform is None else transform(rows)) - means.features


def centred_targets(parameters: RidgeParameters, y: npt.NDArray[Any], means: Means | None) -> FloatArray:
    """Targets (n, C) around their means."""
    targets = parameters.targets(y)
    return targets if means is None else targets - means.targets


def moved(moments: Moments, own: Means, to: Means) -> Moments:
    """Sums of products around the means ``to``, from those of rows centred at their ``own``.

    ``sum c (z - to)(z - to)' = sum c (z - own)(z - own)' + m (own - to)(own - to)'``. Of the result use ``second``,
    ``cross`` and ``y_second``.
    """
    step = np.concatenate([own.features - to.features, own.targets - to.targets])
    mean = moments.joint_mean
    joint = moments.joint_scatter + moments.n * np.outer(mean, mean) + own.mass * np.outer(step, step)
    return Moments(moments.n, moments.width, np.zeros(len(step)), joint)


def problem_values(parameters: RidgeParameters, means: Means | None) -> dict[str, Any]:
    """Plain values that tell the problem of a site's factor from every other one."""
    values = parameters.to_values()
    if means is None:
        return values
    return {**values, "means": hashlib.sha256(means.to_array().astype("<f8").tobytes()).hexdigest()}
