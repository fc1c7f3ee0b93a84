"""Settings chosen by cross-validation on training rows: grids that grow where the best point lies on their edge."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernfed.data import holdout
from kernfed_papers.arrays import IntArray
from kernfed_papers.draws import generator

#: Values of one point of a grid, in the order of its axes.
Point = tuple[float, ...]
FOLDS = 3
#: Times that an axis may grow at one of its ends; an optimum that still runs away is said to be on the edge.
_MOST_STEPS = 6


@dataclass(frozen=True)
class Axis:
    """One setting: ``values`` in rising order, each about ``step`` times the one before.

    ``lowest`` and ``highest`` are where the setting itself ends (a nearest neighbour is at least one), or where a
    longer axis would cost too much; ``whole`` settings are rounded.
    """

    name: str
    values: tuple[float, ...]
    step: float = 10.0
    lowest: float = 0.0
    highest: float = math.inf
    whole: bool = False

    def wider(self, best: float) -> "Axis":
        """The axis with one more value beyond ``best`` if that is one of its ends, and there is room."""
        values = self.values
        below, above = (self._fitted(value) for value in (values[0] / self.step, values[-1] * self.step))
        if best == values[0] and below < values[0] and below > 0:
            values = (below, *values)
        if best == values[-1] and above > values[-1]:
            values = (*values, above)
        return replace(self, values=values)

    def _fitted(self, value: float) -> float:
        bounded = min(max(value, self.lowest), self.highest)
        return float(round(bounded)) if self.whole else bounded

    def __str__(self) -> str:
        return f"{self.name} in {', '.join(f'{value:.3g}' for value in self.values)}"


@dataclass(frozen=True)
class Choice:
    """The best point, by name, the grid that was tried in the end, and the accuracy (%) on the rows that judged it."""

    axes: tuple[Axis, ...]
    point: Point
    accuracy: float
    judges: str = "left-out training rows"
    on_edge: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        return self.point[[axis.name for axis in self.axes].index(name)]

    def __str__(self) -> str:
        chosen = ", ".join(f"{axis.name} = {value:.3g}" for axis, value in zip(self.axes, self.point, strict=True))
        edge = f"; still on the edge: {', '.join(self.on_edge)}" if self.on_edge else ""
        return f"{chosen} of {'; '.join(map(str, self.axes))}; {self.accuracy:.2f} % of {self.judges}{edge}"


def choose(
    axes: Sequence[Axis],
    accuracies: Callable[[Sequence[Point]], Sequence[float]],
    judges: str = "left-out training rows",
) -> Choice:
    """Best point of a grid; an axis on whose end it lies grows there until it does not, or cannot.

    ``accuracies`` gives one number for each point asked for, on the rows that ``judges`` names. Among equals the point
    nearest the middle counts, since on a plateau there is no reason to go to an end.
    """
    grid, known = tuple(axes), dict[Point, float]()
    for _ in range(_MOST_STEPS + 1):
        points = list(itertools.product(*(axis.values for axis in grid)))
        fresh = [point for point in points if point not in known]
        known.update(zip(fresh, accuracies(fresh), strict=True))
        best = max(points, key=lambda point: (known[point], -_from_middle(grid, point)))
        wider = tuple(axis.wider(value) for axis, value in zip(grid, best, strict=True))
        if wider == grid:
            return Choice(grid, best, known[best], judges)
        grid, tried = wider, grid
    edge = tuple(axis.name for axis, grown in zip(tried, wider, strict=True) if axis != grown)
    return Choice(tried, best, known[best], judges, edge)


def _from_middle(grid: Sequence[Axis], point: Point) -> float:
    """Largest distance of a point from the middle of an axis, in places."""
    return max(
        abs(axis.values.index(value) - (len(axis.values) - 1) / 2) for axis, value in zip(grid, point, strict=True)
    )


def stratified(labels: IntArray, count: int, name: str) -> IntArray:
    """At most ``count`` rows with classes in proportion and none left out; the same for every seed of a run."""
    if count >= len(labels):
        return np.arange(len(labels))
    kept, _ = holdout(labels, 1 - count / len(labels), 0, site=name)
    return kept


def folds(labels: IntArray, name: str, most: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows to fit on and rows to compare by, ``FOLDS`` times, of at most ``most`` training rows, classes spread."""
    rows = stratified(labels, most, f"tuning {name}")
    shuffled = generator(0, "folds", name).permutation(rows)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.arange(len(by_class)) % FOLDS
    for number in range(FOLDS):
        yield np.sort(by_class[fold != number]), np.sort(by_class[fold == number])


def share_right(predicted: IntArray, labels: IntArray) -> float:
    """Share of right answers in %."""
    return 100 * float((predicted == labels).mean())


def mean_over_folds(values: Sequence[Sequence[float]]) -> list[float]:
    """Mean over folds of the accuracies of each point."""
    return [float(value) for value in np.mean(values, axis=0)]
