"""Candidates of a choice tried on a sample of rows: which left-out rows each of them gets right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.batches import batch_count, split_rows
from kernfed.kahm.choice import LARGE, WHOLE, Candidate, Tally, scaled
from kernfed.kernels.scaling import ColumnStatistics

Numbers = npt.NDArray[np.intp]
#: Rows of a class and how they are divided: the numbers of each machine's rows.
Division = tuple[tuple[Numbers, ...], ...]
#: Rows that are tried: a share of all, but enough to say something.
_SHARE, _FEWEST = 12, 768
#: Of these so many are left out, and at most so many.
_LEFT_OUT, _MOST_LEFT_OUT = 3, 250
#: Classes on which large divisions are compared: a share of all.
_CLASSES_SHARE = 6


@dataclass(frozen=True)
class Machines:
    """How machines are made and asked, whatever their rows: the same for all candidates."""

    measure: str
    subspace_dim: int | None = None
    layers: int = 1
    dtype: str = "float64"
    n_jobs: int | None = None

    def nearest(self, rows: FloatArray, division: Division, queries: FloatArray) -> Numbers:
        """Number of the class whose machines are nearest to each query (n,)."""
        batches = [rows[part] for parts in division for part in parts]
        groups = [number for number, parts in enumerate(division) for _ in parts]
        shape: dict[str, Any] = {"subspace_dim": self.subspace_dim, "layers": self.layers, "dtype": self.dtype}
        machines = fit_machines(batches, n_jobs=self.n_jobs, **shape)
        bank = Bank.assemble(machines, groups, len(division))
        return np.asarray(bank.scores(queries, self.measure, self.n_jobs).values.argmin(axis=1))


def sample(labels: Numbers, draws: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Sorted numbers of rows to learn from and of rows left out; every class that is tried keeps a row to learn from.

    ``labels`` (N,) are class numbers.
    """
    order = draws.permutation(len(labels))[: max(_FEWEST, len(labels) // _SHARE)]
    wanted = min(_MOST_LEFT_OUT, len(order) // _LEFT_OUT)
    return leave_out(order, labels, wanted)


def leave_out(order: Numbers, labels: Numbers, wanted: int) -> tuple[Numbers, Numbers]:
    """Of rows in a random ``order`` the first ``wanted`` that are not the last of their class, and the rest."""
    remaining = np.bincount(labels[order], minlength=int(labels.max(initial=0)) + 1)
    left = np.zeros(len(order), dtype=bool)
    for place, number in enumerate(order.tolist()):
        if left.sum() >= wanted:
            break
        if remaining[labels[number]] > 1:
            remaining[labels[number]] -= 1
            left[place] = True
    return np.sort(order[~left]), np.sort(order[left])


def try_candidates(
    rows: FloatArray,
    labels: npt.NDArray[Any],
    tried: Sequence[Candidate],
    machines: Machines,
    draws: np.random.Generator,
    statistics: ColumnStatistics | None = None,
) -> Tally:
    """What rows (N, p) with labels (N,) say of the candidates, by a sample of them.

    A row is right where its class is that of the nearest machine. Rows of one class say nothing.
    """
    known, numbers = np.unique(labels, return_inverse=True)
    learned, left = sample(numbers, draws)
    if len(known) < 2 or not len(left):
        return Tally.nothing(len(tried))
    statistics = ColumnStatistics.of(rows) if statistics is None else statistics
    seed = int(draws.integers(2**31))
    present, places = np.unique(numbers[learned], return_inverse=True)
    trial = _Trial(rows[learned], places, rows[left], machines, statistics, seed)
    said = [present[trial.answers(one)] for one in tried]
    right = np.stack([answer == numbers[left] for answer in said], axis=1).astype(np.int64)
    tally = Tally(len(left), right.T @ right, np.zeros(3, dtype=np.int64))
    leader = tried[tally.best(tried)] if tally.rows else tried[0]
    if not trial.tells_apart(leader):
        picked = _confused(numbers[left], said[tried.index(leader)], len(known))
        tally = Tally(tally.rows, tally.right, _compare_large(rows, numbers, picked, leader, trial, draws))
    return tally


class _Trial:
    """Candidates on one sample. What divides it alike, up to a unit, is divided and answered once."""

    def __init__(
        self,
        rows: FloatArray,
        places: Numbers,
        queries: FloatArray,
        machines: Machines,
        statistics: ColumnStatistics,
        seed: int,
    ) -> None:
        self.rows, self.queries, self.machines, self.statistics, self.seed = rows, queries, machines, statistics, seed
        self.classes = [np.flatnonzero(places == number) for number in range(int(places.max()) + 1)]
        self.divisions: dict[Any, Division] = {}
        self.known: dict[Any, Numbers] = {}

    def division(self, one: Candidate) -> Division:
        """Rows of the sample by class and machine; k-means does not look at the unit."""
        key = (one.scale, one.division)
        if key not in self.divisions:
            self.divisions[key] = _divide(scaled(self.rows, one.scaling(self.statistics)), self.classes, one, self.seed)
        return self.divisions[key]

    def answers(self, one: Candidate) -> Numbers:
        """Class of each left-out row."""
        division = self.division(one)
        key = (one.unit_of, _signature(division))
        if key not in self.known:
            scaling = one.scaling(self.statistics)
            self.known[key] = self.machines.nearest(scaled(self.rows, scaling), division, scaled(self.queries, scaling))
        return self.known[key]

    def tells_apart(self, one: Candidate) -> bool:
        """Whether the sample knows which of the large divisions is better; it need not where others are."""
        keys = [(one.scale, division) for division in (LARGE, WHOLE)]
        if one.division not in (LARGE, WHOLE) or not all(key in self.divisions for key in keys):
            return True
        return _signature(self.divisions[keys[0]]) != _signature(self.divisions[keys[1]])


def _signature(division: Division) -> tuple[tuple[bytes, ...], ...]:
    return tuple(tuple(part.tobytes() for part in parts) for parts in division)


def _divide(rows: FloatArray, classes: Sequence[Numbers], one: Candidate, seed: int) -> Division:
    """Rows of every class divided as a candidate says; equal draws for every candidate."""
    draws = [np.random.default_rng([seed, number]) for number in range(len(classes))]
    return tuple(
        tuple(own[part] for part in split_rows(rows[own], one.batch_size, one.partition, draw))
        for own, draw in zip(classes, draws, strict=True)
    )


def _confused(true: Numbers, said: Numbers, classes: int) -> list[int]:
    """A share of the classes, two at least, that are taken for one another most often."""
    taken = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(taken, (true, said), 1)
    taken = taken + taken.T
    np.fill_diagonal(taken, 0)
    first = int(taken.argmax())
    picked = [first // classes, first % classes] if taken.any() else [0, 1]
    while len(picked) < classes // _CLASSES_SHARE:
        with_picked = taken[picked].sum(axis=0)
        with_picked[picked] = -1
        picked.append(int(with_picked.argmax()))
    return picked


def _compare_large(
    rows: FloatArray,
    numbers: Numbers,
    picked: Sequence[int],
    leader: Candidate,
    trial: "_Trial",
    draws: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Rows right by ``LARGE`` and by ``WHOLE``, and how many, on all rows of the classes that were ``picked``.

    Where they have no more rows than the smaller machine both are one, and there is nothing to compare.
    """
    own = draws.permutation(np.flatnonzero(np.isin(numbers, picked)))
    learned, left = leave_out(own, numbers, min(_MOST_LEFT_OUT, len(own) // _LEFT_OUT))
    if batch_count(int(np.bincount(numbers[learned]).max()), LARGE[0]) < 2:
        return np.zeros(3, dtype=np.int64)
    present, places = np.unique(numbers[learned], return_inverse=True)
    whole = _Trial(rows[learned], places, rows[left], trial.machines, trial.statistics, trial.seed)
    right = [
        int((present[whole.answers(Candidate(*leader.unit_of, *division))] == numbers[left]).sum())
        for division in (LARGE, WHOLE)
    ]
    return np.array([*right, len(left)], dtype=np.int64)
