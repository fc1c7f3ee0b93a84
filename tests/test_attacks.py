"""A slice of the attacks, seeded; ``make attack`` runs all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


#: Share of the attacks of a kind: in ``make test`` the smallest that attacks everything, in ``make test-all`` more.
SLICES = [
    ("files", 0.01),
    ("messages", 0.01),
    ("kills", 0.03),
    pytest.param("files", 0.03, marks=pytest.mark.slow),
    pytest.param("messages", 0.03, marks=pytest.mark.slow),
    pytest.param("liars", 0.03, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("what", "share"), SLICES)
def test_nothing_goes_wrong_in_a_slice(what: str, share: float) -> None:
    command = [sys.executable, "-m", "attacks", what, "--share", str(share), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 wrong, seed 7" in done.stdout


@pytest.mark.slow
def test_what_goes_wrong_is_said_and_fails() -> None:
    """With a reader that believes whatever digest a file has, flipped bits are found, and the program fails."""
    code = (
        "import sys, kernfed.files as files\n"
        "from attacks.__main__ import main\n"
        "files.content_digest = lambda header, arrays: header.get('digest', '')\n"
        "sys.exit(main(['files', '--share', '0.1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "WRONG: file, bit flipped in an array" in done.stdout
