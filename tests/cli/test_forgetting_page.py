"""The commands of the page on forgetting run, in order, in one shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "forgetting.md"


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + "".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rows forgotten at site 'north'" in done.stdout
    assert "models fitted again, whose earlier state is void:            1" in done.stdout
    assert "after.kfd descends from the state in force" in done.stdout
    assert "PROBLEM: before.kfd is from before line 2, by which rows were forgotten" in done.stdout
    assert "it still holds the rows" in done.stdout
    assert "A membership attack before and after" in (tmp_path / "page.html").read_text(encoding="utf-8")
