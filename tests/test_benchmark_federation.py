"""The benchmark of federations runs; what it measures is not a matter for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(folder, *options):
    command = [sys.executable, "benchmarks/federation.py", "--out", str(folder), *options]
    without_data = {**os.environ, "KERNFED_DATA": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=without_data, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    run(folder, "--quick")
    return {path.stem.removeprefix("federation_"): json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.slow
def test_every_part_runs_on_tiny_sizes_and_writes_json(parts):
    assert set(parts) == {"images", "text", "scaling", "forgetting"}
    for name, part in parts.items():
        assert (part["part"], part["quick"], part["seed"]) == (name, True, 0)
        assert part["lines"]


@pytest.mark.slow
def test_figures_are_plausible(parts):
    lines = {(line["method"], line["rounds"]): line for line in parts["images"]["lines"]}
    folding, alone = lines["folding, one round", 1], lines["each site alone, mean", 0]
    assert folding["accuracy"] > alone["accuracy"]
    assert folding["accuracy"] > lines["FedAvg, linear", 1]["accuracy"]
    assert lines["FedAvg, mlp", 3]["bytes up"] > lines["FedAvg, mlp", 1]["bytes up"] > folding["bytes up"]
    assert [line["sites"] for line in parts["scaling"]["lines"]] == [5, 20]


def test_absent_data_are_said_to_be_absent(tmp_path):
    done = run(tmp_path, "--only", "scaling")
    assert "scaling: not run" in done.stderr
    assert not list(tmp_path.glob("*.json"))
