"""``kernfed serve``: a process that answers until it is stopped, and the tokens of its callers."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from kernfed.cli import app
from kernfed.federation import Federation, FoldingLearner, PersonalLearner, RidgeLearner
from kernfed.serve.requests import Tokens


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["serve", *map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(3)
    data = {site: (rng.normal(size=(30, 2)), np.arange(30) % 2) for site in "ab"}
    with Federation.local(data, store=place / "store") as federation:
        RidgeLearner(n_components=8, regularization=0.1).fit(federation).save(place / "ridge.kfd")
        FoldingLearner(batch_size=30).fit(federation).save(place / "sites.kfd")
        PersonalLearner(features="given").fit(federation).save(place / "personal.kfd")
    return place


def test_a_gateway_answers_until_it_is_stopped(folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = json.loads(run("--new-token", "ann", "--tokens", tokens, "--json").stdout)["token"]
    words = ["serve", str(folder / "ridge.kfd"), "--port", "0", "--tokens", str(tokens), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kernfed", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        about = json.loads(process.stdout.readline())
        assert about["kind"] == "RidgeModel"
        assert about["pid"] == process.pid
        request = urllib.request.Request(about["url"] + "/predict", b"0.5,0.5\n-1,2")
        request.add_header("Content-Type", "text/csv")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as reply:
            answers = json.load(reply)["answers"]
        assert len(answers) == 2
        assert set(answers[0]["probabilities"]) == {"0", "1"}
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert said.decode().splitlines()[-1] == "gateway: has stopped"
    finally:
        process.kill()
        process.wait()


def test_tokens_are_made_and_revoked(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = run("--new-token", "ann", "--tokens", tokens).stdout.split()[0]
    assert Tokens(tokens).caller(token) == "ann"
    run("--revoke-token", "ann", "--tokens", tokens)
    assert Tokens(tokens).caller(token) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the model file"),
        (["none.kfd"], "none.kfd"),
        (["sites.kfd"], "--credentials FILE of a hub"),
        (["ridge.kfd", "--credentials", "x.toml"], "is whole and needs no sites"),
        (["personal.kfd"], "name one by --for-site"),
        (["ridge.kfd", "--for-site", "a"], "--for-site is for personalised models"),
        (["ridge.kfd", "--host", "0.0.0.0"], "give --tokens FILE"),
        (["ridge.kfd", "--host", "192.0.2.1", "--tokens", "tokens.json"], "tokens.json"),
        (["ridge.kfd", "--port", "70000"], "--port"),
        (["--new-token", "ann"], "need --tokens FILE"),
        (["--new-token", "a b", "--tokens", "t.json"], "name must be"),
        (["--new-token", "a", "--revoke-token", "a", "--tokens", "t.json"], "give one of them"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    error = run(*words, code=2).stderr
    assert said in error
    assert error.count("\n") == 1
