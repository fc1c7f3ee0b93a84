"""What a site keeps for a folding model: its machines and, for each, the class and the ids of its rows.

Membership is kept, so a row that goes or comes touches only its own machine, and the result is that of fitting the same
batches from scratch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator
from kernfed.base.threads import fingerprint, single_blas_thread
from kernfed.errors import Refused
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.choice import divide_classes
from kernfed.kahm.machine import Machine
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.model_file import pack_machines, unpack_machines
from kernfed.site.protocol.message import digest
from kernfed.site.protocol.schema import fraction_reason
from kernfed.site.rows import Rows
from kernfed.site.site import Site

FOLDER = "folding"
#: What is done to the released rows of batches before machines are fitted on them.
Shape = Callable[[Sequence[FloatArray], FoldingParameters], list[FloatArray]]


@dataclass(frozen=True)
class SiteMachines:
    """What a site keeps for one handle. Machine i models rows ``batches[i]`` (ids) of class ``labels[i]``.

    ``data`` is the fingerprint of the rows they were made of. ``private`` is None for rows as they are. Otherwise it
    holds the ``recipe`` of their release, whether it is ``by_row`` and with ``randomized`` labels, what it promises a
    ``record``, and how many ``rows`` stand behind all classes and behind the ``smallest``. ``origin`` says when they
    were made, who asked, and in which environments they were ``computed``.
    """

    parameters: FoldingParameters
    machines: tuple[Machine, ...]
    labels: npt.NDArray[Any]
    batches: tuple[npt.NDArray[np.int64], ...]
    generation: int
    data: str
    private: Mapping[str, Any] | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Rows of the site that the machines are made of."""
        return sum(map(len, self.batches)) if self.private is None else int(self.private["rows"])

    @property
    def smallest_class(self) -> int:
        """Rows of the class that has fewest."""
        if self.private is not None:
            return int(self.private["smallest"])
        return min(self.class_rows)

    @property
    def class_rows(self) -> list[int]:
        """Rows of every class, of machines that are made of rows as they are."""
        sizes = np.array([len(batch) for batch in self.batches])
        return [int(sizes[self.labels == label].sum()) for label in self.classes]

    @property
    def classes(self) -> npt.NDArray[Any]:
        """Labels the site holds, sorted."""
        return np.unique(self.labels)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Ids of all rows, batch by batch."""
        return np.concatenate(self.batches)

    @property
    def of_moments(self) -> bool:
        """Whether they are made of fabricated rows, whose ids are those of no person."""
        return self.private is not None and not self.private["by_row"]

    def bank(self) -> Bank:
        """The machines, ready to score; groups are positions in ``classes``."""
        groups = ClassIndex(self.classes).numbers(self.labels)
        with single_blas_thread():
            return Bank.assemble(self.machines, groups.tolist(), len(self.classes))


def folding_handle(parameters: FoldingParameters, recipe: Mapping[str, Any] | None) -> str:
    """Name of machines made with these parameters, from rows as they are or as a recipe's values say."""
    values = parameters.to_values()
    return digest(values if recipe is None else {**values, "privacy": recipe})


def refuse_fractions(labels: npt.NDArray[Any]) -> None:
    """Refuse labels that are values and no classes."""
    reason = fraction_reason(labels)
    if reason is not None:
        raise Refused("bad labels", reason)


# Fitting ----------------------------------------------------------------------------------------------------------


def divide(rows: Rows, parameters: FoldingParameters) -> tuple[list[Any], list[npt.NDArray[np.int64]]]:
    """Labels and row ids of every batch of a site, from rows and seed alone."""
    batches, labels = divide_classes(
        parameters.scaled(rows.X),
        rows.y,
        (parameters.batch_size, parameters.partition),
        lambda label: generator(parameters.seed, "batches", repr(label)),
    )
    return labels, [rows.ids[part] for part in batches]


