"""What sites answer so that machines and a head can be weighed: left-out rows travel as queries, labels stay."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import Refused
from kernfed.federation.folding.machines import SiteMachines, bank_of
from kernfed.federation.folding.receipts import trace as trace_machines
from kernfed.federation.folding.scoring import machines_of
from kernfed.files import labels_from_values, labels_to_values
from kernfed.fusion.combination import FusionLosses, VisitCounts, fused_values, left_out_values, probabilities
from kernfed.fusion.model import FusionModel
from kernfed.kahm.left_out import LeftOutRows
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.receipts import ReceiptBook, Trace
from kernfed.site.site import Site

#: Rows that a site lets travel for one choice, at most.
MOST_ROWS = 1000


@dataclass(frozen=True)
class _Sample:
    """Rows of a site that are left out: the machines they are of, their numbers X (m, p), labels y (m,)."""

    machines: SiteMachines
    left: LeftOutRows
    X: FloatArray
    y: npt.NDArray[Any]


def _sample(site: Site, payload: Payload) -> _Sample:
    """The same rows for the same question: drawn by the names of site and model."""
    values = payload.values
    try:
        wanted = check_count(values["rows"], "rows", at_most=MOST_ROWS)
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the rows asked for cannot be drawn: {error}") from None
    machines = machines_of(site, str(values["handle"]), values["generation"])
    if machines.private is not None:
        raise Refused("bad question", "machines of released rows are weighed by what was released, not at the site")
    sizes = [len(batch) for batch in machines.batches]
    left = LeftOutRows.draw(sizes, generator(machines.parameters.seed, "fusion"), wanted)
    ids = [machines.batches[number][own] for number, own in zip(left.machines, left.positions, strict=True)]
    rows = site.rows()
    place = {int(number): row for row, number in enumerate(rows.ids)}
    picked = [place[int(number)] for number in np.concatenate([np.zeros(0, dtype=np.int64), *ids])]
    return _Sample(machines, left, rows.X[picked], rows.y[picked])


@task("fusion_sample", leaves="rows")
def fusion_sample(site: Site, payload: Payload) -> Payload:
    """Some training rows X (m, p), without labels, and their scores (m, G) by the site's machines without them."""
    drawn = _sample(site, payload)
    p = drawn.machines.parameters
    with single_blas_thread():
        scores = drawn.left.scores(
            bank_of(site, drawn.machines), p.measure, subspace_dim=p.subspace_dim, layers=p.layers, dtype=p.dtype
        )
    classes = labels_to_values(drawn.machines.classes)
    return Payload({"X": drawn.X.astype(np.float64), "scores": scores}, {"classes": classes})


@dataclass(frozen=True)
class _Weighed:
    """What all sites say of a site's left-out rows: head values without each row, scores, and its class and weight."""

    values: FloatArray
    scores: FloatArray
    numbers: npt.NDArray[np.intp]
    weights: FloatArray


def _weighed(site: Site, payload: Payload) -> _Weighed:
    drawn, arrays = _sample(site, payload), payload.arrays
    classes = labels_from_values(payload.values["classes"])
    shape = (len(drawn.y), len(classes))
    expected = {"values": shape, "scores": shape, "leverage": shape[:1], "class_weights": shape[1:]}
    for name, size in expected.items():
        if name not in arrays or arrays[name].shape != size or np.isnan(arrays[name]).any():
            raise Refused("bad question", f"{name} must be numbers of shape {size}")
    numbers = ClassIndex(classes).numbers(drawn.y, "minus-one")
    known = numbers >= 0
    numbers = numbers[known]
    weights = arrays["class_weights"][numbers]
    values = left_out_values(arrays["values"][known], arrays["leverage"][known], numbers, weights)
    return _Weighed(values, arrays["scores"][known], numbers, weights)


@task("fusion_losses", leaves="statistics")
def fusion_losses(site: Site, payload: Payload) -> Payload:
    """Sums over the site's left-out rows of losses (W, T) and errors (W,), and the rows' weight."""
    rows = _weighed(site, payload)
    losses = FusionLosses.of(rows.values, rows.scores, rows.numbers, rows.weights)
    return Payload({"surprise": losses.surprise, "wrong": losses.wrong, "total": np.array([losses.total])})


@task("fusion_visits", leaves="counts")
def fusion_visits(site: Site, payload: Payload) -> Payload:
    """How many left-out rows the head would answer alone at every threshold, and how many are right either way."""
    rows = _weighed(site, payload)
    try:
        weight = check_number(payload.values["weight"], "weight", at_least=0)
        together = check_number(payload.values["temperature"], "temperature", above=0)
        alone = check_number(payload.values["head_temperature"], "head_temperature", above=0)
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the weights cannot be used: {error}") from None
    head = probabilities(rows.values, alone)
    fused = probabilities(fused_values(rows.values, rows.scores, weight), together)
    counts = VisitCounts.of(head, fused, rows.numbers)
    table = np.stack([counts.stay, counts.alone, counts.together])
    return Payload({"counts": table, "rows": np.array([counts.rows], dtype=np.int64)})


def trace(model: Any, site: str) -> Trace | None:
    """What the machines of the model refer to; its head is made of the rows, too."""
    machines = trace_machines(model.folding, site) if isinstance(model, FusionModel) else None
    return None if machines is None else replace(machines, head=model.ridge is not None)


BOOK = ReceiptBook(trace=trace, elsewhere=("weight of machines against a head",))
