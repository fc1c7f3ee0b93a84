"""Every question to a site stands in its journal before its reply leaves, with names, kinds and numbers only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.base.chain import ChainedLines
from kernfed.errors import Refused
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.privacy import RecordGaussian
from kernfed.site.journal import check_journal, read_journal
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question


@pytest.fixture
def site(tmp_path: Path) -> Site:
    X = np.arange(36.0).reshape(12, 3)
    policy = Policy(("describe", "add_rows", "forget_rows"), callers=("gateway", "local"))
    return Site("a", X, np.arange(12) % 2, store=SiteStore(tmp_path), policy=policy)


def ask(site: Site, task: str, payload: Payload | None = None, caller: str | None = None, said: str = "local") -> Reply:
    question = Question("run", "id", task, payload or Payload(), said)
    return decode_reply(site.answer(encode_question(question), caller), question, site.name)


def lines(site: Site, event: str = "asked") -> list[dict[str, Any]]:
    return [line for line in read_journal(site.store.path / "journal") if line["event"] == event]


def test_an_answer_stands_in_the_journal(site: Site) -> None:
    question = encode_question(Question("run", "id", "describe", Payload(), "dr. miller"))
    reply = site.answer(question, "gateway")
    (line,) = lines(site)
    told = {name: line[name] for name in ("asked_by", "on_behalf_of", "task", "run", "id", "rows", "outcome", "code")}
    assert told == {
        "asked_by": "gateway",
        "on_behalf_of": "dr. miller",
        "task": "describe",
        "run": "run",
        "id": "id",
        "rows": 0,
        "outcome": "answered",
        "code": None,
    }
    assert (line["leaves"], line["bytes_in"], line["bytes_out"]) == ("schema", len(question), len(reply))
    assert (line["policy"], line["budget"], line["charges"]) == (site.policy.digest, None, 0)
    (policy,) = lines(site, "policy")
    assert policy["policy"] == site.policy.digest
    assert policy["settings"]["callers"] == ["gateway", "local"]


@pytest.mark.parametrize(
    ("task", "said", "code"),
    [("scores", "local", "policy"), ("nonsense", "local", "unknown task"), ("describe", "stranger", "policy")],
)
def test_refusals_stand_in_the_journal(site: Site, task: str, said: str, code: str) -> None:
    assert ask(site, task, said=said).refusal is not None
    (line,) = lines(site)
    assert (line["outcome"], line["code"], line["task"]) == ("refused", code, task)
    assert (line["asked_by"], line["on_behalf_of"]) == (None, said)  # nobody but the question says who it is
    assert (line["leaves"], line["numbers"]) == ("none", 0)


def test_what_is_no_question_stands_in_the_journal(site: Site) -> None:
    site.answer(b"\x00" * 100, "gateway")
    (line,) = lines(site)
    assert (line["asked_by"], line["task"], line["code"], line["bytes_in"]) == ("gateway", "", "bad question", 100)


def test_nothing_of_the_data_stands_in_the_journal(site: Site) -> None:
    # So many digits that no hash of the journal has them by chance.
    value, number = 424242424242.125, 777777777777
    secret = Payload({"X": np.array([[value, 1.0, 2.0]])}, {"y": {"dtype": "<i8", "labels": [0]}})
    assert ask(site, "add_rows", secret).refusal is None
    assert ask(site, "forget_rows", Payload({"ids": np.array([number])})).refusal is not None
    assert [line["rows"] for line in lines(site)] == [1, 1]
    content = (site.store.path / "journal" / "000000000001.jsonl").read_text()
    assert "24242424242" not in content  # nor as 4.24242424242e11
    assert "77777777777" not in content


def test_long_and_strange_names_are_one_short_line(site: Site) -> None:
    site.answer(encode_question(Question("r" * 900, "i" * 900, "t\n" * 400, Payload(), "\u2028\x1b" * 400)))
    (line,) = lines(site)
    assert max(len(line[name]) for name in ("run", "id", "task", "on_behalf_of")) == 200
    assert check_journal(site.store.path / "journal").lines == 3


def test_what_cannot_be_written_down_does_not_leave(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    monkeypatch.setattr(ChainedLines, "append", fail)
    reply = ask(site, "describe")
    assert reply.refusal is not None
    assert reply.refusal.code == "journal"
    assert (reply.payload.values, reply.information) == ({}, "none")
    assert "secret" not in reply.refusal.reason
    monkeypatch.undo()
    assert ask(site, "describe").refusal is None


def test_the_line_is_there_before_the_reply(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    append = ChainedLines.append

    def noted(self: ChainedLines, body: Any) -> Any:
        order.append(body["event"])
        return append(self, body)

    monkeypatch.setattr(ChainedLines, "append", noted)
    reply = ask(site, "describe")
    assert order == ["policy", "asked"]
    assert reply.refusal is None


def test_what_the_owner_does_stands_in_the_journal(site: Site) -> None:
    site.as_owner("forget_rows", Payload({"ids": np.array([3, 4])}))
    with pytest.raises(Refused):
        site.as_owner("forget_rows", Payload({"ids": np.array([333])}))
    site.publish()
    told = [(line["task"], line["rows"], line["outcome"], line["asked_by"]) for line in lines(site, "owner")]
    assert told == [
        ("forget_rows", 2, "done", "owner"),
        ("forget_rows", 1, "failed", "owner"),
        ("publish", 0, "done", "owner"),
    ]


def test_another_policy_is_written_down_once(tmp_path: Path) -> None:
    rows = np.eye(3), np.arange(3)
    for policy in (Policy(), Policy(), Policy(max_steps=7), Policy(max_steps=7)):  # a process each, as under Flower
        site = Site("a", *rows, store=SiteStore(tmp_path), policy=policy)
        assert ask(site, "describe").refusal is None
    assert [line["settings"]["max_steps"] for line in lines(site, "policy")] == [Policy().max_steps, 7]
    assert Policy().digest != Policy(max_steps=7).digest


def test_budget_and_charges_of_releases(tmp_path: Path) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
    policies = {"a": Policy(("*",), max_record_epsilon=5.0)}
    with kf.Federation.local({"a": (X, np.arange(20) % 2)}, store=tmp_path, policies=policies) as federation:
        kf.FoldingLearner(
            privacy=RecordGaussian(2.0, 1e-6, radius=1.0), measure="rms", batch_size=100, partition="order", scale=None
        ).fit(federation)
        site = federation.engine.site("a")  # type: ignore[attr-defined]
    fitted = next(line for line in lines(site) if line["task"] == "folding_fit")
    assert (fitted["budget"], fitted["charges"], fitted["leaves"]) == ([5.0, 1e-5], 1, "counts")


def test_a_temporary_site_waits_for_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site("a", np.eye(3), np.arange(3))
    monkeypatch.setattr("kernfed.base.chain._sync_file", None)
    assert ask(site, "describe").refusal is None
    assert len(lines(site)) == 1
