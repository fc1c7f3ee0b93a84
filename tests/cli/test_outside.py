"""Commands of other packages: found by their entry point when they are called, and said how to install otherwise."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kernfed.cli import OutsideCommand, app, command
from kernfed.errors import InputError


def kernfed(*words):
    return CliRunner().invoke(app, list(words))


class Declared:
    """An entry point, and how often it was loaded."""

    def __init__(self, name, command):
        self.name, self.command = name, command
        self.loads = 0

    def load(self):
        self.loads += 1
        return self.command


@pytest.fixture
def declare(monkeypatch):
    """Puts entry points in the place of all that are installed."""

    def put(*entries):
        def entry_points(group, name):
            assert group == "kernfed.commands"
            return [entry for entry in entries if entry.name == name]

        monkeypatch.setattr(command, "entry_points", entry_points)

    return put


def greet(name: Annotated[str, typer.Argument(help="Who.")], loud: bool = False) -> None:
    """Say hello."""
    if name == "nobody":
        raise InputError("there is nobody to greet")
    print(f"hello {name.upper() if loud else name}")


@pytest.mark.parametrize("words", [["bench"], ["bench", "gikm-table-1", "--quick", "--out", "x"], ["bench", "--list"]])
def test_without_the_papers_bench_says_how_to_install_them(declare, words):
    declare()
    done = kernfed(*words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kernfed: ")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install --editable papers" in done.stderr


def test_without_the_papers_bench_has_a_help(declare):
    declare()
    done = kernfed("bench", "--help")
    assert done.exit_code == 0
    assert "published table" in done.stdout
    assert "Example: kernfed bench" in done.stdout


@pytest.mark.parametrize("name", ["bench", "greet"])
def test_a_declared_command_runs_under_its_name(declare, name):
    declare(Declared(name, OutsideCommand(greet, f"Example: kernfed {name} you")))
    done = kernfed(name, "you", "--loud")
    assert (done.exit_code, done.stdout) == (0, "hello YOU\n")
    told = kernfed(name, "-h").stdout
    assert f"Usage: kernfed {name}" in told
    assert f"Example: kernfed {name} you" in told
    for words, reason in ((["nobody"], "there is nobody to greet"), ([], f"see kernfed {name} --help")):
        done = kernfed(name, *words)
        assert done.exit_code == 2
        assert reason in done.stderr


def test_own_commands_are_not_replaced(declare):
    entry = Declared("demo", OutsideCommand(greet))
    declare(entry)
    assert "Ten sites" in kernfed("demo", "--help").stdout
    assert entry.loads == 0


def test_the_help_lists_bench_and_reads_no_entry_points(monkeypatch):
    def refuse(**_):
        raise AssertionError("read")

    monkeypatch.setattr(command, "entry_points", refuse)
    done = kernfed("--help")
    assert done.exit_code == 0
    assert "\n  bench " in done.stdout


def test_an_unknown_command_is_refused(declare):
    declare()
    done = kernfed("no-such-command")
    assert done.exit_code == 2
    assert "no-such-command" in done.stderr