def fit_batches(
    rows: Rows,
    parameters: FoldingParameters,
    labels: list[Any],
    batches: list[npt.NDArray[np.int64]],
    earlier: SiteMachines | None = None,
    shape: Shape | None = None,
) -> SiteMachines:
    """Machines of the given membership. Those of ``earlier`` whose batch is unchanged are taken over.

    ``shape`` is what is done to the rows of each batch before a machine is fitted on them.
    """
    position = {int(number): place for place, number in enumerate(rows.ids)}
    known = (
        {}
        if earlier is None
        else {
            (repr(label), batch.tobytes()): machine
            for label, batch, machine in zip(earlier.labels.tolist(), earlier.batches, earlier.machines, strict=True)
        }
    )
    keys = [(repr(np.asarray(label).item()), batch.tobytes()) for label, batch in zip(labels, batches, strict=True)]
    new = [number for number, key in enumerate(keys) if key not in known]
    parts = [rows.X[[position[int(i)] for i in batches[number]]] for number in new]
    shaped = parts if shape is None else shape(parts, parameters)
    fitted = fit_machines(
        [parameters.scaled(part) for part in shaped],
        subspace_dim=parameters.subspace_dim,
        layers=parameters.layers,
        dtype=parameters.dtype,
    )
    made = dict(zip(new, fitted, strict=True))
    machines = tuple(made[number] if number in made else known[key] for number, key in enumerate(keys))
    generation = 1 if earlier is None else earlier.generation + 1
    origin = {"computed": sorted({fingerprint(), *_computed(earlier if len(new) < len(keys) else None)})}
    return SiteMachines(parameters, machines, np.array(labels), tuple(batches), generation, rows.digest, origin=origin)


def _computed(earlier: SiteMachines | None) -> Sequence[str]:
    """Environments in which machines were computed that are taken over; those of 0.1 do not tell."""
    return () if earlier is None else earlier.origin.get("computed", ("unknown",))


def reduced(earlier: SiteMachines, rows: Rows, shape: Shape | None = None) -> SiteMachines | None:
    """Machines without the rows that are not among ``rows``, or None where nothing is left."""
    cuts = np.cumsum([len(batch) for batch in earlier.batches])[:-1]
    stays = np.split(np.isin(earlier.ids, rows.ids), cuts)
    kept = [batch[mask] for batch, mask in zip(earlier.batches, stays, strict=True)]
    labels = [label for label, batch in zip(earlier.labels, kept, strict=True) if len(batch)]
    if not labels:
        return None
    return fit_batches(rows, earlier.parameters, labels, [batch for batch in kept if len(batch)], earlier, shape)


def extended(earlier: SiteMachines, rows: Rows, shape: Shape | None = None) -> SiteMachines | None:
    """Machines with the rows that are new, or None where there are none: they may be kept aside, or of a small class.

    Where classes are divided by k-means, a row joins the batch of its class whose centre is nearest, up to twice its
    size. Otherwise the last batch of the class is filled up. What remains makes batches in order.
    """
    fresh = rows.take(~np.isin(rows.ids, earlier.ids))
    if not len(fresh.ids):
        return None
    refuse_fractions(fresh.y)
    known, batches = list(earlier.labels), list(earlier.batches)
    size = earlier.parameters.batch_size
    for label in np.unique(fresh.y):
        new = fresh.ids[fresh.y == label]
        own = [number for number, held in enumerate(known) if held == label]
        if own and earlier.parameters.partition == "kmeans":
            new = _join_nearest(earlier, fresh.take(fresh.y == label), own, batches)
        elif own:
            room = max(0, size - len(batches[own[-1]]))
            batches[own[-1]] = np.concatenate([batches[own[-1]], new[:room]])
            new = new[room:]
        if len(new):
            parts = np.array_split(new, max(1, int(np.floor(len(new) / size + 0.5))))
            known += [label] * len(parts)
            batches += parts
    return fit_batches(rows, earlier.parameters, known, batches, earlier, shape)


