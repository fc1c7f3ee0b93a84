"""The benchmarks run; what they measure is not a matter for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIELDS = {"work", "compare_with", "unit", "reference", "ours", "ratio", "limit", "ok"}


@pytest.mark.slow
def test_geometry_runs_on_tiny_sizes_and_writes_json(tmp_path):
    command = [sys.executable, "benchmarks/geometry.py", "--quick", "--rounds", "1", "--out", str(tmp_path)]
    without_data = {**os.environ, "KERNFED_DATA": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=without_data, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "geometry.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == found
    assert (found["benchmark"], found["quick"], found["rounds"]) == ("geometry", True, 1)
    assert [row["unit"] for row in found["rows"]] == ["seconds"] * 9 + ["bytes"]
    for row in found["rows"]:
        assert set(row) == FIELDS
        assert row["ratio"] == row["ours"] / row["reference"] > 0
        assert row["ok"] == (row["ratio"] <= row["limit"])
    assert "random rows in place of MNIST" in found["rows"][0]["work"]
