"""plan: counts what is asked, and refuses what would not be counted."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import write_table


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    rng = np.random.default_rng(2)
    y = np.arange(60) % 3
    path = tmp_path_factory.mktemp("plan") / "rows.csv"
    write_table(path, {**{f"f{i}": rng.random(60) + y for i in range(4)}, "y": y})
    return path


def plan(rows, *options, code=0):
    done = CliRunner().invoke(app, ["plan", "--data", str(rows), "--label", "y", *options])
    assert done.exit_code == code, done.output + done.stderr
    return done


def test_queries_are_those_that_sites_answer(rows):
    usual = json.loads(plan(rows, "--hold", "sites", "--json").stdout)
    assert usual["queries"] == 1000
    assert json.loads(plan(rows, "--queries", "1000", "--json").stdout) == usual  # only sites can be asked
    job = json.loads(plan(rows, "--json").stdout)  # what `kernfed train` runs
    assert (job["hold"], job["queries"]) == ("machines", 0)
    done = plan(rows, "--hold", "machines", "--queries", "5", code=2)
    assert done.stderr.startswith("kernfed: --queries needs --hold sites")


def test_the_plan_is_of_what_train_does_unless_told(rows, tmp_path):
    """The question carries the steps of smoothing, so a plan of other steps would have another size."""
    options = ("--learner", "folding", "--privacy", "record-gaussian", "--epsilon", "3", "--radius", "2")
    told = json.loads(plan(rows, *options, "--queries", "0", "--json").stdout)
    table = kf.data.read_table(rows, label="y")
    mechanism = kf.privacy.RecordGaussian(3, 1e-5, 2)
    store = tmp_path / "store"
    with kf.Federation.local({"all": (table.X, table.y)}, columns=table.columns, store=store) as federation:
        kf.FoldingLearner(privacy=mechanism).fit(federation)
        assert told["exchanges"] == federation.traffic.to_json()
    model = tmp_path / "model.kfd"
    done = CliRunner().invoke(app, ["train", "--data", str(rows), "--label", "y", "--out", str(model), *options])
    assert done.exit_code == 0
    assert kf.load(model).privacy.request["smoothing"] == "coupled_bootstrap"
