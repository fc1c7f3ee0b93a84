"""A held question waits: refused by one fixed sentence, listed, and let through once approved, until that expires."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError, PolicyError, TooFewReplies
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.site.approval import FILE, Approvals
from kernfed.site.authorise import FIXED_REASONS
from kernfed.site.journal import Journal, read_journal
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question

HOUR = timedelta(hours=1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    policy = Policy(("describe", "add_rows"), approve=("describe",))
    return Site("a", np.eye(4), np.arange(4) % 2, store=SiteStore(tmp_path), policy=policy)


def ask(site: Site, caller: str | None = "hub", said: str = "x", task: str = "describe", **values: Any) -> Reply:
    question = Question("run", "id", task, Payload(values=values), said)
    return decode_reply(site.answer(encode_question(question), caller), question, site.name)


def is_held(reply: Reply) -> bool:
    return reply.refusal is not None and (reply.refusal.code, reply.refusal.reason) == ("held", FIXED_REASONS["held"])


def allow(site: Site, lasting: timedelta = HOUR, *, identical: bool = False, number: int = 0) -> str:
    approvals, journal = Approvals(site.store), Journal(site.store, "a")
    return approvals.approve(approvals.read()[0][number], lasting, identical=identical, journal=journal).key


def test_a_held_question_waits_and_goes_through_once_approved(site: Site) -> None:
    assert is_held(ask(site))
    assert is_held(ask(site))
    (held,), approved = Approvals(site.store).read()
    assert (held.task, held.caller, held.known, approved) == ("describe", "hub", True, [])
    allow(site)
    assert ask(site).refusal is None
    assert ask(site, other=1).refusal is None  # of the same task and caller
    held_now, (approval,) = Approvals(site.store).read()
    assert (held_now, approval.caller) == ([], "hub")


def test_another_caller_and_a_name_that_is_only_said_wait(site: Site) -> None:
    ask(site)
    allow(site)
    assert is_held(ask(site, "other"))
    assert is_held(ask(site, None, said="hub"))
    assert ask(site, said="anybody").refusal is None  # whatever the question says
    assert {(held.caller, held.known) for held in Approvals(site.store).read()[0]} == {("other", True), ("hub", False)}


def test_identical_lets_one_question_through(site: Site) -> None:
    assert is_held(ask(site, seed=1))
    allow(site, identical=True)
    assert ask(site, seed=1).refusal is None
    assert is_held(ask(site, seed=2))


def test_an_approval_expires_and_can_be_withdrawn(site: Site) -> None:
    ask(site)
    allow(site, timedelta(seconds=-1))
    assert is_held(ask(site))
    key = allow(site)
    assert ask(site).refusal is None
    Approvals(site.store).withdraw(key, journal=Journal(site.store, "a"))
    assert is_held(ask(site))
    with pytest.raises(InputError, match=f"'{key}' is not approved; there are none"):
        Approvals(site.store).withdraw(key, journal=Journal(site.store, "a"))
    events = [line["event"] for line in read_journal(site.store.path / "journal")]
    assert [event for event in events if event in ("approved", "withdrawn")] == ["approved", "approved", "withdrawn"]


def test_other_tasks_do_not_wait(site: Site) -> None:
    payload = Payload({"X": np.ones((1, 4))}, {"y": {"dtype": "<i8", "labels": [0]}})
    question = Question("run", "id", "add_rows", payload)
    assert decode_reply(site.answer(encode_question(question)), question, "a").refusal is None
    assert not (site.store.path / FILE).exists()


def test_nothing_is_approved_by_a_file_that_cannot_be_read(site: Site) -> None:
    ask(site)
    allow(site)
    (site.store.path / FILE).write_text("{")
    assert is_held(ask(site))
    content = {"held": [], "approved": [{"task": "describe", "caller": "hub", "known": 1, "until": "9999-01-01"}]}
    (site.store.path / FILE).write_text(json.dumps(content))
    assert is_held(ask(site))


def test_callers_do_not_crowd_each_other_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernfed.site.approval._MOST_OF_ONE", 3)
    ask(site)
    for number in range(5):  # all that name themselves are one
        ask(site, None, said=f"name {number}")
    held = [entry.caller for entry in Approvals(site.store).read()[0]]
    assert held == ["hub", "name 2", "name 3", "name 4"]


def test_a_training_waits_for_its_approval(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    policies = {"a": Policy(("*",), approve=("folding_fit",))}
    with kf.Federation.local({"a": rows}, store=tmp_path, policies=policies) as federation:
        with pytest.raises(TooFewReplies, match="has to approve this question first"):
            kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        allow(federation.engine.site("a"), identical=True)  # type: ignore[attr-defined]
        assert kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        ).sites == ("a",)


def test_under_required_privacy_the_sentence_is_the_same() -> None:
    policy = Policy(("*",), max_record_epsilon=1.0, approve=("*",))
    site = Site("a", np.eye(4), np.arange(4) % 2, policy=policy)
    assert is_held(ask(site))
    assert is_held(ask(site, task="folding_fit"))
    refused = ask(site, task="machines").refusal  # nobody need approve what is never answered
    assert refused is not None
    assert refused.code == "policy"


@pytest.mark.parametrize(
    ("setting", "told"),
    [(("describ",), "approve must be some of"), (("machines",), "which tasks does not allow"), ("describe", "a list")],
)
def test_policies_that_hold_nothing(setting: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        Policy(approve=setting)
