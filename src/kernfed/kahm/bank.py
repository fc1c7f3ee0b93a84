"""Many machines of a site, scored against many queries, block by block.

Queries are taken in tiles of a fixed number, the last one padded, so that every product has the same shape whatever
the number of queries, the chunking by the caller and the number of threads: no bit of a score depends on them. A block
is some tiles that are worth one call in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.threads import in_threads, resolve_jobs, single_blas_thread
from kernfed.errors import InputError
from kernfed.kahm.folding import ABSENT, folding, needs_angle
from kernfed.kahm.machine import LONGEST, Machine, explicit_images, fit_machine, row_lengths
from kernfed.kahm.products import TILE
from kernfed.kahm.tile import QueryBlock, Tile, build_tile, group_machines, query_block, score_tile

#: Queries per block: enough to make light of Python's own time, few enough for what lies between products to be cached.
BLOCK = 16 * TILE
#: Multiplications below which starting threads takes longer than the work.
_WORTH_A_POOL = 1e9


@dataclass(frozen=True)
class BankScores:
    """Scores of n queries against G groups of machines.

    values : (n, G) smallest measure over a group's machines; ``winners`` (n, G): position of the machine that had it,
    -1 for a group without machines; ``fallbacks``: (query, machine) pairs whose memberships summed to nothing.
    """

    values: FloatArray
    winners: npt.NDArray[np.intp]
    fallbacks: int


@dataclass(frozen=True)
class Bank:
    """Machines with their group (class) numbers, ready to score. Make one with ``Bank.assemble``."""

    machines: tuple[Machine, ...]
    groups: npt.NDArray[np.intp]
    n_groups: int
    centre: FloatArray
    tiles: tuple[Tile, ...]

    @classmethod
    def assemble(cls, machines: Sequence[Machine], groups: Sequence[int], n_groups: int) -> "Bank":
        """Bank of ``machines``; machine i belongs to group ``groups[i]`` of ``n_groups``."""
        if not machines:
            raise InputError("a bank needs at least one machine, got none")
        if len({(machine.width, machine.directions.dtype) for machine in machines}) > 1:
            raise InputError("machines of a bank must have one width and one dtype, got several")
        weights = np.array([machine.n_rows for machine in machines], dtype=np.float64)
        with single_blas_thread():
            centre = weights @ np.stack([machine.mean for machine in machines]) / weights.sum()
            tiles = tuple(build_tile(machines, members, centre) for members in group_machines(machines))
        return cls(tuple(machines), np.asarray(groups, dtype=np.intp), n_groups, centre, tiles)

    @property
    def width(self) -> int:
        """Number of columns of rows and queries."""
        return self.machines[0].width

    @property
    def dtype(self) -> np.dtype[np.floating[npt.NBitBase]]:
        """Precision the scores are computed in."""
        return self.machines[0].directions.dtype

    @property
    def nbytes(self) -> int:
        """Bytes held for scoring."""
        return sum(tile.nbytes for tile in self.tiles)

    def scores(self, queries: FloatArray, measure: str, n_jobs: int | None = None) -> BankScores:
        """Smallest ``measure`` per query and group; ``queries`` (n, p) of finite numbers."""
        count = len(queries)
        values = np.full((count, self.n_groups), ABSENT[measure])
        winners = np.full((count, self.n_groups), -1, dtype=np.intp)
        starts = range(0, count, BLOCK)
        work_to_do = count * sum(tile.basis.size + tile.image_size for tile in self.tiles)
        fallbacks = in_threads(
            lambda start: self._score_block(queries, start, measure, values, winners),
            starts,
            n_jobs if work_to_do > _WORTH_A_POOL else 1,
        )
        return BankScores(values, winners, sum(fallbacks))

    def machine_scores(self, queries: FloatArray, measure: str, n_jobs: int | None = None) -> FloatArray:
        """``measure`` of every machine: (n, M)."""
        alone = Bank(self.machines, np.arange(len(self.machines)), len(self.machines), self.centre, self.tiles)
        return alone.scores(queries, measure, n_jobs).values

    def _score_block(
        self, queries: FloatArray, start: int, measure: str, values: FloatArray, winners: npt.NDArray[np.intp]
    ) -> int:
        """Score queries[start : start + BLOCK] into the rows of ``values`` and ``winners``; count the fallbacks."""
        count = len(queries[start : start + BLOCK])
        block, stretch = self._block(queries[start : start + BLOCK])
        norms = np.sqrt(block.raw_squares) if needs_angle(measure) else np.zeros(1)
        fallbacks = 0
        every = np.empty((len(self.machines), count))
        for tile in self.tiles:
            result = score_tile(tile, block, needs_angle(measure))
            squared, images = result.squared_distance, result.squared_image
            doubtful = np.argwhere(result.doubtful[:, :count])
            if len(doubtful):
                fallbacks += self._look_again(tile, doubtful, block.centred, squared, images)
            sizes = np.sqrt(np.maximum(images, 0.0)) if images is not None else norms
            measures = folding(measure, squared, norms, sizes)
            every[tile.members] = (measures * stretch if measure == "distance" else measures)[:, :count]
        _keep_smallest(every, self.groups, values[start : start + count].T, winners[start : start + count].T)
        return fallbacks

    def _block(self, chosen: FloatArray) -> tuple[QueryBlock, FloatArray]:
        """Queries ready for tiles, and how much longer they really are (W,).

        A query so far out that squares would overflow is shortened: its image is that of the nearer query in the same
        direction, and its distance is that much longer.
        """
        centred = np.zeros((-(-len(chosen) // TILE) * TILE, self.width))
        np.subtract(chosen, self.centre, out=centred[: len(chosen)])
        limit = LONGEST[self.dtype]
        stretch = np.ones(len(centred))
        with np.errstate(over="ignore"):
            squares = np.einsum("ij,ij->i", centred, centred)
        if not (squares <= limit**2).all():
            stretch = np.maximum(row_lengths(centred) / limit, 1.0)
            centred /= stretch[:, None]
            squares = np.einsum("ij,ij->i", centred, centred)
        return query_block(centred, squares, self.centre, self.dtype), stretch

    def _look_again(
        self,
        tile: Tile,
        doubtful: npt.NDArray[np.intp],
        centred: FloatArray,
        squared: FloatArray,
        images: FloatArray | None,
    ) -> int:
        """Replace doubtful entries by explicit float64 images; count those that fell back."""
        fallbacks = 0
        for slot in np.unique(doubtful[:, 0]):
            columns = doubtful[doubtful[:, 0] == slot, 1]
            machine = self.machines[tile.members[slot]]
            explicit = explicit_images(machine, centred[columns] + self.centre)
            squared[slot, columns] = explicit.squared_distance
            if images is not None:
                images[slot, columns] = np.einsum("ij,ij->i", explicit.image, explicit.image)
            fallbacks += int(explicit.fallback.sum())
        return fallbacks


def _keep_smallest(
    measures: FloatArray, groups: npt.NDArray[np.intp], rows: FloatArray, owners: npt.NDArray[np.intp]
) -> None:
    """Set ``rows`` (G, w) to the smallest of ``measures`` (M, w), ``owners`` to who had it; ties go to the first."""
    order = np.argsort(groups, kind="stable")
    names, starts = np.unique(groups[order], return_index=True)
    if len(names) == len(groups):
        rows[names], owners[names] = measures[order], order[:, None]
        return
    for group, members in zip(names, np.split(order, starts[1:]), strict=True):
        own = measures[members]
        best = own.argmin(axis=0)
        rows[group] = own[best, np.arange(len(best))]
        owners[group] = members[best]


def fit_machines(
    batches: Sequence[FloatArray],
    *,
    subspace_dim: int | None = None,
    layers: int = 1,
    dtype: npt.DTypeLike = np.float64,
    n_jobs: int | None = None,
) -> list[Machine]:
    """One machine per batch of rows, in parallel through joblib and independent of the number of jobs."""
    from joblib import Parallel, delayed  # here, for a site that only answers fits nothing

    jobs = resolve_jobs(n_jobs)
    if len(batches) == 1:
        return [_fit_alone(batches[0], subspace_dim, layers, dtype, max(jobs or 1, 1))]
    with single_blas_thread():
        work = Parallel(n_jobs=jobs, prefer="threads")
        fit = delayed(_fit_alone)
        machines: list[Machine] = work(fit(rows, subspace_dim, layers, dtype) for rows in batches)
    return machines


def _fit_alone(
    rows: FloatArray, subspace_dim: int | None, layers: int, dtype: npt.DTypeLike, threads: int = 1
) -> Machine:
    # Entered again here because a worker may be another process (dask, ray), where the caller's limit does not hold.
    with single_blas_thread():
        return fit_machine(rows, subspace_dim=subspace_dim, layers=layers, dtype=dtype, threads=threads)
