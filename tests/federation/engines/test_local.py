"""The local engine: the contract of all engines, and what is its own."""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from contracts.engines import EngineContract
from kernfed.errors import InputError
from kernfed.federation import Engine, Fault, Federation, LocalEngine, Payload, Policy, Site
from kernfed.site.protocol.message import Question, encode_question
from oracles.federation import Data, sites_data


class TestLocal(EngineContract):
    late, patience = 0.4, 0.1

    def engine(
        self, data: Data, *, faults: Mapping[str, Fault] | None = None, policies: Mapping[str, Policy] | None = None
    ) -> Engine:
        return LocalEngine.from_data(data, faults=faults, policies=policies)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "data must map site names to (X, y), got nothing"),
        ([1], "data must map site names"),
        ({"": (np.eye(2), [0, 1])}, "a site's name must be text, got ''"),
        ({3: (np.eye(2), [0, 1])}, "a site's name must be text, got 3"),
        ({"a": np.eye(2)}, "data of site 'a' must be (X, y) or (X, y, ids), got ndarray"),
        ({"a": (np.eye(2),)}, "data of site 'a' must be"),
        ({"a": (np.eye(2), [0, 1], [0, 1], 5)}, "data of site 'a' must be"),
        ({"a": (np.zeros((0, 2)), [])}, "X of site 'a' must have at least 1 row(s), got 0"),
        ({"a": (np.eye(2), [0, 1]), "b": (np.full((1, 2), np.nan), [0])}, "X of site 'b' must be finite"),
        ({"a": Site("b", np.eye(2), [0, 1])}, "site 'b' cannot take part under the name 'a'"),
    ],
)
def test_data_that_is_none(data: object, told: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the whole text is compared
        Federation.local(data)  # type: ignore[arg-type]
    assert told in str(error.value)


@pytest.mark.parametrize(("kind", "seconds"), [("tired", 0), ("slow", -1), ("slow", np.nan), (None, 0)])
def test_faults_that_are_none(kind: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"fault must be one of|seconds must be"):
        Fault(kind, seconds)


def test_a_name_is_taken_once(rng: np.random.Generator) -> None:
    engine = LocalEngine.from_data(sites_data(rng))
    with pytest.raises(ValueError, match="there is a site 'b' already"):
        engine.add_site("b", (np.eye(2), [0, 1]))


def test_names_that_look_like_paths_stay_in_the_store(rng: np.random.Generator, tmp_path: Path) -> None:
    names = ["../outside", "..", ".", "a/b", "a", "München, 3", "c\\d", "~", "nul\0"]
    inside = tmp_path / "deep" / "store"
    inside.mkdir(parents=True)
    with Federation.local(sites_data(rng, names), store=inside) as federation:
        assert len(federation.ask("describe", Payload())) == len(names)
    assert {entry.name for entry in tmp_path.iterdir()} == {"deep"}
    assert {entry.name for entry in (tmp_path / "deep").iterdir()} == {"store"}
    assert len(list(inside.iterdir())) == len(names)


def test_a_site_added_later_is_set_up_as_the_others(rng: np.random.Generator, tmp_path: Path) -> None:
    data = sites_data(rng, "abc")
    engine = LocalEngine.from_data({"a": data["a"]}, store=tmp_path, holdout=0.3, seed=4, columns=list("vwxyz"))
    engine.add_site("b", data["b"])
    first, second = engine.site("a"), engine.site("b")
    assert (first.data.seed, first.data.holdout) == (second.data.seed, second.data.holdout) == (4, 0.3)
    assert second.schema().columns == tuple("vwxyz")
    assert second.store.path.parent == tmp_path
    engine.add_site("c", data["c"], holdout=0.0, store=None)
    assert engine.site("c").store.path.parent != tmp_path
    engine.remove_site("b")
    assert engine.sites == ("a", "c")


def test_temporary_stores_vanish_with_the_federation(rng: np.random.Generator) -> None:
    federation = Federation.local(sites_data(rng))
    engine = federation.engine
    assert isinstance(engine, LocalEngine)
    paths = [engine.site(name).store.path for name in engine.sites]
    assert all(path.is_dir() for path in paths)
    federation.close()
    assert not any(path.exists() for path in paths)


def test_an_answer_that_comes_after_closing_is_nobodys(rng: np.random.Generator) -> None:
    """The thread of a slow site ends quietly: pytest would turn its exception into a failure."""
    engine = LocalEngine.from_data(sites_data(rng), faults={"a": Fault("slow", 1.5)})
    assert set(engine.carry(encode_question(Question("r", "i", "describe", Payload())), "abc", 0.7)) == {"b", "c"}
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    engine.close()
    for thread in others:
        thread.join(5.0)
    assert engine.sites == ()


def test_sites_are_asked_at_the_same_time(rng: np.random.Generator) -> None:
    """Two slow sites both answer within a time that would not do one after the other."""
    engine = LocalEngine.from_data(sites_data(rng, "abcdef"), faults={s: Fault("slow", 0.3) for s in "abcdef"})
    with Federation(engine) as federation:
        assert len(federation.ask("describe", Payload(), timeout=1.5, min_replies=6)) == 6


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"A": Policy()}, "policies has site 'A', which is none of 'a'"),
        ({"a": {"tasks": ["describe"]}}, "policies must map names of sites to a Policy"),
        (3, "policies must map names of sites to a Policy"),
    ],
)
def test_policies_are_of_sites_that_are_there(policies, message):
    with pytest.raises(InputError, match=message):
        LocalEngine.from_data({"a": ([[0.0], [1.0]], [0, 1])}, policies=policies)
