"""What sites do for a ``FoldingLearner``: fit machines, keep them with their membership, score, forget, add.

A site's entry for a handle is its machines and, for each, the class and the ids of its rows. Membership is kept, so a
row that goes or comes touches only its own machine, and the result is that of fitting the same batches from scratch.

Under differential privacy machines are made of what ``private_tasks`` releases, and of nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed._random import generator
from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray, check_rows
from kernfed.errors import FileFormatError, Refused
from kernfed.federation.folding.warn import KEEP_MACHINES
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.schema import fraction_reason
from kernfed.federation.protocol.task import task
from kernfed.federation.release.kept import folding_handle, require_private, source_rows
from kernfed.federation.site.site import Rows, Site, data_digest
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.batches import split_rows
from kernfed.kahm.calibration import fit_temperature, left_out_scores
from kernfed.kahm.machine import Machine
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.packing import pack_machines, unpack_machines

if TYPE_CHECKING:
    from kernfed.federation.folding.released import Recipe

FOLDER = "folding"
#: What is done to the released rows of batches before machines are fitted on them.
Shape = Callable[[Sequence[FloatArray], FoldingParameters], list[FloatArray]]


@dataclass(frozen=True)
class Entry:
    """What a site keeps for one handle. Machine i models rows ``batches[i]`` (ids) of class ``labels[i]``.

    ``private`` is None for rows as they are. Otherwise it holds the ``recipe`` of their release, whether it is
    ``by_row`` and with ``randomized`` labels, the site's ``columns``, and how many ``rows`` stand behind all classes
    and behind the ``smallest``.
    """

    parameters: FoldingParameters
    machines: tuple[Machine, ...]
    labels: npt.NDArray[Any]
    batches: tuple[npt.NDArray[np.int64], ...]
    generation: int
    data: str
    private: Mapping[str, Any] | None = None

    @property
    def n_rows(self) -> int:
        """Rows of the site that the machines are made of."""
        return sum(map(len, self.batches)) if self.private is None else int(self.private["rows"])

    @property
    def smallest_class(self) -> int:
        """Rows of the class that has fewest."""
        if self.private is not None:
            return int(self.private["smallest"])
        sizes = np.array([len(batch) for batch in self.batches])
        return int(min(sizes[self.labels == label].sum() for label in self.classes))

    @property
    def classes(self) -> npt.NDArray[Any]:
        """Labels the site holds, sorted."""
        return np.unique(self.labels)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Ids of all rows, batch by batch."""
        return np.concatenate(self.batches)

    def bank(self) -> Bank:
        """The machines, ready to score; groups are positions in ``classes``."""
        groups = np.searchsorted(self.classes, self.labels)
        with single_blas_thread():
            return Bank.assemble(self.machines, groups.tolist(), len(self.classes))


def divide(rows: Rows, parameters: FoldingParameters, site: str) -> tuple[list[Any], list[npt.NDArray[np.int64]]]:
    """Labels and row ids of every batch of a site, from rows, seed and names alone."""
    labels: list[Any] = []
    batches: list[npt.NDArray[np.int64]] = []
    for label in np.unique(rows.y):
        own = np.flatnonzero(rows.y == label)
        draws = generator(parameters.seed, site, "batches", repr(label.item()))
        for part in split_rows(rows.X[own], parameters.batch_size, parameters.partition, draws):
            labels.append(label)
            batches.append(rows.ids[own[part]])
    return labels, batches


