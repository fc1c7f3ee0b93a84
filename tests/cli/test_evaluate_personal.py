"""Personalised models on the command line: predict, evaluate and report by each site's own predictor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import read_table, write_table
from kernfed.jobs.flower_app import write_app


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


def told(*words: Any) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of sites whose labels and values mean opposite things, and tables with rows of one site more."""
    place = tmp_path_factory.mktemp("personal")
    rng = np.random.default_rng(8)
    names = ["east", "north", "south"]
    kinds: dict[str, dict[str, Any]] = {"classes": {}, "values": {}}
    for number, name in enumerate(names):
        X = rng.normal(size=(60, 3))
        values = X @ [2.0, 1.0, 0.0] * (-1) ** number + 0.3 * rng.normal(size=60)
        kinds["values"][name] = (X, values)
        kinds["classes"][name] = (X, np.where(values > 0, "yes", "no"))
    for kind, sites in kinds.items():
        with kf.Federation.local({name: (X[:40], y[:40]) for name, (X, y) in sites.items()}) as federation:
            kf.PersonalLearner().fit(federation).save(place / f"{kind}.kfd")
            kf.PersonalLearner("printed", model="none").fit(federation).save(place / f"{kind}-weights.kfd")
            if kind == "classes":
                kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
                    federation
                ).save(place / "folding.kfd")
        tested = {**{name: (X[40:], y[40:]) for name, (X, y) in sites.items()}, "west": sites["east"]}
        X, y = (np.concatenate([rows[part] for rows in tested.values()]) for part in (0, 1))
        where = np.concatenate([[name] * len(rows[1]) for name, rows in tested.items()])
        write_table(place / f"{kind}.csv", {"f0": X[:, 0], "f1": X[:, 1], "f2": X[:, 2], "y": y, "where": where})
    return place


def rows_of(path: Path, site: str) -> tuple[Any, Any]:
    table = read_table(path, features="f0:f2", label="y", site="where")
    assert table.site is not None
    assert table.y is not None
    return table.X[table.site == site], table.y[table.site == site]


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_predict_for_a_site(folder: Path, tmp_path: Path, kind: str) -> None:
    model, out = kf.load(folder / f"{kind}.kfd"), tmp_path / "pred.csv"
    X = read_table(folder / f"{kind}.csv", features="f0:f2").X
    for site in ("east", "north"):
        found = told(
            "predict",
            folder / f"{kind}.kfd",
            folder / f"{kind}.csv",
            "--for-site",
            site,
            "--features",
            "f0:f2",
            "--out",
            out,
        )
        own = model.for_site(site)
        probability = kind == "classes"
        written = read_table(out, features="probability" if probability else "row", label="prediction")
        assert ("counts" in found, "quartiles" in found) == (probability, not probability)
        if probability:
            np.testing.assert_array_equal(written.y, own.predict(X))
            np.testing.assert_allclose(written.X[:, 0], own.predict_proba(X).max(axis=1))
        else:
            np.testing.assert_allclose(written.y, own.predict(X))
            assert found["quartiles"]["100%"] == pytest.approx(own.predict(X).max())


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_evaluate_by_each_sites_own_predictor(folder: Path, kind: str) -> None:
    model, path = kf.load(folder / f"{kind}.kfd"), folder / f"{kind}.csv"
    words = ("evaluate", folder / f"{kind}.kfd", "--data", path, "--label", "y", "--site", "where")
    found = told(*words)
    assert set(found["sites"]) == set(model.sites)
    assert found["missing"] == {"west": "no model for site 'west'; there are 'east', 'north', 'south'"}
    for site in model.sites:
        X, y = rows_of(path, site)
        name = "accuracy" if kind == "classes" else "r2"
        assert found["sites"][site][name] == pytest.approx(model.for_site(site).score(X, y))
        assert found["sites"][site][name] > 0.8
    assert found["pooled"]["rows"] == 60
    assert "west       missing: no model for site 'west'" in run(*words).stdout


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_a_report_tests_by_each_sites_own_predictor(folder: Path, tmp_path: Path, kind: str) -> None:
    page = tmp_path / "page.html"
    found = told(
        "report",
        folder / f"{kind}.kfd",
        "--data",
        folder / f"{kind}.csv",
        "--label",
        "y",
        "--site",
        "where",
        "--out",
        page,
    )
    assert found["sections"][0] == {"classes": "Accuracy", "values": "Errors"}[kind]
    assert "on 60 unseen rows" in page.read_text()


