"""Candidates for how rows are scaled and divided into machines, and the choice among them by left-out rows.

Every site tries the same candidates on a sample of its rows and counts which of its left-out rows each of them gets
right. Counts are summed over sites; nothing else of a row is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels.rows import SCALES, ColumnStatistics, Scaling

PARTITIONS = ("kmeans", "order", "random")


def batch_count(rows: int, batch_size: int) -> int:
    """SFM (119): ``rows / batch_size`` rounded to the nearest integer; one where there are no more rows than that."""
    return max(1, int(np.floor(rows / batch_size + 0.5))) if rows > batch_size else 1


def split_rows(
    rows: FloatArray, batch_size: int, partition: str, generator: np.random.Generator
) -> list[npt.NDArray[np.intp]]:
    """Sorted row numbers of each batch: consecutive rows, a random division, or k-means clusters.

    A k-means cluster keeps its own size; the other two divide evenly. The result does not depend on threads.
    """
    count = batch_count(len(rows), batch_size)
    everything = np.arange(len(rows), dtype=np.intp)
    if count == 1:
        return [everything]
    if partition == "order":
        return list(np.array_split(everything, count))
    if partition == "random":
        return [np.sort(part) for part in np.array_split(generator.permutation(everything), count)]
    from sklearn.cluster import KMeans  # here, for sites that only answer need no scikit-learn

    count = _distinct_rows(rows, count)  # with fewer different rows than clusters k-means warns
    with single_blas_thread():
        seed = int(generator.integers(2**31))
        labels = KMeans(n_clusters=count, n_init=1, random_state=seed).fit_predict(rows)
    return [part for label in range(count) if len(part := np.flatnonzero(labels == label))]


def divide_classes(
    rows: FloatArray, labels: npt.NDArray[Any], division: tuple[int, str], draws: Callable[[Any], np.random.Generator]
) -> tuple[list[npt.NDArray[np.intp]], list[Any]]:
    """Row numbers of every machine and its label, class by class in their order; ``draws`` are those of a label."""
    batches: list[npt.NDArray[np.intp]] = []
    groups: list[Any] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        parts = split_rows(rows[members], *division, draws(label.item()))
        batches += [members[part] for part in parts]
        groups += [label] * len(parts)
    return batches, groups


def _distinct_rows(rows: FloatArray, enough: int) -> int:
    """Number of different rows, counted up to ``enough``."""
    seen: set[bytes] = set()
    for row in rows:
        seen.add((row + 0.0).tobytes())  # 0 and -0 are the same point
        if len(seen) == enough:
            break
    return len(seen)


AUTO = "auto"
Counts = npt.NDArray[np.int64]
#: Scales in the order in which they are preferred where left-out rows do not tell them apart.
_SCALES = (("columns", 0.3), ("entries", 0.3), ("columns", 1.0), ("entries", 1.0))
#: Divisions, large and cheap first. In many columns a machine may be large, in few only small local ones say much.
LARGE, WHOLE = (100, "order"), (1000, "kmeans")
_DIVISIONS = (LARGE, WHOLE, (20, "kmeans"), (5, "kmeans"))
#: Left-out rows of all sites below which nothing is chosen by them.
FEWEST_ROWS = 20
#: The unit of whatever is scaled without a choice, and the scale where there are no labels to choose by.
USUAL_UNIT = 0.3
_WITHOUT_LABELS = {AUTO: "entries", **dict(zip(SCALES, SCALES, strict=True))}


@dataclass(frozen=True)
class Candidate:
    """A scale ("columns", "entries", or None for rows as they are), its unit, and a division into machines."""

    scale: str | None
    unit: float
    batch_size: int
    partition: str

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_choice(self.scale, "scale", SCALES)
        check_number(self.unit, "unit", above=0)
        check_count(self.batch_size, "batch_size")
        check_choice(self.partition, "partition", PARTITIONS)

    @property
    def division(self) -> tuple[int, str]:
        """Rows per machine, and how they are divided."""
        return self.batch_size, self.partition

    @property
    def unit_of(self) -> tuple[str | None, float]:
        """Scale and unit."""
        return self.scale, self.unit

    def scaling(self, statistics: ColumnStatistics) -> Scaling | None:
        """The scaling of rows with these statistics."""
        return None if self.scale is None else Scaling.of(statistics, self.scale, self.unit)

    def __str__(self) -> str:
        scale = "rows as they are" if self.scale is None else f"{self.scale} to {self.unit:g}"
        return f"{scale}, {self.partition} {self.batch_size}"


def candidate_values(one: Candidate) -> list[Any]:
    """Plain values of a candidate."""
    return [one.scale, one.unit, one.batch_size, one.partition]


def candidate_from_values(values: Any) -> Candidate:
    """Candidate from ``candidate_values``; anything else raises ``InputError``."""
    if not isinstance(values, list) or len(values) != 4:
        raise InputError(f"a candidate must have a scale, a unit, a size and a partition, got {values!r:.80}")
    return Candidate(*values)


def check_scale(scale: Any) -> str | None:
    """The scale asked for: "auto", one of ``SCALES``, or None."""
    return None if scale is None else check_choice(scale, "scale", (AUTO, *SCALES))


def check_batch_size(batch_size: Any) -> int | str:
    """Rows per machine, or "auto"."""
    return AUTO if isinstance(batch_size, str) and batch_size == AUTO else check_count(batch_size, "batch_size")


def check_partition(partition: Any) -> str:
    """How rows are divided, or "auto"."""
    return check_choice(partition, "partition", (AUTO, *PARTITIONS))


def candidates(scale: Any, batch_size: Any, partition: Any) -> tuple[Candidate, ...]:
    """What is tried: all scales with all divisions, as far as they are not given."""
    scale, size, how = check_scale(scale), check_batch_size(batch_size), check_partition(partition)
    scales = [(None, 1.0)] if scale is None else [pair for pair in _SCALES if scale in (AUTO, pair[0])]
    if size == AUTO:
        sizes = _DIVISIONS if how == AUTO else tuple((number, how) for number, _ in _DIVISIONS)
    else:
        sizes = tuple((int(size), one) for one in (("order", "kmeans") if how == AUTO else (how,)))
    return tuple(Candidate(kind, unit, *division) for kind, unit in scales for division in sizes)


def usual(tried: Sequence[Candidate]) -> Candidate:
    """What is taken where left-out rows are too few to say: the first scale, and one machine of up to 1000 rows."""
    first = [one for one in tried if one.unit_of == tried[0].unit_of]
    return next((one for one in first if one.division == WHOLE), first[-1] if len(first) == 2 else first[0])


@dataclass(frozen=True, eq=False)
class Tally:
    """What left-out rows say of K candidates; tallies of several sites are added.

    ``rows``: how many were left out. ``right`` (K, K): how many both candidates got right, on the diagonal each alone.
    ``large`` (3,): of other rows, among large classes, those that the division ``LARGE`` and those that ``WHOLE`` got
    right, and how many there were: a sample is too small to tell these two apart.
    """

    rows: int
    right: Counts
    large: Counts

    @classmethod
    def nothing(cls, tried: int) -> "Tally":
        """No rows left out."""
        return cls(0, np.zeros((tried, tried), dtype=np.int64), np.zeros(3, dtype=np.int64))

    @classmethod
    def from_arrays(cls, rows: Any, arrays: Mapping[str, npt.NDArray[Any]], *, tried: int) -> "Tally":
        """Tally from a message, which is checked and refused with the reason."""
        total, right, large = check_count(rows, "rows", at_least=0), arrays["right"], arrays["large"]
        for name, array, shape in (("right", right, (tried, tried)), ("large", large, (3,))):
            if array.shape != shape or array.dtype != np.int64:
                raise InputError(f"{name} must be int64 of shape {shape}, got {array.dtype} of {array.shape}")
        alone = right.diagonal()
        both = np.minimum(alone[:, None], alone)
        if right.min(initial=0) < 0 or alone.max(initial=0) > total or (right > both).any() or (right != right.T).any():
            raise InputError(f"right must count of {total} rows those that two candidates get right")
        if large.min() < 0 or large[:2].max() > large[2]:
            raise InputError(f"large must count some of {large[2]} rows, got {large.tolist()}")
        return cls(total, right, large)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.rows + other.rows, self.right + other.right, self.large + other.large)

    def best(self, tried: Sequence[Candidate]) -> int:
        """Number of the candidate to take.

        The division is that of most left-out rows right; where that is ``LARGE`` or ``WHOLE``, ``large`` decides
        between them, if it says anything. With it goes the first scale that is as good as the best, to some chance.
        """
        if self.rows < FEWEST_ROWS:
            return tried.index(usual(tried))
        counts = self.right.diagonal()
        division = tried[self._leader(tried)].division
        if division in (LARGE, WHOLE) and self.large[0] != self.large[1]:
            division = LARGE if self.large[0] > self.large[1] else WHOLE
        own = [number for number, one in enumerate(tried) if one.division == division]
        leader = max(own, key=lambda number: (counts[number], -number))
        return next(number for number in own if self._alike(leader, number))

    def _leader(self, tried: Sequence[Candidate]) -> int:
        """The candidate with most rows right; of equal ones that with the first division, which is the cheapest."""
        order = [one.division for one in tried]
        counts = self.right.diagonal()
        return max(range(len(tried)), key=lambda number: (counts[number], -order.index(order[number]), -number))

    def _alike(self, better: int, other: int) -> bool:
        """Whether two candidates are within a quarter of a standard error, which is sqrt(n) for n rows that differ.

        Not within a whole one: pixels in columns of one spread lose four points in full, and look as good in a sample.
        """
        alone, both = self.right.diagonal(), self.right[better, other]
        return bool((4 * (alone[better] - alone[other])) ** 2 <= alone[better] + alone[other] - 2 * both)


@dataclass(frozen=True)
class Chosen:
    """What was chosen, and what it was chosen by: candidates with their counts of ``rows`` left-out rows.

    ``large``: rows right by the divisions "order 100" and "k-means 1000", of how many, where these were compared on
    large classes. ``sites`` : who counted; one model by itself has none.
    """

    candidate: Candidate
    tried: tuple[Candidate, ...]
    right: tuple[int, ...]
    rows: int
    large: tuple[int, int, int] = (0, 0, 0)
    sites: tuple[str, ...] = ()

    @classmethod
    def by(cls, tried: tuple[Candidate, ...], tally: Tally, sites: Sequence[str] = ()) -> "Chosen":
        """The choice that a tally makes."""
        right = tuple(int(count) for count in tally.right.diagonal())
        compared = (int(tally.large[0]), int(tally.large[1]), int(tally.large[2]))
        return cls(tried[tally.best(tried)], tried, right, tally.rows, compared, tuple(sites))

    def __str__(self) -> str:
        if self.rows < FEWEST_ROWS:
            return f"{self.candidate} (too few rows to choose by: {self.rows} left out)"
        right = self.right[self.tried.index(self.candidate)]
        return f"{self.candidate} (of {len(self.tried)} tried; {right} of {self.rows} left-out rows right)"

    def to_values(self) -> dict[str, Any]:
        """Plain values for files and reports."""
        tried = [candidate_values(one) for one in self.tried]
        return {
            "candidate": self.tried.index(self.candidate),
            "tried": tried,
            "right": list(self.right),
            "rows": self.rows,
            "large": list(self.large),
            "sites": list(self.sites),
        }

    @classmethod
    def from_values(cls, values: Any) -> "Chosen":
        """Choice from ``to_values``; anything else raises ``InputError``."""
        names = ("candidate", "tried", "right", "rows", "large", "sites")
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise InputError(f"a choice must be described by {', '.join(names)}, got {values!r:.100}")
        if not all(isinstance(values[name], list) for name in ("tried", "right", "large", "sites")):
            raise InputError("tried, right, large and sites of a choice must be lists")
        tried = tuple(candidate_from_values(one) for one in values["tried"])
        right = tuple(check_count(count, "right", at_least=0) for count in values["right"])
        large = [check_count(count, "large", at_least=0) for count in values["large"]]
        place = check_count(values["candidate"], "candidate", at_least=0)
        if place >= len(tried) or len(right) != len(tried) or len(large) != 3:
            raise InputError(f"a choice of {len(tried)} candidates needs as many counts, got {len(right)}")
        if not all(isinstance(site, str) for site in values["sites"]):
            raise InputError("sites of a choice must be names")
        rows = check_count(values["rows"], "rows", at_least=0)
        return cls(tried[place], tried, right, rows, (large[0], large[1], large[2]), tuple(values["sites"]))


def scaled(rows: FloatArray, scaling: Scaling | None) -> FloatArray:
    """Rows in the unit of a scaling, or as they are without one."""
    return rows if scaling is None else scaling.apply(rows)


def hull_scaling(rows: FloatArray, scale: Any) -> Scaling | None:
    """The unit of machines without labels to choose by; "auto" takes one constant for all entries."""
    asked = check_scale(scale)
    return None if asked is None else Scaling.of(ColumnStatistics.of(rows), _WITHOUT_LABELS[asked], USUAL_UNIT)
