"""audit: attacks on a release and on a model's answers, in one line, a table, JSON and a page."""

import html
import json
import re

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.data import write_table
from kernfed.federation import Federation, FoldingLearner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("audit")
    X, y = load_digits(return_X_y=True)
    X, y = X[:600, 8:24] / 16, y[:600] % 3
    for name, part in (("rows", slice(0, 300)), ("others", slice(300, 600))):
        write_table(place / f"{name}.parquet", {**{f"p{i:02}": X[part, i] for i in range(16)}, "y": y[part]})
    return place


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


def words(folder, *more):
    return ["audit", "--data", folder / "rows.parquet", "--features", "p00:p15", "--label", "y", *more]


GAUSSIAN = ("--privacy", "record-gaussian", "--epsilon", "3", "--radius", "2", "--trials", "200")


def test_a_release_is_attacked_and_a_page_written(folder, tmp_path):
    out, page = tmp_path / "audit.json", tmp_path / "audit.md"
    done = run(*words(folder, *GAUSSIAN, "--out", out, "--page", page))
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("Verdict: not contradicted: audited record epsilon >= ")
    for name in ("known pair", "known row", "unknown position", "answers only"):
        assert any(line.startswith(name) for line in lines)
    assert "TPR at 0.1% FPR" in done.stdout
    assert "TPR at 1.0% FPR" in done.stdout
    assert "p = " in done.stdout
    told = json.loads(out.read_text())
    assert told["record"]["epsilon"] == 3.0
    assert told["contradicted"] is False
    assert len(told["attacks"]) == 4
    assert told["membership"]["p_value"] > 0
    assert [(entry["task"], entry["information"]) for entry in told["traffic"]] == [
        ("describe", "schema"),
        ("folding_fit", "counts"),
    ]
    text = page.read_text()
    assert f"**In one line.** {html.escape(told['verdict'])}" in text
    assert "## Under which guarantee" in text
    assert "One record (a whole row, a person)" in text
    assert "| audited | describe |" in text


def test_other_mechanisms_and_json(folder, tmp_path):
    page = tmp_path / "audit.html"
    options = ("--others", folder / "others.parquet", "--trials", "80", "--json")
    laplace = ("--privacy", "element-laplace", "--epsilon", "1", "--bounds", "0,1")
    told = json.loads(run(*words(folder, *laplace, *options)).stdout)
    assert {bound["unit"] for bound in told["bounds"]} == {"element", "record"}
    moments = ("--privacy", "record-moments", "--epsilon", "3", "--radius", "2", "--dimension", "4", "--page", page)
    told = json.loads(run(*words(folder, *moments, *options)).stdout)
    assert {attack["name"] for attack in told["attacks"]} == {"repeated runs", "answers only"}
    assert told["verdict"].startswith("not contradicted")
    assert_page_says(page, told)


def assert_page_says(page, told):
    """The HTML page has the verdict, the promise in both units, every attack with its interval, and what left."""
    source = page.read_text()
    assert source.startswith("<!doctype html>")
    assert "<script" not in source
    shown = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", source)).split())
    verdict = told["verdict"]
    assert f"{verdict[0].upper()}{verdict[1:]}." in shown
    assert f"Privacy of {told['subject']}" in shown
    for unit, words in (
        ("element", "One element (a single number of a row)"),
        ("record", "One record (a whole row, a person)"),
    ):
        stated = told[unit]
        promise = f"epsilon {stated['epsilon']:g} and delta {stated['delta']:g} for {stated['adjacency']}"
        assert f"{words} Differential privacy with {promise}" in shown
    for attack in told["attacks"]:
        low, high = attack["roc"]["auc_interval"]
        assert f"{attack['name']} {attack['knows']} {attack['roc']['auc']:.3f} [{low:.3f}, {high:.3f}]" in shown
        for point in attack["roc"]["points"]:
            low, high = point["interval"]
            assert f"{100 * point['tpr']:.3g} % [{100 * low:.3g}, {100 * high:.3g}]" in shown
    for bound in told["bounds"]:
        assert f"{bound['unit']} {bound['method']}" in shown
    for entry in told["traffic"]:
        counts = f"{entry['messages']:,} {entry['bytes_down']:,} {entry['bytes_up']:,} {entry['scalars_up']:,}"
        assert f"{entry['task']} {entry['information']} 1 {counts}" in shown
    assert "give this page only to those who may know them" in shown


def test_answers_of_a_model_are_attacked(folder, tmp_path):
    model = tmp_path / "model.kfd"
    run("train", "--data", folder / "rows.parquet", "--label", "y", "--out", model)
    told = run(*words(folder, "--model", model, "--others", folder / "others.parquet"))
    assert "record: no guarantee at delta 0" in told.stdout
    assert "Verdict: no guarantee is claimed; the best attack tried, answers only, has" in told.stdout
    found = json.loads(run(*words(folder, "--model", model, "--others", folder / "others.parquet", "--json")).stdout)
    assert found["record"]["epsilon"] is None
    assert found["attacks"][0]["roc"]["auc"] > 0.7  # rows that the machines contain are near themselves
    run(
        "train",
        "--data",
        folder / "rows.parquet",
        "--label",
        "y",
        "--out",
        model,
        "--privacy",
        "record-gaussian",
        "--epsilon",
        "1",
        "--radius",
        "2",
    )
    private = json.loads(run(*words(folder, "--model", model, "--others", folder / "others.parquet", "--json")).stdout)
    assert private["record"]["epsilon"] == 1.0
    assert abs(private["attacks"][0]["roc"]["auc"] - 0.5) < 0.1


