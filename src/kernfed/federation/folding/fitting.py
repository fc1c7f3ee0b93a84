"""What sites do for a ``FoldingLearner``: fit machines of their classes.

Under differential privacy machines are made of what ``released`` releases, and of nothing else.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import FileFormatError, InputError, Refused
from kernfed.federation.folding.generations import end_departed, keep
from kernfed.federation.folding.machines import (
    SiteMachines,
    bank_of,
    divide,
    fit_batches,
    folding_handle,
    read_machines,
    refuse_fractions,
)
from kernfed.federation.folding.recipe import Recipe, read_recipe
from kernfed.federation.folding.released import fingerprint, fit_released, labelled_rows, releasing_by
from kernfed.files import labels_to_values
from kernfed.kahm.bank import Bank
from kernfed.kahm.left_out import fit_temperature, left_out_scores
from kernfed.kahm.model import FoldingParameters
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.release.permit import statement
from kernfed.site.site import Site


@task("folding_schema", leaves="released", under_privacy="released")
def folding_schema(site: Site, payload: Payload) -> Payload:
    """The site's schema by labels that are randomised first, each once."""
    recipe = read_recipe(payload.values["privacy"])
    site.check_labels_are_classes()
    with releasing_by(site, recipe) as permit:
        return Payload(values=site.schema(labelled_rows(permit)).to_values())


@task("folding_fit", leaves="counts", under_privacy="released")
def folding_fit(site: Site, payload: Payload) -> Payload:
    """Make machines of the site's classes; what is told of them is counts, and a temperature for probabilities."""
    values = payload.values
    site.check_labels_are_classes()
    handle, parameters = _read_handle(values, values["privacy"])
    site.allow(steps=parameters.layers)
    about: dict[str, Any] = {}
    if values["privacy"] is None:
        machines = _fit_rows(site, handle, parameters)
    else:
        recipe = read_recipe(values["privacy"])
        machines = _fit_released(site, handle, parameters, recipe)
        about = {"privacy": statement(site, *recipe.guarantees(site.width))}
    about |= {
        "classes": labels_to_values(machines.classes),
        "generation": machines.generation,
        "machines": len(machines.machines),
        "rows": machines.n_rows,
        "temperature": _temperature(machines, bank_of(site, machines)),
    }
    if machines.private is None:
        about["counts"] = machines.class_rows
    return Payload(values=about)


def _read_handle(values: Mapping[str, Any], recipe: Any) -> tuple[str, FoldingParameters]:
    """Handle and parameters of a question to train, which must belong together."""
    try:
        parameters = FoldingParameters.from_values(values["parameters"])
    except (TypeError, InputError) as error:
        raise Refused("bad question", f"the parameters cannot be followed: {error}") from None
    handle = str(values["handle"])
    if handle != folding_handle(parameters, recipe):
        raise Refused("bad question", f"handle {handle!r} is not that of the parameters")
    return handle, parameters


def _fit_rows(site: Site, handle: str, parameters: FoldingParameters) -> SiteMachines:
    """Machines of the rows the site has now, fitted where they are not there yet."""
    rows = site.some_rows()
    refuse_fractions(rows.y)
    kept = _kept(site, handle, parameters, rows.digest)
    if kept is not None:
        return kept
    _allow_machines(site, parameters, int(np.unique(rows.y, return_counts=True)[1].max()))
    end_departed(site)
    return keep(site, handle, fit_batches(rows, parameters, *divide(rows, parameters)))


def _fit_released(site: Site, handle: str, parameters: FoldingParameters, recipe: Recipe) -> SiteMachines:
    """Machines of what the site releases of the rows it has now, made where they are not there yet."""
    with releasing_by(site, recipe) as permit:
        rows = permit.rows()
        if not len(rows.y):
            raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
        refuse_fractions(rows.y)
        kept = _kept(site, handle, parameters, fingerprint(site, rows, randomized=recipe.labels is not None))
        if kept is not None:
            return kept
        _allow_machines(site, parameters, len(rows.y) if recipe.by_row else recipe.rows_per_class)
        return keep(site, handle, fit_released(permit, recipe, parameters))


def _allow_machines(site: Site, parameters: FoldingParameters, largest: int) -> None:
    """Refuse machines whose matrices, of N by N for a batch of N rows of the ``largest`` class, are too large."""
    site.allow(numbers=3 * min(parameters.batch_size, largest) ** 2)


def _kept(site: Site, handle: str, parameters: FoldingParameters, data: str) -> SiteMachines | None:
    """Machines that are there already, of these very rows; damaged ones are made again."""
    try:
        kept = read_machines(site, handle)
    except (FileFormatError, KeyError, ValueError):
        return None
    return kept if kept is not None and (kept.data, kept.parameters) == (data, parameters) else None


def _temperature(machines: SiteMachines, bank: Bank) -> str | None:
    """Temperature of the site's own classes, from rows that machines did not see; None where all have one row.

    It travels as text of all its digits and of one length, so that the size of an answer tells nothing.
    """
    given, draws = machines.parameters, generator(machines.parameters.seed, "calibrate")
    with single_blas_thread():
        scores, classes = left_out_scores(
            bank, given.measure, draws, subspace_dim=given.subspace_dim, layers=given.layers, dtype=given.dtype
        )
    return f"{fit_temperature(scores, classes):.16e}" if len(classes) else None
