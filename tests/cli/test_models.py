"""``kernfed models``: the trainings that a site keeps, and which of them a file uses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.federation import Federation, FoldingLearner, RidgeLearner


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["models", *map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Two models of a site, and its store: one of 20 rows, and one of 30 that was made later."""
    X, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    for count, name in ((20, "old.kfd"), (30, "new.kfd")):
        data = {site: (X[:count] + shift, y[:count]) for shift, site in enumerate("ab")}
        with Federation.local(data, store=tmp_path / "store") as federation:
            FoldingLearner(batch_size=10, scale=None, partition="kmeans", measure="rms").fit(federation).save(
                tmp_path / name
            )
    RidgeLearner(n_components=10).fit(Federation.local({"a": (X, y)})).save(tmp_path / "ridge.kfd")
    return tmp_path


def test_trainings_are_listed(folder: Path) -> None:
    listed = json.loads(run(folder / "store", "--name", "a", "--json").stdout)["models"]
    assert [(entry["generation"], entry["rows"], entry["asked_by"]) for entry in listed] == [
        (2, 30, "local (said)"),
        (1, 20, "local (said)"),
    ]
    assert {entry["handle"] for entry in listed} == {kf.load(folder / "old.kfd").handle}
    title, columns, *lines = run(folder / "store" / "site-b").stdout.splitlines()
    assert (title, columns.split()[0], len(lines)) == ("2 trainings kept", "handle", 2)


def test_the_training_that_a_file_uses_is_marked(folder: Path) -> None:
    lines = run(folder / "store", "--name", "a", "--model", folder / "old.kfd").stdout.splitlines()[2:]
    assert [line.endswith("this file") for line in lines] == [False, True]
    (folder / "store" / "site-a" / "folding" / f"{kf.load(folder / 'old.kfd').handle}.1.safetensors").unlink()
    told = run(folder / "store", "--name", "a", "--model", folder / "old.kfd").stdout
    assert "is not kept here any more" in told


def test_bad_input(folder: Path) -> None:
    assert "several sites, a, b; name one with --name" in run(folder / "store", code=2).stderr
    assert "holds no store of a site" in run(folder / "nowhere", code=2).stderr
    assert (
        "no site 'z'" in run(folder / "store" / "site-a", "--model", folder / "old.kfd", "--site", "z", code=2).stderr
    )
    assert "is whole" in run(folder / "store" / "site-a", "--model", folder / "ridge.kfd", code=2).stderr
