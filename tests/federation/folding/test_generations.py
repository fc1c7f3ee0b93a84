"""Generations side by side: a training kills no model in use, and what is forgotten is forgotten in all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import StaleModel
from kernfed.federation import Federation, FoldingLearner, Payload, Policy, Site, SiteStore
from kernfed.federation.folding.generations import kept_models
from kernfed.federation.folding.machines import read_machines
from kernfed.site.store import list_models
from oracles.federation import files_with_row

#: Choices that do not depend on the rows, so that all trainings have one handle.
FIXED: dict[str, Any] = {"scale": None, "partition": "kmeans"}
LEARNER = FoldingLearner(batch_size=5, **FIXED)


@pytest.fixture
def rows(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """More rows than a site has at first, with ids that are no places in a table."""
    return rng.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) * 3 + 7


def sites(store: Path, X: Any, y: Any, ids: Any, **policy: Any) -> Federation:
    site = Site("a", X, y, ids=ids, store=SiteStore(store), policy=Policy(("*",), **policy))
    return Federation.local({"a": site})


def trained(store: Path, X: Any, y: Any, ids: Any, **policy: Any) -> Any:
    with sites(store, X, y, ids, **policy) as federation:
        model = LEARNER.fit(federation)
        return model, model.scores(X[:5])


def answers(model: Any, store: Path, X: Any, y: Any, ids: Any, **policy: Any) -> Any:
    with sites(store, X, y, ids, **policy) as federation:
        return model.connect(federation).scores(X[:5])


@pytest.mark.parametrize("named", [True, False])
def test_a_training_on_more_rows_keeps_the_model_in_use(rows: Any, tmp_path: Path, named: bool) -> None:
    X, y, ids = rows[0], rows[1], rows[2] if named else np.arange(40)
    model, scores = trained(tmp_path / "s", X[:30], y[:30], ids[:30])
    model.save(tmp_path / "old.kfd")
    newer, others = trained(tmp_path / "s", X, y, ids)
    assert newer.members_["a"].generation == 2
    assert (others != scores).any()
    np.testing.assert_array_equal(answers(newer, tmp_path / "s", X, y, ids), others)
    rolled_back = kf.load(tmp_path / "old.kfd")
    np.testing.assert_array_equal(answers(rolled_back, tmp_path / "s", X, y, ids), scores)


def test_a_site_keeps_as_many_trainings_as_its_policy_says(rows: Any, tmp_path: Path) -> None:
    models = []
    for count in (20, 25, 30, 35):
        part = [column[:count] for column in rows]
        models.append(trained(tmp_path, *part, keep_models=2)[0])
    kept = kept_models(SiteStore(tmp_path))
    assert [(entry.generation, entry.rows) for entry in kept] == [(4, 35), (3, 30)]
    for model in models[2:]:
        answers(model, tmp_path, *rows, keep_models=2)
    for model in models[:2]:
        with pytest.raises(StaleModel, match="has changed since this model was made"):
            answers(model, tmp_path, *rows, keep_models=2)


def test_a_corrected_table_keeps_the_model_where_rows_have_ids(rows: Any, tmp_path: Path) -> None:
    X, y, ids = rows
    model, scores = trained(tmp_path / "named", X, y, ids)
    trained(tmp_path / "named", X + 1.0, y, ids)
    np.testing.assert_array_equal(answers(model, tmp_path / "named", X, y, ids), scores)
    places = np.arange(40)  # which row it was nobody can tell
    model, _ = trained(tmp_path / "numbered", X, y, places)
    trained(tmp_path / "numbered", X + 1.0, y, places)
    with pytest.raises(StaleModel):
        answers(model, tmp_path / "numbered", X, y, places)


def test_a_row_taken_out_of_the_table_lives_on_in_no_machine(rows: Any, tmp_path: Path) -> None:
    X, y, ids = rows
    with sites(tmp_path, X, y, ids) as federation:
        model = FoldingLearner(batch_size=1, **FIXED).fit(federation)
    assert files_with_row(tmp_path, X[4]) != []
    stays = np.arange(40) != 4
    with sites(tmp_path, X[stays], y[stays], ids[stays]) as federation:
        FoldingLearner(batch_size=2, **FIXED).fit(federation)  # under another handle, even
        with pytest.raises(StaleModel):
            model.connect(federation).predict(X)
    assert files_with_row(tmp_path, X[4]) == []


def test_rows_are_forgotten_in_every_generation(rows: Any, tmp_path: Path) -> None:
    X, y, ids = rows
    single = FoldingLearner(batch_size=1, **FIXED)  # a machine of one row holds it as it is
    with sites(tmp_path / "s", X[:30], y[:30], ids[:30]) as federation:
        first = single.fit(federation)
    with sites(tmp_path / "s", X, y, ids) as federation:
        second = single.fit(federation)
        assert len(files_with_row(tmp_path, X[4])) == 2
        third = second.forget("a", rows=[int(ids[4])])
        assert files_with_row(tmp_path, X[4]) == []
        with pytest.raises(StaleModel):
            second.predict(X)
        assert third.members_["a"].rows == 39
        kept = read_machines(federation.engine.site("a"), first.handle, 1)  # type: ignore[attr-defined]
        assert kept is not None
        assert sorted(kept.ids.tolist()) == sorted(set(ids[:30].tolist()) - {int(ids[4])})
        stays = np.arange(30) != 4
        scratch = single.fit(Federation.local({"a": (X[:30][stays], y[:30][stays], ids[:30][stays])}))
        np.testing.assert_array_equal(first.connect(federation).scores(X), scratch.scores(X))
    np.testing.assert_array_equal(answers(first, tmp_path / "s", X, y, ids), scratch.scores(X[:5]))


def test_an_earlier_generation_of_other_values_ends_when_a_row_is_forgotten(rows: Any, tmp_path: Path) -> None:
    """Its machines cannot be fitted again: the site has other values now."""
    X, y, ids = rows
    model, _ = trained(tmp_path, X, y, ids)
    newer, _ = trained(tmp_path, X + 1.0, y, ids)
    with sites(tmp_path, X + 1.0, y, ids) as federation:
        newer.connect(federation).forget("a", rows=[int(ids[4])])
        with pytest.raises(StaleModel):
            model.connect(federation).predict(X)
    assert [entry.generation for entry in kept_models(SiteStore(tmp_path))] == [3]


def test_another_process_does_not_score_from_memory_what_was_forgotten(rows: Any, tmp_path: Path) -> None:
    X, y, ids = rows
    with sites(tmp_path, X[:30], y[:30], ids[:30]) as federation:
        first = LEARNER.fit(federation)
    with sites(tmp_path, X, y, ids) as one, sites(tmp_path, X, y, ids) as other:
        LEARNER.fit(one)
        before = first.connect(other).scores(X)  # they are in the memory of the other one now
        one.engine.site("a").as_owner(  # type: ignore[attr-defined]
            "forget_rows", Payload({"ids": ids[4:5]})
        )
        after = first.connect(other).scores(X)
        assert (before != after).any()
        np.testing.assert_array_equal(after, first.connect(one).scores(X))


def test_forgetting_a_site_ends_all_generations(rows: Any, tmp_path: Path) -> None:
    X, y, ids = rows
    first, _ = trained(tmp_path, X[:30], y[:30], ids[:30])
    trained(tmp_path, X, y, ids)
    site = Site("a", X, y, ids=ids, store=SiteStore(tmp_path), policy=Policy(("*",)))
    site.as_owner("forget_model", Payload(values={"handle": first.handle}))
    assert site.store.names("folding") == []


def test_what_is_kept_says_when_and_for_whom(rows: Any, tmp_path: Path) -> None:
    model, _ = trained(tmp_path, *rows)
    (kept,) = list_models(SiteStore(tmp_path))
    assert (kept.method, kept.handle, kept.generation, kept.rows) == ("folding", model.handle, 1, 40)
    assert (kept.asked_by, kept.private) == ("local (said)", False)
    assert kept.made.startswith("20")
    (tmp_path / "folding" / f"{model.handle}.safetensors").write_bytes(b"damaged")
    (damaged,) = list_models(SiteStore(tmp_path))
    assert (damaged.handle, damaged.generation, damaged.rows) == (model.handle, 0, None)
