"""``kernfed conform``, and what ``kernfed predict`` then says of its answers."""

import json

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import read_table, write_table

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folding model of two sites, rows that it was not trained on, and queries of which the last is a stranger."""
    place, rng = tmp_path_factory.mktemp("conform"), np.random.default_rng(0)
    middles = 2 * rng.normal(size=(3, 4))

    def rows(n):
        numbers = rng.integers(3, size=n)
        return middles[numbers] + rng.normal(size=(n, 4)), np.array(["cat", "dog", "fox"])[numbers]

    learner = kf.FoldingLearner(hold="machines", batch_size=50, partition="order", scale=None)
    with kf.Federation.local({"north": rows(90), "south": rows(90)}) as federation:
        learner.fit(federation).save(place / "model.kfd")
    X, y = rows(160)
    columns = {f"x{number}": values for number, values in enumerate(X.T)}
    write_table(place / "aside.parquet", {**columns, "y": y, "site": np.repeat(["north", "south"], 80)})
    queries = np.vstack([rows(39)[0], np.full((1, 4), 100.0)])
    write_table(place / "queries.parquet", {f"x{number}": values for number, values in enumerate(queries.T)})
    return place


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_a_model_is_conformed_and_then_gives_sets_and_abstains(folder):
    aside = ("--data", folder / "aside.parquet", "--label", "y", "--site", "site")
    done = run("conform", folder / "model.kfd", *aside, "--out", folder / "sure.kfd", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["rows"], told["sites"], told["unknown"], sum(told["classes"].values())) == (160, 2, 0, 160)
    model = kf.load(folder / "sure.kfd")
    queries = read_table(folder / "queries.parquet").X
    out = folder / "answers.parquet"
    sure = ("--coverage", 0.9, "--abstain", 0.05)
    predicted = run("predict", folder / "sure.kfd", folder / "queries.parquet", *sure, "--out", out, "--json")
    assert predicted.exit_code == 0, predicted.output
    columns = pyarrow.parquet.read_table(out).to_pydict()
    answers = model.predict(queries, abstain=0.05)
    assert list(columns["answer"]) == answers.filled("").tolist()
    assert columns["answer"][-1] == ""
    assert json.loads(predicted.stdout)["abstained"] == answers.mask.sum() >= 1
    sets = [" | ".join(model.classes_[own]) for own in model.predict_set(queries, 0.9)]
    assert list(columns["set"]) == sets
    np.testing.assert_allclose(columns["p-value"], model.p_values(queries))


def test_what_is_missing_is_said_in_a_sentence(folder):
    queries = folder / "queries.parquet"
    for arguments, message in (
        (("predict", folder / "model.kfd", queries, "--coverage", 0.9), "states no coverage: run kernfed conform"),
        (("conform", folder / "model.kfd", "--out", folder / "x.kfd"), "Missing option '--data'"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.split())
