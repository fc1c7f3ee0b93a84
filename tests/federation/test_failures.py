"""What goes wrong in a federation is told by name, and what can go on goes on."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.engines import read_message
from kernfed.errors import MissingSites, TooFewReplies
from kernfed.federation import Fault, Federation, FoldingLearner, LocalEngine, Payload, Policy, Refusal, Site, SiteStore
from oracles.federation import Data, sites_data

LEARNER = FoldingLearner(batch_size=10, measure="rms", partition="order", scale=None)


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abcdef")


@pytest.fixture
def queries(rng: np.random.Generator) -> Any:
    return rng.standard_normal((12, 5))


class KilledAt(LocalEngine):
    """Sites die when the n-th question of a task comes."""

    def __init__(self, engine: LocalEngine, victims: Sequence[str], task: str, number: int = 1) -> None:
        super().__init__({name: engine.site(name) for name in engine.sites})
        self.victims, self.task, self.left = victims, task, number

    def carry(self, data: bytes, sites: Sequence[str], timeout: float) -> Mapping[str, bytes | Refusal]:
        if read_message(data)[0]["task"] == self.task:
            self.left -= 1
            if self.left == 0:
                self.faults.update(dict.fromkeys(self.victims, Fault("dead")))
        return super().carry(data, sites, timeout)


# Missing sites -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["describe", "folding_fit"])
def test_a_site_killed_during_the_round(data: Data, queries: Any, task: str) -> None:
    engine = LocalEngine.from_data(data)
    with pytest.raises(TooFewReplies, match=f"'{task}' needs 6 replies and got 5; 'c': site 'c' cannot be reached"):
        LEARNER.fit(Federation(KilledAt(engine, "c", task)))
    with pytest.warns(MissingSites, match=r"1 site\(s\) missing, the others answer: 'c': site 'c' cannot be reached"):
        model = LEARNER.fit(Federation(KilledAt(engine, "c", task)), min_replies=5)
    assert model.sites == tuple("abdef")
    assert model.missing_ == {"c": "site 'c' cannot be reached"}
    without = LEARNER.fit(Federation.local({name: data[name] for name in "abdef"}))
    np.testing.assert_array_equal(model.scores(queries), without.scores(queries))


def test_half_of_the_sites_missing_while_answering(data: Data, queries: Any) -> None:
    federation = Federation.local(data)
    model = LEARNER.fit(federation)
    whole = model.scores_by_site(queries)
    federation.engine.faults.update(dict.fromkeys("ace", Fault("dead")))  # type: ignore[attr-defined]
    with pytest.raises(TooFewReplies, match=r"needs 6 replies and got 3; 'a': .*'c': .*'e': "):
        model.predict(queries)
    with pytest.raises(TooFewReplies, match="needs 4 replies and got 3"):
        model.predict(queries, min_replies=4)
    with pytest.warns(MissingSites, match=r"3 site\(s\) missing.*'a'.*'c'.*'e'"):
        found = model.site_scores(queries, min_replies=3)
    assert found.sites == ("b", "d", "f")
    assert list(found.missing) == ["a", "c", "e"]
    np.testing.assert_array_equal(found.values, whole[[1, 3, 5]])
    with pytest.warns(MissingSites):
        np.testing.assert_array_equal(model.scores(queries, min_replies=1), whole[[1, 3, 5]].min(axis=0))
    with pytest.warns(MissingSites):
        assert set(model.explain(queries, min_replies=1).site) <= {"b", "d", "f"}
    federation.engine.faults.clear()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(model.scores_by_site(queries), whole)


def test_nobody_left(data: Data, queries: Any) -> None:
    federation = Federation.local(data)
    model = LEARNER.fit(federation)
    federation.engine.faults.update(dict.fromkeys("abcdef", Fault("dead")))  # type: ignore[attr-defined]
    with pytest.raises(TooFewReplies, match="needs 1 replies and got 0"):
        model.predict(queries, min_replies=1)
    with pytest.raises(TooFewReplies, match="needs 1 replies and got 0"):
        LEARNER.fit(federation, min_replies=1)
    for call in (lambda: model.predict(queries, min_replies=0), lambda: LEARNER.fit(federation, min_replies=0)):
        with pytest.raises(ValueError, match="min_replies must be >= 1, got 0"):
            call()


def test_a_site_lost_between_two_messages_is_left_out_of_both(data: Data, queries: Any, monkeypatch: Any) -> None:
    """Long questions are cut; scores of a site are used for all queries or for none."""
    engine = LocalEngine.from_data(data)
    model = LEARNER.fit(Federation(engine))
    whole = model.scores_by_site(queries)
    monkeypatch.setattr("kernfed.federation.folding.questions._NUMBERS_PER_MESSAGE", 20)
    with pytest.warns(MissingSites, match="'b'"):
        found = model.connect(Federation(KilledAt(engine, "b", "scores", 2))).site_scores(queries, min_replies=5)
    assert found.sites == tuple("acdef")
    np.testing.assert_array_equal(found.values, whole[[0, 2, 3, 4, 5]])


def test_slow_and_garbled_sites(data: Data, queries: Any) -> None:
    LEARNER.fit(Federation.local(data))  # the first to fit in a process imports what fitting needs
    faults = {"b": Fault("garbage"), "e": Fault("slow", 1.0)}
    federation = Federation.local(data, faults=faults)
    with pytest.warns(MissingSites, match=r"2 site\(s\) missing.*'b': the reply.*not usable.*'e': .*in time"):
        model = LEARNER.fit(federation, min_replies=4, timeout=0.5)
    assert model.sites == tuple("acdf")
    assert list(model.missing_) == ["b", "e"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(queries)  # those who never took part are not missed


def test_missing_sites_are_in_the_file(data: Data, tmp_path: Path) -> None:
    from kernfed import load

    with pytest.warns(MissingSites):
        model = LEARNER.fit(Federation.local(data, store=tmp_path, faults={"a": Fault("dead")}), min_replies=1)
    model.save(tmp_path / "m.kfd")
    assert load(tmp_path / "m.kfd").missing_ == {"a": "site 'a' cannot be reached"}


def test_many_missing_sites_make_a_short_warning(rng: np.random.Generator) -> None:
    names = [f"s{number:02}" for number in range(30)]
    federation = Federation.local(sites_data(rng, names, rows=6), faults=dict.fromkeys(names[:25], Fault("dead")))
    with pytest.warns(MissingSites, match=r"25 site\(s\) missing.*'s09': .* and 15 more$"):
        assert len(LEARNER.fit(federation, min_replies=5).missing_) == 25


def test_a_site_that_cannot_delete_is_told(data: Data, queries: Any) -> None:
    federation = Federation.local(data, policies={"b": Policy()})
    model = LEARNER.fit(federation)
    federation.engine.faults["a"] = Fault("dead")  # type: ignore[attr-defined]
    with pytest.warns(
        MissingSites, match="site 'a' takes part no longer, but did not delete its machines: site 'a' can"
    ):
        model = model.forget("a")
    with pytest.warns(
        MissingSites,
        match="'b' takes part no longer.*allows describe, folding_choose, folding_fit, scores, not 'forget_model'",
    ):
        model = model.forget("b")
    assert model.sites == tuple("cdef")
    model.predict(queries)
    federation.engine.faults["c"] = Fault("dead")  # type: ignore[attr-defined]
    with pytest.raises(TooFewReplies, match="'c': site 'c' cannot be reached"):
        model.forget("c", rows=[1])


# Odd data ----------------------------------------------------------------------------------------------------------


def test_sites_of_one_row_one_class_and_other_classes(rng: np.random.Generator, queries: Any) -> None:
    data = sites_data(rng, "abc")
    data |= {
        "one": (np.ones((1, 5)), np.array([1])),
        "single": (rng.standard_normal((9, 5)), np.full(9, 2)),
        "other": (rng.standard_normal((9, 5)), np.array([7, 8, 9] * 3)),
        "same": (np.ones((30, 5)), np.array([0, 1] * 15)),
    }
    for measure in ("rms", "distance"):
        model = FoldingLearner(measure, batch_size=10, partition="order", scale=None).fit(Federation.local(data))
        assert model.classes_.tolist() == [0, 1, 2, 7, 8, 9]
        assert np.isfinite(model.scores(queries)).all()
        assert set(model.predict(np.ones((1, 5)))) <= {0, 1}
        assert model.members_["one"].rows == 1
        assert model.members_["one"].temperature is None


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, bool])
def test_rows_of_every_kind_of_number(rng: np.random.Generator, dtype: Any) -> None:
    data = {name: ((X * 3).astype(dtype), y) for name, (X, y) in sites_data(rng, "ab").items()}
    federation = Federation.local(data)
    model = LEARNER.fit(federation)
    as_floats = LEARNER.fit(Federation.local({name: (X.astype(float), y) for name, (X, y) in data.items()}))
    X = data["a"][0][:5].astype(float)
    np.testing.assert_array_equal(model.scores(X), as_floats.scores(X))
    assert model.add_rows("a", X, [0] * 5).forget("a", rows=[1]).predict(X).shape == (5,)


def test_values_too_large_are_told_by_name(rng: np.random.Generator) -> None:
    data = sites_data(rng, "ab")
    data["b"] = (data["b"][0] * 1e150, data["b"][1])
    with pytest.raises(TooFewReplies, match=r"'b': .*X must stay below 1e\+100 in float64.*rescale it"):
        LEARNER.fit(Federation.local(data))


# Policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Policy(tasks=("describe",)), "allows describe, not 'folding_fit'"),
        (Policy(tasks=()), "allows , not 'describe'"),
        (Policy(callers=("somebody",)), "does not answer caller 'local'"),
        (Policy(require_privacy=True, max_record_epsilon=50.0), "requires privacy, and this learner offers none"),
        (Policy(min_rows_per_class=1000), "has no rows that it may speak of"),
    ],
)
def test_a_policy_that_refuses_makes_a_site_missing(data: Data, policy: Policy, told: str) -> None:
    federation = Federation.local(data, policies={"d": policy})
    with pytest.raises(TooFewReplies, match=f"'d': .*{told}"):
        LEARNER.fit(federation)
    with pytest.warns(MissingSites, match=told):
        model = LEARNER.fit(federation, min_replies=5)
    assert model.sites == tuple("abcef")
    assert federation.engine.site("d").store.names("folding") == []  # type: ignore[attr-defined]


def test_the_default_policy_is_enough_to_learn(data: Data, queries: Any) -> None:
    federation = Federation.local(data, policies=dict.fromkeys(data, Policy()))
    model = LEARNER.fit(federation)
    model.explain(queries)
    for change in (lambda: model.forget("a", rows=[1]), lambda: model.add_rows("a", queries, [0] * 12)):
        with pytest.raises(
            TooFewReplies,
            match="'a': the policy of site 'a' allows describe, folding_choose, folding_fit, scores, not",
        ):
            change()


def test_queries_per_day(data: Data, queries: Any) -> None:
    federation = Federation.local(data, policies={"b": Policy(queries_per_day=20)})
    model = LEARNER.fit(federation)  # of no query
    model.predict(queries)
    with pytest.raises(
        TooFewReplies, match="'b': site 'b' scores 20 queries a day for 'everybody', this would be number 24"
    ):
        model.predict(queries)
    model.predict(queries[:8])
    other = model.connect(Federation(federation.engine, caller="a name that the caller gives itself"))
    with pytest.raises(TooFewReplies, match="this would be number 21"):
        other.predict(queries[:1])


def test_a_policy_that_became_stricter_holds_for_older_models(data: Data, queries: Any, tmp_path: Path) -> None:
    X, y = data["a"]
    data["a"] = (np.concatenate([X, X[:2]]), np.concatenate([y, [5, 5]]))
    with Federation.local(data, store=tmp_path) as federation:
        model = LEARNER.fit(federation)
    stricter = (
        (Policy(min_rows_per_class=3), "wants 3 rows per class, this model has a class of 2"),
        (Policy(("*",), require_privacy=True, max_record_epsilon=50.0), "requires privacy"),
    )
    for policy, told in stricter:
        with Federation.local(data, store=tmp_path, policies={"a": policy}) as federation:
            with pytest.raises(TooFewReplies, match=f"'a': .*{told}"):
                model.connect(federation).predict(queries)
            generation = {"a": model.members_["a"].generation}
            fetch = Payload(values={"handle": model.handle, "generation": generation})
            assert federation.ask("machines", fetch, sites=["a"], min_replies=0).missing["a"].code == "policy"


# Damaged stores ----------------------------------------------------------------------------------------------------


def test_damaged_machines_are_told_and_made_again(data: Data, queries: Any, tmp_path: Path) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        model = LEARNER.fit(federation)
        expected = model.scores(queries)
    place = tmp_path / "site-c" / "folding" / f"{model.handle}.safetensors"
    whole = place.read_bytes()
    for damaged in (whole[:1000], whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], b""):
        place.write_bytes(damaged)
        with Federation.local(data, store=tmp_path) as federation:
            with pytest.raises(TooFewReplies, match=r"'c': FileFormatError: .*safetensors is damaged"):
                model.connect(federation).predict(queries)
            again = LEARNER.fit(federation)
            np.testing.assert_array_equal(again.scores(queries), expected)
            assert again.members_["c"].generation == model.members_["c"].generation + 1
            model = again


@pytest.mark.parametrize("how", ["cut", "lost", "altered"])
def test_a_damaged_list_of_forgotten_rows_silences_the_site(data: Data, tmp_path: Path, how: str) -> None:
    """Rather than using rows that were to be forgotten."""
    with Federation.local(data, store=tmp_path) as federation:
        LEARNER.fit(federation).forget("c", rows=[17])
    place = tmp_path / "site-c" / "state.json"
    text = place.read_text()
    if how == "lost":
        place.unlink()
    else:
        place.write_text(text[:-5] if how == "cut" else text.replace("17", "18"))
    with Federation.local(data, store=tmp_path) as federation:
        with pytest.raises(TooFewReplies, match=r"'c': StoreError: .*state\.json is .*it lists the forgotten rows"):
            LEARNER.fit(federation)
        with pytest.warns(MissingSites, match="'c'"):
            assert LEARNER.fit(federation, min_replies=5).sites == tuple("abdef")


def test_a_site_whose_store_is_read_only_is_told(data: Data, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    site = Site("a", *data["a"], store=SiteStore(tmp_path), policy=Policy.open())
    monkeypatch.setattr("kernfed.site.store.to_safetensors", full)
    with pytest.raises(TooFewReplies, match=r"'a': OSError: .*No space left on device"):
        LEARNER.fit(Federation.local({"a": site, "b": data["b"]}))
