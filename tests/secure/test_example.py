"""The example, its roles called one after the other in this process: new interpreters would only cost time."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "secure_processes.py"


@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_roles_that_share_only_files(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if scheme == "bfv":
        pytest.importorskip("tenseal", reason="extra [fhe] not installed")
    spec = importlib.util.spec_from_file_location("secure_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def call(command: list[str], check: bool) -> None:
        assert check
        _, script, role, folder, argument = command
        assert Path(script) == SCRIPT
        example.ROLES[role](Path(folder), argument)

    monkeypatch.setattr(example.subprocess, "run", call)
    example.main(scheme)
    printed = capsys.readouterr().out
    assert "as in clear:       40 of 40" in printed
    assert "server  wrote answer" in printed
