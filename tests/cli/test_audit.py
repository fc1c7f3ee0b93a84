"""audit: attacks on a release and on a model's answers, in one line, a table, JSON and a page."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.cli.audit import page_html
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
    text = page.read_text()
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
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert html.count("<table>") == html.count("</table>") >= 3
    assert "<h1>Privacy of moments of classes by record-moments" in html
    assert "**" not in html
    assert "&gt;=" in html


def test_answers_of_a_model_are_attacked(folder, tmp_path):
    model = tmp_path / "model.kfd"
    run("train", "--data", folder / "rows.parquet", "--label", "y", "--out", model)
    told = run(*words(folder, "--model", model, "--others", folder / "others.parquet"))
    assert "record: no guarantee at delta 0" in told.stdout
    assert "Verdict: not tested" in told.stdout
    found = json.loads(run(*words(folder, "--model", model, "--others", folder / "others.parquet", "--json")).stdout)
    assert found["record"]["epsilon"] is None
    assert found["attacks"][0]["roc"]["auc"] > 0.7  # rows that the machines contain are near themselves
    run("train", "--data", folder / "rows.parquet", "--label", "y", "--out", model, "--privacy", "record-gaussian",
        "--epsilon", "1", "--radius", "2")  # fmt: skip
    private = json.loads(run(*words(folder, "--model", model, "--others", folder / "others.parquet", "--json")).stdout)
    assert private["record"]["epsilon"] == 1.0
    assert abs(private["attacks"][0]["roc"]["auc"] - 0.5) < 0.1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give --privacy with its options to audit a mechanism, or --model"),
        ((*GAUSSIAN, "--page", "audit.pdf"), "--page must end in .md or .html"),
        (("--privacy", "element-laplace", "--epsilon", "1"), "needs --bounds"),
        (("--model", "none.kfd"), "--model takes --others"),
        (("--model", "none.kfd", "--others", "x", *GAUSSIAN), "and no --privacy"),
        ((*GAUSSIAN, "--confidence", "2"), "confidence must be"),
    ],
)
def test_senseless_options(folder, options, told):
    assert told in run(*words(folder, *options), code=2).stderr


def test_a_model_whose_machines_are_elsewhere(folder, tmp_path):
    X, y = load_digits(return_X_y=True)
    with Federation.local({"a": (X[:300, 8:24] / 16, y[:300] % 3)}) as federation:
        FoldingLearner().fit(federation).save(tmp_path / "model.kfd")
    done = run(*words(folder, "--model", tmp_path / "model.kfd", "--others", folder / "others.parquet"), code=2)
    assert "hold='machines'" in done.stderr


def test_too_few_rows_to_halve(tmp_path):
    write_table(tmp_path / "few.csv", {"a": np.arange(6.0), "b": np.arange(6.0), "y": np.arange(6) % 2})
    done = run("audit", "--data", tmp_path / "few.csv", "--label", "y", *GAUSSIAN, code=2)
    assert "20 rows or more are needed" in done.stderr


def test_the_page_as_html():
    html = page_html("# A <b>\n\n**Bold** and plain\n\n- one\n- two **x**\n\n| a | b |\n| --- | --- |\n| 1 | x\\|y |\n")
    assert "<p><b>Bold</b> and plain</p>" in html
    assert "<li>two <b>x</b></li>" in html
    assert "<tr><td>1</td><td>x|y</td></tr>" in html
