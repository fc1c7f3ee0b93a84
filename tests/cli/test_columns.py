"""Commands that learn say which columns they learn from and which were left out; all leave out the same."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import Table, write_table
from kernfed.jobs.tables import columns_line


def line(columns, left_out=None):
    return columns_line(
        Table(np.zeros((1, len(columns))), None, None, None, tuple(columns), Path(), None, left_out or {})
    )


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (["a"], "1 feature: 'a'"),
        (["f0", "f1"], "2 features: 'f0', 'f1'"),
        ([f"f{i}" for i in range(1200)], "1,200 features: 'f0' ... 'f1199'"),
        ([f"emb[{i}]" for i in range(11)], "11 features: 'emb[0]' ... 'emb[10]'"),
        (["f08", "f09", "f10", "age", "g1", "g3", "g4"], "7 features: 'f08' ... 'f10', 'age', 'g1', 'g3', 'g4'"),
        (["f1", "f2", "f3", "x", "f4", "f5", "f6"], "7 features: 'f1' ... 'f3', 'x', 'f4' ... 'f6'"),
        (["1", "2", "3"], "3 features: '1' ... '3'"),
        (["", "9" * 5000], f"2 features: '', '{'9' * 5000}'"),
        (["a\nb"], r"1 feature: 'a\nb'"),
        (
            [c * 2 for c in "abcdefghijkl"],
            "12 features: 'aa', 'bb', 'cc', 'dd', 'ee', ... (2 more) ..., 'hh', 'ii', 'jj', 'kk', 'll'",
        ),
    ],
)
def test_features_on_one_line(columns, shown):
    assert line(columns) == shown


def test_what_was_left_out_and_why():
    assert line(["f0"], {"": "index", "ward": "site"}) == "1 feature: 'f0'; left out: '' (index), 'ward' (site)"


@pytest.fixture
def rows(tmp_path):
    """A table whose index would be learned from: it is sorted by class."""
    draws = np.random.default_rng(1)
    y = np.repeat([0, 1], 20)
    found = pd.DataFrame({"f0": draws.random(40) + y, "f1": draws.random(40), "f2": draws.random(40), "y": y})
    found["ward"] = np.array(["n", "s"])[np.arange(40) % 2]
    found.iloc[draws.permutation(40)].to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


TOLD = "3 features: 'f0' ... 'f2'; left out: 'y' (label), 'ward' (site), '__index_level_0__' (index)"


@pytest.mark.parametrize("command", ["train", "plan"])
def test_commands_say_what_they_learn_from(rows, command):
    words = [command, "--data", str(rows), "--label", "y", "--site", "ward"]
    words += ["--out", str(rows.with_name("model.kfd"))] if command == "train" else []
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert TOLD in done.stdout.splitlines()
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["features"] == ["f0", "f1", "f2"]
    assert told["left_out"] == {"y": "label", "ward": "site", "__index_level_0__": "index"}
    named = CliRunner().invoke(app, [*words, "--features", "f0:f1,__index_level_0__"])
    assert "3 features: 'f0', 'f1', '__index_level_0__'" in named.stdout.splitlines()


def test_an_audit_says_what_it_attacks(rows):
    words = ["--data", str(rows), "--label", "y", "--privacy", "record-gaussian", "--epsilon", "3", "--radius", "1"]
    done = CliRunner().invoke(app, ["audit", *words, "--trials", "20"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "3 features: 'f0' ... 'f2'; left out: 'y' (label), 'ward' (text), '__index_level_0__' (index)"
    )


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """A table with numbers of patients and wards, others with and without, and a model of arrays, without names."""
    draws = np.random.default_rng(2)
    y = np.arange(80) % 2
    X = draws.random((80, 3)) + y[:, None]
    names = {"patient": draws.permutation(80), "ward": 7 + np.arange(80) // 40}
    write_table(tmp_path / "rows.csv", {**names, **{f"f{i}": X[:, i] for i in range(3)}, "y": y})
    others = {**{f"f{i}": X[:, i] + 0.01 for i in reversed(range(3))}, "y": y}
    write_table(tmp_path / "bare.csv", others)
    write_table(tmp_path / "others.csv", {**others, **names})
    with kf.Federation.local({"all": (X, y)}) as federation:
        kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        ).save(tmp_path / "arrays.kfd")
    monkeypatch.chdir(tmp_path)


def run(*words, code=0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output + done.stderr
    return done


ROWS, NAMES = ("--data", "rows.csv", "--label", "y"), ("--site", "ward", "--id", "patient")
AUDIT = ("audit", *ROWS, "--trials", "20", "--privacy", "record-gaussian", "--epsilon", "3", "--radius", "1")
LEARN = [("plan", *ROWS), ("train", *ROWS, "--out", "model.kfd"), AUDIT, (*AUDIT, "--others", "bare.csv")]


@pytest.mark.parametrize("words", LEARN, ids=["plan", "train", "audit", "audit-others"])
@pytest.mark.usefixtures("patients")
def test_commands_that_learn_leave_out_the_same_columns(words):
    done = run(*words, *NAMES, "--json")
    told = json.loads(done.stdout)
    assert told["features"] == ["f0", "f1", "f2"]
    assert told["left_out"] == {"patient": "ids", "ward": "site", "y": "label"}
    assert "warning" not in done.stderr
    refused = run(*words, "--id", "ward", "--features", "f0:f2", code=2)
    assert "--id must name every row of a site once, '7' names 40 rows of site 'all'" in refused.stderr


@pytest.mark.parametrize("words", LEARN[:3], ids=lambda words: words[0])
@pytest.mark.filterwarnings("always::kernfed.data.table.IdentifierAmongFeatures")
@pytest.mark.usefixtures("patients")
def test_commands_that_learn_tell_of_an_identifier(words):
    first, *others = run(*words).stderr.splitlines()
    assert first.startswith("kernfed: warning: rows.csv: column 'patient' has a different whole number in every row")
    assert "warning" not in "".join(others)


@pytest.mark.usefixtures("patients")
def test_a_table_that_is_only_divided_may_hold_identifiers():
    assert "warning" not in run("data", "partition", *ROWS, "--out", "sites.csv").stderr


MODEL = ("audit", "--model", "arrays.kfd", "--others", "others.csv", *ROWS)


@pytest.mark.parametrize(
    "words", [("evaluate", "arrays.kfd", *ROWS), ("report", "arrays.kfd", *ROWS), MODEL], ids=lambda words: words[0]
)
@pytest.mark.filterwarnings("ignore::kernfed.data.table.IdentifierAmongFeatures")
@pytest.mark.usefixtures("patients")
def test_commands_that_test_a_model_leave_out_the_same_columns(words):
    """A model of arrays does not know the names of its columns; one that learned from the names is found out."""
    assert "the model has 3 features, the table has 5" in run(*words, code=2).stderr
    assert "the model has 3 features, the table has 4" in run(*words, "--site", "ward", code=2).stderr
    run(*words, *NAMES)
    run("train", *ROWS, "--out", "arrays.kfd")
    assert "'patient' cannot be a feature, it is the ids column" in run(*words, "--id", "patient", code=2).stderr


@pytest.mark.usefixtures("patients")
def test_a_report_without_a_table_takes_no_ids():
    assert "--id describe a table" in run("report", "arrays.kfd", "--id", "patient", code=2).stderr
