"""What sites do when rows go or come: the machines that held them are fitted again, all others stay.

Where privacy is required these are commands at the site (``kernfed site``, ``Site.as_owner``), never a coordinator's
question: whether an id is known, and a count that changes, tell who is in the data.
"""

from dataclasses import replace

import numpy as np

from kernfed.errors import InputError, Refused
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
from kernfed.federation.folding.recipe import read_recipe
from kernfed.federation.folding.released import fingerprint, fit_released, releasing_by
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.task import task
from kernfed.federation.site.site import Site
from kernfed.files import labels_from_values


@task(
    "forget_model",
    leaves="none",
    under_privacy="public",
    reason="which models are kept follows from what was asked before; nothing of a row is told",
    changes=True,
)
def forget_model(site: Site, payload: Payload) -> Payload:
    """Delete the site's machines for a handle."""
    handle = str(payload.values["handle"])
    if handle in site.store.read_state()["generations"]:  # else there is nothing, and nothing to remember
        delete_machines(site, handle)
        next_generation(site, handle)
    return Payload()


@task("forget_rows", leaves="none", changes=True)
def forget_rows(site: Site, payload: Payload) -> Payload:
    """Forget rows by id, in every model the site keeps: only the machines that held them are fitted again.

    Files that hold the rows go first, then the site takes note, then the machines without the rows are written. Killed
    on the way, a site has lost machines, which it makes again when asked, but keeps none of a forgotten row.
    """
    ids = payload.arrays["ids"].astype(np.int64)
    kept = _kept_machines(site)
    learned = np.isin(ids, site.rows(every_class=True).ids).any()
    touched = {
        handle: machines
        for handle, machines in kept.items()
        if (learned if machines.of_moments else np.isin(ids, machines.ids).any())
    }
    site.data.check_known(ids)
    for handle in touched:
        delete_machines(site, handle)
    site.forget_rows(ids, tuple(touched))
    for handle, machines in touched.items():
        if machines.of_moments or site.data.counts_stay:
            continue  # another release: made, and charged, when somebody asks for it
        changed = _without_forgotten(site, machines)
        if changed is not None:
            generation = site.store.read_state()["generations"][handle]
            write_machines(site, handle, replace(changed, generation=generation))
    return Payload()


@task("add_rows", leaves="none", changes=True)
def add_rows(site: Site, payload: Payload) -> Payload:
    """Add rows X with labels y. They fill the class's last machine up to its size, then make further ones.

    Of machines of released rows only those under ``handle`` are extended, and only the new rows are charged for; others
    are made again, from what was released, when somebody asks for them.
    """
    kept, before = _kept_machines(site), site.store.read("rows")
    mine = {
        handle: machines
        for handle, machines in kept.items()
        if machines.private is None or handle == payload.values.get("handle")
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
            write_machines(site, handle, replace(machines, generation=next_generation(site, handle)))
    for handle in set(kept) - set(mine):
        delete_machines(site, handle)
    return Payload({"ids": ids})


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


def _kept_machines(site: Site) -> dict[str, SiteMachines]:
    """All machines by handle. What is damaged, or of other rows than the site has now, is deleted on the way."""
    kept = {}
    for handle in site.store.names(FOLDER):
        try:
            machines = read_machines(site, handle)
        except (KeyError, ValueError):
            machines = None
        if machines is None or machines.data != _data(site, machines):
            delete_machines(site, handle)
        else:
            kept[handle] = machines
    return kept


def _data(site: Site, machines: SiteMachines) -> str:
    """Fingerprint of the rows that the machines would be made of now."""
    randomized = machines.private is not None and bool(machines.private["randomized"])
    return fingerprint(site, site.rows(every_class=randomized), randomized=randomized)
