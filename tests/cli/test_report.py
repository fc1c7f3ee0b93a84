"""The report command and the report of the demo: one file about anything of ours, a sentence about anything else."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.privacy.audit import AuditReport, audit_answers


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, a table, an audit and results."""
    place = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(3)
    y = np.repeat(["no", "yes"], 30)
    X = rng.normal(size=(60, 3)) + 2.0 * (y == "yes")[:, None]
    sites = {"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])}
    with kf.Federation.local(sites, store=place / "stores") as federation:
        kf.FoldingLearner(batch_size=20, hold="machines", measure="rms", partition="order", scale=None).fit(
            federation
        ).save(place / "machines.kfd")
        kf.FoldingLearner(batch_size=20, measure="rms", partition="order", scale=None).fit(federation).save(
            place / "sites.kfd"
        )
        federation.traffic.save(place / "traffic.json")
    write_table(
        place / "test.csv", {"f0": X[:, 0], "f1": X[:, 1], "f2": X[:, 2], "y": y, "where": np.tile(["a", "b"], 30)}
    )
    mechanism = kf.privacy.ElementLaplace(1.0, 2.0, bounds=(-1, 1))
    attack, score = audit_answers(rng.random(20), rng.random(20), permutations=5)
    audit = AuditReport("a test", *mechanism.guarantees(3), (attack,), membership=score)
    (place / "audit.json").write_text(json.dumps(audit.to_json()))
    (place / "wrapped.json").write_text(json.dumps({"audit": audit.to_json(), "traffic": []}))
    (place / "results").mkdir()
    line = {"id": "gikm-table-1", "rows": [{"label": "a", "published": 1, "ours": 2, "unit": "%"}], "seed": 0}
    (place / "results" / "gikm-table-1.jsonl").write_text(json.dumps(line) + "\n")
    return place


def test_a_model_with_rows(folder, tmp_path):
    out = tmp_path / "r.html"
    done = run(
        "report",
        folder / "machines.kfd",
        "--data",
        folder / "test.csv",
        "--label",
        "y",
        "--site",
        "where",
        "--traffic",
        folder / "traffic.json",
        "--out",
        out,
        "--json",
        "--title",
        "Mine & <yours>",
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["out"], told["kind"], told["bytes"]) == (str(out), "model", out.stat().st_size)
    assert told["sections"][0] == "Accuracy"
    assert "What left the sites" in told["sections"]
    assert told["figures"] == 6
    assert "<title>Mine &amp; &lt;yours&gt;</title>" in out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("machines.kfd", "model"),
        ("sites.kfd", "model"),
        ("audit.json", "audit"),
        ("wrapped.json", "audit"),
        ("results", "results"),
        ("results/gikm-table-1.jsonl", "results"),
    ],
)
def test_every_kind_of_source(folder, tmp_path, monkeypatch, source, kind):
    monkeypatch.chdir(tmp_path)
    done = run("report", folder / source)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("wrote report.html (")
    assert f"kernfed {kind} report" in (tmp_path / "report.html").read_text()


def test_traffic_beside_an_audit(folder, tmp_path):
    done = run(
        "report", folder / "audit.json", "--traffic", folder / "traffic.json", "--out", tmp_path / "a.html", "--json"
    )
    assert json.loads(done.stdout)["sections"][0] == "What left the sites"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing.kfd"], "nothing at nothing.kfd; expected a model file, the JSON of an audit, or results"),
        (["test.csv"], "is not a kernfed model file"),
        (["traffic.json"], "is JSON of something else"),
        (["broken.json"], "is no JSON"),
        (["empty"], "holds no result lines"),
        (["sites.kfd", "--data", "test.csv", "--label", "y"], "are at its sites and cannot be asked from here"),
        (["machines.kfd", "--data", "test.csv"], "--data needs --label"),
        (["audit.json", "--data", "test.csv", "--label", "y"], "--data needs a model"),
        (["machines.kfd", "--label", "y"], "name it with --data"),
        (["machines.kfd", "--out", "report.pdf"], "--out must end in .html"),
        (["machines.kfd", "--card", "--out", "card.html"], "--out must end in .md"),
        (["audit.json", "--card"], "--card is for models"),
        (["machines.kfd", "--out", "nowhere/report.html"], "does not exist"),
        (["machines.kfd", "--traffic", "audit.json"], "traffic must be a list"),
        (["page.html"], "page.html is a page to read already, in HTML: open it as it is."),
        (["page.html"], "of an audit give the JSON, which kernfed audit --out writes"),
        (["page.md"], "page.md is a page to read already, in Markdown"),
        (["cut.json"], "cut.json: the audit is damaged: record must be an object, got None; make it anew with"),
        (["open.json"], "open.json: the audit is damaged: private is missing; make it anew with"),
        (["bare.json"], "bare.json: the audit is damaged: attacks is missing"),
        (["machines.kfd", "--traffic", "test.csv"], "is no record of traffic"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(folder, monkeypatch, words, sentence):
    monkeypatch.chdir(folder)
    (folder / "broken.json").write_text("{")
    audit = json.loads((folder / "audit.json").read_text())
    (folder / "cut.json").write_text(json.dumps({**audit, "record": None}))
    for name, field in (("open", "private"), ("bare", "attacks")):
        (folder / f"{name}.json").write_text(json.dumps({key: audit[key] for key in audit if key != field}))
    (folder / "page.html").write_text("\ufeff\n<!DOCTYPE html><title>An audit</title>", encoding="utf-8")
    (folder / "page.md").write_text("# Privacy of noisy rows\n")
    (folder / "empty").mkdir(exist_ok=True)
    done = run("report", *words)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_a_card_is_written(folder, tmp_path):
    told = json.loads(run("report", folder / "machines.kfd", "--card", "--out", tmp_path / "c.md", "--json").stdout)
    assert told["kind"] == "card"
    assert (tmp_path / "c.md").read_text().endswith("\n")
    assert "## Limits" in (tmp_path / "c.md").read_text()


def test_the_demo_ends_with_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("demo")
    assert done.exit_code == 0, done.stderr
    assert f"Report with figures: {tmp_path / 'kernfed-demo.html'}" in done.stdout
    text = (tmp_path / "kernfed-demo.html").read_text()
    assert text.count('role="img"') == 5
    told = json.loads(run("demo", "--json", "--out", "other.html").stdout)
    assert f"{100 * told['results'][0]['accuracy']:.1f}" in text
    assert told["report"] == str(tmp_path / "other.html")


def test_the_demo_goes_on_where_nothing_can_be_written(tmp_path):
    done = run("demo", "--out", tmp_path / "nowhere" / "report.html", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["report"] is None
    assert "no report was written: folder" in done.stderr


def test_the_demo_can_do_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("demo", "--json", "--no-report").stdout)["report"] is None
    assert list(tmp_path.iterdir()) == []
