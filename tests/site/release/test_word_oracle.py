"""Whether a word is in the data cannot be read off charges, sizes or refusals, by whichever mechanism one asks.

The asker prepares the site's rows by a plan that marks one word, asks for a release, and does both again with a word
that nobody has. Under required privacy both cost the same, whether or not a row holds the word.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.data.columns import raw_table
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_plans import CategoryPlan
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.files import Record
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels.features import FourierFeatures
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordHistogram,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.values import mechanism_to_values
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Question, decode_reply, digest, encode_question
from kernfed.site.release.books import charges, spent
from kernfed.site.release.kept import FOLDER
from kernfed.testing.exchange import whole_question
from kernfed.testing.statistics import Coverage

N = 60
LABELS = np.arange(N) % 2
#: What a site allows by default, preparations, and the releases that are tried here.
RELEASES = ("folding_fit", "ridge_release", "personal_release", "test_model:coverage:noisy")
TASKS = tuple(dict.fromkeys((*Policy().tasks, "prepare", *RELEASES)))
BY_ROW = {
    "gaussian": (RecordGaussian(0.1, 1e-5, 2.0), None),
    "laplace": (ElementLaplace(0.1, 1.0, (0.0, 1.0)), None),
    "staircase": (ElementStaircase(0.1, 1.0, (0.0, 1.0)), None),
    "labels": (RecordGaussian(0.1, 1e-5, 2.0), RandomizedLabels(0.1, (0, 1))),
    "moments": (RecordMoments(0.1, 1e-5, 1, radius=2.0), None),
}


def fit(name: str) -> tuple[str, Payload]:
    mechanism, labels = BY_ROW[name]
    recipe = Recipe(mechanism, labels=labels, rows_per_class=6).to_values()
    parameters = FoldingParameters(batch_size=6, measure="rms", partition="order", subspace_dim=1)
    values = {"handle": folding_handle(parameters, recipe), "parameters": parameters.to_values(), "privacy": recipe}
    return "folding_fit", Payload(values=values)


def ridge() -> tuple[str, Payload]:
    parameters = RidgeParameters(1, "given", classes=(0, 1)).to_values()
    return "ridge_release", _asked(RecordRidge(0.1, 1e-5, 1.0, 1.0), parameters=parameters)


def personal() -> tuple[str, Payload]:
    kernel = EmbeddingKernel(1, 2, columns="features").to_values()
    mechanism = RecordEmbedding(0.1, 1e-5, FourierFeatures(1, 4, 1.0, kind="paired"))
    return "personal_release", _asked(
        mechanism, problem=Problem(1, task="classify", classes=(0, 1)).to_values(), kernel=kernel
    )


def conform() -> tuple[str, Payload]:
    with kf.Federation.local({"b": (np.linspace(-1, 1, N)[:, None], LABELS)}) as federation:
        model: Any = kf.RidgeLearner("exact", features="given", regularization=1.0).fit(federation)
        question = whole_question(model, federation, Coverage(2))
    asked = _asked(RecordHistogram(0.1, 1e-5)).values
    return "test_model", Payload(question.arrays, {**question.values, **asked})


def _asked(mechanism: Any, **values: Any) -> Payload:
    return Payload(values={"privacy": mechanism_to_values(mechanism), **values})


QUESTIONS: dict[str, Callable[[], tuple[str, Payload]]] = {
    **{name: lambda name=name: fit(name) for name in BY_ROW},  # type: ignore[misc]
    "ridge": ridge,
    "personal": personal,
    "conform": conform,
}


def answer(site: Site, task: str, payload: Payload, number: int) -> Any:
    """What a reply tells that is no noise: its size, or the refusal; what was charged, and what was spent."""
    question = Question("run", f"{number:016x}", task, payload)
    data = site.answer(encode_question(question))
    refusal = decode_reply(data, question, "a").refusal
    assert refusal is None, refusal
    return len(data), charges(site), spent(site)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_charges_are_the_same_whether_or_not_a_row_holds_the_word(kind: str) -> None:
    task, payload = QUESTIONS[kind]()
    told = []
    for held in ("measles", "nothing"):
        table = raw_table({"diagnosis": [held if row < 3 else "nothing" for row in range(N)]}, source="a table")
        site = Site("a", table, LABELS, policy=Policy(TASKS, max_record_epsilon=9.0), holdout=0.5)
        seen = []
        for number, word in enumerate(("nobody has it", "measles", "nobody has it", "measles", "nor this")):
            plan = CategoryPlan("diagnosis", values=(word,), other=False)
            prepare = Payload(values={"preparation": Preparation((plan,)).to_values()})
            seen.append((answer(site, "prepare", prepare, 2 * number), answer(site, task, payload, 2 * number + 1)))
        told.append(seen)
    assert told[0] == told[1]
    first = 2 if kind == "labels" else 1  # labels are the same under every preparation, and drawn once
    assert [after[1] for _, after in told[0]] == [first, first + 1, first + 1, first + 1, first + 2]


# Stores of earlier versions -----------------------------------------------------------------------------------------


def test_a_release_that_an_earlier_version_named_by_its_rows_is_not_answered_from(tmp_path: Path) -> None:
    """Whether it is of the rows there are now would follow from the rows: charged again, and deleted by forgetting."""
    X = np.linspace(-1, 1, N)[:, None]
    site = Site("a", X, LABELS, store=SiteStore(tmp_path), policy=Policy(TASKS, max_record_epsilon=9.0))
    task, payload = ridge()
    answer(site, task, payload, 1)
    (name,) = site.store.names(FOLDER)
    record = site.store.read(FOLDER, name)
    assert record is not None
    mechanism = mechanism_to_values(RecordRidge(0.1, 1e-5, 1.0, 1.0))
    key = digest(replace(RidgeParameters(1, "given", classes=(0, 1)), regularization=(1.0,)).to_values())
    earlier = digest({"mechanism": mechanism, "key": key, "data": site.rows().digest})
    values = {name: value for name, value in record.values.items() if name != "data"}
    assert earlier != name
    site.store.write(Record(record.arrays, values), FOLDER, earlier)
    site.store.delete(FOLDER, name)
    assert answer(site, task, payload, 2)[1] == 2
    assert set(site.store.names(FOLDER)) == {name, earlier}
    site.as_owner("forget_rows", Payload({"ids": np.array([3])}))
    assert site.store.names(FOLDER) == []
