"""``kernfed evaluate --influence``, the report and jobs: a site that does not fit is named everywhere alike."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.jobs.run import Job, run_job

runner = CliRunner()
SITES = tuple("abcdefg")


@pytest.fixture(scope="module")
def sites():
    """Rows of seven sites; those of site c have the wrong labels."""
    rng = np.random.default_rng(0)
    middles = 2 * rng.normal(size=(3, 4))

    def rows(n, wrong):
        numbers = rng.integers(3, size=n)
        labels = np.array(["cat", "dog", "fox"])[(numbers + wrong) % 3]
        return middles[numbers] + rng.normal(size=(n, 4)), labels

    return {name: rows(60, name == "c") for name in SITES}


@pytest.fixture(scope="module")
def folder(sites, tmp_path_factory):
    """A model with its machines, and a table of rows that it was not trained on."""
    place = tmp_path_factory.mktemp("influence")
    learner = kf.FoldingLearner(hold="machines", batch_size=30, partition="order", scale=None)
    with kf.Federation.local(sites, holdout=0.4) as federation:
        learner.fit(federation).save(place / "model.kfd")
        kf.RidgeLearner(n_components=20).fit(federation).save(place / "ridge.kfd")
        aside = {name: federation.engine.site(name).held_out() for name in SITES}
    X, y = (np.concatenate([getattr(rows, part) for rows in aside.values()]) for part in ("X", "y"))
    columns = {f"x{number}": values for number, values in enumerate(X.T)}
    site = np.repeat(SITES, [len(rows.y) for rows in aside.values()])
    write_table(place / "aside.parquet", {**columns, "y": y, "site": site})
    return place


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def aside(folder):
    return ("--data", folder / "aside.parquet", "--label", "y", "--site", "site")


def test_evaluate_names_the_site_in_words_and_in_json(folder):
    shown = run("evaluate", folder / "model.kfd", *aside(folder), "--influence")
    assert shown.exit_code == 0, shown.output
    assert "The others are better off without: c" in shown.stdout
    assert "<- does not fit" in shown.stdout
    told = run("evaluate", folder / "model.kfd", *aside(folder), "--influence", "--liars", 2, "--json")
    assert told.exit_code == 0, told.output
    influence = json.loads(told.stdout)["influence"]
    assert (influence["named"], influence["liars"]) == (["c"], 2)
    assert influence["sites"][0]["sites"] == ["c"]
    assert "influence" not in json.loads(run("evaluate", folder / "model.kfd", *aside(folder), "--json").stdout)


def test_a_model_of_sums_needs_its_sites(folder):
    refused = run("evaluate", folder / "ridge.kfd", *aside(folder), "--influence")
    assert refused.exit_code == 2
    assert "only machines can be left out here" in refused.stderr


def test_the_report_has_a_section_and_a_fact(folder):
    out = folder / "report.html"
    done = run("report", folder / "model.kfd", *aside(folder), "--influence", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert "Who fits, and who does not" in json.loads(done.stdout)["sections"]
    page = out.read_text(encoding="utf-8")
    assert "Sites that do not fit" in page
    assert "does not fit" in page
    refused = run("report", folder / "model.kfd", "--influence", "--out", out)
    assert refused.exit_code == 2
    assert "name a table of them with --data" in refused.stderr


def test_a_job_names_the_site_in_its_result(sites, tmp_path):
    with kf.Federation.local(sites, holdout=0.4) as federation:
        kf.RidgeLearner(n_components=20).fit(federation).save(tmp_path / "ridge.kfd")
        given = {"job": "evaluate", "results": str(tmp_path), "model": str(tmp_path / "ridge.kfd"), "influence": 1}
        done = run_job(federation, Job.from_settings(given, "7"))
    assert json.loads((done / "result.json").read_text())["named"] == ["c"]
    assert json.loads((done / "evaluation.json").read_text())["influence"]["named"] == ["c"]
