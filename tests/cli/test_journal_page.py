"""The commands of the page on journal, approval and generations run, in order, in one shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kernfed as kf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "journal.md"


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -e\n" + "".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every line follows from the one before" in done.stdout
    assert "2 trainings kept" in done.stdout
    assert "this file" in done.stdout
    handles = [kf.load(tmp_path / name).handle for name in ("monday.kfd", "tuesday.kfd")]
    assert all(handle in done.stdout for handle in handles)
