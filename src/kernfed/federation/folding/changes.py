"""What sites do when rows go or come: the machines that held them are fitted again, all others stay."""

from dataclasses import replace

import numpy as np

from kernfed.errors import Refused
from kernfed.federation.folding.tasks import (
    FOLDER,
    Entry,
    delete_entry,
    extended,
    next_generation,
    read_entry,
    reduced,
    write_entry,
)
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.task import task
from kernfed.federation.release.kept import source_rows
from kernfed.federation.site.site import Site
from kernfed.files import labels_from_values


@task("forget_model", "none", changes=True)
def forget_model(site: Site, payload: Payload) -> Payload:
    """Delete the site's machines for a handle."""
    handle = str(payload.values["handle"])
    with site.store.locked():
        delete_entry(site, handle)
        next_generation(site, handle)
    return Payload()


@task("forget_rows", "none", changes=True)
def forget_rows(site: Site, payload: Payload) -> Payload:
    """Forget rows by id, in every model the site keeps: only the machines that held them are fitted again.

    Files that hold the rows go first, then the site takes note, then the machines without the rows are written. Killed
    on the way, a site has lost machines, which it makes again when asked, but keeps none of a forgotten row.
    """
    ids = payload.arrays["ids"].astype(np.int64)
    with site.store.locked():
        entries = _entries(site)
        learned = np.isin(ids, site.rows(every_class=True).ids).any()
        touched = {
            handle: entry
            for handle, entry in entries.items()
            if (learned if _of_moments(entry) else np.isin(ids, entry.ids).any())
        }
        site.check_known(ids)
        for handle in touched:
            delete_entry(site, handle)
        site.forget_rows(ids, tuple(touched))
        for handle, entry in touched.items():
            if _of_moments(entry):
                continue  # moments without the rows are another release, charged when somebody asks for it
            changed = _without_forgotten(site, entry)
            if changed is not None:
                generation = site.store.read_state()["generations"][handle]
                write_entry(site, handle, replace(changed, generation=generation))
    return Payload()


def _of_moments(entry: Entry) -> bool:
    """Whether an entry is made of fabricated rows, whose ids are those of no person."""
    return entry.private is not None and not entry.private["by_row"]


def _without_forgotten(site: Site, entry: Entry) -> Entry | None:
    """Entry of the rows that remain, or None where none do."""
    if entry.private is None:
        return reduced(entry, site.rows())
    try:
        return _refit(site, entry)
    except Refused:  # no rows are left, or the policy has changed: whoever asks is told then
        return None


def _refit(site: Site, entry: Entry) -> Entry:
    """Entry of released rows for the rows the site has now; those that are new are charged for."""
    from kernfed.federation.folding.released import fit_released, read_recipe  # slow to import, and rarely needed

    assert entry.private is not None
    return fit_released(site, read_recipe(entry.private["recipe"]), entry.parameters, entry)


@task("add_rows", "none", changes=True)
def add_rows(site: Site, payload: Payload) -> Payload:
    """Add rows X with labels y. They fill the class's last machine up to its size, then make further ones.

    Of machines of released rows only those under ``handle`` are extended, and only the new rows are charged for; others
    are made again, from what was released, when somebody asks for them.
    """
    with site.store.locked():
        entries, before = _entries(site), site.store.read("rows")
        mine = {
            handle: entry
            for handle, entry in entries.items()
            if entry.private is None or handle == payload.values.get("handle")
        }
        try:
            labels = labels_from_values(payload.values["y"])
            ids = site.add_rows(payload.arrays["X"], labels, payload.arrays.get("ids"), question=site.question)
            changed = {handle: _with_added(site, entry) for handle, entry in mine.items()}
        except (ValueError, Refused) as error:  # among them rows that no machine can be fitted on
            site.store.delete("rows") if before is None else site.store.write(before, "rows")
            if isinstance(error, Refused):
                raise
            raise Refused("bad rows", str(error)) from None
        for handle, entry in changed.items():
            if entry is not None:
                write_entry(site, handle, replace(entry, generation=next_generation(site, handle)))
        for handle in set(entries) - set(mine):
            delete_entry(site, handle)
    return Payload({"ids": ids})


def _with_added(site: Site, entry: Entry) -> Entry | None:
    return extended(entry, site.rows()) if entry.private is None else _refit(site, entry)


def _entries(site: Site) -> dict[str, Entry]:
    """The site's entries by handle. What is damaged, or of other rows than the site has now, is deleted on the way."""
    found = {}
    for handle in site.store.names(FOLDER):
        try:
            entry = read_entry(site, handle)
        except (KeyError, ValueError):
            entry = None
        if entry is None or entry.data != _data(site, entry):
            delete_entry(site, handle)
        else:
            found[handle] = entry
    return found


def _data(site: Site, entry: Entry) -> str:
    """Fingerprint of the rows that the entry would be made of now."""
    return source_rows(site, randomized=entry.private is not None and entry.private["randomized"]).data
