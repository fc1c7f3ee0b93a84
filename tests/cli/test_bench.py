"""The bench command: lists plainly, runs one or all, goes on after a failure, writes the document, refuses nonsense."""

import json

import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.experiments import runner
from kernfed.experiments.experiment import Experiment, Row
from kernfed.experiments.runner import list_experiments


def bench(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


@pytest.fixture
def three(monkeypatch):
    """Three experiments in the place of all: one runs, one fails, one misses its data."""

    def fail(seed, quick):
        raise RuntimeError(f"no luck with seed {seed}, quick {quick}")

    rows = [Row("a", 0.5, 0.75, "fraction"), Row("b", None, 10, "bytes up")]
    made = tuple(Experiment(name, "title", source, data, "words", run) for name, source, data, run in (
        ("one", "SFM Table 1", (), lambda *_: rows), ("two", "SFM Table 2", (), fail),
        ("three", "SFM Table 3", ("nowhere",), lambda *_: rows)))  # fmt: skip
    monkeypatch.setattr(runner, "list_experiments", lambda: made)
    monkeypatch.setattr("kernfed.report.results.list_experiments", lambda: made)


def test_list_is_one_plain_line_per_experiment():
    done = bench("--list")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [experiment.id for experiment in list_experiments()]
    told = json.loads(bench("--list", "--json").stdout)
    assert told["experiments"][0]["protocol"]


@pytest.mark.usefixtures("three")
def test_one_run_prints_and_keeps_one_line(tmp_path):
    done = bench("one", "--quick", "--out", tmp_path, "--seed", 3, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)["results"]
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    assert len(told) == len(lines) == 1
    assert json.loads(lines[0])["seed"] == told[0]["seed"] == 3
    assert "protocol: words" in bench("one").stderr


@pytest.mark.usefixtures("three")
def test_all_goes_on_after_a_failure_and_sums_up(tmp_path):
    done = bench("--all", "--out", tmp_path)
    assert done.exit_code == 1
    assert "two failed, RuntimeError: no luck" in done.stderr
    summary = done.stdout.splitlines()[-5:]
    assert [line.split()[0] for line in summary[:4]] == ["id", "one", "three", "two"]
    assert "2 of 2 rows" in summary[1]
    assert "not run: needs nowhere.npz" in summary[2]
    assert "FAILED: RuntimeError" in summary[3]
    assert summary[4].startswith("2 experiments in ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "three.jsonl"]
    told = json.loads(bench("--all", "--json").stdout)
    assert set(told["failed"]) == {"two"}
    assert told["seconds"] >= 0


@pytest.mark.usefixtures("three")
def test_one_that_fails_alone_is_an_error():
    done = bench("two")
    assert done.exit_code == 1
    assert "no luck" in done.stderr


@pytest.mark.usefixtures("three")
def test_the_document_is_written_from_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bench("one", "--out", "results").exit_code == 0
    done = bench("--write-docs", "results.md", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"out": "results.md", "figures": []})
    text = (tmp_path / "results.md").read_text()
    assert "| a | 0.5000 | 0.7500 | +0.2500 | fraction |" in text
    assert "### SFM Table 3: title" in text
    assert bench("--write-docs", "other.md", "--out", "elsewhere").exit_code == 2


@pytest.mark.parametrize("words", [[], ["--list", "--all"], ["one", "--all"], ["--write-docs", "x.md", "--list"]])
def test_what_to_run_must_be_said_once(words):
    done = bench(*words)
    assert done.exit_code == 2
    assert "name one experiment" in done.stderr


def test_an_unknown_experiment_is_refused():
    done = bench("no-such-table")
    assert done.exit_code == 2
    assert "no experiment 'no-such-table'" in done.stderr
