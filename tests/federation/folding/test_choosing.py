from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError, MissingSites
from kernfed.federation import Federation, FoldingLearner, Payload, Policy
from kernfed.federation.folding.tasks import choice_question
from kernfed.kahm.choice import candidates
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import ElementLaplace, RecordGaussian
from kernfed.site.protocol.task import default_tasks
from oracles.federation import Data, sites_data

SOME: Any = {"batch_size": 5, "partition": "kmeans"}


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, rows=45)


def test_sites_choose_in_one_exchange_and_the_model_says_what(data: Data, tmp_path: Any) -> None:
    with Federation.local(data, store=tmp_path / "stores") as federation:
        model = FoldingLearner().fit(federation)
        asked = {entry.task: entry.messages for entry in federation.traffic}
        assert asked == {"describe": 1, "folding_choose": 1, "folding_fit": 1}
        chosen = model.chosen
        assert chosen is not None
        assert chosen.sites == ("a", "b", "c")
        assert chosen.rows == 45
        assert len(chosen.right) == len(candidates("auto", "auto", "auto"))
        assert str(chosen.candidate) in str(model)
        assert (model.parameters.batch_size, model.parameters.partition) == chosen.candidate.division
        assert model.parameters.scale is not None
        model.save(tmp_path / "model.kfd")
        again = kf.load(tmp_path / "model.kfd").connect(federation)
        queries = data["a"][0][:7]
        np.testing.assert_array_equal(again.scores(queries), model.scores(queries))
        assert (again.chosen, again.parameters) == (chosen, model.parameters)


def test_machines_here_and_at_the_sites_see_the_same_rows(data: Data) -> None:
    policy = Policy(tasks=("*",))
    with Federation.local(data, policies=dict.fromkeys(data, policy)) as federation:
        at_sites = FoldingLearner(**SOME).fit(federation)
        whole = FoldingLearner(**SOME, hold="machines").fit(federation)
        queries = data["b"][0][:9]
        np.testing.assert_array_equal(whole.scores(queries), at_sites.scores(queries))


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_unit_of_rows_does_not_matter(data: Data, factor: float) -> None:
    queries = np.concatenate([X for X, _ in data.values()])[:60]
    larger = {site: (X * factor, y) for site, (X, y) in data.items()}
    with Federation.local(data) as federation, Federation.local(larger) as other:
        expected = FoldingLearner(**SOME).fit(federation).predict(queries)
        assert (FoldingLearner(**SOME).fit(other).predict(queries * factor) == expected).all()


def test_forgetting_and_adding_keep_the_recorded_choice(data: Data) -> None:
    """What is left is what sites without the row make under the same choice."""
    with Federation.local(data) as federation:
        model = FoldingLearner(batch_size=1000, partition="kmeans").fit(federation)
        queries = data["b"][0][:5]
        before = model.scores(queries)
        smaller = model.forget("a", [3])
        less = smaller.scores(queries)
        assert (smaller.parameters, smaller.chosen) == (model.parameters, model.chosen)
        row = data["a"][0][3:4]
        added = smaller.add_rows("a", row, data["a"][1][3:4])
        assert added.parameters == model.parameters
        np.testing.assert_allclose(added.scores(queries), before, rtol=1e-6)
        assert not np.allclose(less, before, rtol=1e-9)


def test_added_rows_join_the_nearest_batch_of_small_ones(data: Data) -> None:
    with Federation.local(data) as federation:
        model = FoldingLearner(batch_size=5, partition="kmeans", scale="columns").fit(federation)
        before = model.members_["a"].machines
        row, label = data["a"][0][3:4], data["a"][1][3:4]
        added = model.add_rows("a", row, label)
        assert added.members_["a"].machines == before
        assert (added.members_["a"].rows, added.predict(row).tolist()) == (46, label.tolist())


def test_a_site_that_does_not_tell_takes_no_part_in_the_choice_but_in_the_model(data: Data) -> None:
    silent = Policy(tasks=tuple(name for name in default_tasks() if name != "folding_choose"))
    with Federation.local(data, policies={"b": silent}) as federation:
        model = FoldingLearner(**SOME).fit(federation)
        assert model.chosen is not None
        assert model.chosen.sites == ("a", "c")
        assert model.sites == ("a", "b", "c")
    with Federation.local(data, policies=dict.fromkeys(data, silent)) as federation:
        with pytest.warns(MissingSites, match="no site takes part in the choice"):
            model = FoldingLearner().fit(federation)
        assert (model.chosen, model.parameters.scale) == (None, None)
        assert (model.parameters.batch_size, model.parameters.partition) == (1000, "kmeans")


def test_under_privacy_nothing_is_asked_and_units_are_public(data: Data, tmp_path: Any) -> None:
    with Federation.local(data, store=tmp_path / "stores") as federation:
        rows = FoldingLearner(privacy=ElementLaplace(5.0, d=2.0, bounds=(-8.0, 4.0))).fit(federation)
        assert "folding_choose" not in {entry.task for entry in federation.traffic}
        assert (rows.parameters.batch_size, rows.parameters.partition, rows.chosen) == (100, "order", None)
        assert rows.parameters.scale is not None
        assert (rows.parameters.scale.kind, rows.parameters.scale.spread) == ("entries", (8.0,))
        with pytest.raises(InputError, match="under privacy"):
            FoldingLearner(privacy=RecordGaussian(1.0, 1e-5, 3.0), scale="columns").fit(federation)
    guarded = Policy(require_privacy=True, max_record_epsilon=1.0)
    with Federation.local(data, policies=dict.fromkeys(data, guarded)) as federation:
        question = choice_question(FoldingParameters(), candidates("auto", 5, "order"))
        assert len(federation.ask("folding_choose", question, min_replies=0)) == 0


@pytest.mark.parametrize(
    "change", [{"tried": []}, {"tried": [["rows", 1.0, 5, "order"]]}, {"tried": [[None]] * 3}, {"measure": "far"}]
)
def test_a_choice_that_cannot_be_is_refused(data: Data, change: dict[str, Any]) -> None:
    question = choice_question(FoldingParameters(), candidates("auto", 5, "order"))
    with Federation.local(data) as federation:
        wrong = replace(question, values={**question.values, **change})
        refused = federation.ask("folding_choose", wrong, min_replies=0).missing
        assert {refusal.code for refusal in refused.values()} == {"bad question"}


def test_a_site_that_says_what_cannot_be_is_not_heard(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernfed.federation.folding import tasks as choosing

    honest = choosing._read_answer

    def lied(payload: Payload, *given: Any) -> Any:
        arrays = {**payload.arrays, "rows": payload.arrays["rows"] + 1}
        return honest(Payload(arrays, payload.values), *given)

    monkeypatch.setattr(choosing, "_read_answer", lied)
    with Federation.local(data) as federation, pytest.warns(MissingSites, match="no site takes part"):
        FoldingLearner(**SOME).fit(federation)
