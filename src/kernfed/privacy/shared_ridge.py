"""``X'X`` and ``X'y`` over the rows of all sites, with noise in shares: what ``RecordRidge`` is for one site."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernfed.base.checks import FloatArray, check_count
from kernfed.kernels.moments import Moments
from kernfed.privacy.generator import Ints
from kernfed.privacy.record_sums import CROSS_SENSITIVITY, RecordRidge
from kernfed.privacy.shares import NoisyArray, SharedSum, from_upper_parts, second_arrays, upper_parts
from kernfed.statistics.bounds import BITS, exact_product, saturate, unit_grid


@dataclass(frozen=True)
class SharedRidge(SharedSum):
    """Sums of ``features`` columns and ``targets`` targets under (epsilon, delta) for a whole row and its target.

    ``X'X`` and ``X'y`` get half of the squared mu each. The number of rows is public, so that neighbours have as many.
    """

    mechanism: RecordRidge = None  # type: ignore[assignment]
    features: int = 1
    targets: int = 1

    @classmethod
    def of(cls, mechanism: RecordRidge, features: int, targets: int, honest: int) -> "SharedRidge":
        """The shared sum that has the epsilon and delta of ``mechanism``."""
        check_count(features, "features", at_most=1 << 16)
        check_count(targets, "targets", at_most=1 << 16)
        return cls(mechanism.epsilon, mechanism.delta, honest, "replace", mechanism, features, targets)

    @property
    def parts(self) -> Mapping[str, float]:
        """One sum."""
        return {"ridge": 1.0}

    @property
    def _numbers_at_most(self) -> int:
        return self.features * (self.features + 1) // 2 + self.features * self.targets

    def arrays(self, part: str) -> dict[str, NoisyArray]:
        """Diagonal and upper part of ``X'X``, and ``X'y``: replacing a row moves them by sqrt(2) and by 2."""
        mu = self.mu * math.sqrt(self.parts[part] / 2) * (1 - 1e-12)
        cross = NoisyArray((self.features, self.targets), 4.0**BITS, CROSS_SENSITIVITY * 4.0**BITS / mu)
        return {**second_arrays(1, self.features, self.sensitivity(math.sqrt(2.0), 1.0), mu), "cross": cross}

    def integers(self, X: FloatArray, y: FloatArray) -> dict[str, Ints]:
        """Exact sums over rows X (n, M) and targets y (n, C), clipped to the mechanism's norms."""
        grid = unit_grid(saturate(X), self.mechanism.radius)
        goal = unit_grid(saturate(y), self.mechanism.target_radius)
        diagonal, upper = upper_parts(exact_product(grid, grid)[None])
        return {"diagonal": diagonal, "upper": upper, "cross": exact_product(grid, goal)}

    def moments(self, total: Mapping[str, Ints], rows: int) -> Moments:
        """Noisy sums as moments around 0, of which ``second`` and ``cross`` are to be used."""
        second = from_upper_parts(total["diagonal"], total["upper"])[0] / 4.0**BITS
        return self.mechanism.moments(second, total["cross"] / 4.0**BITS, rows)

    def regularization(self, moments: Moments, deviation: float) -> float:
        """What has to be added to ``X'X`` against noise of ``deviation`` on its diagonal, in grid steps."""
        return self.mechanism.regularization(moments, deviation / 4.0**BITS)
