"""Sums under noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.ladder import PLACES, ladder_sums, sensitivity
from kernfed.base.checks import FloatArray, check_number, check_rows
from kernfed.errors import InputError
from kernfed.kernels.embedding import MeanEmbedding
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.moments import Moments
from kernfed.privacy.accounting import Event, GaussianEvent
from kernfed.privacy.generator import Ints, NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.moments import SECOND_SENSITIVITY
from kernfed.privacy.noise import SMOOTHING, DiscreteGaussian, Floats
from kernfed.privacy.release import NUDGE, RecordMechanism, charge, only
from kernfed.privacy.sums import Budget, add_gaussian, add_symmetric_gaussian, noise_law
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import BITS, check_features, check_scale, exact_product, saturate, unit_grid

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


Places = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class HistogramRelease:
    """Noisy ``counts`` (PLACES,) and perhaps ``nearest`` (PLACES,) of ``rows``; their noise has this ``deviation``."""

    counts: Ints
    nearest: Ints | None
    rows: int
    deviation: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]


@dataclass(frozen=True)
class RecordHistogram(RecordMechanism):
    """Where the scores of rows lie, under (epsilon, delta) for a whole row and its label: for ``kernfed.conform``.

    ``strangers``: whether strangeness is counted beside the odds, which ``p_values`` needs; each then has half of the
    squared mu, and the noise of either is larger by sqrt(2).
    """

    epsilon: float
    delta: float
    strangers: bool = False

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if type(self.strangers) is not bool:
            raise InputError(f"strangers must be True or False, got {self.strangers!r:.40}")

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row and its label replaced by any other"

    @property
    def protects_labels(self) -> bool:
        """A label is told by the place of its row only, and as part of it."""
        return True

    @property
    def event(self) -> GaussianEvent:
        """What a record pays."""
        return Budget(self.epsilon, self.delta).event(PLACES * self.histograms)

    @property
    def histograms(self) -> int:
        """How many there are."""
        return 1 + self.strangers

    def law(self) -> DiscreteGaussian:
        """Noise of every number."""
        sigma = histogram_deviation(self.event.mu, self.histograms) * NUDGE
        return DiscreteGaussian(Fraction(sigma) ** 2 + SMOOTHING, math.ceil(sensitivity()))

    def release(
        self,
        places: npt.ArrayLike,
        strange: npt.ArrayLike | None = None,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> HistogramRelease:
        """Sums over rows in these ``places`` (n,), and by their strangeness in the places ``strange`` (n,).

        Rows of persons who cannot pay are counted beyond all places, in either histogram.
        """
        source, law = check_generator(generator), self.law()
        told = [check_places(places, "places")]
        if (strange is not None) != self.strangers:
            raise InputError(f"strangers={self.strangers} was asked for, and places by strangeness must fit that")
        if strange is not None:
            told.append(check_places(strange, "strange"))
            if len(told[1]) != len(told[0]):
                raise InputError(f"strange must have a place for each of {len(told[0])} rows, got {len(told[1])}")
        note = f"RecordHistogram({self.epsilon:g}, {self.delta:g}), {self.histograms} histogram(s)"
        pays = charge(ledger, (self.event,), np.column_stack(told), ids, source, note, together=True)
        counts, *more = (left_out(own, pays) for own in told)
        sums = [ladder_sums(own) + law.sample((PLACES,), source) for own in (counts, *more)]
        return HistogramRelease(
            sums[0],
            sums[1] if self.strangers else None,
            len(counts),
            math.sqrt(law.variance),
            *self.guarantees(1),
            source.private,
            (self.event,),
        )


def histogram_deviation(mu: float, histograms: int) -> float:
    """Sigma of the noise on every number, where so many ``histograms`` share mu."""
    return sensitivity() * math.sqrt(histograms) / mu * (1 + 1e-12)


def left_out(places: Places, pays: npt.NDArray[np.bool_]) -> Places:
    """Places (n,), beyond all of them for rows that nobody may look at: no set can have such a row."""
    return np.where(pays, places, PLACES)


def check_places(places: npt.ArrayLike, name: str) -> Places:
    """Places (n,) from 0 to PLACES, the last for a row that is in none."""
    values = np.asarray(places)
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise InputError(f"{name} must be a vector of places, got shape {values.shape} of {values.dtype}")
    if values.min() < 0 or values.max() > PLACES:
        raise InputError(f"{name} must be from 0 to {PLACES}, got {values.min()} to {values.max()}")
    return values.astype(np.intp)


@dataclass(frozen=True, eq=False)
class EmbeddingRelease:
    """Noisy mean ``vector`` (D,) of the features of ``n`` rows; ``noise`` is its standard deviation in each number."""

    vector: Floats
    n: int
    noise: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]

    @property
    def bias(self) -> float:
        """What the noise adds to the squared norm on average, D noise^2."""
        return len(self.vector) * self.noise**2

    @property
    def squared_norm(self) -> float:
        """``|v|^2`` of the noise-free mean, unbiased: it can be negative."""
        return float(self.vector @ self.vector) - self.bias

    def squared_distance(self, other: "EmbeddingRelease") -> float:
        """Squared distance of the two noise-free means, unbiased: it can be negative."""
        step = self.vector - other.vector
        return float(step @ step) - self.bias - other.bias

    def embedding(self) -> MeanEmbedding:
        """The release as kernfed keeps embeddings; its ``noise`` is the squared error from sampling and privacy.

        Paired features have norm 1, so ``Tr(Sigma)`` is ``1 - |v|^2`` times n/(n-1): no further release is needed.
        """
        if self.n < 2:
            raise InputError(f"the error of a mean needs at least 2 rows, got {self.n}")
        within = min(max(1.0 - self.squared_norm, 0.0), 1.0)
        spread = self.n * within + self.bias * self.n * (self.n - 1)
        return MeanEmbedding(float(self.n), float(self.n), self.vector, spread)


@dataclass(frozen=True)
class RecordEmbedding(RecordMechanism):
    """Mean of ``features`` over rows, (epsilon, delta) for a whole row: replacing one moves the mean by at most 2/n.

    Features must be paired cosines and sines, scaled without bias: every row has norm 1. (With random phases the bound
    would be 2 sqrt(2)/n.)
    """

    epsilon: float
    delta: float
    features: FourierFeatures

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if not isinstance(self.features, FourierFeatures) or (self.features.kind, self.features.scale) != (
            "paired",
            "unbiased",
        ):
            raise InputError(
                "features must be FourierFeatures(kind='paired', scale='unbiased'), whose rows have norm 1"
            )
        check_features(self.features)

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row replaced by any other"

    def release(
        self,
        X: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> EmbeddingRelease:
        """Noisy mean of the features of ``X`` (n, p)."""
        rows = check_rows(X, width=self.features.width)
        source = check_generator(generator)
        D, n = self.features.n_components, len(rows)
        event = Budget(self.epsilon, self.delta).event(D)
        note = f"RecordEmbedding({self.epsilon:g}, {self.delta:g}), {D} features"
        rows = only(rows, charge(ledger, (event,), rows, ids, source, note, together=True))
        blocks = self.features.transform_blocks(saturate(rows))
        total = sum((unit_grid(block, 1.0).sum(axis=0).astype(np.int64) for block in blocks), np.zeros(D, np.int64))
        vector = add_gaussian(total, 2.0, 2.0**BITS, event.mu, source) / n
        noise, promised = 2.0 / event.mu / n * NUDGE, self.guarantees(rows.shape[1])
        return EmbeddingRelease(vector, n, noise, *promised, source.private, (event,))
