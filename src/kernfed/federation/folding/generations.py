"""Machines that a site keeps: their generations, and how rows are forgotten, added or models deleted."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import FileFormatError, InputError, Refused
from kernfed.federation.folding.machines import (
    FOLDER,
    SiteMachines,
    delete_machines,
    extended,
    next_generation,
    read_machines,
    reduced,
    write_machines,
)
from kernfed.federation.folding.release import fingerprint, fit_released, read_recipe, releasing_by
from kernfed.files import labels_from_values
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.receipts import PendingReceipt
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.site.store import KeptModel, SiteStore


def handle_of(name: str) -> str:
    """The handle of machines that are kept under a name."""
    return name.partition(".")[0]


def kept_models(store: SiteStore) -> list[KeptModel]:
    """What the store keeps, the newest training first; what cannot be read comes last."""
    listed = []
    for name in store.names(FOLDER):
        try:
            about = store.read_about(FOLDER, name)
            origin = about.get("origin", {})
            private = about.get("private") or {}
            rows = origin.get("rows", private.get("rows"))
            kept = KeptModel(FOLDER, handle_of(name), int(about["generation"]), name, rows, bool(private))
            listed.append(replace(kept, made=str(origin.get("made", "")), asked_by=str(origin.get("asked_by", ""))))
        except (FileFormatError, KeyError, TypeError, ValueError, AttributeError):
            listed.append(KeptModel(FOLDER, handle_of(name), 0, name, None, False))
    order = {name: place for place, name in enumerate(store.newest(FOLDER))}
    return sorted(listed, key=lambda kept: (kept.made, -order.get(kept.name, 0)), reverse=True)


def keep(site: Site, handle: str, made: SiteMachines) -> SiteMachines:
    """Keep machines as the newest generation of a handle. The one before stays beside it, if the policy has room."""
    if site.store.identity(FOLDER, handle) is not None:
        try:
            earlier = int(site.store.read_about(FOLDER, handle)["generation"])
            site.store.rename(FOLDER, handle, f"{handle}.{earlier}")
            site.cache.pop(handle, None)
        except (FileFormatError, KeyError, TypeError, ValueError):
            delete_machines(site, handle)
    numbered = replace(made, generation=next_generation(site, handle), origin={**made.origin, **_origin(site)})
    write_machines(site, handle, numbered)
    others = [kept.name for kept in kept_models(site.store) if kept.name != handle]
    for name in others[max(0, site.policy.keep_models - 1) :]:
        delete_machines(site, name)
    return numbered


def _origin(site: Site) -> dict[str, str]:
    return {"made": datetime.now(UTC).isoformat(timespec="microseconds"), "asked_by": site.asked_by}


def every_generation(site: Site) -> Iterator[tuple[str, SiteMachines]]:
    """Names and machines of all that is kept; what is damaged or of a forgotten row is deleted on the way."""
    used = set(site.cache)
    for name in site.store.names(FOLDER):
        handle, _, number = name.partition(".")
        try:
            generation = int(number) if number else int(site.store.read_about(FOLDER, name)["generation"])
            machines = read_machines(site, handle, generation)
        except (KeyError, ValueError):
            machines = None
        if machines is None:
            delete_machines(site, name)
            continue
        yield name, machines
        if name not in used:  # all of them together may be more than memory holds
            site.cache.pop(name, None)


def delete_generations(site: Site, handle: str) -> None:
    """Forget all that was kept for a handle."""
    for name in site.store.names(FOLDER):
        if handle_of(name) == handle:
            delete_machines(site, name)


def end_departed(site: Site) -> None:
    """Delete machines, of rows as they are, that hold a row which was taken out of the site's table.

    Rows without ids of their own are known by their places: there machines stay only if their rows are what they were.
    """
    rows = site.rows(every_class=True)
    numbered = _are_numbered(site, rows)
    for name, machines in every_generation(site):
        if machines.private is not None or holds_same_rows(machines, rows):
            continue
        if numbered or not np.isin(machines.ids, rows.ids).all():
            delete_machines(site, name)


def holds_same_rows(machines: SiteMachines, rows: Rows) -> bool:
    """Whether machines of rows as they are hold what ``rows`` have under the same ids: these have only grown."""
    return rows.take(np.isin(rows.ids, machines.ids)).digest == machines.data


def without(machines: SiteMachines, rows: Rows) -> SiteMachines | None:
    """Machines of an earlier generation without the rows that are not among ``rows`` any more; their number stays."""
    changed = reduced(machines, rows)
    if changed is None:
        return None
    data = rows.take(np.isin(rows.ids, changed.ids)).digest
    return replace(changed, generation=machines.generation, data=data, origin={**machines.origin, **changed.origin})


def _are_numbered(site: Site, rows: Rows) -> bool:
    """Whether ids may be places in a table: they are 0, 1, 2, ... with those of rows kept aside or forgotten."""
    forgotten = np.array(site.store.read_state()["forgotten"], dtype=np.int64)
    known = np.unique(np.concatenate([rows.ids, site.held_out().ids, forgotten]))
    return bool((known == np.arange(len(known))).all())


@task(
    "forget_model",
    leaves="none",
    under_privacy="public",
    reason="which models are kept follows from what was asked before; nothing of a row is told",
    changes=True,
)
def forget_model(site: Site, payload: Payload) -> Payload:
    """Delete the site's machines for a handle, of all generations."""
    handle = str(payload.values["handle"])
    if handle in site.store.read_state()["generations"]:  # else there is nothing, and nothing to remember
        delete_generations(site, handle)
        next_generation(site, handle)
    return Payload()


