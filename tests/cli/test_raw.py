"""Commands take tables as they are: words, dates, gaps; they say what they do with them, and what labels are for."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kernfed as kf
from hospital import LABEL, SITE, hospital_table
from kernfed.cli import app
from kernfed.data import Preparation

TABLE = ("--label", LABEL, "--site", SITE)
MACHINES = ("--learner", "folding", "--measure", "rms", "--batch-size", "100")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    frame = pd.DataFrame(hospital_table(500))
    frame[:400].to_csv(tmp_path / "rows.csv", index=False)
    frame[400:].to_parquet(tmp_path / "new.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, code=0):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.mark.usefixtures("folder")
def test_a_raw_table_simply_works():
    done = run("train", "--data", "rows.csv", *TABLE, *MACHINES, "--holdout", "0.2", "--out", "m.kfd")
    assert f"{LABEL!r} holds 2 different words: learning classes." in done.stdout
    assert "'patient' (a different word in every row: an identifier)" in done.stdout
    assert "held-out rows: accuracy" in done.stdout
    assert "always saying 'no' would be right for" in done.stdout
    assert done.stderr.startswith("Classes are unequal: always saying 'no' would be right for")
    run("predict", "m.kfd", "new.parquet", "--id", "patient", "--out", "p.csv")
    predicted = pd.read_csv("p.csv")
    assert list(predicted) == ["patient", "prediction", "probability", "probability of no", "probability of yes"]
    np.testing.assert_allclose(predicted["probability of no"] + predicted["probability of yes"], 1)
    model, rows = kf.load("m.kfd"), pd.read_parquet("new.parquet")
    assert (predicted["prediction"] == model.predict(rows)).all()
    tested = json.loads(run("evaluate", "m.kfd", "--data", "new.parquet", *TABLE, "--json").stdout)
    assert tested["majority"] == "no"
    assert tested["majority_share"] == pytest.approx((rows[LABEL] == "no").mean())
    recalls = [(model.predict(rows) == rows[LABEL])[rows[LABEL] == name].mean() for name in ("no", "yes")]
    assert tested["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    rows.drop(columns="bmi").to_parquet("narrow.parquet")
    assert "there is no column 'bmi'" in run("predict", "m.kfd", "narrow.parquet", code=2).stderr
    assert (
        "--features is for models of numbers"
        in run("predict", "m.kfd", "new.parquet", "--features", "bmi", code=2).stderr
    )


@pytest.mark.usefixtures("folder")
def test_what_is_prepared_can_be_edited_and_trained_with():
    words = ("prepare", "--data", "rows.csv", *TABLE, "--ordered", "severity=mild<moderate<severe<critical")
    told = run(*words, "--kind", "sodium=drop", "--out", "p.toml").stdout
    assert "severity    ordered" in told
    assert "sodium      drop" in told
    content = json.loads(run(*words, "--json").stdout)
    assert {entry["name"]: entry["kind"] for entry in content["columns"]}["ward"] == "category"
    preparation = Preparation.load("p.toml")
    run(
        "train",
        "--data",
        "rows.csv",
        *TABLE,
        *MACHINES,
        "--preparation",
        "p.toml",
        "--out",
        "m.kfd",
        "--traffic",
        "t.json",
    )
    assert kf.load("m.kfd").preparation == preparation
    with Path("t.json").open() as file:
        assert "column_statistics" not in {entry["task"] for entry in json.load(file)}
    assert (
        "there is no such file"
        in run("train", "--data", "rows.csv", *TABLE, "--preparation", "q.toml", "--out", "m.kfd", code=2).stderr
    )
    assert "--ordered must be column=" in run(*words[:-1], "severity", code=2).stderr


@pytest.mark.usefixtures("folder")
def test_a_plan_counts_what_preparing_exchanges():
    words = ("--data", "rows.csv", *TABLE, *MACHINES)
    planned = json.loads(run("plan", *words, "--json").stdout)["exchanges"]
    run("train", *words, "--holdout", "0", "--out", "m.kfd", "--traffic", "t.json")
    with Path("t.json").open() as file:
        sent = json.load(file)
    keys = ("site", "task", "information", "messages")
    assert [[entry[key] for key in keys] for entry in planned] == [[entry[key] for key in keys] for entry in sent]


@pytest.mark.usefixtures("folder")
def test_another_unit_is_told_before_training():
    frame = pd.DataFrame(hospital_table(400))
    frame["age"] = frame["age"].where(frame[SITE] != "north", frame["age"] * 12)
    frame.to_csv("units.csv", index=False)
    told = "column 'age' of site 'north' looks to be in another unit"
    assert told in run("prepare", "--data", "units.csv", *TABLE).stderr


def test_a_column_of_numbers_that_is_declared_a_category_has_its_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hours = np.arange(960) % 24
    pd.DataFrame({"hr": hours, "at": np.arange(960) % 2, "y": hours * 0.5}).to_csv("rows.csv", index=False)
    words = ("prepare", "--data", "rows.csv", "--label", "y", "--site", "at", "--kind", "hr=category", "--json")
    (column,) = json.loads(run(*words).stdout)["columns"]
    assert (column["kind"], column["made"]) == ("category", "24")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.arange(100) * 37, "holds 100 different whole numbers in 100 rows: say --task classify"),
        (np.arange(100) % 60, "holds 60 different whole numbers"),
    ],
)
def test_many_whole_numbers_ask_for_a_task(tmp_path, monkeypatch, values, told):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    pd.DataFrame({"a": draws.random(100), "w": ["x", "y"] * 50, "amount": values}).to_csv("rows.csv", index=False)
    assert told in run("train", "--data", "rows.csv", "--label", "amount", "--out", "m.kfd", code=2).stderr


def test_fractions_are_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    a = draws.random(80)
    pd.DataFrame({"a": a, "w": ["x", "y"] * 40, "amount": a * 3 + 0.5}).to_csv("rows.csv", index=False)
    words = ("--components", "20", "--bandwidth", "1", "--regularization", "0.001", "--holdout", "0.2")
    done = run("train", "--data", "rows.csv", "--label", "amount", "--learner", "ridge", *words, "--out", "m.kfd")
    assert "'amount' holds fractions: learning values (regression)." in done.stdout
    assert "always saying the mean would give 0" in done.stdout


@pytest.mark.usefixtures("folder")
def test_plain_numbers_are_learned_from_as_they_are():
    draws = np.random.default_rng(0)
    pd.DataFrame({"a": draws.random(60), "b": draws.random(60), "y": np.arange(60) % 2}).to_csv("n.csv", index=False)
    run("train", "--data", "n.csv", "--label", "y", *MACHINES, "--out", "m.kfd")
    assert kf.load("m.kfd").preparation is None
    run(
        "train",
        "--data",
        "rows.csv",
        *TABLE,
        *MACHINES,
        "--preparation",
        "none",
        "--features",
        "bmi,sodium",
        "--out",
        "m.kfd",
    )
    assert kf.load("m.kfd").preparation is None


@pytest.mark.usefixtures("folder")
def test_privacy_takes_no_statistics():
    private = ("--privacy", "record-gaussian", "--epsilon", "3", "--radius", "1")
    refused = run("train", "--data", "rows.csv", *TABLE, *MACHINES, *private, "--out", "m.kfd", code=2)
    assert "the value is missing" in refused.stderr


@pytest.mark.usefixtures("folder")
def test_rows_are_kept_aside_unless_they_are_few_or_private():
    words = ("train", "--data", "rows.csv", *TABLE, *MACHINES, "--out", "m.kfd", "--json")
    told = json.loads(run(*words).stdout)
    assert 20 <= told["tested"] <= 60
    assert told["calibrated"] is True
    assert 0.5 < told["auc"] <= 1
    assert kf.load("m.kfd").calibrated_ is not None
    assert "tested" not in json.loads(run(*words, "--holdout", "0").stdout)
    pd.read_csv("rows.csv")[:150].to_csv("few.csv", index=False)
    assert "tested" not in json.loads(run(*words[:2], "few.csv", *words[3:]).stdout)
