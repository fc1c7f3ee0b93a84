"""The benchmark of receipts runs on a few steps; what it costs is not a matter for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_benchmark_runs_and_finds_every_flip(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/receipts.py", "--steps", "30", "--flips", "20", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "receipts.json").read_text(encoding="utf-8"))
    assert result["stream"]["different"] == 0
    assert result["stream"]["compared"] == 1
    assert result["verify"]["receipts"] == 30
    assert result["verify"]["same"] == result["verify"]["of"]
    assert result["flips"]["missed"] == 0
