"""A dry run: what would leave each site, to the byte, before anything is sent."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernfed.federation.folding import FoldingLearner, folding_question
from kernfed.federation.message import Payload, Question, Reply, digest, encode_question, encode_reply
from kernfed.federation.schema import Schema
from kernfed.federation.traffic import Traffic
from kernfed.files import labels_to_values
from kernfed.kahm.batches import batch_count
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.packing import machine_size


def plan_folding(learner: FoldingLearner, schemas: Mapping[str, Schema], queries: int = 1) -> Traffic:
    """Traffic of training and of then scoring ``queries`` queries, without asking anybody.

    The very messages are made, with zeros in them. Machines (``hold="machines"``) are counted at the size they have
    when no two rows are alike, which is the most they can have.
    """
    traffic, parameters = Traffic(), learner.parameters
    handle = digest(parameters.to_values())
    width = next(iter(schemas.values())).width
    generation = dict.fromkeys(schemas, 1)
    prepare = folding_question(handle, parameters, np.zeros((0, width)), prepare=True)
    scores = folding_question(handle, parameters, np.zeros((queries, width)), generation=generation)
    fetch = Payload(values={"handle": handle, "generation": generation})
    for site, schema in sorted(schemas.items()):
        classes = {"classes": labels_to_values(schema.labels)}
        batches = sum(batch_count(count, parameters.batch_size) for count in schema.counts)
        temperature = 0.1234567890123456 if len(schema.classes) > 1 else None
        prepared = {**classes, "generation": 1, "machines": batches, "rows": schema.n_rows, "temperature": temperature}
        nothing, found = (np.zeros((count, len(schema.classes))) for count in (0, queries))
        _note(traffic, site, "describe", "schema", Payload(), Payload(values=schema.to_values()))
        _note(traffic, site, "scores", "scores", prepare, Payload({"scores": nothing}, prepared))
        if learner.hold == "machines":
            _note(traffic, site, "machines", "rows", fetch, Payload(_machine_arrays(parameters, schema), classes))
        elif queries:
            _note(traffic, site, "scores", "scores", scores, Payload({"scores": found}, classes))
    return traffic


def _machine_arrays(parameters: FoldingParameters, schema: Schema) -> dict[str, Any]:
    """One array of the size that the machines of a site have together."""
    numbers = 0
    for count in schema.counts:
        parts = np.array_split(np.arange(count), batch_count(count, parameters.batch_size))
        sizes = [machine_size(len(part), schema.width, parameters.layers, parameters.subspace_dim) for part in parts]
        numbers += sum(sizes)
    return {"machines": np.zeros(numbers, dtype=parameters.dtype)}


def _note(traffic: Traffic, site: str, name: str, information: str, question: Payload, answer: Payload) -> None:
    """Add one exchange, at the size it will have."""
    asked = Question("0" * 16, "0" * 24, name, question)
    reply = Reply(site, asked.run, asked.id, name, digest(question.values), information, answer)
    down, up = len(encode_question(asked)), len(encode_reply(reply))
    traffic.add(site, name, information, down=down, up=up, scalars=answer.scalars)
