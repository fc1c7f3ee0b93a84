"""Sites alone, together and pooled on one's own table; and text as vectors, on the command line."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

import kernfed as kf
from hospital import LABEL, SITE, hospital_table
from kernfed.cli import app
from kernfed.errors import InputError
from kernfed.testing import comparison as comparing
from kernfed.testing.comparison import Setting, Trial, run_trial, trials

TABLE = ("--label", LABEL, "--site", SITE)
QUICK = ("always", "north alone", "ridge", "nearest neighbours")


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pd.DataFrame(hospital_table(240)).to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Only some of what would be tried, and those not tuned."""
    every = comparing.trials
    monkeypatch.setattr(
        comparing, "trials", lambda *a, **k: [one for one in every(*a, **k) if one.name.startswith(QUICK)]
    )
    monkeypatch.setattr("kernfed.testing.comparison.FOLDS", 2)
    monkeypatch.setattr("kernfed.testing.comparison._FOREST", {"n_estimators": [5]})


@pytest.mark.usefixtures("quick")
def test_one_table_and_one_picture(folder):
    told = json.loads(run("compare", "--data", "rows.csv", *TABLE, "--out", "c.html", "--json").stdout)
    assert (told["train"], told["test"], told["sites"]) == (180, 60, 4)
    by_name = {one["what"]: one for one in told["results"]}
    assert [one["group"] for one in told["results"]] == ["nothing", "alone", "together", "pooled"]
    always = by_name["always 'no'"]
    assert (always["AUC"], always["balanced"]) == (0.5, 0.5)
    assert by_name["ridge"]["bytes_up"] > 0
    assert by_name["north alone, random forest"]["bytes_up"] == 0
    assert by_name["nearest neighbours, pooled"]["bytes_up"] is None
    assert all(one["seconds"] >= 0 for one in told["results"][1:])
    assert told["prepare_bytes"] > 0
    assert "north alone" in (folder / "c.html").read_text()


@pytest.mark.usefixtures("quick")
def test_what_is_shown_and_drawn(folder):
    shown = run("compare", "--data", "rows.csv", *TABLE, "--max-rows", "120", "--out", "c.png").stdout
    assert shown.splitlines()[0].split() == [
        "what",
        "accuracy",
        "balanced",
        "AUC",
        "time",
        "leaves",
        "sites",
        "settings",
    ]
    assert "to test on, drawn from 240" in shown
    assert "Best accuracy: without learning" in shown
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("folder")
def test_refusals_are_one_sentence():
    words = ("compare", "--data", "rows.csv", *TABLE)
    assert "must end in .png or .html" in run(*words, "--out", "c.txt", code=2).stderr
    assert "--task must be classify or regress" in run(*words, "--task", "guess", code=2).stderr


def test_what_is_tried(rng):
    y = np.arange(60) % 3
    sites = {name: (rng.standard_normal((60, 4)) + y[:, None], y) for name in ("a", "b")}
    setting = Setting(sites, sites["a"], False, 0)
    names = [trial.name for trial in trials(setting, epsilon=2.0)]
    assert names[1:3] == ["a alone, random forest", "b alone, random forest"]
    assert names[3:8] == ["folding", "ridge", "fusion", "fusion, epsilon 2 per record", "fusion, pooled"]
    assert [name.removesuffix(", pooled") for name in names[8:]] == [
        "random forest",
        "histogram boosting",
        "SVM, radial",
        "logistic regression",
        "nearest neighbours",
    ]
    by_name = {trial.name: trial for trial in trials(setting, epsilon=2.0)}
    support = run_trial(by_name["SVM, radial, pooled"])
    assert support.score > 0.5
    assert support.figures["AUC"] > 0.7


def test_values(rng):
    X = rng.standard_normal((80, 3))
    y = X[:, 0] - 2 * X[:, 1]
    setting = Setting({"a": (X[:30], y[:30]), "b": (X[30:60], y[30:60])}, (X[60:], y[60:]), True, 0)
    by_name = {trial.name: trial for trial in trials(setting, epsilon=1.0)}
    assert run_trial(by_name["linear ridge, pooled"]).figures["R2"] > 0.9
    nothing = run_trial(by_name["always the same"])
    assert nothing.name == "the mean"
    assert nothing.score <= 0
    assert run_trial(by_name["ridge"]).bytes_up > 0


