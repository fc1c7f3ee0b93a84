"""``kernfed approve``: what waits is listed, let through for a time, and held again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.site.protocol.message import Question, decode_reply, encode_question


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["approve", *map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


def answered(store: Path, caller: str | None = "hub") -> bool:
    policy = Policy(("describe",), approve=("describe",))
    site = Site("a", np.eye(3), np.arange(3), store=SiteStore(store), policy=policy)
    question = Question("run", "id", "describe", Payload(), "me\x1b")
    return decode_reply(site.answer(encode_question(question), caller), question, "a").refusal is None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    assert not answered(tmp_path)
    return tmp_path


def listed(store: Path, state: str) -> list[Any]:
    entries: list[Any] = json.loads(run("list", store, "--json").stdout)[state]
    return entries


def test_list_allow_withdraw(store: Path) -> None:
    assert not answered(store, None)
    shown = run("list", store).stdout
    assert "2 waiting" in shown
    assert "(said)" in shown
    assert "\x1b" not in shown
    first, second = (entry["key"] for entry in listed(store, "waiting"))
    assert "describe goes through for hub" in run("allow", store, first, "--for", "30m").stdout
    assert answered(store)
    assert not answered(store, None)
    (approved,) = listed(store, "approved")
    assert "waits again for hub" in run("withdraw", store, approved["key"]).stdout
    assert not answered(store)
    assert json.loads(run("allow", store, second, "--identical", "--json").stdout)["caller"] == "me\x1b"
    assert answered(store, None)


def test_allow_before_anybody_asks(store: Path) -> None:
    run("allow", store, "--task", "describe", "--caller", "clinic", "--for", "7d")
    assert answered(store, "clinic")
    assert not answered(store)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name the key of what waits, or both --task and --caller"),
        (["--task", "describe"], "name the key"),
        (["00000000"], "'00000000' is not waiting; there are "),
        (["--task", "describ", "--caller", "hub"], "--task must be one of"),
        (["--task", "describe", "--caller", "hub", "--for", "soon"], "--for must be a time as 30m, 8h or 7d"),
        (["--task", "describe", "--caller", "hub", "--for", "0m"], "--for must be a time"),
        (["--task", "describe", "--caller", "hub", "--for", "9999d"], "at most 366d"),
        (["--task", "describe", "--caller", "hub", "--identical"], "name its key"),
    ],
)
def test_bad_input(store: Path, words: list[str], told: str) -> None:
    assert told in run("allow", store, *words, code=2).stderr
    assert not listed(store, "approved")
