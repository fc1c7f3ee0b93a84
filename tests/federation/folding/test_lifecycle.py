"""Sites and rows come and go, exactly: what remains is what training without them would have given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import MissingSites, SchemaMismatch, StaleModel, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, LocalEngine, Site
from kernfed.federation.folding.machines import fit_batches, read_machines
from kernfed.kahm.model import FoldingModel
from oracles.federation import Data, files_with_row, sites_data

LEARNER = FoldingLearner(batch_size=8, measure="rms", partition="order", scale=None)


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc", rows=50)


@pytest.fixture
def queries(rng: np.random.Generator) -> Any:
    return sites_data(rng, "q", rows=25)["q"][0]


@pytest.fixture
def federation(data: Data, tmp_path: Path) -> Federation:
    return Federation.local(data, store=tmp_path / "store")


def site_of(federation: Federation, name: str) -> Site:
    engine = federation.engine
    assert isinstance(engine, LocalEngine)
    return engine.site(name)


def same(first: FoldingModel, second: FoldingModel, queries: Any) -> None:
    """Equal to the bit in everything a user sees."""
    assert first.classes_.tolist() == second.classes_.tolist()
    assert first.sites == second.sites
    assert first.temperature_ == second.temperature_
    np.testing.assert_array_equal(first.scores_by_site(queries), second.scores_by_site(queries))
    np.testing.assert_array_equal(first.predict_proba(queries), second.predict_proba(queries))


def rebuilt(federation: Federation, model: FoldingModel, queries: Any) -> Any:
    """Scores by site of entries built from scratch on the sites' rows, with the membership they remember."""
    found = np.full((len(model.sites), len(queries), len(model.classes_)), 1.0)
    for row, name in enumerate(model.sites):
        site = site_of(federation, name)
        kept = read_machines(site, model.handle)
        assert kept is not None
        scratch = fit_batches(site.rows(), kept.parameters, kept.labels.tolist(), list(kept.batches))
        columns = np.searchsorted(model.classes_, scratch.classes)
        found[row][:, columns] = scratch.bank().scores(queries, model.parameters.measure).values
    return found


# Rows --------------------------------------------------------------------------------------------------------------


def test_forgetting_rows_is_exact(federation: Federation, queries: Any) -> None:
    old = LEARNER.fit(federation)
    before = old.scores_by_site(queries)
    new = old.forget("b", rows=[3, 17, 30])
    after = new.scores_by_site(queries)
    np.testing.assert_array_equal(after, rebuilt(federation, new, queries))
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert (after[1] != before[1]).any()
    assert new.members_["b"].rows == 47
    assert site_of(federation, "b").rows().ids.tolist() == [i for i in range(50) if i not in (3, 17, 30)]
    again = LEARNER.fit(federation)  # training anew finds what is there
    same(again, new, queries)


def test_probabilities_forget_too(data: Data, queries: Any) -> None:
    """The temperature is fitted on rows, so it must not remember forgotten ones."""
    learner = FoldingLearner(
        batch_size=50, measure="rms", partition="order", scale=None
    )  # a class is one batch, so membership is that of training anew
    model = learner.fit(Federation.local(data))
    before = model.temperature_
    for site in "abc":
        model = model.forget(site, rows=list(range(20)))
    assert model.temperature_ != before
    fresh = {name: (X[20:], y[20:], np.arange(20, 50)) for name, (X, y) in data.items()}
    same(model, learner.fit(Federation.local(fresh)), queries)


def test_the_old_model_is_stale(federation: Federation, queries: Any, tmp_path: Path) -> None:
    old = LEARNER.fit(federation)
    old.save(tmp_path / "old.kfd")
    new = old.forget("b", rows=[3])
    stale = (old, kf.load(tmp_path / "old.kfd").connect(federation))
    for model in stale:
        for use in (model.predict, model.scores, model.explain, model.predict_proba, model.local("b").predict):
            with pytest.raises(StaleModel, match="site 'b' has changed since this model was made; use the newer model"):
                use(queries)
        with pytest.warns(MissingSites, match="'b': site 'b' has changed since this model was made"):
            model.predict(queries, min_replies=1)  # one site must not stop the others
    np.testing.assert_array_equal(old.local("a").scores(queries), new.local("a").scores(queries))
    before = new.scores(queries)
    newer = new.add_rows("b", queries[:1], [0])
    np.testing.assert_array_equal(new.scores(queries), before)  # rows that come take nothing from it
    newer.forget("c")
    with pytest.raises(StaleModel, match="'c'"):
        newer.predict(queries)


