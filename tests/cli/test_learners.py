"""Learners on the command line: the same options plan and train; a file says what it can be used for."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import read_table, write_table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    y = np.arange(80) % 2
    rows = {f"f{place}": rng.normal(size=80) + y for place in range(3)}
    sites = np.array(["north", "south"])[np.arange(80) // 40]
    write_table(tmp_path / "rows.csv", {**rows, "y": y, "site": sites, "amount": rows["f0"] * 2 + 1.5})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


TABLE = ("--data", "rows.csv", "--label", "y", "--site", "site", "--features", "f0:f2")


def options_of(name):
    command = typer.main.get_command(app).commands[name]
    return {parameter.name for parameter in command.get_params(typer.Context(command))}


def test_plan_and_train_have_the_same_options():
    at_a_hub = {"credentials", "hub", "min_replies"}
    assert options_of("train") - options_of("plan") - at_a_hub == {"out", "store", "traffic", "holdout"}
    assert options_of("plan") - options_of("train") == {"queries"}


@pytest.mark.parametrize(
    "options",
    [
        # How many bandwidths are tried is for the rows to say: it is given here.
        ("--learner", "ridge", "--components", "20", "--bandwidth", "2.5", "--regularization", "0.1"),
        ("--learner", "ridge", "--method", "exact", "--features-kind", "given", "--regularization", "0.1"),
        ("--learner", "personal", "--gains", "no"),
        ("--learner", "folding", "--hold", "machines", "--batch-size", "10", "--partition", "kmeans"),
    ],
)
def test_what_is_planned_is_what_is_trained(folder, options):
    planned = json.loads(run("plan", *TABLE, *options, "--json").stdout)
    trained = json.loads(run("train", *TABLE, *options, "--out", "m.kfd", "--traffic", "t.json", "--json").stdout)
    sent = json.loads((folder / "t.json").read_text())
    keys = ("site", "task", "information", "messages")
    assert [[entry[key] for key in keys] for entry in planned["exchanges"]] == [
        [entry[key] for key in keys] for entry in sent
    ]
    assert planned["bytes_up"] == pytest.approx(trained["bytes_up"], rel=0.02)
    assert planned["learner"] == trained["learner"]
    assert planned["queries"] == 0
    assert trained["sites"] == 2


def test_the_file_is_the_learners(folder):
    run("train", *TABLE, "--learner", "ridge", "--components", "20", "--rounds", "3", "--seed", "4", "--out", "m.kfd")
    table = read_table("rows.csv", features="f0:f2", label="y", site="site")
    sites = {name: (table.X[table.site == name], table.y[table.site == name]) for name in ("north", "south")}
    with kf.Federation.local(sites, seed=4, columns=table.columns) as federation:
        expected = kf.RidgeLearner(n_components=20, rounds=3).fit(federation)
    np.testing.assert_array_equal(kf.load(folder / "m.kfd").weights_, expected.weights_)


@pytest.mark.usefixtures("folder")
def test_values_are_learned_by_those_who_can():
    table = ("--data", "rows.csv", "--label", "amount", "--site", "site", "--features", "f0:f2")
    done = run("train", *table, "--learner", "ridge", "--task", "regress", "--components", "50", "--out", "m.kfd")
    assert "80 rows, values and 2 site(s)" in done.stdout
    assert done.stderr == ""
    told = json.loads(run("predict", "m.kfd", "rows.csv", "--json").stdout)
    assert set(told["quartiles"]) == {"0%", "25%", "50%", "75%", "100%"}
    assert json.loads(run("evaluate", "m.kfd", *table, "--json").stdout)["pooled"]["r2"] > 0.5


@pytest.mark.usefixtures("folder")
def test_a_rehearsed_plan_says_so():
    done = run("plan", *TABLE, "--learner", "ridge", "--method", "exact", "--components", "20")
    assert "would leave the sites: counts of rows, sums over rows." in done.stdout
    assert "\nAbout " in done.stdout
    assert "Rehearsed with made-up rows of the same shape" in done.stdout
    assert "needs --hold sites" in run("plan", *TABLE, "--learner", "ridge", "--queries", "5", code=2).stderr


@pytest.mark.usefixtures("folder")
def test_a_plan_is_of_the_job_that_train_runs(folder):
    settings = ("--learner", "folding", "--batch-size", "100", "--partition", "order", "--scale", "none")
    told = json.loads(run("plan", *TABLE, *settings, "--json").stdout)["exchanges"]
    run("train", *TABLE, *settings, "--out", "same.kfd", "--traffic", "same.json")
    left = json.loads((folder / "same.json").read_text())
    for planned, sent in zip(told, left, strict=True):
        assert all(planned[name] == sent[name] for name in ("site", "task", "information", "messages", "bytes_down"))
        assert 0 <= planned["scalars_up"] - sent["scalars_up"] <= 20  # machines are planned at their most
        assert abs(planned["bytes_up"] - sent["bytes_up"]) <= 64 + 8 * 20


def test_a_plan_of_what_is_still_to_choose_is_the_most_it_can_come_to(folder):
    words = (*TABLE, "--learner", "folding")
    told = json.loads(run("plan", *words, "--json").stdout)["exchanges"]
    run("train", *words, "--out", "auto.kfd", "--traffic", "auto.json")
    for planned, sent in zip(told, json.loads((folder / "auto.json").read_text()), strict=True):
        assert all(planned[name] == sent[name] for name in ("site", "task", "information", "messages"))
        assert planned["bytes_down"] >= sent["bytes_down"]
        assert planned["bytes_up"] >= sent["bytes_up"]


def test_machines_may_stay_in_the_stores(folder):
    words = ("--learner", "folding", "--hold", "sites", "--store", "stores")
    done = run("train", *TABLE, *words, "--out", "m.kfd", "--traffic", "t.json")
    assert done.stderr == "The machines are at the sites, in stores: the file alone cannot answer.\n"
    assert {entry["information"] for entry in json.loads((folder / "t.json").read_text())} == {
        "schema",
        "statistics",
        "counts",
    }
    table = read_table("rows.csv", features="f0:f2", label="y", site="site")
    sites = {name: (table.X[table.site == name], table.y[table.site == name]) for name in ("north", "south")}
    with kf.Federation.local(sites, columns=table.columns, store="stores") as federation:
        model = kf.load("m.kfd").connect(federation)
        assert (model.predict(table.X) == table.y).mean() > 0.8


@pytest.mark.usefixtures("folder")
def test_a_model_whose_machines_are_elsewhere_says_what_to_do():
    run("train", *TABLE, "--hold", "sites", "--store", "stores", "--out", "m.kfd")
    for words, way in (
        (("predict", "m.kfd", "rows.csv"), "let them answer with --credentials FILE of a hub, or --flower DIR"),
        (
            ("evaluate", "m.kfd", *TABLE),
            "let them test it with --credentials FILE of a hub, or kernfed flower-run DIR evaluate --set model=m.kfd",
        ),
    ):
        done = run(*words, code=2)
        assert done.stderr.startswith("kernfed: m.kfd: the machines of this model are at its sites: " + way)
        assert done.stderr.count("\n") == 1


def rows():
    return read_table("rows.csv", features="f0:f2").X


@pytest.mark.parametrize("kind", [kf.KAHM, kf.DeepKAHM, kf.WideKAHM])
def test_a_machine_tells_distances(folder, kind):
    machine = kind().fit(rows())
    machine.save("machine.kfd")
    told = json.loads(run("predict", "machine.kfd", "rows.csv", "--features", "f0:f2", "--json").stdout)
    np.testing.assert_array_equal(told["distances"], machine.distance(rows()))
    run("predict", "machine.kfd", "rows.csv", "--features", "f0:f2", "--out", "out.csv")
    assert (folder / "out.csv").read_text().startswith('"row","distance"\n')
    assert (
        "--explain needs"
        in run("predict", "machine.kfd", "rows.csv", "--features", "f0:f2", "--explain", code=2).stderr
    )
    assert "cannot be tested" in run("evaluate", "machine.kfd", *TABLE, code=2).stderr


@pytest.mark.parametrize("width", [1, 2])
def test_a_regressor_predicts_values(folder, width):
    X = rows()
    regressor = kf.KAHMRegressor(random_state=0, batch_size=1000, partition="kmeans", scale=None).fit(
        X, X[:, 0] if width == 1 else X[:, :2]
    )
    regressor.save("regressor.kfd")
    names = '"prediction"' if width == 1 else '"prediction[0]","prediction[1]"'
    run("predict", "regressor.kfd", "rows.csv", "--features", "f0:f2", "--out", "out.csv")
    assert (folder / "out.csv").read_text().startswith(f'"row",{names}\n')


@pytest.mark.usefixtures("folder")
def test_label_probability_and_explanation_come_from_one_scoring(monkeypatch):
    from kernfed.kahm.model import FoldingModel

    run("train", *TABLE, "--out", "m.kfd")
    calls = []
    scored = FoldingModel.site_scores
    monkeypatch.setattr(FoldingModel, "site_scores", lambda *a, **k: calls.append(1) or scored(*a, **k))
    told = json.loads(run("predict", "m.kfd", "rows.csv", "--explain", "--json").stdout)
    assert calls == [1]
    assert sum(told["shares"].values()) == pytest.approx(1)
