"""What ``Federation`` adds to an engine; what engines must do is in ``contracts/engines.py``."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from contracts.engines import Tampering, with_header
from kernfed.errors import TooFewReplies
from kernfed.federation import Federation, LocalEngine, Payload, Replies
from kernfed.federation.engines.local import DeliveringEngine
from kernfed.kahm import KAHM
from kernfed.site.protocol.message import Refusal
from oracles.federation import sites_data


def test_replies_by_name() -> None:
    replies = Replies({"a": Payload(values={"n": 1})}, {"b": Refusal("dead", "gone")})
    assert replies["a"].values == {"n": 1}
    with pytest.raises(KeyError):
        replies["b"]
    assert "'b': gone" in str(TooFewReplies("t", 2, replies))


@pytest.mark.parametrize("seed", [-1, 1.5, None, "0", True])
def test_seeds_that_are_none(rng: np.random.Generator, seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be"):
        Federation.local(sites_data(rng), seed=seed)


def test_schema_of_all(rng: np.random.Generator) -> None:
    data = sites_data(rng, "ab", labels=("x", "y"))
    data["b"] = (data["b"][0], np.array(["z"] * 40))
    with Federation.local(data, columns=list("vwxyz")) as federation:
        schema = federation.schema
        assert schema.classes == ("x", "y", "z")
        assert schema.counts == (20, 20, 40)
        assert schema.columns == tuple("vwxyz")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"width": 0},
        {"counts": [10**400, 1, 1]},
        {"counts": [1.5, 1, 1]},
        {"counts": [True, 1, 1]},
        {"width": 10**30},
        {"counts": {"a": 1}},
        {"classes": {"dtype": "<i8", "labels": [10**30, 1, 2]}},
        {"classes": {"dtype": "nonsense", "labels": [0, 1, 2]}},
        {"classes": {"dtype": "<i8", "labels": [[0], [1], [2]]}},
        {"classes": "<i8"},
        {"classes": None},
        {"columns": 7},
    ],
)
def test_hostile_schemas_make_a_site_missing(rng: np.random.Generator, values: dict[str, Any]) -> None:
    honest = {
        "width": 5,
        "classes": {"dtype": "<i8", "labels": [0, 1, 2]},
        "counts": [1, 1, 1],
        "columns": [],
        "scaling": "",
        "encoder": "",
    }
    lie = {**honest, **values} if values else {}

    def edit(site: str, reply: bytes) -> bytes:
        return with_header(reply, values=lie) if site == "b" else reply

    with Federation(Tampering(LocalEngine.from_data(sites_data(rng)), edit)) as federation:
        found = federation.describe(min_replies=0)
        assert tuple(found.missing) == ("b",)
        assert found.missing["b"].code == "bad reply"
        assert tuple(federation.schemas(min_replies=2)) == ("a", "c")


def test_information_is_what_the_site_declares_or_worse(rng: np.random.Generator) -> None:
    engine = Tampering(LocalEngine.from_data(sites_data(rng)), lambda _, reply: with_header(reply, information="odd"))
    with Federation(engine) as federation:
        federation.ask("describe", Payload())
        assert {entry.information for entry in federation.traffic} == {"rows"}


def test_only_models_with_sites_can_be_connected(rng: np.random.Generator) -> None:
    with (
        Federation.local(sites_data(rng)) as federation,
        pytest.raises(ValueError, match="a KAHM does not need a federation"),
    ):
        federation.connect(KAHM(scale=None))


def test_large_replies_are_checked_side_by_side(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks that wait for each other come to an end only where both are under way at once."""
    meeting = threading.Barrier(2, timeout=20)
    monkeypatch.setattr("kernfed.federation.asking._CHECKED_IN_THREADS", 1)
    monkeypatch.setattr("kernfed.base.threads.resolve_jobs", lambda _: 2)
    with Federation.local(sites_data(rng, "ab")) as federation:
        replies = federation.ask("describe", Payload(), check=lambda *_: meeting.wait() and None)
    assert [site for site, _ in replies] == ["a", "b"]


def test_replies_that_are_added_up_are_checked_one_after_the_other(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that add to one sum lose one of the two; engines like that of a hub carry all replies at once."""
    monkeypatch.setattr("kernfed.federation.asking._CHECKED_IN_THREADS", 1)
    monkeypatch.setattr("kernfed.base.threads.resolve_jobs", lambda jobs: jobs or 4)
    inside, most = [0], [0]

    def check(*_: Any) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1

    with Federation(Tampering(LocalEngine.from_data(sites_data(rng, "abcd")), lambda _, reply: reply)) as federation:
        assert not isinstance(federation.engine, DeliveringEngine)
        federation.ask("describe", Payload(), check=check, keep=False)
    assert most == [1]
