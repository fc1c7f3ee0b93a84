"""What sites answer when machines are made: their schema, the choice of units and batches, the fit itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.base.warn import warn
from kernfed.errors import FileFormatError, InputError, MissingSites, Refused
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
from kernfed.federation.folding.release import (
    Recipe,
    fingerprint,
    fit_released,
    labelled_rows,
    read_recipe,
    releasing_by,
)
from kernfed.federation.program import Ask, Program
from kernfed.files import labels_to_values
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import Candidate, Chosen, Tally, candidate_from_values, candidate_values, usual
from kernfed.kahm.left_out import Machines, fit_temperature, left_out_scores, try_candidates
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels.rows import ColumnStatistics, Scaling, typical_statistics
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema
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


#: Candidates that a site tries at most.
_MOST_TRIED = 64


@dataclass(frozen=True)
class Choice:
    """What sites chose, and the scaling that follows from what they said of their columns."""

    candidate: Candidate
    scale: Scaling | None
    chosen: Chosen | None


def choice_question(parameters: FoldingParameters, tried: Sequence[Candidate]) -> Payload:
    """Payload of the task "folding_choose"."""
    values = {name: getattr(parameters, name) for name in ("measure", "subspace_dim", "layers", "dtype", "seed")}
    return Payload(values={**values, "tried": [candidate_values(one) for one in tried]})


def _answer(tally: Tally, statistics: ColumnStatistics) -> Payload:
    arrays = {"mean": statistics.mean, "squares": statistics.squares, "right": tally.right, "large": tally.large}
    return Payload({**arrays, "rows": np.array([tally.rows, statistics.n], dtype=np.int64)})


@task("folding_choose", leaves="statistics")
def folding_choose(site: Site, payload: Payload) -> Payload:
    """How many left-out rows each candidate gets right at this site, and mean and sum of squares of every column."""
    tried, machines, seed = _read_question(payload.values)
    site.check_labels_are_classes()
    rows = site.some_rows()
    refuse_fractions(rows.y)
    largest = int(np.unique(rows.y, return_counts=True)[1].max())
    site.allow(steps=machines.layers, numbers=3 * min(max(one.batch_size for one in tried), largest) ** 2)
    try:
        statistics = ColumnStatistics.of(rows.X)
    except InputError as error:
        raise Refused("bad rows", f"site {site.name!r} cannot scale its rows: {error}") from None
    draws = generator(seed, "choose")
    return _answer(try_candidates(rows.X, rows.y, tried, machines, draws, statistics), statistics)


def _read_question(values: Mapping[str, Any]) -> tuple[tuple[Candidate, ...], Machines, int]:
    try:
        listed = values["tried"]
        if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_TRIED:
            raise InputError(f"1 to {_MOST_TRIED} candidates must be tried")
        tried = tuple(candidate_from_values(one) for one in listed)
        names = ("measure", "subspace_dim", "layers", "dtype", "seed")
        given = FoldingParameters.from_values({name: values[name] for name in names})
    except (KeyError, TypeError, InputError) as error:
        raise Refused("bad question", f"the choice asked for cannot be followed: {error}") from None
    return tried, Machines(given.measure, given.subspace_dim, given.layers, given.dtype), given.seed


def ask_choice(
    parameters: FoldingParameters, tried: tuple[Candidate, ...], schemas: Mapping[str, Schema]
) -> Program[Choice]:
    """What the sites choose of the candidates ``tried``; whoever does not answer takes no part in the choice.

    Under "kth", which is asked for where sites may be wrong, units are medians over sites and no sums.
    """
    if len(tried) == 1 and tried[0].scale is None:
        return Choice(tried[0], None, None)
    width = next(iter(schemas.values())).width
    told: dict[str, tuple[Tally, ColumnStatistics]] = {}

    def check(site: str, payload: Payload) -> None:
        told[site] = _read_answer(payload, len(tried), width, schemas[site])

    question = choice_question(parameters, tried)
    replies = yield Ask("folding_choose", question, sorted(schemas), 0, check)
    if not len(replies):
        return _unheard(tried, next(iter(replies.missing.values())).reason)
    answers = [told[site] for site, _ in replies]
    tally = reduce(lambda a, b: a + b, (tally for tally, _ in answers))
    parts = [statistics for _, statistics in answers]
    robust = parameters.aggregate == "kth" and parameters.k > 1
    statistics = typical_statistics(parts) if robust else reduce(lambda a, b: a + b, parts)
    chosen = Chosen.by(tried, tally, [site for site, _ in replies])
    return Choice(chosen.candidate, chosen.candidate.scaling(statistics), chosen)


def _read_answer(payload: Payload, tried: int, width: int, schema: Schema) -> tuple[Tally, ColumnStatistics]:
    arrays = payload.arrays
    expected = {"mean", "squares", "right", "large", "rows"}
    if set(arrays) != expected or arrays["rows"].shape != (2,) or arrays["rows"].dtype != np.int64:
        raise InputError(f"expected arrays {sorted(expected)}, got {sorted(arrays)}")
    left_out, n = arrays["rows"].tolist()
    if n != schema.n_rows or left_out > n or arrays["large"].max(initial=0) > n:
        raise InputError(f"the site described {schema.n_rows} rows, and speaks of {n} of which {left_out} are left out")
    return Tally.from_arrays(left_out, arrays, tried=tried), ColumnStatistics.from_arrays(n, arrays, width=width)


def _unheard(tried: tuple[Candidate, ...], reason: str) -> Choice:
    """Where no site says anything of its columns, they are taken in the units that they have."""
    usually = usual(tried)
    warn(
        f"no site takes part in the choice of units and batches, such as: {reason.rstrip('.')}. Rows are taken as they "
        f"are, with {usually.partition} batches of {usually.batch_size}; allow the task 'folding_choose' in the sites' "
        "policies, or name scale, batch_size and partition",
        MissingSites,
    )
    return Choice(Candidate(None, 1.0, *usually.division), None, None)
