"""Sums over rows of features and targets, streamed in blocks that are worked on side by side and added in order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.threads import resolve_jobs, single_blas_thread
from kernfed.kernels import FeatureMap, Moments, row_blocks

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
