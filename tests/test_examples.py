"""Every example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
#: Packages that an example needs beyond the core.
NEEDS = {"secure_processes.py": "tenseal"}
#: Examples of more than five seconds.
SLOW = {"secure_processes.py"}


def examples():
    for path in EXAMPLES:
        yield pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])


@pytest.mark.parametrize("path", list(examples()))
def test_example_runs(path, tmp_path):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason="the example needs an extra that is not installed")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()
