"""Moments of classes over the rows of all sites, with noise in shares: what ``RecordMoments`` is for one site."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.privacy.generator import Ints, NoiseGenerator, check_generator
from kernfed.privacy.moments import ClassMoments, MomentsRelease, RecordMoments
from kernfed.privacy.noise import Floats
from kernfed.privacy.shares import NoisyArray, SharedSum, from_upper_parts, grid_sums, second_arrays, upper_parts
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import BITS, exact_product, unit_grid

# Shares of the squared mu: counts are few and large, the covariances have the most numbers.
_COUNTS, _SUMS = 0.02, 0.13


@dataclass(frozen=True, eq=False)
class SharedMoments(SharedSum):
    """Counts, means and covariances of public ``classes`` under (epsilon, delta) for a whole row and its label.

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
        return {"means": _COUNTS + _SUMS, "spreads": 1.0 - _COUNTS - _SUMS}

    @property
    def _numbers_at_most(self) -> int:
        k = self.mechanism.dimension
        return len(self.classes) * (1 + k + k * (k + 1) // 2)

    def arrays(self, part: str) -> dict[str, NoisyArray]:
        """Counts and sums, or diagonals and upper parts of second moments, or all."""
        count, k, mu = len(self.classes), self.mechanism.dimension, self.mu
        told = {
            "counts": NoisyArray(
                (count,), 1.0, self.sensitivity(math.sqrt(2.0), 1.0) / (mu * math.sqrt(_COUNTS * (1 - 1e-12)))
            )
        }
        if part == "means":
            sigma = self.sensitivity(2.0, 1.0) * 2.0**BITS / (mu * math.sqrt(_SUMS * (1 - 1e-12)))
            return {**told, "sums": NoisyArray((count, k), 2.0**BITS, sigma)}
        if part == "spreads":
            own = mu * math.sqrt(self.parts[part]) * (1 - 1e-12)
            return second_arrays(count, k, self.sensitivity(math.sqrt(2.0), 1.0), own)
        own, pair = mu * math.sqrt(1.0 - _COUNTS) * (1 - 1e-12), self.sensitivity(math.sqrt(4.5), math.sqrt(2.0))
        sums = NoisyArray((count, k), 2.0**BITS, pair * 2.0**BITS / own)
        return {**told, "sums": sums, **second_arrays(count, k, pair, own)}

    @property
    def spread(self) -> float:
        """How far rows may be from the mean of their class."""
        return self.mechanism.radius / 2 if self.mechanism.spread is None else self.mechanism.spread

    def integers(
        self, part: str, X: FloatArray, places: npt.NDArray[np.intp], centres: Floats | None = None
    ) -> dict[str, Ints]:
        """Exact sums over rows X (n, p) whose classes have these ``places`` (n,) among all; ``centres`` (C, k)."""
        rows, count = self.mechanism.project(X), len(self.classes)
        if part == "spreads":
            if centres is None or centres.shape != (count, self.mechanism.dimension):
                raise InputError("spreads are around centres, one for each class")
            return self._second(unit_grid(rows - centres[places], self.spread), places)
        grid = unit_grid(rows, self.mechanism.radius)
        told = {"counts": np.bincount(places, minlength=count).astype(np.int64), "sums": grid_sums(grid, places, count)}
        return told if part == "means" else {**told, **self._second(grid, places)}

    def _second(self, grid: Floats, places: npt.NDArray[np.intp]) -> dict[str, Ints]:
        k = grid.shape[1]
        matrices = np.zeros((len(self.classes), k, k), dtype=np.int64)
        for place in np.unique(places):
            own = grid[places == place]
            matrices[place] = exact_product(own, own)
        diagonal, upper = upper_parts(matrices)
        return {"diagonal": diagonal, "upper": upper}

    def centres(self, means: Mapping[str, Ints]) -> Floats:
        """Means (C, k) of the classes from their noisy counts and sums, inside the ball they must be in."""
        scaled = means["sums"] * (self.mechanism.radius / 2.0**BITS) / _sizes(means["counts"])[:, None]
        longest = np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True) / self.mechanism.radius, 1.0)
        return np.asarray(scaled / longest)

    def moments(self, totals: Mapping[str, Mapping[str, Ints]]) -> tuple[ClassMoments, ...]:
        """Moments of all classes from the noisy sums of every part: post-processing."""
        part = "joint" if "joint" in totals else "spreads"
        first = totals["joint" if part == "joint" else "means"]
        sizes, centres = _sizes(first["counts"]), self.centres(first)
        unit = (self.mechanism.radius if part == "joint" else self.spread) ** 2 / 4.0**BITS
        second = unit * from_upper_parts(totals[part]["diagonal"], totals[part]["upper"])
        if part == "joint":
            second -= sizes[:, None, None] * centres[:, :, None] * centres[:, None, :]
        sigma = unit * self.arrays(part)["diagonal"].deviation
        return tuple(
            ClassMoments(label, Moments(int(n), self.mechanism.dimension, centre, scatter), sigma / n)
            for label, n, centre, scatter in zip(self.classes, sizes.tolist(), centres, second, strict=True)
        )


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
        totals[part] = {name: np.sum([own[name] for own in sent], axis=0) for name in sent[0]}
        centres = shared.centres(totals[part]) if part == "means" else None
    record = Guarantee(shared.epsilon, shared.delta, "record", shared.words)
    element = Guarantee(shared.epsilon, shared.delta, "element", "one element changing by any amount")
    whole = replace(shared.event(next(iter(shared.parts))), mu=shared.mu)
    return MomentsRelease(shared.moments(totals), element, record, source.private, (whole,))


def _sizes(counts: Ints) -> Floats:
    """Rows per class (C,) from noisy counts: at least one."""
    return np.maximum(counts, 1).astype(np.float64)