def _join_nearest(
    earlier: SiteMachines, fresh: Rows, own: list[int], batches: list[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """Put rows of a class into the nearest of its batches ``own``; ids of those for which it has no room."""
    centres = np.stack([earlier.machines[number].mean for number in own])
    left = []
    for row, number in zip(earlier.parameters.scaled(fresh.X), fresh.ids, strict=True):
        nearest = own[int(np.square(centres - row).sum(axis=1).argmin())]
        if len(batches[nearest]) < 2 * earlier.parameters.batch_size:
            batches[nearest] = np.append(batches[nearest], number)
        else:
            left.append(number)
    return np.array(left, dtype=np.int64)


# The store --------------------------------------------------------------------------------------------------------
#
# The newest generation of a handle is under the handle itself, an earlier one under "handle.generation".


@dataclass(frozen=True)
class _Kept:
    """Machines in the working memory of a site, ready to score, and the file they are of."""

    machines: SiteMachines
    bank: Bank
    file: Any


def read_machines(site: Site, handle: str, generation: int | None = None) -> SiteMachines | None:
    """Machines of a handle, the newest or those of a generation, from memory or the store, if they are still there.

    Another process may have changed them, so that a file decides that is still the one that was read. A process that
    was killed may have left some that are out of date: those of a forgotten row are none.
    """
    state = site.store.read_state()
    wanted = state["generations"].get(handle) if generation is None else generation
    for name in (handle, f"{handle}.{wanted}"):
        machines = _read(site, name, state["forgotten"])
        if machines is not None and machines.generation == wanted:
            return machines
    return None


def _read(site: Site, name: str, forgotten: Sequence[int]) -> SiteMachines | None:
    file, kept = site.store.identity(FOLDER, name), site.cache.get(name)
    if kept is not None and kept.file == file:
        known: SiteMachines = kept.machines
        return known
    site.cache.pop(name, None)
    record = site.store.read(FOLDER, name)
    if record is None:
        return None
    read = machines_of_record(record)
    if not read.of_moments and np.isin(read.ids, forgotten).any():
        return None
    site.cache[name] = _Kept(read, read.bank(), file)
    return read


def machines_of_record(record: Record) -> SiteMachines:
    """Machines as the store has them; a record that is none raises ``ValueError`` or ``KeyError``."""
    values = record.values
    machines = unpack_machines(record.arrays)
    cuts = np.cumsum([machine.n_rows for machine in machines])[:-1]
    return SiteMachines(
        FoldingParameters.from_values(values["parameters"]),
        tuple(machines),
        labels_from_values(values["labels"]),
        tuple(np.split(record.arrays["ids"], cuts)),
        int(values["generation"]),
        str(values["data"]),
        values.get("private"),
        values.get("origin", {}),
    )


def record_of_machines(machines: SiteMachines) -> Record:
    """Machines for the store."""
    arrays = pack_machines(machines.machines)
    arrays["ids"] = machines.ids
    values: dict[str, Any] = {
        "parameters": machines.parameters.to_values(),
        "labels": labels_to_values(machines.labels),
        "generation": machines.generation,
        "data": machines.data,
        "origin": {**machines.origin, "rows": machines.n_rows},
    }
    if machines.private is not None:
        values["private"] = dict(machines.private)
    return Record(arrays, values)


def write_machines(site: Site, name: str, machines: SiteMachines) -> None:
    """Keep machines, in the store first."""
    site.store.write(record_of_machines(machines), FOLDER, name)
    site.cache[name] = _Kept(machines, machines.bank(), site.store.identity(FOLDER, name))


def bank_of(site: Site, machines: SiteMachines) -> Bank:
    """The bank of machines that were just read or written."""
    kept: _Kept = next(kept for kept in site.cache.values() if getattr(kept, "machines", None) is machines)
    return kept.bank


def next_generation(site: Site, handle: str) -> int:
    """A number never used before for this handle, even if its machines were deleted."""
    state = site.store.read_state()
    number = int(state["generations"].get(handle, 0)) + 1
    state["generations"][handle] = number
    site.store.write_state(state)
    return number


def delete_machines(site: Site, name: str) -> None:
    """Forget what was kept under a name."""
    site.store.delete(FOLDER, name)
    site.cache.pop(name, None)