MOMENTS = ("--privacy", "record-moments", "--epsilon", "3", "--radius", "2")
MODEL = ("--model", "none.kfd", "--others", "x.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give --privacy with its options to audit a mechanism, or --model"),
        ((*GAUSSIAN, "--page", "audit.pdf"), "--page must end in .md or .html"),
        (("--privacy", "element-laplace", "--epsilon", "1"), "needs --bounds"),
        ((*GAUSSIAN, "--basis", "dct"), "record-gaussian takes no --basis, which is for record-moments"),
        ((*GAUSSIAN, "--d", "1"), "takes no --d, which is for element-laplace or element-staircase"),
        ((*GAUSSIAN, "--confidence", "2"), "confidence must be"),
        ((*MOMENTS, "--confidence", "1"), "confidence must be < 1"),
        (("--model", "none.kfd"), "--model needs --others: rows of the same kind"),
        ((*MODEL, *GAUSSIAN), "--model takes no --privacy"),
        ((*MODEL, "--basis", "dct"), "--model takes no --basis"),
        ((*MODEL, "--trials", "50"), "--model takes no --trials"),
        ((*MODEL, "--delta", "0.1"), "--model takes no --delta"),
        ((*GAUSSIAN, "--out", "no/audit.json"), "--out: folder no does not exist"),
        ((*GAUSSIAN, "--page", "no/audit.html"), "--page: folder no does not exist"),
        ((*GAUSSIAN, "--out", "."), "--out must be a file, . is a folder"),
        ((*GAUSSIAN, "--out", "rows.parquet"), "--out must not be a file that is read"),
        ((*GAUSSIAN, "--out", "a.md", "--page", "a.md"), "--out and --page must be two files"),
        ((*GAUSSIAN, "--others", "rows.parquet"), "--others must hold rows that are not in --data"),
        ((*GAUSSIAN, "--others", "narrow.parquet"), "narrow.parquet: there is no column 'p15'"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence_before_any_attack(folder, monkeypatch, options, told):
    write_table(folder / "narrow.parquet", {**{f"p{i:02}": np.zeros(30) for i in range(15)}, "y": np.arange(30) % 3})
    monkeypatch.chdir(folder)
    for name in ("audit_mechanism", "audit_model"):
        monkeypatch.setattr(f"kernfed.testing.audit.{name}", lambda *_, **__: pytest.fail("attacked"))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = run(*words(folder, *options), code=2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_columns_of_others_are_found_by_name(folder, tmp_path, monkeypatch):
    seen = {}

    def look(_, inside, outside, **__):
        seen.update(inside=inside, outside=outside)
        raise ValueError("seen")

    monkeypatch.setattr("kernfed.testing.audit.audit_mechanism", look)
    columns = {f"p{i:02}": np.full(30, float(i)) for i in reversed(range(16))}
    write_table(tmp_path / "turned.parquet", {**columns, "y": np.arange(30) % 3})
    run(
        "audit",
        "--data",
        folder / "rows.parquet",
        "--label",
        "y",
        *GAUSSIAN,
        "--others",
        tmp_path / "turned.parquet",
        code=2,
    )
    np.testing.assert_array_equal(seen["outside"][0][0], np.arange(16.0))
    assert len(seen["inside"][0]) == 300


def test_what_is_written_is_written_whole(folder, tmp_path, monkeypatch):
    model, out, page = tmp_path / "model.kfd", tmp_path / "audit.json", tmp_path / "audit.html"
    run("train", "--data", folder / "rows.parquet", "--label", "y", "--out", model)
    options = ("--model", model, "--others", folder / "others.parquet")

    def full(_):
        raise OSError(28, "No space left on device")

    for option, place in (("--out", out), ("--page", page)):
        place.write_text("old")
        with monkeypatch.context() as broken:
            broken.setattr("kernfed.files.os.fsync", full)
            assert "No space left" in run(*words(folder, *options, option, place), code=2).stderr
        assert place.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.html", "audit.json", "model.kfd"]
    run(*words(folder, *options, "--out", out, "--page", page))
    assert json.loads(out.read_text())["traffic"] is None
    assert "No record of traffic was given with this audit" in page.read_text()


def test_the_report_of_a_written_audit_says_what_left(folder, tmp_path):
    out, page, again = tmp_path / "audit.json", tmp_path / "audit.html", tmp_path / "again.html"
    run(*words(folder, *GAUSSIAN, "--out", out, "--page", page))
    run("report", out, "--out", again)
    assert again.read_text() == page.read_text()
    assert_page_says(again, json.loads(out.read_text()))


def test_a_model_whose_machines_are_elsewhere(folder, tmp_path):
    X, y = load_digits(return_X_y=True)
    with Federation.local({"a": (X[:300, 8:24] / 16, y[:300] % 3)}, store=tmp_path) as federation:
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).save(
            tmp_path / "model.kfd"
        )
    done = run(*words(folder, "--model", tmp_path / "model.kfd", "--others", folder / "others.parquet"), code=2)
    assert "hold='machines'" in done.stderr


def test_too_few_rows_to_halve(tmp_path):
    write_table(tmp_path / "few.csv", {"a": np.arange(6.0), "b": np.arange(6.0), "y": np.arange(6) % 2})
    done = run("audit", "--data", tmp_path / "few.csv", "--label", "y", *GAUSSIAN, code=2)
    assert "20 rows or more are needed" in done.stderr
