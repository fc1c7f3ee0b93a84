"""The program as a user meets it: help, version, purity of JSON, exit codes of real processes."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import kernfed.cli
from kernfed.cli import app
from kernfed.cli.command import find_command


def leaves(command, path=()):
    """Words of every command that does something itself."""
    inner = getattr(command, "commands", None)
    return [path] if inner is None else [leaf for name in inner for leaf in leaves(inner[name], (*path, name))]


COMMANDS = leaves(typer.main.get_command(app))
FILES = sorted(Path(kernfed.cli.__file__).parent.glob("*.py"))
#: Anything else is heavy and belongs inside the function that needs it.
LIGHT = {"typer", "kernfed"} | set(sys.stdlib_module_names)


def program(*arguments, **options):
    command = [sys.executable, "-m", "kernfed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def top_level_imports(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example_and_offers_json(words):
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0
    assert f"Example: kernfed {' '.join(words)}" in done.stdout
    assert "--json" in done.stdout
    assert "\\[" not in done.stdout


ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
#: Begin of a line of a command, or a whole one in the text; a backslash at the end carries on.
WRITTEN = re.compile(r"(?:^ *|`)kernfed ((?:[^`\n\\]|\\\n)+)", re.MULTILINE)


@cache
def known_options(words):
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    if words == ("bench",):  # its options are those of a package that need not be installed
        command = find_command("bench") or pytest.skip("needs the package kernfed_papers")
    parameters = command.get_params(typer.Context(command))
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


def written_commands(path):
    """Words of every command that a document shows."""
    for text in WRITTEN.findall(path.read_text(encoding="utf-8")):
        yield shlex.split(text.replace("\\\n", " "), comments=True)


def test_what_the_officer_reads_plans_and_audits_what_is_released():
    shown = [words for words in written_commands(ROOT / "docs" / "privacy.md") if "--privacy" in words]
    assert [words[0] for words in shown] == ["plan", "train", "audit"]
    for option in ("--data", "--label", "--site", "--id", "--privacy", "--epsilon", "--radius"):
        assert len({words[words.index(option) + 1] for words in shown}) == 1


def test_options_in_documents_exist():
    seen = 0
    for path in DOCUMENTS:
        for words in written_commands(path):
            named = next((leaf for leaf in COMMANDS if tuple(words[: len(leaf)]) == leaf), None)
            options = {word for word in words if word.startswith("--") and len(word) > 2}
            if named is None:
                assert options <= {"--help", "--version"}, (path.name, words)
                continue
            assert options <= known_options(named) | {"--help"}, (path.name, words)
            seen += len(options)
    assert seen > 50


@pytest.mark.parametrize("terminal", [False, True])
def test_help_reads_the_same_with_and_without_a_terminal(terminal):
    code = f"import sys; sys.stdout.isatty = lambda: {terminal}; import kernfed.cli; kernfed.cli.main()"
    command = [sys.executable, "-c", code, "train", "--help"]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert ("\u256d" in done.stdout) is terminal
    for words in ("[required]", "[default: fusion]", "x>=1"):
        assert words in done.stdout
    assert "\\[" not in done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_heavy_modules_are_not_imported_at_the_top(path):
    for module in top_level_imports(path):
        package, _, rest = module.partition(".")
        assert package in LIGHT, f"{path.name} imports {module}"
        assert package != "kernfed" or rest.startswith(("cli", "errors", "_version", "base.text")), (
            f"{path.name} imports {module}"
        )


def test_starting_imports_nothing_heavy():
    heavy = {"numpy", "scipy", "sklearn", "joblib", "pyarrow", "rich"}
    code = f"import sys, kernfed.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"kernfed {kernfed.__version__}\n")


def test_demo_shows_the_federation():
    done = CliRunner().invoke(app, ["demo", "--no-report"])
    assert done.exit_code == 0, done.stderr
    title, header, *rows = done.stdout.splitlines()
    assert "1348 images" in title
    assert header.split() == ["what", "accuracy", "time"]
    assert [row.split("  ")[0] for row in rows[:6]] == [
        "together, one round",
        "each site alone, mean",
        "all data pooled",
        "nearest neighbours, pooled",
        "site-3 forgotten",
        "site-7 killed",
    ]


def test_demo_process_prints_one_json_object():
    done = program("demo", "--json", "--seed", "1", "--no-report")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["data"] == {"sites": 10, "train": 1348, "test": 449, "classes_per_site": 3}
    assert found["seed"] == 1
    accuracy = {result["what"]: result["accuracy"] for result in found["results"]}
    assert accuracy["together, one round"] > 0.96
    assert accuracy["each site alone, mean"] < 0.4
    assert {entry["task"] for entry in found["traffic"]} == {
        "describe",
        "folding_choose",
        "folding_fit",
        "scores",
        "forget_model",
    }


def test_bad_input_process_ends_with_code_2_and_a_sentence():
    done = program("demo", "--json", "--seed", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernfed: Invalid value for '--seed'")
    assert done.stderr.count("\n") == 1


def test_debugging_process_ends_with_a_traceback():
    done = program("predict", "nothing.kfd", "x.csv", env={**os.environ, "KERNFED_DEBUG": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "FileNotFoundError: no model file at nothing.kfd" in done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, "-m", "kernfed", "--version"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
