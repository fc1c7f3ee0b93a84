"""Sums over rows of which one-round heads are made: each site computes its own, and their sum is that of all rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import numpy as np

from kernfed_papers.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Rows (C,), sums of rows (C, p) and of their outer products, (C, p, p) by class or (1, p, p) of all."""

    counts: FloatArray
    totals: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, x: FloatArray, y: IntArray, n_classes: int, *, by_class: bool = False) -> "ClassSums":
        """Of rows x (n, p) with class numbers y (n,); ``by_class`` keeps outer products apart, C times as many."""
        rows = np.asarray(x, dtype=np.float64)
        groups = [rows[y == number] for number in range(n_classes)]
        squares = [own.T @ own for own in (groups if by_class else [rows])]
        counts = np.array([float(len(own)) for own in groups])
        return cls(counts, np.stack([own.sum(axis=0) for own in groups]), np.stack(squares))

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return ClassSums(self.counts + other.counts, self.totals + other.totals, self.squares + other.squares)

    @property
    def rows(self) -> float:
        """Number of all rows, n."""
        return float(self.counts.sum())

    @cached_property
    def gram(self) -> FloatArray:
        """X'X (p, p)."""
        return np.asarray(self.squares.sum(axis=0))

    @cached_property
    def means(self) -> FloatArray:
        """Mean of each class (C, p); zero of a class without rows."""
        return np.asarray(self.totals / np.maximum(self.counts, 1)[:, None])

    @property
    def mean(self) -> FloatArray:
        """Mean of all rows (p,)."""
        return np.asarray(self.totals.sum(axis=0) / self.rows)

    @property
    def log_priors(self) -> FloatArray:
        """Logarithm of each class's share of the rows (C,); very low, not minus infinity, for a class without rows."""
        return np.log(np.maximum(self.counts, 1e-9) / self.rows)

    @cached_property
    def within(self) -> FloatArray:
        """Covariance within classes, pooled (p, p): (X'X - sum_c n_c m_c m_c') / n."""
        return np.asarray((self.gram - (self.totals.T @ self.means)) / self.rows)

    @cached_property
    def between(self) -> FloatArray:
        """Covariance of the class means around the mean, weighted by rows (p, p)."""
        apart = self.means - self.mean
        return np.asarray((apart.T * (self.counts / self.rows)) @ apart)

    @property
    def total(self) -> FloatArray:
        """Covariance of all rows (p, p)."""
        return self.within + self.between

    def covariance(self, number: int) -> FloatArray:
        """Covariance of one class (p, p), if outer products were kept by class."""
        count = max(self.counts[number], 1.0)
        return np.asarray(self.squares[number] / count - np.outer(self.means[number], self.means[number]))


def summed(parts: Iterable[ClassSums]) -> ClassSums:
    """Sum over sites."""
    return reduce(add, parts)
