"""A dry run: what would leave each site, to the byte, before anything is sent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kernfed.federation.folding.choosing import choice_answer, choice_question
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.questions import Training, query_chunks, schema_question, scores_question
from kernfed.files import labels_to_values
from kernfed.kahm.choice import USUAL_UNIT, Candidate, batch_count
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.model_file import machine_size
from kernfed.kahm.spectrum import MAX_SUBSPACE_DIM
from kernfed.kernels.rows import Scaling
from kernfed.site.protocol.message import Payload, Question, Reply, digest, encode_question, encode_reply
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.task import find_task
from kernfed.site.protocol.traffic import Traffic


def plan_folding(
    learner: FoldingLearner, schemas: Mapping[str, Schema], queries: int = 1, *, seed: int = 0, caller: str = "local"
) -> Traffic:
    """Traffic of training and of then scoring ``queries`` queries, without asking anybody.

    The very messages are made, with zeros in them: with ``hold="sites"`` the sizes are exact for a federation of this
    ``seed`` and ``caller`` (k-means may leave a cluster empty and need a digit less). Machines (``hold="machines"``)
    are counted at the size they have when no two rows are alike, which is the most they can have. Where labels are
    randomised, how many rows a class will have is not known, and sizes are about right. What sites have still to choose
    ("auto") is counted at the most it can come to.
    """
    traffic, recipe = Traffic(), learner.recipe()
    columns = next(iter(schemas.values())).width
    terms, basis = (None, None) if recipe is None else (recipe.terms(columns), recipe.basis(columns))
    width = columns if basis is None else basis.shape[1]
    request = None if terms is None else terms.request
    tried = learner.candidates() if recipe is None else ()
    parameters = _largest(learner, tried, columns, seed)
    if recipe is not None:
        parameters = learner.released_parameters(recipe, columns, seed)
    training = Training(folding_handle(parameters, request), parameters, terms)
    generation = dict.fromkeys(schemas, 1)
    asked = [stop - start for start, stop in query_chunks(queries, width)] if queries else []
    for site, schema in sorted(schemas.items()):
        note = partial(_note, traffic, site, caller)
        counts = schema.counts if recipe is None or recipe.by_row else (recipe.rows_per_class,) * len(schema.counts)
        note(*schema_question(request), Payload(values=schema.to_values()))
        if learner.undecided:
            note(
                "folding_choose",
                choice_question(learner.parameters(seed), tried),
                choice_answer(len(tried), columns, schema),
            )
        note("folding_fit", training.question(), _trained(training, schema, counts))
        classes = {"classes": labels_to_values(schema.labels)}
        if learner.hold == "machines":
            name = "machines" if recipe is None else "released_machines"
            question = Payload(values={"handle": training.handle, "generation": generation})
            sizes = {one.batch_size for one in tried} or {parameters.batch_size}
            sent = [_machine_arrays(replace(parameters, batch_size=size), counts, width) for size in sorted(sizes)]
            largest = max(sent, key=lambda arrays: sum(array.nbytes for array in arrays.values()))
            note(name, question, Payload(largest, classes))
            continue
        for count in asked:
            question = scores_question(training.handle, np.zeros((count, width)), generation)
            note("scores", question, Payload({"scores": np.zeros((count, len(schema.classes)))}, classes))
    return traffic


def _largest(learner: FoldingLearner, tried: Sequence[Candidate], width: int, seed: int) -> FoldingParameters:
    """Parameters that take most room: the longest numbers, columns before entries, and most machines."""
    if not learner.undecided:
        return learner.parameters(seed)
    smallest = min(tried, key=lambda one: (one.batch_size, -len(one.partition)))
    number = -1.2345678901234567e-100
    scales = {one.scale for one in tried}
    scale = None if scales == {None} else Scaling.by(-number, -number)
    if "columns" in scales:
        scale = Scaling("columns", USUAL_UNIT, (number,) * width, (-number,) * width)
    return learner.parameters(seed, smallest, scale)


def _trained(training: Training, schema: Schema, counts: Sequence[int]) -> Payload:
    """A site's answer to a training, of the size it will have."""
    pair = [f"{1.0:.16e}"] * 2
    about: dict[str, Any] = {
        "classes": labels_to_values(schema.labels),
        "generation": 1,
        "machines": sum(batch_count(count, training.parameters.batch_size) for count in counts),
        "rows": schema.n_rows,
        "temperature": f"{1.0:.16e}" if max(counts) > 1 else None,
    }
    if training.terms is None:
        about["counts"] = list(counts)
    else:
        about["privacy"] = {**dict.fromkeys(("element", "record", "spent"), pair), "charges": [f"{1:016d}"]}
    return Payload(values=about)


def _machine_arrays(parameters: FoldingParameters, counts: Sequence[int], width: int) -> dict[str, Any]:
    """Arrays of the size that the machines of a site have together, as ``pack_machines`` makes them."""
    rows = [
        len(part)
        for count in counts
        for part in np.array_split(np.arange(count), batch_count(count, parameters.batch_size))
    ]
    numbers = sum(machine_size(n, width, parameters.layers, parameters.subspace_dim) for n in rows)
    dims = [min(parameters.subspace_dim or MAX_SUBSPACE_DIM, width, n - 1) for n in rows]
    layers = sum(max(1, min(parameters.layers, dim)) for dim in dims)
    nothing, kind = np.zeros(0), np.dtype(parameters.dtype)
    return {
        "shapes": np.zeros((len(rows), 5), dtype=np.int64),
        "groups": np.zeros(len(rows), dtype=np.int64),
        "mean": np.zeros((len(rows), width)),
        "regularization": np.zeros(layers),
        "image": np.zeros(numbers - len(rows) * width, dtype=kind),  # and what the next three hold
        "directions": nothing.astype(kind),
        "scores": nothing.astype(kind),
        "exponent": nothing.astype(kind),
    }


def _note(traffic: Traffic, site: str, caller: str, name: str, question: Payload, answer: Payload) -> None:
    """Add one exchange, at the size it will have."""
    known = find_task(name)
    assert known is not None
    asked = Question("0" * 16, "0" * 24, name, question, caller)
    reply = Reply(site, asked.run, asked.id, name, digest(question.values), known.leaves, answer)
    down, up = len(encode_question(asked)), len(encode_reply(reply))
    traffic.add(site, name, known.leaves, down=down, up=up, scalars=answer.scalars)