def test_forgetting_twice_and_what_is_not_there(federation: Federation, queries: Any) -> None:
    model = LEARNER.fit(federation)
    with pytest.raises(TooFewReplies, match=r"'a': site 'a' has no rows with ids \[50\]"):
        model.forget("a", rows=[2, 50])
    model.predict(queries)  # nothing has changed
    new = model.forget("a", rows=[2])
    again = new.forget("a", rows=[2])
    assert again.members_ == new.members_
    for wrong in ([], [1.5], [[1]], ["x"], 3):
        with pytest.raises(ValueError, match="rows must be a list of row ids"):
            model.forget("a", rows=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no site 'zulu' in this model"):
        model.forget("zulu", rows=[1])


def test_added_rows_are_exact(federation: Federation, queries: Any, rng: np.random.Generator) -> None:
    old = LEARNER.fit(federation)
    new = old.add_rows("c", queries, rng.integers(3, size=len(queries)))
    found = new.scores_by_site(queries)
    np.testing.assert_array_equal(found, rebuilt(federation, new, queries))
    assert new.members_["c"].rows == 75
    assert found[2].min(axis=1).max() < old.local("a").scores(queries).min(axis=1).max()
    same(LEARNER.fit(federation), new, queries)
    named = new.add_rows("c", queries[:2], [0, 1], ids=[900, 901])
    assert {900, 901} < set(site_of(federation, "c").rows().ids.tolist())
    with pytest.raises(TooFewReplies, match=r"'c': ids \[900\] are taken; an id is never reused"):
        named.add_rows("c", queries[:1], [0], ids=[900])
    less = named.forget("c", rows=[900])
    with pytest.raises(TooFewReplies, match="never reused"):
        less.add_rows("c", queries[:1], [0], ids=[900])


@pytest.mark.parametrize(
    ("X", "y", "told"),
    [
        (np.ones((1, 4)), [0], "5 columns as the site has, got 4"),
        (np.ones((1, 5)), ["x"], "labels must be of the site's"),
        (np.ones((2, 5)), [0], "one label per row"),
        (np.full((1, 5), np.nan), [0], "finite"),
    ],
)
def test_rows_that_cannot_be_added(federation: Federation, queries: Any, X: Any, y: Any, told: str) -> None:
    model = LEARNER.fit(federation)
    with pytest.raises(TooFewReplies, match=f"'a': .*{told}"):
        model.add_rows("a", X, y)
    model.predict(queries)


@pytest.mark.parametrize("labels", [(0, 1, 2), ("m", "n", "o")])
def test_new_classes_come_and_go(rng: np.random.Generator, queries: Any, labels: Any) -> None:
    federation = Federation.local(sites_data(rng, "ab", labels=labels))
    old = LEARNER.fit(federation)
    before = old.scores(queries)
    label = "kk" if isinstance(labels[0], str) else -7
    far = 50 + rng.standard_normal((5, 5))
    new = old.add_rows("b", far, [label] * 5, ids=[100, 101, 102, 103, 104])
    assert new.classes_.tolist() == [label, *labels]
    assert new.holds.tolist() == [[False, True, True, True], [True] * 4]
    assert set(new.predict(far)) == {label}
    np.testing.assert_allclose(new.scores(queries)[:, 1:], before, rtol=1e-12)  # a bank is centred on all its machines
    gone = new.forget("b", rows=[100, 101, 102, 103, 104])
    assert gone.classes_.tolist() == list(labels)
    np.testing.assert_array_equal(gone.scores(queries), before)


def test_all_rows_of_a_class_may_go(federation: Federation, data: Data, queries: Any) -> None:
    model = LEARNER.fit(federation)
    for name in "ab":
        model = model.forget(name, rows=np.flatnonzero(data[name][1] == 1).tolist())
        assert model.classes_.tolist() == [0, 1, 2]  # c still holds it
    assert model.holds[:, 1].tolist() == [False, False, True]
    model = model.forget("c", rows=np.flatnonzero(data["c"][1] == 1).tolist())
    assert model.classes_.tolist() == [0, 2]
    assert set(model.predict(queries)) <= {0, 2}
    np.testing.assert_array_equal(model.scores_by_site(queries), rebuilt(federation, model, queries))


# Sites -------------------------------------------------------------------------------------------------------------


def test_forgetting_a_site_is_never_having_had_it(data: Data, queries: Any) -> None:
    X, y = data["b"]
    data["b"] = (X, np.where(y == 1, 9, y))  # with a class of its own
    with_it = LEARNER.fit(Federation.local(data))
    assert with_it.classes_.tolist() == [0, 1, 2, 9]
    without = with_it.forget("b")
    scratch = LEARNER.fit(Federation.local({name: data[name] for name in "ac"}))
    same(without, scratch, queries)
    with pytest.raises(ValueError, match="no site 'b' in this model; there are 'a', 'c'"):
        without.forget("b")


def test_a_forgotten_site_keeps_no_machines(federation: Federation, queries: Any) -> None:
    model = LEARNER.fit(federation)
    model.forget("b")
    assert site_of(federation, "b").store.names("folding") == []
    assert site_of(federation, "b").cache == {}
    assert LEARNER.fit(federation).members_["b"].generation > model.members_["b"].generation
    with pytest.raises(StaleModel):  # although the machines are there again, they are not those of this model
        model.predict(queries)


def test_forgetting_all_rows_of_a_site_is_forgetting_the_site(federation: Federation, data: Data, queries: Any) -> None:
    model = LEARNER.fit(federation).forget("a", rows=list(range(50)))
    same(model, LEARNER.fit(Federation.local({name: data[name] for name in "bc"})), queries)
    assert site_of(federation, "a").store.names("folding") == []
    with pytest.raises(TooFewReplies, match="'a': site 'a' has no rows that it may speak of"):
        LEARNER.fit(federation)
    with pytest.warns(kf.errors.MissingSites, match="'a': site 'a' has no rows"):
        assert LEARNER.fit(federation, min_replies=2).sites == ("b", "c")


def test_the_last_site_cannot_be_forgotten(data: Data, queries: Any) -> None:
    federation = Federation.local({"a": data["a"]})
    model = LEARNER.fit(federation)
    with pytest.raises(ValueError, match="'a' is the last site; a model needs at least one"):
        model.forget("a")
    model.predict(queries)  # and it has not been


def test_adding_a_site_is_having_had_it(data: Data, queries: Any) -> None:
    X, y = data["c"]
    data["c"] = (X, np.where(y == 1, -4, y))
    federation = Federation.local({name: data[name] for name in "ab"}, seed=3)
    model = LEARNER.fit(federation)
    before = model.scores_by_site(queries)
    more = model.add_site("c", data["c"])
    same(more, LEARNER.fit(Federation.local(data, seed=3)), queries)
    np.testing.assert_array_equal(model.scores_by_site(queries), before)  # the smaller model still answers
    with pytest.raises(ValueError, match="site 'c' takes part already"):
        more.add_site("c", data["c"])
    engine = federation.engine
    assert isinstance(engine, LocalEngine)
    engine.add_site("d", data["a"])
    assert more.add_site("d").sites == ("a", "b", "c", "d")
    with pytest.raises(ValueError, match="no site 'e'"):
        more.add_site("e")


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ((np.ones((4, 3)), [0, 1, 0, 1]), SchemaMismatch, "'c' has 3"),
        ((np.ones((4, 5)), ["x", "y", "x", "y"]), SchemaMismatch, "'c' has 'text'"),
        ((np.ones((0, 5)), []), ValueError, "X of site 'c' must have at least 1 row"),
        (Site("c", np.ones((2, 5)), [0, 1], scaling="log"), SchemaMismatch, "scaling is '' at most sites, but 'c'"),
        (Site("other", np.ones((2, 5)), [0, 1]), ValueError, "cannot take part under the name 'c'"),
        (Site("c", np.full((2, 5), 1e200), [0, 1]), TooFewReplies, "X must stay below"),
    ],
)
def test_a_site_that_does_not_fit_leaves_no_trace(data: Data, wrong: Any, error: Any, told: str) -> None:
    federation = Federation.local({name: data[name] for name in "ab"})
    model = LEARNER.fit(federation)
    with pytest.raises(error, match=told):
        model.add_site("c", wrong)
    assert federation.sites == ("a", "b")
    assert model.add_site("c", data["c"]).sites == ("a", "b", "c")


