"""``kernfed journal``: shown in a table, filtered, checked, exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.federation import Payload, Policy
from kernfed.site.protocol.message import Question, encode_question


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["journal", *map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = np.eye(4), np.arange(4) % 2
    policies = {name: Policy(("describe",)) for name in "ab"}
    with kf.Federation.local({"a": rows, "b": rows}, store=tmp_path / "store", policies=policies) as federation:
        federation.ask("describe", Payload())
        federation.ask("scores", Payload({"X": np.zeros((7, 4))}), min_replies=0)
        site = federation.engine.site("a")  # type: ignore[attr-defined]
        site.answer(encode_question(Question("run", "id", "describe", Payload(), "dr.\x1b[2J miller")), "gateway")
    return tmp_path / "store"


def test_show(store: Path) -> None:
    done = run("show", store, "--name", "a")
    head, *lines = done.stdout.splitlines()[1:]
    assert head.split()[:2] == ["line", "time"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5"]
    assert "refused: policy" in lines[3]
    assert "gateway" in lines[4]
    assert "\x1b" not in done.stdout  # a caller's name does not steer a terminal
    assert lines[2].split()[3:7] == ["?", "local", "describe", "0"]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--task", "describe"], [3, 5]),
        (["--caller", "gateway"], [5]),
        (["--caller", "local"], [3, 4]),
        (["--refused"], [4]),
        (["--last", "2"], [4, 5]),
        (["--since", "2000-01-01", "--until", "2999-01-01"], [1, 2, 3, 4, 5]),
        (["--since", "2999-01-01T00:00+01:00"], []),
    ],
)
def test_filters(store: Path, options: list[str], numbers: list[int]) -> None:
    shown = json.loads(run("show", store / "site-a", *options, "--json").stdout)
    assert [line["n"] for line in shown["lines"]] == numbers


def test_check_export_and_check_again(store: Path, tmp_path: Path) -> None:
    checked = json.loads(run("check", store / "site-a", "--json").stdout)
    assert (checked["whole"], checked["lines"], checked["problems"]) == (True, 5, [])
    assert checked["head"] in run("export", store / "site-a", "--out", tmp_path / "copy.jsonl").stdout
    assert "every line follows" in run("check", tmp_path / "copy.jsonl", "--head", checked["head"]).stdout
    place = store / "site-a" / "journal" / "000000000001.jsonl"
    place.write_text(place.read_text().replace("gateway", "nobody!"))
    assert "PROBLEM: line 5 was changed" in run("check", store / "site-a", code=1).stdout


def test_bad_input(store: Path, tmp_path: Path) -> None:
    assert "several sites, a, b; name one with --name" in run("show", store, code=2).stderr
    assert "there is no journal" in run("check", tmp_path / "nowhere", code=2).stderr
    assert "number:hash" in run("check", store / "site-a", "--head", "7", code=2).stderr
    assert "a time must be as 2026-11-17" in run("show", store / "site-a", "--since", "monday", code=2).stderr
