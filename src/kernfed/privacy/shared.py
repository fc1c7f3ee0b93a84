"""Sums over the rows of all sites with noise in shares, asked for in one or two steps under one epsilon and delta.

What is summed is a ``Statistic``, and the noise that of ``NoisySum``. Here symmetric sums travel as two arrays, the
diagonal and what is above it. Labels need not be public: counts of classes are summed and noisy as well.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.privacy.accounting import GaussianEvent, epsilon_for
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.moments import MomentsRelease, RecordMoments
from kernfed.privacy.noisy_sum import WORDS, Budget, NoisySum, above_diagonal, share_law
from kernfed.privacy.record_sums import Places, RecordHistogram, RecordRidge
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import BITS, Floats, Ints
from kernfed.statistics.classes import (
    COUNTS_SHARE,
    MEANS_SHARE,
    CentredMoments,
    ClassMeans,
    ClassMoments,
    JointMoments,
    class_moments,
)
from kernfed.statistics.features import RidgeSums, noise_regularization
from kernfed.statistics.held_out import LadderHistogram
from kernfed.statistics.statistic import LabelledRows, Part, Statistic


@dataclass(frozen=True)
class NoisyArray:
    """An array of integers in a shared sum: its shape, what a site's entries may be, and sigma of the whole noise.

    ``per_row``: the most that one row adds to an entry, in size.
    """

    shape: tuple[int, ...]
    per_row: float
    deviation: float


@dataclass(frozen=True)
class SharedSum(ABC):
    """Sums of integers over the rows of all sites, with noise in shares.

    epsilon, delta : of a record, where at least ``honest`` sites add their shares. adjacency : how neighbours differ.
    """

    epsilon: float
    delta: float
    honest: int
    adjacency: str = "replace"

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_count(self.honest, "honest", at_most=10**6)
        check_choice(self.adjacency, "adjacency", tuple(WORDS))

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, float]:
        """Names of the sums that are asked for one after the other, and the share of the squared mu each costs."""

    @abstractmethod
    def statistic(self, part: str) -> Statistic[Any]:
        """The statistic that is summed in a part."""

    def noisy(self, part: str) -> NoisySum[Any]:
        """The noisy sum of a part, which shares the budget with the others."""
        beside = sum(self.statistic(other).numbers for other in self.parts if other != part)
        portion = self.parts[part]
        return NoisySum(self.statistic(part), self.epsilon, self.delta, self.honest, self.adjacency, portion, beside)

    def arrays(self, part: str) -> dict[str, NoisyArray]:
        """What a part is made of, as it travels: symmetric sums as ``diagonal`` and ``upper``."""
        noisy, arrays = self.noisy(part), {}
        for name, entry in noisy.statistic.parts.items():
            sigma, per_row = noisy.deviation(name), entry.most * entry.unit
            if entry.symmetric:
                count, k = math.prod(entry.shape[:-2]), entry.shape[-1]
                arrays["diagonal"] = NoisyArray((count, k), per_row, sigma)
                arrays["upper"] = NoisyArray((count, k * (k - 1) // 2), per_row, above_diagonal(sigma))
            else:
                arrays[name] = NoisyArray(entry.shape, per_row, sigma)
        return arrays

    def split(self, part: str, sums: Mapping[str, Ints]) -> dict[str, Ints]:
        """Sums of the statistic of a part as the arrays that travel."""
        arrays = {}
        for name, entry in self.statistic(part).parts.items():
            if entry.symmetric:
                flat = entry.flat(sums[name]).reshape(math.prod(entry.shape[:-2]), -1)
                arrays["diagonal"], arrays["upper"] = flat[:, : entry.shape[-1]], flat[:, entry.shape[-1] :]
            else:
                arrays[name] = sums[name]
        return arrays

    def full(self, part: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Floats]:
        """Sums of the statistic of a part, in units of 1, from the arrays that travel."""
        known = self.statistic(part).parts
        return {name: _whole(name, entry, arrays) / entry.unit for name, entry in known.items()}

    @property
    def numbers(self) -> int:
        """Noisy numbers of all parts."""
        return sum(self.statistic(part).numbers for part in self.parts)

    @property
    def mu(self) -> float:
        """Mu of all parts together, for one record."""
        return Budget(self.epsilon, self.delta).event(2 * self.honest * self.numbers).mu

    def event(self, part: str) -> GaussianEvent:
        """What a record pays for one part."""
        return self.noisy(part).event

    @property
    def alone(self) -> float:
        """Epsilon of a record, at the same delta, against all other sites and the coordinator together."""
        events = [self.event(part) for part in self.parts]
        return epsilon_for([replace(event, mu=event.mu * math.sqrt(self.honest)) for event in events], self.delta)

    @property
    def words(self) -> str:
        """For whom the guarantee is, and on which condition."""
        return (
            f"{WORDS[self.adjacency]}, where at least {self.honest} honest sites add their shares of noise to the sum "
            f"(against all other sites together: epsilon {self.alone:.4g})"
        )

    def share(self, part: str, integers: Mapping[str, Ints], generator: NoiseGenerator) -> dict[str, Ints]:
        """A site's integers with its share of the noise."""
        known = self.arrays(part)
        if set(known) != set(integers):
            raise InputError(f"expected the arrays {', '.join(known)}, got {', '.join(integers)}")
        return {
            name: integers[name] + share_law(array.deviation, self.honest).sample(array.shape, generator)
            for name, array in known.items()
        }