# Whole models ------------------------------------------------------------------------------------------------------


def test_models_with_machines_change_with_their_sites(federation: Federation, data: Data, queries: Any) -> None:
    """Connected, they forget and learn as the others do, machines included."""
    at_sites = LEARNER.fit(federation)
    whole = (
        FoldingLearner(batch_size=8, hold="machines", measure="rms", partition="order", scale=None)
        .fit(federation)
        .connect(federation)
    )
    same(whole, at_sites, queries)
    whole = whole.forget("a", rows=[1, 2, 3])
    assert whole.hold == "machines"
    same(whole, LEARNER.fit(federation), queries)
    whole = whole.add_rows("b", queries[:3], [5, 5, 5])
    same(whole, LEARNER.fit(federation), queries)
    whole = whole.add_site("d", data["a"])
    same(whole, LEARNER.fit(federation), queries)
    whole = whole.forget("c")
    same(whole, LEARNER.fit(federation).forget("c"), queries)


# No trace ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_forgotten_row_is_in_no_file(data: Data, queries: Any, tmp_path: Path, dtype: str) -> None:
    """Machines of one row hold it as it is, so the search can find it, and does before it is forgotten."""
    learner = FoldingLearner(batch_size=1, dtype=dtype, measure="rms", partition="order", scale=None)
    federation = Federation.local(data, store=tmp_path / "store")
    model = learner.fit(federation)
    model = model.add_rows("a", queries[:2], [0, 1], ids=[70, 71])
    given, added = data["a"][0][5], queries[0]
    assert len(files_with_row(tmp_path, given)) == 2  # of both generations
    assert {place.name for place in files_with_row(tmp_path, added)} >= {"rows.safetensors"}
    whole = FoldingLearner(batch_size=1, dtype=dtype, hold="machines", measure="rms", partition="order", scale=None)
    whole.fit(federation).save(tmp_path / "whole.kfd")
    assert tmp_path / "whole.kfd" in files_with_row(tmp_path, given)  # whoever keeps such a file keeps the rows
    new = model.forget("a", rows=[5, 70])
    new.save(tmp_path / "new.kfd")
    whole.fit(federation).save(tmp_path / "whole.kfd")
    federation.traffic.save(tmp_path / "traffic.json")
    assert files_with_row(tmp_path, given) == []
    assert files_with_row(tmp_path, added) == []
    assert files_with_row(tmp_path, queries[1]) != []  # the search still works


def test_a_forgotten_row_stays_forgotten_in_another_process(data: Data, queries: Any, tmp_path: Path) -> None:
    """The site is given all its rows again, as a table that nobody edited would."""
    first = Federation.local(data, store=tmp_path / "store")
    new = LEARNER.fit(first).forget("b", rows=[4, 8])
    new.save(tmp_path / "model.kfd")
    expected = new.scores(queries)
    first.close()
    second = Federation.local(data, store=tmp_path / "store")
    model = kf.load(tmp_path / "model.kfd").connect(second)
    np.testing.assert_array_equal(model.scores(queries), expected)
    assert not {4, 8} & set(site_of(second, "b").rows().ids.tolist())
    assert second.schemas()["b"].n_rows == 48
    same(LEARNER.fit(second), model, queries)
    other = FoldingLearner("distance", batch_size=1000, partition="order", scale=None).fit(second)
    assert other.members_["b"].rows == 48
