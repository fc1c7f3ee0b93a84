"""Every example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
#: Packages that an example needs beyond the core.
NEEDS = {"secure_processes.py": "tenseal"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, tmp_path):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason="the example needs an extra that is not installed")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()
