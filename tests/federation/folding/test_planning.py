"""A plan is what is then measured, to the byte."""

from typing import Any

import numpy as np
import pytest

from kernfed.federation import Federation, FoldingLearner
from kernfed.federation.folding import questions as folding_questions
from kernfed.federation.folding.planning import plan_folding
from oracles.federation import sites_data


@pytest.mark.parametrize("names", ["a", "abc", ["Universitätsklinikum", "x y/z", "b"]])
@pytest.mark.parametrize("labels", [(0, 1), ("first", "second", "ü"), (-1.0, 2.0, 1e17), (False, True)])
@pytest.mark.parametrize("queries", [0, 1, 37])
def test_planned_is_measured(rng: np.random.Generator, names: Any, labels: Any, queries: int) -> None:
    data = sites_data(rng, names, rows=50, labels=labels)
    first = next(iter(data))
    X, y = data[first]
    data[first] = (X[y == y[0]], y[y == y[0]])  # a site of one class
    if len(data) == 1:
        data[first] = (X, y)
    learner = FoldingLearner(batch_size=9, measure="rms", partition="order", scale=None)
    with Federation.local(data) as federation:
        plan = plan_folding(learner, federation.schemas(), queries)
    with Federation.local(data) as federation:
        model = learner.fit(federation)
        if queries:
            model.predict(rng.standard_normal((queries, 5)))
        assert plan.to_json() == federation.traffic.to_json()
        assert str(plan) == str(federation.traffic)


@pytest.mark.parametrize(
    "settings",
    [
        {"measure": "distance", "layers": 12, "dtype": "float32", "subspace_dim": 3},
        {"aggregate": "kth", "k": 10, "trusted_classes": "all", "partition": "random"},
    ],
)
@pytest.mark.filterwarnings("ignore::kernfed.errors.UnprotectedClasses")
def test_planned_is_measured_for_other_settings(rng: np.random.Generator, settings: Any) -> None:
    data = sites_data(rng, "abc", rows=300)
    learner = FoldingLearner(**{"batch_size": 5, "measure": "rms", "partition": "order", "scale": None, **settings})
    with Federation.local(data, seed=123456) as federation:
        plan = plan_folding(learner, federation.schemas(), 12, seed=123456)
    with Federation.local(data, seed=123456) as federation:
        learner.fit(federation).scores(rng.standard_normal((12, 5)))
        assert plan.to_json() == federation.traffic.to_json()


def test_many_queries_are_planned_in_the_messages_they_make(rng: np.random.Generator, monkeypatch: Any) -> None:
    monkeypatch.setattr(folding_questions, "_NUMBERS_PER_MESSAGE", 40)
    data, learner = sites_data(rng, "ab"), FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None)
    with Federation.local(data) as federation:
        plan = plan_folding(learner, federation.schemas(), 20)
        federation.traffic._entries.clear()
        learner.fit(federation).predict(rng.standard_normal((20, 5)))
        assert plan.to_json() == federation.traffic.to_json()
        assert {entry.messages for entry in plan if entry.task == "scores"} == {3}


def test_another_caller_is_planned(rng: np.random.Generator) -> None:
    data, learner = sites_data(rng, "ab"), FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None)
    federation = Federation(Federation.local(data).engine, caller="the coordinator of all")
    plan = plan_folding(learner, federation.schemas(), 0, caller="the coordinator of all")
    federation.traffic._entries.clear()
    learner.fit(federation)
    assert plan.to_json() == federation.traffic.to_json()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("width", "layers"), [(5, 1), (60, 3)])
def test_machines_are_planned_at_their_most(rng: np.random.Generator, dtype: str, width: int, layers: int) -> None:
    data = sites_data(rng, "ab", rows=90, width=width)
    learner = FoldingLearner(
        batch_size=15, dtype=dtype, layers=layers, hold="machines", measure="rms", partition="order", scale=None
    )
    with Federation.local(data) as federation:
        plan = {(e.site, e.task): e for e in plan_folding(learner, federation.schemas(), 10)}
    with Federation.local(data) as federation:
        learner.fit(federation)
        for entry in federation.traffic:
            planned = plan.pop((entry.site, entry.task))
            assert planned.information == entry.information
            assert planned.scalars_up == entry.scalars_up
            assert planned.bytes_down == entry.bytes_down
            assert abs(planned.bytes_up - entry.bytes_up) <= 64  # digits in the header of the message
    assert not plan
    same = {name: (np.round(X), y) for name, (X, y) in data.items()}
    same["a"][0][:] = 1.0
    with Federation.local(same) as federation:
        learner.fit(federation)
        scalars = {(e.site, e.task): e.scalars_up for e in federation.traffic}
        for entry in plan_folding(learner, federation.schemas(), 10):
            assert scalars[entry.site, entry.task] <= entry.scalars_up
