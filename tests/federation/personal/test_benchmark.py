"""The benchmark of personalised learning runs; what it measures is not a matter for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_benchmark_runs_on_tiny_sizes_and_writes_json(tmp_path):
    command = [sys.executable, "benchmarks/personal.py", "--quick", "--rounds", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "personal.json").read_text())
    assert [row["unit"] for row in written["rows"]] == ["seconds", "bytes", "seconds", "bytes", "seconds"] * 2
    assert all(row["ok"] for row in written["rows"] if row["unit"] == "bytes")
