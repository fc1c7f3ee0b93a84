"""One exchange in which sites say how rows are best scaled and divided, and in which units their columns are.

Counts of left-out rows and, per column, mean and sum of squares leave a site. Where its policy does not allow that, a
site takes no part in the choice and does what the others chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.base.warn import warn
from kernfed.errors import InputError, MissingSites, Refused
from kernfed.federation.folding.machines import refuse_fractions
from kernfed.federation.program import Ask, Program
from kernfed.kahm.choice import Candidate, Chosen, Tally, candidate_from_values, candidate_values, usual
from kernfed.kahm.left_out import Machines, try_candidates
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels.rows import ColumnStatistics, Scaling, typical_statistics
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.task import task
from kernfed.site.site import Site

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