TABLE = ["--data", "classes.csv", "--label", "y"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["predict", "classes.kfd", "classes.csv"],
            "has a predictor for each site: name one by --for-site, there are 'east', 'north', 'south'",
        ),
        (
            ["predict", "classes.kfd", "classes.csv", "--for-site", "west"],
            "no model for site 'west'; there are 'east', 'north', 'south'",
        ),
        (
            ["predict", "folding.kfd", "classes.csv", "--for-site", "east"],
            "--for-site is for personalised models, and a FoldingModel of the sites 'east', 'north', 'south' answers",
        ),
        (
            ["predict", "classes.kfd", "values.csv", "--for-site", "east"],
            "the model has 3 features, the table has 4; see --features",
        ),
        (["predict", "classes.kfd", "classes.csv", "--for-site", "east", "--explain"], "--explain needs a federated"),
        (["predict", "classes-weights.kfd", "classes.csv", "--for-site", "east"], "this model has weights only"),
        (["predict", "values-weights.kfd", "classes.csv"], "this model has weights only"),
        (
            ["evaluate", "classes.kfd", *TABLE],
            "the model has a predictor for each site, such as 'east': name the column of the sites with --site COLUMN",
        ),
        (["evaluate", "values.kfd", *TABLE, "--site", "where"], "a regressor is tested on numbers"),
        (["evaluate", "classes-weights.kfd", *TABLE], "this model has weights only"),
        (["evaluate", "classes.kfd", *TABLE, "--site", "where", "--features", "f0:f1"], "the model has 3 features"),
        (
            [
                "evaluate",
                "classes.kfd",
                "--data",
                "classes.csv",
                "--label",
                "where",
                "--site",
                "y",
                "--features",
                "f0:f2",
            ],
            "no model for site 'no'; there are 'east', 'north', 'south'; "
            "a personalised model is tested by its own sites",
        ),
        (["report", "classes.kfd", *TABLE], "name the column of the sites with --site COLUMN"),
        (["report", "values-weights.kfd", *TABLE, "--site", "where"], "this model has weights only"),
    ],
)
def test_what_is_refused_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    done = run(*words, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("kernfed: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("kind", "site"), [("classes", "north"), ("folding", "")])
def test_a_run_on_flower_is_told_the_site(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, site: str
) -> None:
    """A model that is whole waits for no site by name; the run itself is a stand-in."""
    from kernfed.jobs import flower_run

    seen: dict[str, Any] = {}

    def stand_in(_: Path, settings: dict[str, Any], **options: Any) -> flower_run.Finished:  # noqa: ARG001
        seen.update(settings)
        count = len(np.load(settings["queries"]))
        write_table(tmp_path / "found.parquet", {"row": np.arange(count), "prediction": np.array(["yes"] * count)})
        return flower_run.Finished("1", tmp_path, {"predictions": "found.parquet"})

    monkeypatch.setattr(flower_run, "run_app", stand_in)
    write_app(tmp_path / "app")
    named = ["--for-site", site] if site else []
    found = told("predict", folder / f"{kind}.kfd", folder / "classes.csv", "--flower", tmp_path / "app", *named)
    assert found["counts"] == {"yes": 120}
    assert (seen["job"], seen["site"], seen["sites"]) == ("predict", site, "")