def test_what_cannot_be_tried_is_told():
    def refuse():
        raise InputError("there are too few rows")

    told = run_trial(Trial("x", "alone", refuse))
    assert told.note == "not tried: there are too few rows"
    assert math.isnan(told.score)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_everything_is_tried():
    told = json.loads(run("compare", "--data", "rows.csv", *TABLE, "--out", "c.png", "--json").stdout)
    assert len(told["results"]) == 15
    assert not [one["note"] for one in told["results"] if one["note"].startswith("not tried")]
    best = max(one["AUC"] for one in told["results"])
    assert next(one for one in told["results"] if one["what"] == "fusion")["AUC"] > best - 0.15


# Text ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def posts(tmp_path, monkeypatch):
    """A table of texts, and an encoder of six words in the folder of encoders."""
    tokenizers = pytest.importorskip("tokenizers")
    place = tmp_path / "encoders" / "tiny"
    place.mkdir(parents=True)
    known = {word: number for number, word in enumerate(["[UNK]", "cat", "dog", "fish", "bolt", "screw", "nail"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(place / "tokenizer.json"))
    save_file({"embeddings": np.eye(7, dtype=np.float32)}, place / "model.safetensors")
    rng = np.random.default_rng(0)
    words = np.array(list(known)[1:])
    kind = np.arange(80) % 2
    texts = [" ".join(rng.choice(words[3 * own : 3 * own + 3], 4)) for own in kind]
    frame = pd.DataFrame({"note": texts, "kind": np.array(["animal", "tool"])[kind], "site": np.arange(80) // 40})
    frame.to_csv(tmp_path / "posts.csv", index=False)
    monkeypatch.setenv("KERNFED_ENCODERS", str(tmp_path / "encoders"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_is_learned_from_and_predicted_on(posts):
    words = ("--text", "note=tiny", "--label", "kind", "--site", "site", "--learner", "folding", "--measure", "rms")
    run("train", "--data", "posts.csv", *words, "--batch-size", "100", "--out", "m.kfd")
    assert kf.load(posts / "m.kfd").preparation.plans[0].encoder == "tiny"
    told = json.loads(run("evaluate", "m.kfd", "--data", "posts.csv", "--label", "kind", "--json").stdout)
    assert told["pooled"]["accuracy"] > 0.95
    shown = run("prepare", "--data", "posts.csv", "--label", "kind", "--site", "site", "--text", "note=tiny").stdout
    assert "text by encoder 'tiny'" in shown
    refused = run("train", "--data", "posts.csv", *words, "--preparation", "none", "--out", "n.kfd", code=2)
    assert "--text is for --preparation auto" in refused.stderr


def test_a_column_is_encoded_alone(posts):
    told = json.loads(
        run(
            "embed", "--data", "posts.csv", "--text", "note", "--encoder", "tiny", "--out", "e.parquet", "--json"
        ).stdout
    )
    assert (told["rows"], told["width"], told["encoder"]) == (80, 7, "tiny")
    table = pyarrow.parquet.read_table(posts / "e.parquet")
    assert table.schema.metadata[b"kernfed.encoder.digest"].decode() == told["digest"]
    vectors = np.array(table.column("note").to_pylist())
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert not list(posts.glob("*.parts"))
    run("train", "--data", "e.parquet", "--features", "note", "--label", "kind", "--learner", "ridge", "--out", "m.kfd")
    folder = ("--encoder", posts / "encoders" / "tiny")
    again = json.loads(
        run("embed", "--data", "posts.csv", "--text", "note", *folder, "--out", "f.parquet", "--json").stdout
    )
    assert again["digest"] == told["digest"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--out", "e.parquet"), "say either --text COLUMN or --images COLUMN"),
        (("--text", "note", "--out", "e.csv"), "--out must end in .parquet"),
        (("--text", "nothing", "--out", "e.parquet"), "there is no column 'nothing'"),
        (("--images", "note", "--out", "e.parquet"), "--images needs --encoder FOLDER"),
        (("--text", "note", "--encoder", "no/where", "--out", "e.parquet"), "must be named by letters"),
    ],
)
@pytest.mark.usefixtures("posts")
def test_what_cannot_be_encoded(words, told):
    assert told in run("embed", "--data", "posts.csv", *words, code=2).stderr
