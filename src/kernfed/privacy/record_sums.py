"""Sums of one site under record-level privacy: for ridge regression, thresholds, and kernel mean embeddings.

Each mechanism charges the ledger, sums a ``Statistic`` over the rows that may be looked at, and adds the noise of a
``NoisySum``. A record is replaced, and the number of rows is public.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import PLACES
from kernfed.base.checks import FloatArray, check_number, check_rows
from kernfed.errors import InputError
from kernfed.kernels.embedding import MeanEmbedding
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.moments import Moments
from kernfed.privacy.accounting import Event, GaussianEvent
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.noise import DiscreteGaussian
from kernfed.privacy.noisy_sum import Budget, NoisySum
from kernfed.privacy.release import NUDGE, RecordMechanism, charge, only
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import Floats, Ints, check_scale
from kernfed.statistics.features import MeanFeatures, RidgeSums
from kernfed.statistics.held_out import LadderHistogram
from kernfed.statistics.statistic import LabelledRows


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

    def statistic(self, width: int, targets: int) -> RidgeSums:
        """The sums of rows of so many columns and targets."""
        return RidgeSums(width, None, (), self.radius, self.target_radius, targets)

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
        noisy = NoisySum(self.statistic(p, q), self.epsilon, self.delta)
        note = f"RecordRidge({self.epsilon:g}, {self.delta:g}), {p} columns, {q} targets"
        pays = charge(ledger, (noisy.event,), np.hstack([rows, targets]), ids, source, note, together=True)
        made = noisy.read(noisy.release(LabelledRows(only(rows, pays), only(targets, pays)), source), len(rows))
        promised = self.guarantees(p)
        return RidgeRelease(made.moments, made.regularization, *promised, source.private, (noisy.event,))


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
    def noisy(self) -> NoisySum[dict[str, Floats]]:
        """The histograms of the ladder, and the noise on them."""
        return NoisySum(LadderHistogram(self.strangers), self.epsilon, self.delta)

    @property
    def event(self) -> GaussianEvent:
        """What a record pays for all histograms together."""
        return self.noisy.event

    @property
    def histograms(self) -> int:
        """1, or 2 where strangers are counted."""
        return 1 + self.strangers

    def law(self) -> DiscreteGaussian:
        """Law of the noise on every number, in steps of 2^-BITS."""
        return self.noisy.laws("counts")[0]

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
        source = check_generator(generator)
        columns = [check_places(places, "places")]
        if (strange is not None) != self.strangers:
            raise InputError(f"strangers={self.strangers} was asked for, and places by strangeness must fit that")
        if strange is not None:
            columns.append(check_places(strange, "strange"))
            if len(columns[1]) != len(columns[0]):
                raise InputError(f"strange must have a place for each of {len(columns[0])} rows, got {len(columns[1])}")
        note = f"RecordHistogram({self.epsilon:g}, {self.delta:g}), {self.histograms} histogram(s)"
        places = np.column_stack(columns)
        pays = charge(ledger, (self.event,), places, ids, source, note, together=True)
        sums = self.noisy.release(LabelledRows(left_out(places, pays[:, None]), places[:, 0]), source)
        return HistogramRelease(
            sums["counts"],
            sums.get("nearest"),
            len(places),
            math.sqrt(self.law().variance),
            *self.guarantees(1),
            source.private,
            (self.event,),
        )


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
        MeanFeatures(self.features)  # refuses features whose rows do not have norm 1

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
        noisy, n = NoisySum(MeanFeatures(self.features), self.epsilon, self.delta), len(rows)
        note = f"RecordEmbedding({self.epsilon:g}, {self.delta:g}), {self.features.n_components} features"
        rows = only(rows, charge(ledger, (noisy.event,), rows, ids, source, note, together=True))
        vector, _ = noisy.read(noisy.release(LabelledRows(rows, np.zeros(n)), source), n)
        noise, promised = 2.0 / noisy.event.mu / n * NUDGE, self.guarantees(rows.shape[1])
        return EmbeddingRelease(vector, n, noise, *promised, source.private, (noisy.event,))
