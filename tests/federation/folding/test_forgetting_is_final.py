"""A forgotten row does not come back: not by a question that was waiting, not from a file that a kill left."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import RecordGaussian
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question

ROW = np.array([3.141592653589793, -2.718281828459045, 1.4142135623730951])
X = np.concatenate([ROW[None], np.random.default_rng(5).standard_normal((11, 3))])
Y = np.arange(12) % 2


def site_at(path: Path) -> Site:
    return Site("a", X, Y, store=SiteStore(path), policy=Policy.open())


def ask(site: Site, task: str, payload: Payload) -> Reply:
    question = Question("run", np.random.default_rng().bytes(8).hex(), task, payload)
    return decode_reply(site.answer(encode_question(question)), question, "a")


def training(seed: int, recipe: Any = None) -> tuple[str, Payload]:
    parameters = FoldingParameters(
        batch_size=1, seed=seed, measure="rms", partition="order"
    )  # machines of one row hold it verbatim
    handle = folding_handle(parameters, recipe)
    return "folding_fit", Payload(values={"handle": handle, "parameters": parameters.to_values(), "privacy": recipe})


def factoring() -> tuple[str, Payload]:
    parameters = RidgeParameters(width=3, features="given", n_components=1, classes=(0, 1), fit_intercept=False)
    return "ridge_start", Payload(values={"parameters": parameters.to_values()})


def traces(path: Path) -> list[str]:
    """Files that hold the row's bytes."""
    return [
        str(place)
        for place in path.rglob("*")
        if place.is_file() and any(number.tobytes() in place.read_bytes() for number in ROW)
    ]


def test_the_row_can_be_seen_where_it_was_not_forgotten(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    assert ask(site, *training(0)).refusal is None
    assert len(traces(tmp_path)) == 1


@pytest.mark.parametrize(
    "question",
    [training(0), training(0, Recipe(RecordGaussian(3.0, 1e-5, 5.0)).to_values()), factoring()],
    ids=["rows", "released", "ridge"],
)
def test_a_question_that_waits_while_another_process_forgets_does_not_see_the_row(
    tmp_path: Path, question: tuple[str, Payload]
) -> None:
    trainer, other = site_at(tmp_path), site_at(tmp_path)
    assert ask(trainer, *training(7)).refusal is None  # it has the rows in memory
    replies: list[Reply] = []
    waiting = threading.Thread(target=lambda: replies.append(ask(trainer, *question)))
    with other.store.locked():
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        other.forget_rows(np.array([0]), (training(7)[1].values["handle"],))
        other.store.delete("folding", training(7)[1].values["handle"])
    waiting.join(60)
    assert replies[0].refusal is None
    assert traces(tmp_path) == []
    if "rows" in replies[0].payload.values:
        assert replies[0].payload.values["rows"] == 11


def test_forgetting_leaves_no_trace_in_any_file_of_the_store(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    for question in (training(0), training(1), factoring()):
        assert ask(site, *question).refusal is None
    added = ask(site, "add_rows", Payload({"X": ROW[None] * 1.0}, {"y": {"dtype": "<i8", "labels": [0]}}))
    assert added.refusal is None
    assert len(traces(tmp_path)) >= 3
    ids = np.array([0, int(added.payload.arrays["ids"][0])])
    assert ask(site, "forget_rows", Payload({"ids": ids})).refusal is None
    assert traces(tmp_path) == []
