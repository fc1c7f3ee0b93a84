"""What is asked of sites that hold machines of classes, and what an answer must look like to be taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError, StaleModel, TooFewReplies
from kernfed.federation.program import Ask, Program
from kernfed.files import labels_from_values
from kernfed.kahm.bank import Bank
from kernfed.kahm.model import FoldingModel, FoldingParameters
from kernfed.kahm.model_file import unpack_machines
from kernfed.promise import Terms
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.traffic import Replies

#: Queries per message, in numbers: memory stays bounded and every message far below what transports allow.
_NUMBERS_PER_MESSAGE = 8_000_000


@dataclass(frozen=True)
class Training:
    """What sites are asked to make: machines under a handle, with these parameters, released under these terms."""

    handle: str
    parameters: FoldingParameters
    terms: Terms | None = None

    @property
    def request(self) -> Mapping[str, Any] | None:
        """How rows are to be released; None where they are taken as they are."""
        return None if self.terms is None else self.terms.request

    def question(self) -> Payload:
        """Payload of the task "folding_fit"."""
        parameters = self.parameters.to_values()
        return Payload(values={"handle": self.handle, "parameters": parameters, "privacy": self.request})

    def check(self, payload: Payload, described: Schema | None) -> None:
        """Refuse an answer that cannot be, or that is not of what the site ``described``, where it did."""
        values, held = payload.values, check_held(payload)
        if held != sorted(held):  # as its machines are
            raise InputError(f"a site must name its classes in their order, got {held[:20]}")
        if payload.arrays:
            raise InputError(f"expected no arrays, got {sorted(payload.arrays)}")
        if values["temperature"] is not None:
            check_number(float(values["temperature"]), "temperature", above=0)
        for name in ("generation", "machines", "rows"):
            check_count(values[name], name)
        if self.terms is not None:
            self.terms.check_told(values["privacy"])
        if described is not None and (held != list(described.classes) or values["rows"] != described.n_rows):
            raise InputError(
                f"the site described {described.n_rows} rows of classes {list(described.classes)[:20]}, "
                f"and models {values['rows']} of {held[:20]}"
            )
        counts = values.get("counts")
        if counts is not None and (
            len(counts) != len(held) or sum(check_count(n, "counts") for n in counts) != values["rows"]
        ):
            told = f"the {values['rows']} rows of {len(held)} classes, got {counts[:20]}"
            raise InputError(f"counts must add up to {told}")


def query_chunks(queries: int, width: int) -> list[tuple[int, int]]:
    """First and last of the queries of each message."""
    size = max(1, _NUMBERS_PER_MESSAGE // width)
    return [(start, min(start + size, queries)) for start in range(0, queries, size)] or [(0, 0)]


def scores_question(
    handle: str, queries: FloatArray, generation: Mapping[str, int], *, explain: bool = False
) -> Payload:
    """Payload of the task "scores": queries X, and which state of which machines is meant."""
    return Payload({"X": queries}, {"handle": handle, "explain": explain, "generation": dict(generation)})


def schema_question(request: Mapping[str, Any] | None) -> tuple[str, Payload]:
    """Task and payload by which sites describe their data: by randomised labels where labels are not public."""
    if request is None or request["labels"] is None:
        return "describe", Payload()
    return "folding_schema", Payload(values={"privacy": request})


def ask_schemas(
    request: Mapping[str, Any] | None, sites: Sequence[str] | None = None, min_replies: int | None = None
) -> Ask:
    """The ask for the schemas of the sites."""

    def check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
        Schema.from_values(payload.values)

    task, question = schema_question(request)
    return Ask(task, question, sites, min_replies, check)


def ask_training(training: Training, described: Mapping[str, Schema | None], min_replies: int | None = None) -> Ask:
    """The ask that lets sites model their classes, which must be those that they ``described``."""

    def check(site: str, payload: Payload) -> None:
        training.check(payload, described[site])

    return Ask("folding_fit", training.question(), sorted(described), min_replies, check)


def collect_machines(
    model: FoldingModel, sites: Sequence[str], min_replies: int | None = None
) -> Program[tuple[dict[str, Bank], dict[str, str]]]:
    """Machines of the sites that send theirs, ``min_replies`` at least (all without it), and why others did not."""
    banks: dict[str, Bank] = {}
    width = model.n_features_in_ if model.basis is None else model.basis.shape[1]

    def check(site: str, payload: Payload) -> None:
        machines = unpack_machines(payload.arrays)
        member = model.members_[site]
        groups = payload.arrays["groups"]
        if len(machines) != member.machines or groups.shape != (len(machines),):
            raise InputError(f"expected {member.machines} machines with their classes, got {len(machines)}")
        if any(machine.width != width for machine in machines):
            raise InputError(f"machines must have {width} columns")
        classes = len(member.classes) + len(member.left_out)
        if set(groups.tolist()) != set(range(classes)):
            raise InputError("machines must cover the site's classes")
        if not all(np.isfinite(array).all() for array in payload.arrays.values()):
            raise InputError("machines must hold finite numbers")
        if any(machine.directions.dtype != model.parameters.dtype for machine in machines):
            raise InputError(f"machines must be of {model.parameters.dtype}")
        with single_blas_thread():
            banks[site] = Bank.assemble(machines, groups.tolist(), classes)

    generation = {site: model.members_[site].generation for site in sites}
    question = Payload(values={"handle": model.handle, "generation": generation})
    task = "machines" if model.privacy is None else "released_machines"
    replies = yield Ask(task, question, sites, min_replies, check)
    return banks, {site: refusal.reason for site, refusal in replies.missing.items()}


def check_held(payload: Payload) -> list[Any]:
    """The classes that a site holds, each once."""
    held = labels_from_values(payload.values["classes"])
    if len(np.unique(held)) != len(held) or not len(held):
        raise InputError(f"a site must name its classes once each, got {held.tolist()[:20]}")
    return list(held.tolist())


def check_scores(payload: Payload, queries: int, measure: str, *, explain: bool = False) -> None:
    """Refuse scores that cannot be: wrong shape or type, not finite, out of the measure's range."""
    held = check_held(payload)
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
    """Raise where ``everybody`` had to answer and somebody did not, or where all who did not say that it is stale.

    Where fewer are enough, a site that says so is missing as any other: one of many must not stop the rest.
    """
    stale = [refusal.reason for refusal in replies.missing.values() if refusal.code == "stale"]
    if stale and (everybody or not len(replies)):
        raise StaleModel(stale[0])
    if everybody and replies.missing:
        raise TooFewReplies(task, len(replies) + len(replies.missing), replies)
