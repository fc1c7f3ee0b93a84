"""The benchmark of liars runs on small sets; the page shows what the kept run found, and no other numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "kept"


def run(*arguments, **environment):
    command = [sys.executable, "benchmarks/liars.py", *arguments]
    own = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=600)


def test_the_page_shows_what_the_kept_run_found(tmp_path):
    (tmp_path / "liars.json").write_bytes((KEPT / "liars.json").read_bytes())
    shown = run("--markdown", "--out", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    page = (ROOT / "docs" / "liars.md").read_text(encoding="utf-8")
    tables = shown.stdout.strip().split("\n\n")
    assert len(tables) == 5
    for table in tables:
        assert table in page
    told = json.loads((KEPT / "liars.json").read_text())
    assert not told["quick"]
    assert {row["learner"] for row in told["alarms"]} == {"folding", "ridge", "fusion"}


@pytest.mark.slow
def test_liars_run_on_small_sets_and_are_found(tmp_path):
    done = run("--quick", "--out", str(tmp_path), KERNFED_DATA=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "liars.json").read_text(encoding="utf-8"))
    by_learner = {(row["learner"], row["liars"]): row for row in told["harm"]}
    assert by_learner["folding", 1]["found"] == 1
    assert by_learner["folding", 1]["again"] > by_learner["folding", 1]["lied"] + 0.03
    assert by_learner["folding, kth k=2", 1]["lied"] > by_learner["folding", 1]["lied"] + 0.03
    assert sum(row["named"] for row in told["alarms"]) <= 0.05 * sum(row["sites"] for row in told["alarms"])
    again = run("--quick", "--out", str(tmp_path), KERNFED_DATA=str(tmp_path))  # nothing is left to do
    assert again.stderr == ""
