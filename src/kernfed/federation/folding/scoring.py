"""What sites do for a model that exists: score queries with its machines, or send these.

Importing this is cheap: a site may be a new process for every question.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernfed.base.checks import check_rows
from kernfed.base.labels import ClassIndex
from kernfed.errors import Refused
from kernfed.federation.folding.machines import SiteMachines, bank_of, read_machines
from kernfed.files import labels_to_values
from kernfed.kahm.model_file import pack_machines
from kernfed.site.authorise import check_mechanism, check_record
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.site import Site

#: What to do so that a model whose machines are at the sites can be used later.
KEEP_MACHINES = "train with Federation.local(..., store=DIR) and name the same folder later, or with hold='machines'"


@task("scores", leaves="scores", under_privacy="released", queries=True, locked=False)
def scores(site: Site, payload: Payload) -> Payload:
    """Scores of queries X (n, p) for the site's classes, and with ``explain`` the machines that gave them."""
    values = payload.values
    handle = str(values["handle"])
    machines = machines_of(site, handle, values["generation"])
    bank, queries = bank_of(site, machines), payload.arrays["X"]
    if queries.ndim != 2 or queries.shape[1] != bank.width:
        raise Refused("bad question", f"queries must have {bank.width} columns, got shape {queries.shape}")
    asked = machines.parameters.scaled(check_rows(queries, min_rows=0))
    answers = bank.scores(asked, machines.parameters.measure)
    batches = {"batches": answers.winners.astype(np.int32)} if values["explain"] else {}
    return Payload({"scores": answers.values, **batches}, {"classes": labels_to_values(machines.classes)})


@task("machines", leaves="rows", locked=False)
def machines(site: Site, payload: Payload) -> Payload:
    """The machines themselves. They contain the site's rows."""
    return _send(machines_of(site, str(payload.values["handle"]), payload.values["generation"]))


@task("released_machines", leaves="released", under_privacy="released", locked=False)
def released_machines(site: Site, payload: Payload) -> Payload:
    """Machines made of released rows, which they contain."""
    asked = machines_of(site, str(payload.values["handle"]), payload.values["generation"])
    if asked.private is None:
        raise Refused("bad question", f"the machines of site {site.name!r} under this handle contain rows as they are")
    return _send(asked)


def _send(asked: SiteMachines) -> Payload:
    arrays = pack_machines(asked.machines)
    arrays["groups"] = ClassIndex(asked.classes).numbers(asked.labels).astype(np.int64)
    return Payload(arrays, {"classes": labels_to_values(asked.classes)})


def machines_of(site: Site, handle: str, generations: Any) -> SiteMachines:
    """Machines that a model refers to, if they are still there and the policy, which may be newer, allows them."""
    wanted = generations.get(site.name)
    if type(wanted) is not int:
        raise Refused("bad question", f"generation of site {site.name!r} must be a number, got {wanted!r:.40}")
    with site.store.locked():
        newest = site.store.read_state()["generations"].get(handle)
        asked = None if newest is None else read_machines(site, handle, wanted)
    if newest is None:
        raise Refused(
            "stale",
            f"the store of site {site.name!r} holds no machines of this model, which was made with "
            f"another store; {KEEP_MACHINES}",
        )
    if asked is None and wanted != newest:
        raise Refused("stale", f"site {site.name!r} has changed since this model was made; use the newer model")
    if asked is None:
        raise Refused(
            "stale",
            f"site {site.name!r} keeps the machines of its {site.policy.keep_models} newest trainings, and this model "
            "is older: train it again",
        )
    if asked.private is None:
        site.check_unguarded()
    else:
        _check_release(site, asked.private)
    smallest = asked.smallest_class
    if smallest < site.policy.min_rows_per_class:
        raise Refused(
            "policy",
            f"the policy of site {site.name!r} wants {site.policy.min_rows_per_class} rows per "
            f"class, this model has a class of {smallest}; make it anew",
        )
    return asked


def _check_release(site: Site, private: Mapping[str, Any]) -> None:
    """Refuse machines of a release that the policy, which may be newer, does not allow any more."""
    if "record" not in private:
        raise Refused(
            "stale",
            f"site {site.name!r} made these machines with kernfed 0.1; train again, which costs nothing: what was "
            "released is kept",
        )
    recipe = private["recipe"]
    check_mechanism(site.policy, site.name, recipe["mechanism"]["kind"], private_labels=recipe["labels"] is not None)
    epsilon, delta = private["record"]
    check_record(site.policy, site.name, np.inf if epsilon is None else epsilon, delta)
