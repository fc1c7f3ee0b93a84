"""A fusion over sites: what it chooses, who is left out of what, and how it changes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import kernfed as kf
from kernfed.errors import InputError, MissingSites
from kernfed.federation import Policy
from kernfed.privacy import RecordMoments
from kernfed.site.protocol.task import default_tasks
from oracles.federation import Data, sites_data

HEAD = ("ridge_survey", "ridge_columns", "ridge_trials", "ridge_left_out", "ridge_moments")


def learner(**settings: object) -> kf.FusionLearner:
    return kf.FusionLearner(ridge=kf.RidgeLearner(n_components=60), **settings)  # type: ignore[arg-type]


def left(federation: kf.Federation) -> set[str]:
    """Kinds of information that left the sites."""
    return {entry.information for entry in federation.traffic}


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc", rows=60)


@pytest.fixture
def queries(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return rng.standard_normal((20, 5))


def test_weight_and_temperature_come_from_rows_that_travelled(data: Data, queries: npt.NDArray[np.float64]) -> None:
    with kf.Federation.local(data) as federation:
        model = learner().fit(federation)
        assert model.choice_.how == "rows"
        assert model.choice_.sites == ("a", "b", "c")
        assert model.choice_.rows > 0
        assert left(federation) >= {"rows", "statistics"}
        explained = model.explain(queries)
        assert set(explained.part) <= {"both", "head", "machines", "together"}
        answer = model.answer(queries)
        np.testing.assert_array_equal(answer.labels, explained.labels)
        assert set(answer.site) <= {"a", "b", "c"}
        assert f"{model.exchanges_} exchanges" in str(model)


def test_where_rows_may_not_travel_the_weight_is_the_usual_one(data: Data) -> None:
    policy = Policy(tasks=(*default_tasks(), *HEAD, "ridge_dimension"))
    with kf.Federation.local(data, policies=dict.fromkeys(data, policy)) as federation:
        model = learner().fit(federation)
        assert (model.choice_.how, model.weight_) == ("default", 1.0)
        assert "rows" not in left(federation)


def test_a_site_that_allows_no_sums_is_not_in_the_head_and_is_named(data: Data) -> None:
    policies = {"b": Policy(tasks=default_tasks())}
    with kf.Federation.local(data, policies=policies) as federation:
        with pytest.warns(MissingSites, match="'b'"):
            model = learner().fit(federation)
        assert list(model.headless_) == ["b"]
        assert model.sites == ("a", "b", "c")


def test_where_no_site_allows_sums_the_model_is_machines_alone(
    data: Data, queries: npt.NDArray[np.float64], tmp_path: Path
) -> None:
    policies = dict.fromkeys(data, Policy(tasks=default_tasks()))
    with kf.Federation.local(data, policies=policies, store=tmp_path / "stores") as federation:
        model = learner().fit(federation)
        assert model.ridge is None
        assert "machines alone" in str(model)
        assert model.folding is not None
        np.testing.assert_array_equal(model.predict(queries), model.folding.predict(queries))
        model.save(tmp_path / "model.kfd")
        loaded = kf.load(tmp_path / "model.kfd").connect(federation)
        np.testing.assert_array_equal(loaded.predict_proba(queries), model.predict_proba(queries))


def test_forgetting_is_fitting_anew_with_the_recorded_choices(data: Data) -> None:
    X, y = data["b"]
    ids, gone = np.arange(len(y)), np.array([1, 5, 9])
    kept = ~np.isin(ids, gone)
    with kf.Federation.local(data) as federation:
        model = learner().fit(federation)
        told = model.forget("b", gone.tolist())
        assert told.folding is not None
        assert told.ridge is not None
        assert (told.weight_, told.temperature_) == (model.weight_, model.temperature_)
        again = told.add_rows("b", X[gone], y[gone], gone + 1000)
        np.testing.assert_allclose(again.ridge.weights_, model.ridge.weights_, atol=1e-9)  # type: ignore[union-attr]
    recorded = model.ridge
    assert recorded is not None
    with kf.Federation.local({**data, "b": (X[kept], y[kept], ids[kept])}) as federation:
        head = kf.RidgeLearner(
            n_components=60,
            bandwidth=recorded.parameters.bandwidth,
            regularization=recorded.regularization_,
            scale=None,
        ).fit(federation)
    np.testing.assert_array_equal(told.ridge.weights_, head.weights_)


def test_forgetting_may_choose_anew(data: Data) -> None:
    with kf.Federation.local(data) as federation:
        model = learner().fit(federation)
        anew = model.forget("b", [1, 2], rechoose=True)
        assert anew.choice_.how == "rows"
        with pytest.raises(InputError, match="does not know its learner"):
            model.connect(federation).forget("b", [3], rechoose=True)


def test_a_site_may_leave_and_come(data: Data, queries: npt.NDArray[np.float64]) -> None:
    with kf.Federation.local(data) as federation:
        model = learner().fit(federation)
        before = model.scores(queries)
        fewer = model.forget("c")
        assert fewer.sites == ("a", "b")
        assert sum(fewer.ridge.class_counts_) == 120  # type: ignore[union-attr]
        back = fewer.add_site("c")
        np.testing.assert_allclose(back.scores(queries), before, atol=1e-9)


def test_a_sure_head_answers_without_the_sites(data: Data) -> None:
    with kf.Federation.local(data) as federation:
        model = learner(visit="unsure").fit(federation)
        assert model.visit_.travelled is not None
        assert 0 <= model.visit_.travelled <= 1
        before = federation.traffic.bytes_up
        sure = np.concatenate([X for X, _ in data.values()])
        answer = model.answer(sure)
        asked = answer.site != ""
        assert (~asked).any()
        likely = model.ridge.predict_proba(sure[~asked]).max(axis=1)  # type: ignore[union-attr]
        assert (likely >= model.visit_.threshold - 1e-9).all()
        assert federation.traffic.bytes_up > before
        np.testing.assert_allclose(answer.probabilities.sum(axis=1), 1)  # type: ignore[union-attr]


def test_values_are_learned_by_the_head_alone(rng: np.random.Generator) -> None:
    X = rng.standard_normal((150, 3))
    y = X[:, 0] + np.sin(X[:, 1])
    with kf.Federation.local({"a": (X[:80], y[:80]), "b": (X[80:], y[80:])}) as federation:
        model = kf.FusionLearner(ridge=kf.RidgeLearner(n_components=80), task="regress").fit(federation)
    assert model.folding is None
    assert model.score(X, y) > 0.8


def test_one_release_makes_machines_and_head(
    rng: np.random.Generator, queries: npt.NDArray[np.float64], tmp_path: Path
) -> None:
    data = {name: (np.clip(X / 10, -1, 1), y) for name, (X, y) in sites_data(rng, "ab", rows=300).items()}
    mechanism = RecordMoments(20.0, 1e-5, radius=2.0, dimension=3)
    folding = kf.FoldingLearner(rows_per_class=60, batch_size=60, partition="order", measure="rms", scale=None)
    with kf.Federation.local(data, store=tmp_path) as federation:
        model = kf.FusionLearner(folding, kf.RidgeLearner(n_components=40), privacy=mechanism).fit(federation)
        assert model.privacy is not None
        assert model.ridge is not None
        assert not {"rows", "statistics"} & left(federation)
        assert model.predict(queries).shape == (20,)
    with pytest.raises(InputError, match="no privacy of their own"):
        kf.FusionLearner(
            kf.FoldingLearner(privacy=mechanism, measure="rms", batch_size=100, partition="order", scale=None)
        ).parts()


def test_the_head_may_be_summed_under_masks(rng: np.random.Generator, queries: npt.NDArray[np.float64]) -> None:
    data = sites_data(rng, "abcd", rows=60)
    with kf.Federation.local(data) as federation:
        model = learner(sum="secure").fit(federation)
        assert "masked" in left(federation)
        assert model.ridge is not None
        assert model.choice_.how == "rows"
        assert model.predict(queries).shape == (20,)
    with pytest.raises(InputError, match="sum="):
        kf.FusionLearner(ridge=kf.RidgeLearner(sum="secure")).parts()
