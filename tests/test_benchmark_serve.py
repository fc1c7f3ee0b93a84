"""The benchmark of the gateway runs, and hostile requests do it no harm; what it measures is not a matter for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_gateway_is_measured_and_withstands(tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")
    words = ["--quick", "--only", "answers", "hostile", "--out", str(tmp_path)]
    command = [sys.executable, "benchmarks/serve.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "serve.json").read_text())
    assert (told["benchmark"], told["quick"], told["sites"]) == ("serve", True, 3)
    assert told["answers"]["one query"]["ratio"] > 0
    assert told["hostile"]["neither 2xx, 4xx nor ended"] == 0
    assert sum(told["hostile"]["statuses"].values()) == 100
