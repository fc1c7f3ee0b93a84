"""Encrypted answers where sites, hub, gateway and asker are processes; how long they take is no matter for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_every_role_is_a_process_and_no_answer_is_wrong(tmp_path):
    for module in ("nats", "fastapi", "tenseal"):
        pytest.importorskip(module, reason="needs the extras serve and fhe")
    command = [sys.executable, "benchmarks/ask.py", "--quick", "--rounds", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "ask.json").read_text())
    assert [told[name]["wrong"] for name in ("one query", "64 queries")] == [0, 0]
    assert [told[name]["queries"] for name in ("one query", "64 queries")] == [2, 128]
    assert told["other keys are refused"] is True
    assert told["scores left in clear"] == 0
    assert told["encrypted answers in journals"] >= told["sites"] * 4