def _whole(name: str, entry: Part, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if not entry.symmetric:
        return arrays[name]
    return entry.full(np.hstack([arrays["diagonal"], arrays["upper"]]).reshape(-1))


@dataclass(frozen=True)
class SharedRidge(SharedSum):
    """``X'X`` and ``X'y`` of ``features`` columns and ``targets`` targets: what ``RecordRidge`` is for one site.

    The number of rows is public, so that neighbours have as many.
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
        """One sum, which may spend the whole budget."""
        return {"ridge": 1.0}

    def statistic(self, part: str = "ridge") -> RidgeSums:  # noqa: ARG002  one sum
        """Products of features and targets."""
        return self.mechanism.statistic(self.features, self.targets)

    def integers(self, X: FloatArray, y: FloatArray) -> dict[str, Ints]:
        """Exact sums over rows X (n, M) and targets y (n, C), clipped to the mechanism's norms."""
        return self.split("ridge", self.statistic().integers(LabelledRows(X, y)))

    def moments(self, total: Mapping[str, Ints], rows: int) -> Moments:
        """Noisy sums as moments around 0, of which ``second`` and ``cross`` are to be used."""
        return self.statistic().read(self.full("ridge", total), rows, {}).moments

    def regularization(self, moments: Moments, deviation: float) -> float:
        """What has to be added to ``X'X`` against noise of ``deviation`` on its diagonal, in grid steps."""
        return noise_regularization(moments.second, self.mechanism.radius**2 * (deviation / 4.0**BITS))


@dataclass(frozen=True, eq=False)
class SharedMoments(SharedSum):
    """Counts, means and covariances of public ``classes``: what ``RecordMoments`` is for one site.

    mechanism : basis, radius, spread and method; "centred" takes two sums, the second around the means of the first,
    "joint" one.
    """

    mechanism: RecordMoments = None  # type: ignore[assignment]
    classes: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, mechanism: RecordMoments, classes: tuple[Any, ...], honest: int, adjacency: str = "replace"
    ) -> "SharedMoments":
        """The shared sum that has the epsilon and delta of ``mechanism``."""
        if not classes or len(set(classes)) != len(classes):
            raise InputError(f"classes must be different labels, one at least, got {classes!r:.80}")
        return cls(mechanism.epsilon, mechanism.delta, honest, adjacency, mechanism, tuple(classes))

    @property
    def parts(self) -> Mapping[str, float]:
        """One sum of all, or means and then spreads."""
        if self.mechanism.method == "joint":
            return {"joint": 1.0}
        return {"means": COUNTS_SHARE + MEANS_SHARE, "spreads": 1.0 - COUNTS_SHARE - MEANS_SHARE}

    def statistic(self, part: str, centres: Floats | None = None) -> Statistic[Any]:
        """Sums over projected rows by the place of their class."""
        k, radius = self.mechanism.dimension, self.mechanism.radius
        places = tuple(range(len(self.classes)))
        if part == "spreads":
            around = np.zeros((len(places), k)) if centres is None else centres
            return CentredMoments(places, k, k, self.mechanism.ball, "given", centres=around)
        return (JointMoments if part == "joint" else ClassMeans)(places, k, k, radius, "given")

    def integers(
        self, part: str, X: FloatArray, places: npt.NDArray[np.intp], centres: Floats | None = None
    ) -> dict[str, Ints]:
        """Exact sums over rows X (n, p) whose classes have these ``places`` (n,) among all; ``centres`` (C, k)."""
        if part == "spreads" and (centres is None or centres.shape != (len(self.classes), self.mechanism.dimension)):
            raise InputError("spreads are around centres, one for each class")
        rows = LabelledRows(self.mechanism.project(X), places)
        return self.split(part, self.statistic(part, centres).integers(rows))

    def centres(self, means: Mapping[str, Ints]) -> Floats:
        """Means (C, k) of the classes from their noisy counts and sums, inside the ball they must be in."""
        return self._sizes_and_means(means)[1]

    def _sizes_and_means(self, arrays: Mapping[str, Ints]) -> tuple[Floats, Floats]:
        statistic = self.statistic("means")
        sums = {name: arrays[name] / part.unit for name, part in statistic.parts.items()}
        sizes, means = statistic.read(sums, 0, {})
        return sizes, means

    def moments(self, totals: Mapping[str, Mapping[str, Ints]]) -> tuple[ClassMoments, ...]:
        """Moments of all classes from the noisy sums of every part: post-processing."""
        part = "joint" if "joint" in totals else "spreads"
        radius = self.mechanism.radius if part == "joint" else self.mechanism.ball
        sizes, centres = self._sizes_and_means(totals["joint" if part == "joint" else "means"])
        scatter = radius**2 * self.full(part, totals[part])["second"]
        if part == "joint":
            scatter -= sizes[:, None, None] * centres[:, :, None] * centres[:, None, :]
        noise = radius**2 / 4.0**BITS * self.arrays(part)["diagonal"].deviation
        return class_moments(self.classes, sizes, centres, scatter, noise)


