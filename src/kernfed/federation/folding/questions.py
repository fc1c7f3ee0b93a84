"""What is asked of sites that hold machines of classes, and what an answer must look like to be taken."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray, check_count, check_number
from kernfed.errors import InputError, StaleModel, TooFewReplies
from kernfed.federation.asking import Federation, Replies
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.schema import Schema
from kernfed.files import labels_from_values
from kernfed.kahm.bank import Bank
from kernfed.kahm.model import FoldingModel, FoldingParameters
from kernfed.kahm.packing import unpack_machines
from kernfed.kahm.terms import Terms

#: Queries per message, in numbers: memory stays bounded and every message far below what transports allow.
_NUMBERS_PER_MESSAGE = 8_000_000


def query_chunks(queries: int, width: int) -> list[tuple[int, int]]:
    """First and last of the queries of each message."""
    size = max(1, _NUMBERS_PER_MESSAGE // width)
    return [(start, min(start + size, queries)) for start in range(0, queries, size)] or [(0, 0)]


def folding_question(
    handle: str,
    parameters: FoldingParameters,
    queries: FloatArray,
    *,
    prepare: bool = False,
    explain: bool = False,
    generation: dict[str, int] | None = None,
    privacy: Mapping[str, Any] | None = None,
) -> Payload:
    """Payload of the task "scores": queries X, and which state of which machines is meant.

    To ``prepare`` machines of released rows the question says how to release them.
    """
    values = {
        "handle": handle,
        "parameters": parameters.to_values(),
        "prepare": prepare,
        "explain": explain,
        "generation": generation or {},
    }
    if privacy is not None:
        values["privacy"] = privacy
    return Payload({"X": queries}, values)


def describe(
    federation: Federation, request: Mapping[str, Any] | None, sites: Sequence[str] | None = None, **options: Any
) -> Replies:
    """Schemas of the sites; by randomised labels where labels are not public."""
    if request is None or request["labels"] is None:
        return federation.describe(sites, **options)
    question = Payload(values={"privacy": request})

    def check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
        Schema.from_values(payload.values)

    return federation.ask("describe", question, sites=sites, check=check, **options)


def prepare(
    federation: Federation,
    handle: str,
    parameters: FoldingParameters,
    width: int,
    terms: Terms | None,
    described: Mapping[str, Schema | None],
    min_replies: int | None,
    timeout: float,
) -> Replies:
    """Let sites model their classes. The question is that for scores, of no query: nothing else needs allowing.

    What they model must be what they ``described``, where they did, and released under these ``terms``.
    """

    def check(site: str, payload: Payload) -> None:
        check_scores(payload, 0, parameters.measure)
        if payload.values["temperature"] is not None:
            check_number(float(payload.values["temperature"]), "temperature", above=0)
        for name in ("generation", "machines", "rows"):
            check_count(payload.values[name], name)
        if terms is not None:
            terms.check_told(payload.values["privacy"])
        held, schema = labels_from_values(payload.values["classes"]).tolist(), described[site]
        if schema is not None and (held != list(schema.classes) or payload.values["rows"] != schema.n_rows):
            raise InputError(
                f"the site described {schema.n_rows} rows of classes {list(schema.classes)[:20]}, "
                f"and models {payload.values['rows']} of {held[:20]}"
            )

    empty: FloatArray = np.zeros((0, width))
    request = None
    if terms is not None:
        empty, request = terms.project(empty), terms.request
    question = folding_question(handle, parameters, empty, prepare=True, privacy=request)
    return federation.ask(
        "scores", question, sites=sorted(described), min_replies=min_replies, timeout=timeout, check=check
    )


def collect_machines(
    federation: Federation, model: FoldingModel, sites: Sequence[str], timeout: float = 600.0
) -> dict[str, Bank]:
    """Fetch the machines of sites; all must agree."""
    banks: dict[str, Bank] = {}
    private = model.privacy
    width = model.n_features_in_ if private is None or private.basis is None else private.basis.shape[1]

    def check(site: str, payload: Payload) -> None:
        machines = unpack_machines(payload.arrays)
        member = model.members_[site]
        groups = payload.arrays["groups"]
        if len(machines) != member.machines or groups.shape != (len(machines),):
            raise InputError(f"expected {member.machines} machines with their classes, got {len(machines)}")
        if any(machine.width != width for machine in machines):
            raise InputError(f"machines must have {width} columns")
        if set(groups.tolist()) != set(range(len(member.classes))):
            raise InputError("machines must cover the site's classes")
        if not all(np.isfinite(array).all() for array in payload.arrays.values()):
            raise InputError("machines must hold finite numbers")
        if any(machine.directions.dtype != model.parameters.dtype for machine in machines):
            raise InputError(f"machines must be of {model.parameters.dtype}")
        with single_blas_thread():
            banks[site] = Bank.assemble(machines, groups.tolist(), len(member.classes))

    generation = {site: model.members_[site].generation for site in sites}
    question = Payload(values={"handle": model.handle, "generation": generation})
    federation.ask(
        "machines" if private is None else "released_machines", question, sites=sites, timeout=timeout, check=check
    )
    return banks


def check_scores(payload: Payload, queries: int, measure: str, *, explain: bool = False) -> None:
    """Refuse scores that cannot be: wrong shape or type, not finite, out of the measure's range."""
    held = labels_from_values(payload.values["classes"])
    if len(np.unique(held)) != len(held) or not len(held):
        raise InputError(f"a site must name its classes once each, got {held.tolist()}")
    expected = {"scores": np.float64, **({"batches": np.int32} if explain else {})}
    if set(payload.arrays) != set(expected):
        raise InputError(f"expected arrays {sorted(expected)}, got {sorted(payload.arrays)}")
    for name, kind in expected.items():
        array = payload.arrays[name]
        if array.shape != (queries, len(held)) or array.dtype != kind:
            raise InputError(
                f"{name} must be {kind.__name__} of shape {(queries, len(held))}, got {array.dtype} of {array.shape}"
            )
    values = payload.arrays["scores"]
    if not np.isfinite(values).all():
        raise InputError("scores must be finite")
    top = np.inf if measure == "distance" else 1.0
    if values.size and (values.min() < 0 or values.max() > top):
        raise InputError(f"{measure} scores must be in [0, {top}], got {values.min()} to {values.max()}")


def raise_if_unusable(task: str, replies: Replies, *, everybody: bool) -> None:
    """Raise where a site says that the model is stale, or where ``everybody`` had to answer and somebody did not."""
    stale = [refusal.reason for refusal in replies.missing.values() if refusal.code == "stale"]
    if stale:
        raise StaleModel(stale[0])
    if everybody and replies.missing:
        raise TooFewReplies(task, len(replies) + len(replies.missing), replies)
