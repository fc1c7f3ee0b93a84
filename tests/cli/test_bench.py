"""The bench command: lists plainly, runs one, refuses nonsense."""

import json

from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.experiments.runner import list_experiments


def test_list_is_one_plain_line_per_experiment():
    done = CliRunner().invoke(app, ["bench", "--list"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [experiment.id for experiment in list_experiments()]
    told = json.loads(CliRunner().invoke(app, ["bench", "--list", "--json"]).stdout)
    assert told["experiments"][0]["protocol"]


def test_quick_run_prints_and_keeps_one_line(tmp_path):
    name = list_experiments()[0].id
    done = CliRunner().invoke(app, ["bench", name, "--quick", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)["results"]
    lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
    assert len(told) == len(lines) == 1
    assert json.loads(lines[0])["id"] == name


def test_what_to_run_must_be_said_once():
    for words in ([], ["--list", "--all"], ["gikm-table-1", "--all"]):
        done = CliRunner().invoke(app, ["bench", *words])
        assert done.exit_code == 2
        assert "name one experiment" in done.stderr
    done = CliRunner().invoke(app, ["bench", "no-such-table"])
    assert done.exit_code == 2
    assert "no experiment 'no-such-table'" in done.stderr