def release_together(
    shared: SharedMoments,
    sites: Sequence[tuple[FloatArray, npt.NDArray[np.intp]]],
    generator: NoiseGenerator | None = None,
) -> MomentsRelease:
    """What sites with these rows and places of their classes release together, computed in one place: for audits."""
    source = check_generator(generator)
    totals: dict[str, Mapping[str, Ints]] = {}
    centres = None
    for part in shared.parts:
        sent = [shared.share(part, shared.integers(part, X, places, centres), source) for X, places in sites]
        totals[part] = {name: np.sum([arrays[name] for arrays in sent], axis=0) for name in sent[0]}
        centres = shared.centres(totals[part]) if part == "means" else None
    record = Guarantee(shared.epsilon, shared.delta, "record", shared.words)
    element = Guarantee(shared.epsilon, shared.delta, "element", "one element changing by any amount")
    whole = replace(shared.event(next(iter(shared.parts))), mu=shared.mu)
    return MomentsRelease(shared.moments(totals), element, record, source.private, (whole,))


@dataclass(frozen=True)
class SharedHistogram(SharedSum):
    """Sums over the ladder's rungs: what ``RecordHistogram`` is for one site; the number of rows is public."""

    mechanism: RecordHistogram = None  # type: ignore[assignment]

    @classmethod
    def of(cls, mechanism: RecordHistogram, honest: int) -> "SharedHistogram":
        """The shared sum that has the epsilon and delta of ``mechanism``."""
        return cls(mechanism.epsilon, mechanism.delta, honest, "replace", mechanism)

    @property
    def parts(self) -> Mapping[str, float]:
        """One sum, which may spend the whole budget."""
        return {"histogram": 1.0}

    def statistic(self, part: str = "histogram") -> LadderHistogram:  # noqa: ARG002  one sum
        """Counts by odds and, where strangers are counted, by strangeness."""
        return LadderHistogram(self.mechanism.strangers)

    def integers(self, places: Places, strange: Places | None) -> dict[str, Ints]:
        """Exact sums over rows in these places (n,)."""
        columns = np.column_stack([places] if strange is None else [places, strange])
        return self.statistic().integers(LabelledRows(columns, places))
