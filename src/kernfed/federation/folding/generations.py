"""Generations of machines side by side: a training takes nothing from the models that came before it.

As many trainings stay as the site's policy says. A model names its own: a handle, and the generation at every site.
What is forgotten is forgotten in all of them, and rows that were taken out of the site's table do not live on in
machines: the next training ends generations that hold such a row.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from kernfed.errors import FileFormatError
from kernfed.federation.folding.machines import (
    FOLDER,
    SiteMachines,
    delete_machines,
    next_generation,
    read_machines,
    reduced,
    write_machines,
)
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
