"""Every way a command can end: its exit code and what it says."""

import warnings

import pytest
import typer
from typer.testing import CliRunner

from kernfed.cli.command import Commands
from kernfed.errors import DataError, FileFormatError

ENDINGS = {
    "value": ValueError("alpha must be > 0, got -1.0"),
    "data": DataError("rows.csv: there is no column 'label'"),
    "format": FileFormatError("model.kfd is not a model file"),
    "extra": ImportError("scheme 'bfv' needs SEAL: pip install -e '.[fhe]' in a clone of kernfed"),
    "lines": ValueError("expected this\n  but got that"),
    "missing": FileNotFoundError(2, "No such file or directory", "rows.csv"),
    "empty": ValueError(),
    "bug": KeyError("site"),
    "interrupt": KeyboardInterrupt(),
    "abort": typer.Abort(),
    "chosen": typer.Exit(7),
}

app = typer.Typer(cls=Commands, rich_markup_mode=None)


@app.command()
def end(how: str = "well", times: int = 1) -> None:
    """End as asked."""
    if how in ENDINGS:
        raise ENDINGS[how]
    if how == "warn":
        warnings.warn("the step diverges", UserWarning, stacklevel=1)
    print("result" * times)


inner = typer.Typer(name="inner", no_args_is_help=True)
app.add_typer(inner)


@inner.command()
def one() -> None:
    """One of two, so that the group remains a group."""


@inner.command()
def two() -> None:
    """The other."""


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), prog_name="kernfed")


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("value", 2, "kernfed: alpha must be > 0, got -1.0"),
        ("data", 2, "kernfed: rows.csv: there is no column 'label'"),
        ("format", 2, "kernfed: model.kfd is not a model file"),
        ("extra", 2, "kernfed: scheme 'bfv' needs SEAL: pip install -e '.[fhe]' in a clone of kernfed"),
        ("lines", 2, "kernfed: expected this but got that"),
        ("missing", 2, "kernfed: rows.csv: No such file or directory"),
        ("empty", 2, "kernfed: ValueError"),
        ("bug", 1, "kernfed: internal error, KeyError: 'site'; set KERNFED_DEBUG=1 to see where"),
        ("interrupt", 130, "interrupted"),
        ("abort", 130, "interrupted"),
        ("chosen", 7, ""),
    ],
)
def test_failures_are_one_line_and_a_code(how, code, said):
    done = run("end", "--how", how)
    assert done.exit_code == code
    assert done.stderr.rstrip("\n") == said
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["end", "--hwo", "well"], "--hwo"),
        (["end", "--times", "many"], "--times"),
        (["end", "surplus"], "surplus"),
        (["edn"], "edn"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_command_lines_name_the_word_and_the_help(arguments, said):
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kernfed: ")
    assert said in done.stderr
    assert f"(see kernfed{' end' if arguments[0] == 'end' else ''} --help)" in done.stderr


def test_debugging_shows_the_exception_itself(monkeypatch):
    monkeypatch.setenv("KERNFED_DEBUG", "1")
    done = run("end", "--how", "value")
    assert done.exception is ENDINGS["value"]


@pytest.mark.parametrize("value", ["", "0"])
def test_debugging_can_be_switched_off(monkeypatch, value):
    monkeypatch.setenv("KERNFED_DEBUG", value)
    assert run("end", "--how", "value").exit_code == 2


@pytest.mark.filterwarnings("default")
def test_warnings_are_lines_on_stderr_and_change_nothing():
    done = run("end", "--how", "warn")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "result\n", "kernfed: warning: the step diverges\n")


@pytest.mark.parametrize("words", [[], ["inner"]])
def test_without_a_command_there_is_help(words):
    done = run(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"Usage: {' '.join(['kernfed', *words])}" in done.stdout