@task("forget_rows", leaves="none", changes=True)
def forget_rows(site: Site, payload: Payload) -> Payload:
    """Forget rows by id, in every model the site keeps: only the machines that held them are fitted again.

    Files that hold the rows go first, then the site takes note, then the machines without the rows are written. Killed
    on the way, a site has lost machines, which it makes again when asked, but keeps none of a forgotten row. The newest
    generation of a handle has another number then; earlier ones, which no training makes again, keep theirs.
    """
    ids = payload.arrays["ids"].astype(np.int64)
    site.data.check_known(ids)
    receipt = PendingReceipt(site)
    newest, earlier = _holding(site, ids)
    for name in (*newest, *earlier):
        delete_machines(site, name)
    site.forget_rows(ids, tuple(newest))
    for handle, machines in newest.items():
        if machines.of_moments or site.data.counts_stay:
            continue  # another release: made, and charged, when somebody asks for it
        changed = _without_forgotten(site, machines)
        if changed is not None:
            generation = site.store.read_state()["generations"][handle]
            write_machines(site, handle, replace(changed, generation=generation, origin=_still(machines, changed)))
    for name, machines in earlier.items():
        left = None if machines.private is not None else without(machines, site.rows(every_class=True))
        if left is not None:
            write_machines(site, name, left)
    receipt.write("forgotten", ids)
    return Payload()


def _holding(site: Site, ids: npt.NDArray[np.int64]) -> tuple[dict[str, SiteMachines], dict[str, SiteMachines]]:
    """What holds rows ``ids``: machines in force, by handle, and those of earlier generations, by name.

    Earlier ones of which nobody can tell whose rows they hold, since rows have changed since, are deleted.
    """
    every = site.rows(every_class=True)
    learned = bool(np.isin(ids, every.ids).any())
    numbers = site.store.read_state()["generations"]
    newest: dict[str, SiteMachines] = {}
    earlier: dict[str, SiteMachines] = {}
    for name, machines in every_generation(site):
        handle = handle_of(name)
        in_force = machines.generation == numbers.get(handle) and machines.data == _data(site, machines)
        if not in_force and machines.private is None and not holds_same_rows(machines, every):
            delete_machines(site, name)
        elif learned if machines.of_moments else np.isin(ids, machines.ids).any():
            (newest if in_force else earlier)[handle if in_force else name] = machines
            if in_force and name != handle:  # left so by a process that was killed
                delete_machines(site, name)
    return newest, earlier


@task("add_rows", leaves="none", changes=True)
def add_rows(site: Site, payload: Payload) -> Payload:
    """Add rows X with labels y. They fill the class's last machine up to its size, then make further ones.

    Models that exist go on without the rows: the machines that have them are another generation. Of machines of
    released rows only those under ``handle`` are extended, and only the new rows are charged for; others are made
    again, from what was released, when somebody asks for them.
    """
    receipt = PendingReceipt(site)
    before, numbers = site.store.read("rows"), site.store.read_state()["generations"]
    mine = {
        handle_of(name): machines
        for name, machines in every_generation(site)
        if (machines.private is None or handle_of(name) == payload.values.get("handle"))
        and machines.generation == numbers.get(handle_of(name))
        and machines.data == _data(site, machines)
    }
    try:
        labels = labels_from_values(payload.values["y"])
        ids = site.add_rows(payload.arrays["X"], labels, payload.arrays.get("ids"), payload.values.get("persons"))
        changed = {handle: _with_added(site, machines) for handle, machines in mine.items()}
    except (InputError, Refused) as error:  # among them rows that no machine can be fitted on
        site.store.delete("rows") if before is None else site.store.write(before, "rows")
        if isinstance(error, Refused):
            raise
        raise Refused("bad rows", str(error)) from None
    for handle, machines in changed.items():
        if machines is not None:
            keep(site, handle, machines)
    receipt.write("added", ids)
    return Payload({"ids": ids})


def _still(machines: SiteMachines, changed: SiteMachines) -> dict[str, Any]:
    """When and for whom machines were made, of which some are fitted again."""
    return {**machines.origin, **changed.origin}


def _without_forgotten(site: Site, machines: SiteMachines) -> SiteMachines | None:
    """Machines of the rows that remain, or None where none do."""
    if machines.private is None:
        return reduced(machines, site.rows())
    try:
        return _refit(site, machines)
    except Refused:  # no rows are left, or the policy has changed: whoever asks is told then
        return None


def _with_added(site: Site, machines: SiteMachines) -> SiteMachines | None:
    return extended(machines, site.rows()) if machines.private is None else _refit(site, machines)


def _refit(site: Site, machines: SiteMachines) -> SiteMachines:
    """Machines of released rows for the rows the site has now; those that are new are charged for."""
    assert machines.private is not None
    recipe = read_recipe(machines.private["recipe"])
    with releasing_by(site, recipe) as permit:
        return fit_released(permit, recipe, machines.parameters, machines)


def _data(site: Site, machines: SiteMachines) -> str:
    """Fingerprint of the rows that the machines would be made of now."""
    if machines.private is None:
        return site.rows().digest
    randomized = bool(machines.private["randomized"])
    return fingerprint(site, site.rows(every_class=randomized), randomized=randomized)
