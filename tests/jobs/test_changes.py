"""Jobs that change a model: rows and sites come and go, and what cannot work is refused before anybody is asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.errors import InputError
from kernfed.federation import Federation, FoldingLearner, RidgeLearner
from kernfed.jobs.flower_app import write_app
from kernfed.jobs.run import Job, check_job, run_job
from oracles.federation import Data, sites_data

NAMES = ("f0", "f1", "f2", "f3", "f4")


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, ["a", "b", "c"])


@pytest.fixture
def folder(data: Data, tmp_path: Path, rng: np.random.Generator) -> Path:
    """A model of sites a and b, their stores, and rows to add."""
    with federation_of(data, tmp_path, "ab") as federation:
        FoldingLearner(batch_size=8, measure="rms", partition="order", scale=None).fit(federation).save(
            tmp_path / "model.kfd"
        )
    X = rng.normal(size=(6, 5))
    columns = {
        **dict(zip(NAMES, X.T, strict=True)),
        "y": np.arange(6) % 2,
        "number": np.arange(6) + 900,
        "word": ["x"] * 6,
    }
    write_table(tmp_path / "new.csv", columns)
    return tmp_path


def federation_of(data: Data, folder: Path, names: str) -> Federation:
    return Federation.local({name: data[name] for name in names}, store=folder / "store", columns=NAMES)


def job(folder: Path, kind: str, **settings: Any) -> Job:
    given = {"results": str(folder / "results"), "job": kind, "model": str(folder / "model.kfd"), **settings}
    return Job.from_settings(given, "1")


def test_rows_are_added(data: Data, folder: Path) -> None:
    with federation_of(data, folder, "ab") as federation:
        asked = job(folder, "add-rows", site="a", new=str(folder / "new.csv"), label="y", ids="number")
        before = kf.load(folder / "model.kfd")
        scores = before.connect(federation).scores(data["c"][0])
        done = run_job(federation, asked)
        more = kf.load(done / "model.kfd")
        assert more.members_["a"].rows == before.members_["a"].rows + 6
        assert json.loads((done / "result.json").read_text())["added"] == 6
        assert {900, 905} <= set(federation.engine.site("a").rows().ids.tolist())  # type: ignore[attr-defined]
        np.testing.assert_array_equal(before.connect(federation).scores(data["c"][0]), scores)  # it goes on


def test_a_site_is_added(data: Data, folder: Path) -> None:
    with federation_of(data, folder, "abc") as federation:
        done = run_job(federation, job(folder, "add-site", site="c", sites="a,b,c"))
        assert kf.load(done / "model.kfd").sites == ("a", "b", "c")


def test_a_site_that_is_dead_is_forgotten_without_it(data: Data, folder: Path) -> None:
    with federation_of(data, folder, "a") as federation:
        done = run_job(federation, job(folder, "forget", site="b", sites="a"))
        fewer = kf.load(done / "model.kfd")
        assert fewer.sites == ("a",)
        fewer.connect(federation).predict(data["c"][0])
        assert federation.traffic.bytes_down > 0
        told = json.loads((done / "result.json").read_text())
        assert (told["bytes_down"], list(told["missing"])) == (0, ["b"])  # nobody was asked
        with pytest.raises(InputError, match="the model needs site 'b'"):
            run_job(federation, job(folder, "forget", site="b", rows="3"))


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("train", {"learner": "forest"}, "learner must be one of"),
        ("train", {"measure": "far"}, "measure"),
        ("train", {"sites": "a,b,a"}, "sites must name each site once, got 'a' twice"),
        ("predict", {"model": ""}, "job 'predict' needs the setting model"),
        ("forget", {}, "job 'forget' needs the setting site, and rows"),
        ("forget", {"site": "z"}, "'z' is no site of the model, which has 'a', 'b'"),
        ("forget", {"site": "a", "rows": "x"}, "rows must be row ids"),
        ("forget", {"site": "a", "rows": "3", "sites": "b"}, "sites must name all that are asked, 'a' is not among b"),
        ("forget", {"site": "a", "sites": "c"}, "'b' is not among c"),
        ("add-site", {}, "job 'add-site' needs the setting site"),
        ("add-site", {"site": "a"}, "'a' takes part already"),
        ("add-site", {"site": "c", "sites": "a,b"}, "'c' is not among a, b"),
        ("add-rows", {"site": "a"}, "needs the settings new, a table of the rows, and label"),
        ("add-rows", {"site": "z", "new": "new.csv", "label": "y"}, "'z' is no site of the model"),
        ("add-rows", {"site": "a", "new": "none.csv", "label": "y"}, "none.csv"),
        ("add-rows", {"site": "a", "new": "new.csv", "label": "z"}, "'z'"),
        ("add-rows", {"site": "a", "new": "new.csv", "label": "y", "ids": "word"}, "ids must be a column of whole"),
        ("add-rows", {"site": "a", "new": "new.csv", "label": "y", "features": "f0,f1"}, "must have 5 columns"),
    ],
)
def test_what_cannot_work_is_refused_before_anybody_is_asked(
    data: Data, folder: Path, kind: str, settings: dict[str, Any], told: str
) -> None:
    if settings.get("new"):
        settings = {**settings, "new": str(folder / settings["new"])}
    with federation_of(data, folder, "ab") as federation:
        with pytest.raises((InputError, OSError), match=told):
            run_job(federation, job(folder, kind, **settings))
        assert len(federation.traffic) == 0


def test_a_model_that_cannot_be_changed(data: Data, folder: Path) -> None:
    with Federation.local(data) as federation:
        RidgeLearner(n_components=10).fit(federation).save(folder / "model.kfd")
    with pytest.raises(InputError, match="job 'add-site' needs a folding model, got a RidgeModel"):
        check_job(job(folder, "add-site", site="d"))


def test_the_command_refuses_before_a_run_is_started(folder: Path) -> None:
    write_app(folder / "app", address="127.0.0.1:1")
    words = ["flower-run", str(folder / "app"), "add-site", "--set", f"model={folder / 'model.kfd'}", "--set", "site=a"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "'a' takes part already" in done.stderr) == (2, True), done.stderr
    done = CliRunner().invoke(app, [*words[:3], "--set", "model=/elsewhere/model.kfd"])
    assert (done.exit_code, "needs the setting site" in done.stderr) == (2, True), done.stderr
