"""The benchmark of sites that stay runs; what it measures is not a matter for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_answers_are_measured_beside_those_of_one_process(tmp_path):
    pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")
    command = [sys.executable, "benchmarks/hub.py", "--quick", "--only", "answers", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "hub.json").read_text())
    assert (told["benchmark"], told["quick"], told["sites"]) == ("hub", True, 3)
    assert told["answers"]["one query"]["ratio"] > 0
    assert told["answers"]["callers"]["64"]["questions per second"] > 0
