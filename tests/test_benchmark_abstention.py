"""The benchmark of abstention runs on small sets, and says what it measured; the full counts are kept beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_abstention_runs_on_few_splits_and_keeps_coverage_and_size(tmp_path):
    command = [sys.executable, "benchmarks/abstention.py", "--quick", "--out", str(tmp_path)]
    without_data = {**os.environ, "KERNFED_DATA": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=without_data, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "abstention.json").read_text(encoding="utf-8"))
    assert [row["data"] for row in told["coverage"]] == ["digits"] * 2 + ["breast cancer"] * 2
    for row in told["coverage"]:
        assert row["splits"] == 4
        assert row["ok"], row  # not below its band, and sets no larger than pooled ones by five per cent
    private = [row for row in told["private"] if row["epsilon"] is not None]
    assert len(private) == 2 * 2 * 2 * 2
    for row in private:
        assert row["coverage"] > 0.88, row
    (strangers,) = told["strangers"]
    assert strangers["ours"] > 0.7
    assert strangers["ours_alarms"] < 0.09
