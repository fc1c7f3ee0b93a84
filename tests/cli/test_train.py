"""train: refuses before it computes, and says what the model is not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed
from kernfed.base.text import format_bytes
from kernfed.cli import app
from kernfed.cli.options import check_output
from kernfed.data import read_table, write_table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    y = np.arange(40) % 2
    rows = {f"f{i}": rng.random(40) + y for i in range(3)}
    sites = np.array(["n", "s"])[np.arange(40) // 20]
    write_table(tmp_path / "rows.csv", {**rows, "y": y, "site": sites, "number": np.arange(40), "twice": y})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*options, code=0):
    done = CliRunner().invoke(app, ["train", "--data", "rows.csv", "--label", "y", "--features", "f0:f2", *options])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--k", "2"), "--k needs --aggregate kth"),
        (("--aggregate", "odd", "--k", "2"), "'odd' is not one of 'min', 'kth'"),
        (("--measure", "foo"), "Invalid value for '--measure': 'foo' is not one of 'rms', 'product', 'min', 'max'"),
        (("--learner", "forest"), "'forest' is not one of 'folding', 'ridge', 'personal'"),
        (("--learner", "folding", "--rounds", "3"), "--rounds is for --learner ridge or fusion, not for folding"),
        (("--learner", "ridge", "--k", "2"), "--k is for --learner folding or fusion, not for ridge; leave it out"),
        (("--learner", "personal", "--epsilon", "2"), "--epsilon is for --learner folding or fusion, not for personal"),
        (("--hold", "sites"), "--hold sites needs --store DIR"),
        (("--learner", "ridge", "--bandwidth", "wide"), "--bandwidth must be auto, median or a number, got 'wide'"),
        (("--learner", "ridge", "--task", "infer"), "--task must be one of 'classify', 'regress', got 'infer'"),
        (("--smoothing", "none"), "--smoothing needs --privacy"),
        (("--basis", "random"), "--basis needs --privacy record-moments"),
        (("--store", "rows.csv"), "--store must be a folder"),
        (("--traffic", "no/traffic.json"), "--traffic: folder no does not exist; make it first"),
        (("--traffic", "."), "--traffic must be a file, . is a folder"),
        (("--traffic", "rows.csv"), "--traffic must not be a file that is read"),
        (("--traffic", "../{folder}/model.kfd"), "--out and --traffic must be two files"),
        (("--id", "twice"), "--id must name every row of a site once, '0' names 20 rows of site 'all'"),
    ],
)
def test_options_that_do_nothing_or_cannot_be(folder, options, told):
    done = train("--out", "model.kfd", *(option.format(folder=folder.name) for option in options), code=2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("no/model.kfd", "--out: folder no does not exist; make it first"),
        (".", "--out must be a file, . is a folder"),
        ("rows.csv", "--out must not be a file that is read, got rows.csv for both"),
        ("link", "--out must be a file, link is a link"),
        ("pipe", "--out must be a file, pipe is something else"),
        ("x" * 250, "cannot be written: File name too long"),
    ],
)
def test_where_no_model_can_be_written_nothing_is_trained(folder, monkeypatch, out, told):
    (folder / "link").symlink_to("rows.csv")
    os.mkfifo(folder / "pipe")
    before = (folder / "rows.csv").read_bytes()
    monkeypatch.setattr(
        "kernfed.jobs.tables.read_table", lambda *_, **__: pytest.fail("read before the place was checked")
    )
    done = train("--out", out, code=2)
    assert told in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["link", "pipe", "rows.csv"]
    assert (folder / "link").is_symlink()
    assert (folder / "rows.csv").read_bytes() == before


def test_a_place_where_one_may_write_is_left_as_it_is(folder):
    check_output("--out", folder / "new", folder / "rows.csv", None, folder / "absent")
    check_output("--out", folder / "rows.csv", folder / "absent")
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]


def test_kth_counts_from_the_second_unless_told(folder):
    for options, k in ((("--trusted-classes", "0,1"), 2), (("--k", "1"), 1)):
        train("--out", "model.kfd", "--aggregate", "kth", "--site", "site", *options)
        assert kernfed.load(folder / "model.kfd").folding.parameters.k == k


@pytest.mark.usefixtures("folder")
def test_kth_needs_sites_enough():
    refused = train("--out", "model.kfd", "--aggregate", "kth", "--site", "site", code=2).stderr
    assert "a class takes part where at least 3 sites hold it, and of 2 site(s) no 3 hold the same one" in refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--aggregate", "kth", "--trusted-classes", "all"),
            "Not protected: 2 of 2 classes are trusted and can be decided by wrong sites: 0, 1; fewer than k + 1 = 3",
        ),
        (
            ("--label", "number", "--task", "classify"),
            "40 classes in 40 rows: a label that is a quantity cannot be learned as classes.",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_remarks(options, said):
    lines = train("--out", "model.kfd", *options).stderr.splitlines()
    assert lines[-1] == "The file contains the rows it was trained on: keep it as you keep them."
    assert [line.startswith(said or "-") for line in lines[:-1]] == [True] * (said is not None)


def test_what_left_the_sites_is_written_as_reports_read_it(folder):
    options = ("--out", "model.kfd", "--site", "site", "--traffic", "traffic.json")
    said = train(*options).stdout
    table = read_table(folder / "rows.csv", features="f0:f2", label="y", site="site")
    sites = {name: (table.X[table.site == name], table.y[table.site == name]) for name in ("n", "s")}
    with kernfed.Federation.local(sites, columns=table.columns) as federation:
        kernfed.FusionLearner(hold="machines").fit(federation)
        expected = federation.traffic
    assert json.loads((folder / "traffic.json").read_text()) == expected.to_json()
    assert {entry["site"] for entry in expected.to_json() if entry["information"] == "rows"} == {"n", "s"}
    assert f"{format_bytes(expected.bytes_up)} left the sites; wrote traffic.json" in said
    told = json.loads(train(*options, "--json").stdout)
    assert (told["traffic"], told["bytes_up"], told["bytes_down"]) == (
        "traffic.json",
        expected.bytes_up,
        expected.bytes_down,
    )
    words = ["report", "model.kfd", "--traffic", "traffic.json", "--out", "report.html", "--json"]
    assert "What left the sites" in json.loads(CliRunner().invoke(app, words).stdout)["sections"]


def test_the_record_of_traffic_is_written_whole_or_not(folder, monkeypatch):
    (folder / "traffic.json").write_text("old")
    monkeypatch.setattr("kernfed.site.protocol.traffic.Traffic.to_json", lambda _: [][0])
    train("--out", "model.kfd", "--traffic", "traffic.json", code=1)
    assert (folder / "traffic.json").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["model.kfd", "rows.csv", "traffic.json"]


def test_rows_of_two_sites_may_have_the_same_name(folder):
    text = (folder / "rows.csv").read_text().splitlines()
    named = [f"{text[0]},name", *(f"{line},P{place % 20}" for place, line in enumerate(text[1:]))]
    (folder / "rows.csv").write_text("\n".join(named) + "\n")
    told = json.loads(train("--out", "model.kfd", "--id", "name", "--site", "site", "--json").stdout)
    assert told["sites"] == 2
    assert "'P0' names 2 rows of site 'all'" in train("--out", "model.kfd", "--id", "name", code=2).stderr


@pytest.mark.usefixtures("folder")
def test_the_package_itself_is_a_program():
    words = ["train", "--data", "none.csv", "--label", "y", "--out", "model.kfd"]
    done = subprocess.run([sys.executable, "-m", "kernfed", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "kernfed: none.csv: there is no such file\n")
