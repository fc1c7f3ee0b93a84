"""plan, train, predict, evaluate and data, on tables that the tests write."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import kernfed
from kernfed.cli import app
from kernfed.data import read_table


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Folder with train and test as a list column (Parquet) and as plain columns (CSV)."""
    folder = tmp_path_factory.mktemp("tables")
    X, y = load_digits(return_X_y=True)
    X = X[:400] / 16
    labels = np.array([f"digit {digit}" for digit in y[:400]])
    sites = np.array(["north", "south", "east"])[np.arange(400) % 3]
    for name, part in (("train", slice(0, 200)), ("test", slice(200, 400))):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(X[part].ravel()), 64)
        table = pa.table({"emb": lists, "y": labels[part], "hospital": sites[part], "patient": np.arange(len(lists))})
        pq.write_table(table, folder / f"{name}.parquet")
        head = ",".join([*(f"f{i}" for i in range(64)), "y", "hospital"])
        lines = [
            ",".join([*map(str, row), label, site])
            for row, label, site in zip(X[part], labels[part], sites[part], strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    return folder


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture(scope="module")
def model(tables):
    path = tables / "model.kfd"
    run(
        "train",
        "--data",
        tables / "train.parquet",
        "--features",
        "emb",
        "--label",
        "y",
        "--site",
        "hospital",
        "--measure",
        "distance",
        "--out",
        path,
    )
    return path


def test_train_predict_evaluate(tables, model):
    found = kernfed.load(model)
    assert found.sites == ("east", "north", "south")
    assert found.hold == "machines"
    out = tables / "pred.csv"
    run("predict", model, tables / "test.parquet", "--id", "patient", "--explain", "--out", out)
    written = read_table(out, features="probability", label="prediction", site="site", ids="patient")
    test = read_table(tables / "test.parquet", features="emb", label="y")
    assert (written.y == found.predict(test.X)).all()
    assert (written.ids == np.arange(200)).all()
    assert set(written.site) <= {"north", "south", "east"}
    told = json.loads(
        run("evaluate", model, "--data", tables / "test.parquet", "--label", "y", "--site", "hospital", "--json").stdout
    )
    assert told["pooled"]["rows"] == 200
    assert told["pooled"]["accuracy"] == pytest.approx((written.y == test.y).mean())
    assert set(told["sites"]) == {"north", "south", "east"}
    shown = run("evaluate", model, "--data", tables / "test.parquet", "--label", "y").stdout
    assert "all sites" in shown
    assert "true \\ predicted" in shown


def test_the_same_command_twice_gives_the_same_file(tables, model):
    again = tables / "again.kfd"
    words = [
        "train",
        "--data",
        tables / "train.parquet",
        "--label",
        "y",
        "--site",
        "hospital",
        "--measure",
        "distance",
        "--features",
        "emb",
        "--out",
        again,
    ]
    run(*words)
    assert again.read_bytes() == model.read_bytes()
    run(*words, "--seed", "1", "--partition", "random", "--batch-size", "5")
    assert again.read_bytes() != model.read_bytes()


def test_plain_columns_are_found_by_name(tables):
    path = tables / "plain.kfd"
    run("train", "--data", tables / "train.csv", "--label", "y", "--site", "hospital", "--out", path)
    reordered = tables / "reordered.csv"
    lines = [line.split(",") for line in (tables / "test.csv").read_text().splitlines()]
    reordered.write_text("\n".join(",".join(line[::-1]) for line in lines) + "\n")
    straight = json.loads(run("predict", path, tables / "test.csv", "--json").stdout)
    assert json.loads(run("predict", path, reordered, "--json").stdout)["predictions"] == straight["predictions"]


def test_plan_counts_what_training_and_queries_send(tables):
    words = ["plan", "--data", tables / "train.parquet", "--features", "emb", "--label", "y", "--site", "hospital"]
    few = json.loads(run(*words, "--queries", "10", "--json").stdout)
    many = json.loads(run(*words, "--queries", "1010", "--json").stdout)
    assert many["bytes_up"] - few["bytes_up"] >= 1000 * 3 * 10 * 8
    told = json.loads(run(*words, "--learner", "folding", "--queries", "10", "--json").stdout)
    assert {entry["information"] for entry in told["exchanges"]} == {"schema", "counts", "scores", "statistics"}
    machines = json.loads(run(*words, "--hold", "machines", "--json").stdout)
    assert "rows" in {entry["information"] for entry in machines["exchanges"]}
    assert "No differential privacy" in run(*words).stdout


def test_data_commands(tables):
    assert "digits" in run("data", "list").stdout
    names = {entry["name"] for entry in json.loads(run("data", "list", "--json").stdout)["datasets"]}
    assert {"digits", "mnist"} <= names
    out = tables / "sites.csv"
    for kind in ("dirichlet", "label-skew", "quantity", "one-class"):
        run(
            "data",
            "partition",
            "--data",
            tables / "train.csv",
            "--label",
            "y",
            "--kind",
            kind,
            *(() if kind == "one-class" else ("--sites", "6")),
            "--out",
            out,
        )
        written = read_table(out, features="row", label="y", site="site")
        assert (written.y == read_table(tables / "train.csv", label="y").y).all()
        assert len(np.unique(written.site)) == (10 if kind == "one-class" else 6)


BAD = [
    (["train", "--data", "none.parquet", "--label", "y", "--out", "m.kfd"], "there is no such file"),
    (["train", "--data", "train.csv", "--label", "z", "--out", "m.kfd"], "there is no column 'z'"),
    (["train", "--data", "train.csv", "--label", "y", "--out", "no/m.kfd"], "does not exist"),
    (
        ["train", "--data", "train.csv", "--label", "y", "--out", "m.kfd", "--measure", "far"],
        "'far' is not one of 'rms', 'product'",
    ),
    (["train", "--data", "train.csv", "--label", "y", "--out", "m.kfd", "--batch-size", "0"], "batch-size"),
    (["predict", "train.csv", "test.csv"], "not a kernfed model file"),
    (["predict", "model.kfd", "none.csv"], "there is no such file"),
    (["predict", "model.kfd", "test.csv", "--features", "f0:f5"], "the model has 64 features, the table has 6"),
    (["evaluate", "model.kfd", "--data", "test.parquet", "--label", "nothing"], "there is no column 'nothing'"),
    (["plan", "--data", "train.csv", "--label", "y", "--hold", "cloud"], "'cloud' is not one of 'sites', 'machines'"),
    (
        ["data", "partition", "--data", "train.csv", "--label", "y", "--out", "s.csv", "--kind", "odd"],
        "'odd' is not one of 'dirichlet', 'label-skew'",
    ),
    (
        ["data", "partition", "--data", "train.csv", "--label", "y", "--out", "s.csv", "--share", "0.5"],
        "takes no --share",
    ),
    (
        ["data", "partition", "--data", "train.csv", "--label", "y", "--out", "train.csv"],
        "must not be a file that is read",
    ),
    (["predict", "model.kfd", "test.parquet", "--out", "test.parquet"], "must not be a file that is read"),
    (["predict", "model.kfd", "test.parquet", "--out", "no/p.csv"], "folder no does not exist"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
@pytest.mark.usefixtures("model")
def test_bad_input_is_one_sentence_and_code_2(words, message, tables, monkeypatch):
    monkeypatch.chdir(tables)
    done = run(*words, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("kernfed: ")
    assert done.stderr.count("\n") == 1
    assert not (tables / "m.kfd").exists()


def test_interrupted_train_leaves_no_broken_file(tables):
    """Killed at any moment, the target is the old file or a whole new one, never half of one."""
    target = tables / "killed.kfd"
    command = [
        sys.executable,
        "-m",
        "kernfed",
        "train",
        "--data",
        str(tables / "train.csv"),
        "--label",
        "y",
        "--out",
        str(target),
    ]
    for wait in (0.5, 1.0, 1.5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if target.exists():
            kernfed.load(target)


def test_predict_with_a_regressor_sums_up_values(tmp_path):
    rows = np.random.default_rng(0).normal(size=(30, 3))
    federation = kernfed.Federation.local({"a": (rows, rows[:, 0]), "b": (rows, rows[:, 1])})
    model = kernfed.RidgeLearner(method="exact", n_components=10, task="regress").fit(federation)
    model.save(tmp_path / "model.kfd")
    np.save(tmp_path / "queries.npy", rows)
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model.kfd"), str(tmp_path / "queries.npy"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["quartiles"]) == ["0%", "25%", "50%", "75%", "100%"]
    assert found["quartiles"]["0%"] == pytest.approx(model.predict(rows).min())
