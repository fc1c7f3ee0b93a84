"""The one way through a site: every task, under required privacy, is refused, released or public with a reason."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernfed.errors import InputError, Refused
from kernfed.federation import Payload, Policy, Site, task
from kernfed.site.protocol import task as declared
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question
from kernfed.site.protocol.task import Task, find_task, methods, question_parts, task_names

EVERY = question_parts()


def ask(site: Site, name: str, caller: str = "local") -> Reply:
    """The reply to an empty question of a task, or to one that names a part of it, "task:statistic:way"."""
    name, _, part = name.partition(":")
    statistic, _, way = part.partition(":")
    values = {"noisy": {"privacy": {}}, "shared": {"honest": 3}}.get(way, {})
    question = Question("run", "id", name, Payload(values={"statistics": {statistic: {}}, **values}), caller)
    return decode_reply(site.answer(encode_question(question)), question, site.name)


@pytest.fixture
def private_site() -> Site:
    policy = Policy(("*",), require_privacy=True, max_record_epsilon=50.0)
    return Site("a", np.arange(20.0).reshape(10, 2), np.arange(10) % 2, policy=policy, holdout=0.3)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every task does nothing but try to see rows, and notes what it could see."""
    seen: list[str] = []

    def probe(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
        for what in ("rows", "held_out"):
            try:
                getattr(site, what)()
                seen.append(what)
            except Refused:
                seen.append(f"no {what}")
            except RuntimeError:  # it does without the lock
                seen.append(f"{what} need the lock")
        return Payload()

    for name in task_names():
        known = find_task(name)
        assert known is not None
        monkeypatch.setitem(declared._tasks, name, replace(known, run=probe))
    return seen


def test_there_are_tasks_of_every_method() -> None:
    assert len(EVERY) > 25
    assert {"describe", "folding_fit", "scores", "ridge_start", "personal_survey", "test_model:errors"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_every_task_is_refused_released_or_public_under_required_privacy(
    private_site: Site, probed: list[str], name: str
) -> None:
    known = EVERY[name]
    reply = ask(private_site, name)
    if known.under_privacy == "refused":
        assert probed == []  # it was not run
        assert reply.refusal is not None
        assert reply.refusal.code == "policy"
        assert "requires privacy" in reply.refusal.reason
    elif known.under_privacy == "released":
        assert probed == ["no rows", "no held_out"]  # there is no way to them but a release
        assert reply.refusal is None
    else:
        assert len(known.reason) > 20
        assert reply.refusal is None


@pytest.mark.parametrize("name", EVERY)
def test_no_task_sees_rows_without_the_lock(probed: list[str], name: str) -> None:
    """Another process may forget a row while this one reads."""
    known = find_task(name.partition(":")[0])
    assert known is not None
    ask(Site("a", np.eye(3), np.arange(3), policy=Policy.open()), name)
    assert probed == (["rows", "held_out"] if known.locked else ["rows need the lock", "held_out need the lock"])


@pytest.mark.parametrize(
    "name",
    [
        "test_model:errors",
        "test_model:outcomes",
        "held_out_queries",
        "test_scores:influence",
        "machines",
        "ridge_moments",
    ],
)
def test_raw_sums_counts_and_rows_do_not_leave_under_required_privacy(private_site: Site, name: str) -> None:
    refusal = ask(private_site, name).refusal
    assert refusal is not None
    assert refusal.code == "policy"


def test_methods_declare_the_tasks_that_their_modules_have() -> None:
    for method in methods():
        for names in method.tasks.values():
            for name in names:
                assert find_task(name) is not None, f"{method.name} declares {name}, and no module has it"
        assert set(method.default_tasks) <= {name for names in method.tasks.values() for name in names}


def test_a_release_opens_the_way_and_closes_it(private_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(site: Site, payload: Payload) -> Payload:  # noqa: ARG001
        with site.releasing():
            count = len(site.rows().y)
        with pytest.raises(Refused, match="requires privacy"):
            site.rows()
        return Payload(values={"count": count})

    monkeypatch.setitem(declared._tasks, "probe", Task("probe", run, "released", under_privacy="released"))
    assert ask(private_site, "probe").payload.values["count"] > 0


def test_the_order_is_caller_policy_privacy_task(probed: list[str]) -> None:
    policy = Policy(("describe", "test_model:outcomes"), callers=("me",), require_privacy=True, max_record_epsilon=50.0)
    site = Site("a", np.eye(3), np.arange(3), policy=policy)
    for name, caller, told in (
        ("nonsense", "you", "knows no task"),
        ("scores", "you", "not 'scores'"),
        ("describe", "you", "does not answer caller"),
        ("test_model:coverage", "you", "not 'test_model:coverage'"),
        ("test_model:outcomes", "me", "requires privacy"),
    ):
        refusal = ask(site, name, caller).refusal
        assert refusal is not None
        assert told in refusal.reason
    assert probed == []


def test_an_engine_that_knows_the_caller_is_believed_and_not_the_message() -> None:
    site = Site("a", np.eye(3), np.arange(3), policy=Policy(callers=("me",)))
    question = Question("run", "id", "describe", Payload(), "me")
    refused = decode_reply(site.answer(encode_question(question), caller="you"), question, "a")
    assert refused.refusal is not None
    assert "does not answer caller 'you'" in refused.refusal.reason
    assert decode_reply(site.answer(encode_question(question), caller="me"), question, "a").refusal is None


@pytest.mark.parametrize(
    ("declaration", "told"),
    [
        ({"leaves": "everything"}, "leaves must be one of"),
        ({"leaves": "rows", "under_privacy": "maybe"}, "under_privacy must be one of"),
        ({"leaves": "rows", "under_privacy": "public"}, "must give a reason"),
        ({"leaves": "rows", "reason": "because"}, "must give a reason if, and only if"),
    ],
)
def test_declarations_that_are_none(declaration: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        task("toy", **declaration)(lambda *_: Payload())
