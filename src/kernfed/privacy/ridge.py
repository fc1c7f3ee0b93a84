"""Private moments for ridge regression: AdaSSP (Wang 2018), adapted to replacing a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number, check_rows
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.privacy.accounting import Event
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.moments import SECOND_SENSITIVITY
from kernfed.privacy.noise import Floats
from kernfed.privacy.release import RecordMechanism, charge, only
from kernfed.privacy.sums import Budget, add_gaussian, add_symmetric_gaussian, noise_law
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import BITS, check_scale, exact_product, saturate, unit_grid

# The regularisation suffices with probability 1 - _FAILURE.
_FAILURE = 0.05
#: How far replacing a row and its target, both in unit balls, moves ``X'y`` in the Frobenius norm.
CROSS_SENSITIVITY = 2.0


@dataclass(frozen=True, eq=False)
class RidgeRelease:
    """Noisy ``X'X`` and ``X'y`` as ``moments`` around 0, and the ``regularization`` the noise asks for.

    Of ``moments`` use ``n``, ``second`` and ``cross``: means and ``y_second`` are not released and stand at 0.
    ``regularization`` is added to ``X'X``; per row it is ``regularization / n``.
    """

    moments: Moments
    regularization: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]

    def coefficients(self, regularization: float = 0.0) -> Floats:
        """Minimiser (p, q) of mean squared loss + a |w|^2, a at least what the noise asks for."""
        n = self.moments.n
        added = max(check_number(regularization, "regularization", at_least=0), self.regularization / n)
        values, vectors = np.linalg.eigh(self.moments.second / n)
        # Noise can make X'X indefinite; the regularisation covers that with high probability, this in any case.
        values = np.maximum(values, 0.0) + added
        return np.asarray(vectors / values @ (vectors.T @ (self.moments.cross / n)))


@dataclass(frozen=True)
class RecordRidge(RecordMechanism):
    """``X'X`` and ``X'y`` under (epsilon, delta) for a whole row and its target.

    Rows are clipped to L2 norm ``radius``, targets to ``target_radius``: public bounds, known without the data. Fourier
    features of kind "paired" have norm 1, those of kind "phase" about 1; one-hot targets 1, targets from -h to h at
    most h. ``X'X`` and ``X'y`` get half of the squared mu each; replacing a row moves them by at most sqrt(2) radius^2
    and 2 radius target_radius. The regularisation is computed from the noisy ``X'X`` and costs nothing.
    """

    epsilon: float
    delta: float
    radius: float
    target_radius: float

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_scale(self.radius, "radius")
        check_scale(self.target_radius, "target_radius")

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        clipped = f"clipped to norms {self.radius:g} and {self.target_radius:g}"
        return f"one row and its target replaced by any other, {clipped}"

    def release(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> RidgeRelease:
        """Moments of ``X`` (n, p) with targets ``y`` (n,) or (n, q)."""
        rows, source = check_rows(X), check_generator(generator)
        targets = _check_targets(y, len(rows))
        p, q = rows.shape[1], targets.shape[1]
        event = Budget(self.epsilon, self.delta).event(p * (p + 1) // 2 + p * q)
        note = f"RecordRidge({self.epsilon:g}, {self.delta:g}), {p} columns, {q} targets"
        pays = charge(ledger, (event,), np.hstack([rows, targets]), ids, source, note, together=True)
        rows, targets = only(rows, pays), only(targets, pays)
        share = event.mu / math.sqrt(2.0) * (1 - 1e-15)
        grid, goal = unit_grid(saturate(rows), self.radius), unit_grid(saturate(targets), self.target_radius)
        unit = 4.0**BITS
        second = add_symmetric_gaussian(exact_product(grid, grid), SECOND_SENSITIVITY, unit, share, source)
        cross = add_gaussian(exact_product(grid, goal), CROSS_SENSITIVITY, unit, share, source)
        deviation = math.sqrt(noise_law(SECOND_SENSITIVITY, unit, share).variance) / unit
        moments = self.moments(second, cross, len(rows))
        return RidgeRelease(
            moments, self.regularization(moments, deviation), *self.guarantees(p), source.private, (event,)
        )

    def moments(self, second: Floats, cross: Floats, rows: int) -> Moments:
        """Moments around 0 of so many rows, from sums ``second`` (p, p) and ``cross`` (p, q) over the unit balls."""
        p, q = cross.shape
        joint = np.zeros((p + q, p + q))
        joint[:p, :p] = self.radius**2 * second
        joint[:p, p:] = self.radius * self.target_radius * cross
        joint[p:, :p] = joint[:p, p:].T
        return Moments(rows, p, np.zeros(p + q), joint)

    def regularization(self, moments: Moments, deviation: float) -> float:
        """What AdaSSP adds to the noisy ``X'X`` of ``moments``: max(b - max(l - b, 0), 0).

        ``deviation`` is that of the noise on the diagonal, for rows in the unit ball; b bounds the spectral norm of the
        noise with probability 1 - _FAILURE, and l is the smallest eigenvalue of the noisy matrix, so that l - b is at
        most that of the exact one. Nothing but the noisy matrix is used: this costs no budget.
        """
        p = moments.width
        bound = self.radius**2 * deviation * math.sqrt(p * math.log(2 * p**2 / _FAILURE))
        smallest = max(float(np.linalg.eigvalsh(moments.second)[0]) - bound, 0.0)
        return max(bound - smallest, 0.0)


def _check_targets(y: npt.ArrayLike, n: int) -> FloatArray:
    values = np.asarray(y)
    targets = check_rows(values[:, None] if values.ndim == 1 else values, "y")
    if len(targets) != n:
        raise InputError(f"y must have a target for each of the {n} rows of X, got {len(targets)}")
    return targets