def fit_entry(
    rows: Rows,
    parameters: FoldingParameters,
    labels: list[Any],
    batches: list[npt.NDArray[np.int64]],
    earlier: Entry | None = None,
    shape: Shape | None = None,
) -> Entry:
    """Entry of the given membership. Machines of ``earlier`` whose batch is unchanged are taken over.

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
    fitted = fit_machines(
        parts if shape is None else shape(parts, parameters),
        subspace_dim=parameters.subspace_dim,
        layers=parameters.layers,
        dtype=parameters.dtype,
    )
    made = dict(zip(new, fitted, strict=True))
    machines = tuple(made[number] if number in made else known[key] for number, key in enumerate(keys))
    generation = 1 if earlier is None else earlier.generation + 1
    return Entry(parameters, machines, np.array(labels), tuple(batches), generation, data_digest(rows))


def reduced(entry: Entry, rows: Rows, shape: Shape | None = None) -> Entry | None:
    """Entry without the rows that are not among ``rows``, or None where nothing is left."""
    cuts = np.cumsum([len(batch) for batch in entry.batches])[:-1]
    stays = np.split(np.isin(entry.ids, rows.ids), cuts)
    kept = [batch[mask] for batch, mask in zip(entry.batches, stays, strict=True)]
    labels = [label for label, batch in zip(entry.labels, kept, strict=True) if len(batch)]
    if not labels:
        return None
    return fit_entry(rows, entry.parameters, labels, [batch for batch in kept if len(batch)], entry, shape)


def extended(entry: Entry, rows: Rows, shape: Shape | None = None) -> Entry | None:
    """Entry with the rows it does not have yet, or None where it has all: rows may be kept aside, or of a small class.

    The last batch of their class is filled up, what remains makes batches in order.
    """
    fresh = rows.take(~np.isin(rows.ids, entry.ids))
    if not len(fresh.ids):
        return None
    _refuse_fractions(fresh.y)
    known, batches = list(entry.labels), list(entry.batches)
    size = entry.parameters.batch_size
    for label in np.unique(fresh.y):
        new = fresh.ids[fresh.y == label]
        own = [number for number, held in enumerate(known) if held == label]
        if own:
            room = max(0, size - len(batches[own[-1]]))
            batches[own[-1]] = np.concatenate([batches[own[-1]], new[:room]])
            new = new[room:]
        if len(new):
            parts = np.array_split(new, max(1, int(np.floor(len(new) / size + 0.5))))
            known += [label] * len(parts)
            batches += parts
    return fit_entry(rows, entry.parameters, known, batches, entry, shape)


def read_entry(site: Site, handle: str) -> Entry | None:
    """Entry of a handle from memory or the store, if it is still the one in force.

    Another process may have changed it, and a process that was killed may have left one that is out of date: the
    generation in the site's state decides.
    """
    cached = site.cache.get(handle)
    generation = site.store.read_state()["generations"].get(handle)
    if cached is not None and cached[0].generation == generation:
        entry: Entry = cached[0]
        return entry
    site.cache.pop(handle, None)
    record = site.store.read(FOLDER, handle)
    if record is None or record.values["generation"] != generation:
        return None
    values = record.values
    machines = unpack_machines(record.arrays)
    cuts = np.cumsum([machine.n_rows for machine in machines])[:-1]
    batches = tuple(np.split(record.arrays["ids"], cuts))
    entry = Entry(
        FoldingParameters(**values["parameters"]),
        tuple(machines),
        labels_from_values(values["labels"]),
        batches,
        int(values["generation"]),
        str(values["data"]),
        values.get("private"),
    )
    site.cache[handle] = (entry, entry.bank())
    return entry


def write_entry(site: Site, handle: str, entry: Entry) -> None:
    """Keep an entry, in the store first."""
    arrays = pack_machines(entry.machines)
    arrays["ids"] = entry.ids
    values = {
        "parameters": entry.parameters.to_values(),
        "labels": labels_to_values(entry.labels),
        "generation": entry.generation,
        "data": entry.data,
        **({} if entry.private is None else {"private": dict(entry.private)}),
    }
    site.store.write(Record(arrays, values), FOLDER, handle)
    site.cache[handle] = (entry, entry.bank())


def _refuse_fractions(labels: npt.NDArray[Any]) -> None:
    reason = fraction_reason(labels)
    if reason is not None:
        raise Refused("bad labels", reason)


def _prepare(site: Site, handle: str, parameters: FoldingParameters, recipe: "Recipe | None") -> Entry:
    """Entry for the rows the site has now, fitted where it is not there yet."""
    source = source_rows(site, randomized=recipe is not None and recipe.labels is not None)
    if not len(source.rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    _refuse_fractions(source.rows.y)
    with site.store.locked():
        try:
            entry = read_entry(site, handle)
        except (FileFormatError, KeyError, ValueError):
            entry = None  # a damaged entry is made again from the rows
        if entry is None or entry.data != source.data or entry.parameters != parameters:
            if recipe is None:
                entry = fit_entry(source.rows, parameters, *divide(source.rows, parameters, site.name))
            else:
                entry = _private().fit_released(site, recipe, parameters)
            entry = replace(entry, generation=next_generation(site, handle))
            write_entry(site, handle, entry)
    return entry


def next_generation(site: Site, handle: str) -> int:
    """A number never used before for this handle, even if its entry was deleted. Earlier entries are void with it."""
    state = site.store.read_state()
    number = int(state["generations"].get(handle, 0)) + 1
    state["generations"][handle] = number
    site.store.write_state(state)
    return number


def delete_entry(site: Site, handle: str) -> None:
    """Forget what was kept under a handle."""
    site.store.delete(FOLDER, handle)
    site.cache.pop(handle, None)


@task("scores", "scores")
def scores(site: Site, payload: Payload) -> Payload:
    """Scores of queries X (n, p) for the site's classes; with ``prepare`` the machines are made first."""
    values = payload.values
    handle = str(values["handle"])
    parameters = FoldingParameters(**values["parameters"])
    prepare = bool(values["prepare"])
    kept = None if prepare else read_entry(site, handle)
    private = values.get("privacy") if prepare else kept.private["recipe"] if kept and kept.private else None
    if (prepare or kept) and handle != folding_handle(parameters, private):
        raise Refused("bad question", f"handle {handle!r} is not that of the parameters")
    recipe = None
    if prepare:
        recipe = _check_privacy(site, private)
        entry = _prepare(site, handle, parameters, recipe)
    else:
        entry = _entry_of(site, handle, values["generation"])
    bank: Bank = site.cache[handle][1]
    queries = payload.arrays["X"]
    if queries.ndim != 2 or queries.shape[1] != bank.width:
        raise Refused("bad question", f"queries must have {bank.width} columns, got shape {queries.shape}")
    found = bank.scores(check_rows(queries, min_rows=0), parameters.measure)
    answer: dict[str, Any] = {"classes": labels_to_values(entry.classes)}
    if prepare:
        answer |= {
            "generation": entry.generation,
            "machines": len(entry.machines),
            "rows": entry.n_rows,
            "temperature": _temperature(site, entry, bank),
        }
        answer |= {} if recipe is None else {"privacy": _private().statement(site, recipe)}
    batches = {"batches": found.winners.astype(np.int32)} if values["explain"] else {}
    return Payload({"scores": found.values, **batches}, answer)


def _private() -> Any:
    """What makes releases; it builds on this module and is slow to import."""
    from kernfed.federation.folding import released as private_tasks

    return private_tasks


def _check_privacy(site: Site, recipe: Any, width: int | None = None) -> "Recipe | None":
    """The recipe of these values, or None, if the site's policy, which may be newer than the machines, allows it."""
    if recipe is None:
        require_private(site)
        return None
    found: Recipe = _private().read_recipe(recipe)
    _private().check_recipe(site, found, width)
    return found


def _entry_of(site: Site, handle: str, generations: Any) -> Entry:
    """Entry that a model refers to, if it is still there and the policy, which may be newer, allows its classes."""
    entry = read_entry(site, handle)
    if handle not in site.store.read_state()["generations"]:
        raise Refused(
            "stale",
            f"the store of site {site.name!r} holds no machines of this model, which was made with "
            f"another store; {KEEP_MACHINES}",
        )
    if entry is None or generations.get(site.name) != entry.generation:
        raise Refused("stale", f"site {site.name!r} has changed since this model was made; use the newer model")
    if entry.private is None:
        require_private(site)
    else:
        _check_privacy(site, entry.private["recipe"], entry.private["columns"])
    smallest = entry.smallest_class
    if smallest < site.policy.min_rows_per_class:
        raise Refused(
            "policy",
            f"the policy of site {site.name!r} wants {site.policy.min_rows_per_class} rows per "
            f"class, this model has a class of {smallest}; make it anew",
        )
    return entry


def _temperature(site: Site, entry: Entry, bank: Bank) -> str | None:
    """Temperature of the site's own classes, from rows that machines did not see; None where all have one row.

    It travels as text of all its digits and of one length, so that the size of an answer tells nothing.
    """
    given, draws = entry.parameters, generator(entry.parameters.seed, site.name, "calibrate")
    with single_blas_thread():
        scores, classes = left_out_scores(
            bank, given.measure, draws, subspace_dim=given.subspace_dim, layers=given.layers, dtype=given.dtype
        )
    return f"{fit_temperature(scores, classes):.16e}" if len(classes) else None


@task("machines", "rows", private=True)
def machines(site: Site, payload: Payload) -> Payload:
    """The machines themselves. They contain the site's rows."""
    return _send_machines(_entry_of(site, str(payload.values["handle"]), payload.values["generation"]))


@task("released_machines", "released")
def released_machines(site: Site, payload: Payload) -> Payload:
    """Machines made of released rows, which they contain."""
    entry = _entry_of(site, str(payload.values["handle"]), payload.values["generation"])
    if entry.private is None:
        raise Refused("bad question", f"the machines of site {site.name!r} under this handle contain rows as they are")
    return _send_machines(entry)


def _send_machines(entry: Entry) -> Payload:
    arrays = pack_machines(entry.machines)
    arrays["groups"] = np.searchsorted(entry.classes, entry.labels).astype(np.int64)
    return Payload(arrays, {"classes": labels_to_values(entry.classes)})
