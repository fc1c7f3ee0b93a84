"""Jobs of a run on Flower: train, predict, evaluate and forget from plain settings, with results in a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed
from kernfed.errors import TooFewReplies
from kernfed.federation import Fault, Federation, FoldingLearner
from oracles.federation import Data, sites_data

pytest.importorskip("flwr", reason="needs the extra flower: pip install -e '.[flower]' in a clone of kernfed")

from federation.flower_grid import over_files
from kernfed.jobs.learning import USUAL_LEARNER, Learning
from kernfed.jobs.run import Job, job_settings, run_job, serve


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, ["a", "b", "c"])


def job(folder: Path, run: str, **settings: Any) -> Job:
    given = {"learner": "folding", **{k.replace("_", "-"): v for k, v in settings.items()}}
    return Job.from_settings({"results": str(folder), **given}, run)


def test_a_job_learns_as_the_command_does_unless_a_learner_is_named(data: Data, tmp_path: Path) -> None:
    options = {"results": str(tmp_path), "weight": "1", "measure": "distance", "batch-size": "8", "components": 20}
    with Federation.local(data) as federation:
        run_job(federation, Job.from_settings(options, "1"))
        expected = Learning(values={name: value for name, value in options.items() if name != "results"}).make()
        expected.fit(federation).save(tmp_path / "expected.kfd")
    assert (tmp_path / "1" / "model.kfd").read_bytes() == (tmp_path / "expected.kfd").read_bytes()
    assert type(expected) is kernfed.FusionLearner
    assert job_settings()["learner"] == USUAL_LEARNER == "fusion"


def test_a_job_may_ask_for_privacy(data: Data, tmp_path: Path) -> None:
    mechanism = (
        '{"kind": "record-gaussian", "epsilon": 3.0, "delta": 1e-5, "radius": 1.0, "projection": null, "seed": 0}'
    )
    with Federation.flower(over_files(data, tmp_path)) as federation:
        run_job(federation, job(tmp_path, "1", measure="distance", batch_size=8, privacy=mechanism))
        terms = kernfed.load(tmp_path / "1" / "model.kfd").privacy
        assert (terms.record.epsilon, terms.record.delta) == (3.0, 1e-5)
        named = {"privacy": "record-gaussian", "epsilon": 3.0, "delta": 1e-5, "radius": 1.0}
        run_job(federation, job(tmp_path, "2", measure="distance", batch_size=8, **named))
        assert kernfed.load(tmp_path / "2" / "model.kfd").privacy.mechanism == terms.mechanism
        for wrong, told in (
            ({"privacy": "{"}, "privacy must be a JSON object"),
            ({"privacy": "magic"}, "privacy must be one of element-laplace, .*, or a JSON object, got 'magic'"),
            ({"privacy": mechanism, "epsilon": 1.0}, "privacy as JSON says it all; leave epsilon out"),
            ({"privacy": "record-gaussian"}, "privacy record-gaussian needs epsilon"),
            ({"epsilon": 1.0}, "epsilon needs privacy element-laplace or"),
            ({**named, "label_epsilon": 1.0}, "label-epsilon needs classes A,B,...: all labels there can be"),
        ):
            with pytest.raises(ValueError, match=told):
                run_job(federation, job(tmp_path, "3", **wrong))


def test_jobs_train_predict_evaluate_forget(data: Data, tmp_path: Path) -> None:
    queries = np.concatenate([X for X, _ in data.values()])
    np.save(tmp_path / "queries.npy", queries)
    results = tmp_path / "results"
    with Federation.flower(over_files(data, tmp_path, holdout=0.25)) as federation:
        run_job(federation, job(results, "1", measure="distance", batch_size=8, partition="order", scale="none"))
        model = str(results / "1" / "model.kfd")
        before = len(federation.engine._grid.pushed)  # type: ignore[attr-defined]
        run_job(federation, job(results, "2", job="predict", model=model, queries=str(tmp_path / "queries.npy")))
        assert len(federation.engine._grid.pushed) == before + 3, "one question per site and batch"  # type: ignore[attr-defined]
        run_job(federation, job(results, "3", job="evaluate", model=model))
        run_job(federation, job(results, "4", job="forget", model=model, site="b"))
        run_job(federation, job(results, "5", job="forget", model=model, site="a", rows="1, 2"))
        connected = kernfed.load(model)
        fewer = kernfed.load(results / "5" / "model.kfd").connect(federation)
        written = kernfed.data.read_table(
            results / "2" / "predictions.parquet", features="probability", label="prediction", site="site"
        )
        assert fewer.members_["a"].rows == connected.members_["a"].rows - 2
        tested = json.loads((results / "3" / "evaluation.json").read_text())
        assert tested["pooled"]["rows"] > 0
        told = json.loads((results / "4" / "result.json").read_text())
        assert told["members"] == ["a", "c"]
        traffic = json.loads((results / "2" / "traffic.json").read_text())
        assert {entry["site"] for entry in traffic} == {"a", "b", "c"}
    with Federation.local(data, holdout=0.25) as local:
        expected = FoldingLearner("distance", batch_size=8, partition="order", scale=None).fit(local)
        np.testing.assert_array_equal(written.y, expected.predict(queries))
        np.testing.assert_array_equal(written.X[:, 0], expected.predict_proba(queries).max(axis=1))
        np.testing.assert_array_equal(written.site, expected.explain(queries).site)


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_jobs_with_ridge(data: Data, tmp_path: Path, task: str) -> None:
    np.save(tmp_path / "queries.npy", data["a"][0])
    results, options = tmp_path / "results", {"learner": "ridge", "components": 30, "bandwidth": "2.5", "task": task}
    with Federation.flower(over_files(data, tmp_path, holdout=0.25)) as federation:
        run_job(federation, job(results, "1", **options))
        model = str(results / "1" / "model.kfd")
        run_job(federation, job(results, "2", job="predict", model=model, queries=str(tmp_path / "queries.npy")))
        run_job(federation, job(results, "3", job="evaluate", model=model))
        with pytest.raises(ValueError, match="bandwidth must be auto, median or a number, got 'wide'"):
            run_job(federation, job(results, "4", **{**options, "bandwidth": "wide"}))
        with pytest.raises(ValueError, match="learner must be one of"):
            run_job(federation, job(results, "5", learner="magic"))
    with Federation.local(data, holdout=0.25) as local:
        expected = kernfed.RidgeLearner(n_components=30, bandwidth=2.5, task=task).fit(local)
        tested = kernfed.evaluate(expected, local)
    written = kernfed.data.read_table(results / "2" / "predictions.parquet", features="row", label="prediction")
    np.testing.assert_array_equal(written.y, expected.predict(data["a"][0]))
    told = json.loads((results / "3" / "result.json").read_text())
    assert told["accuracy" if task == "classify" else "r2"] == (tested.accuracy if task == "classify" else tested.r2)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        (
            {
                "weights": "0.2, 0.1",
                "embedding": "polynomial",
                "features-kind": "fourier",
                "components": 20,
                "bandwidth": "2.5",
                "gains": "no",
            },
            {
                "weights": (0.2, 0.1),
                "kernel": "polynomial",
                "features": "fourier",
                "n_components": 20,
                "bandwidth": 2.5,
                "gains": False,
            },
        ),
        pytest.param(
            {"predictor": "logistic", "weights": "grand_mean"},
            {"model": "logistic", "weights": "grand_mean"},
            marks=pytest.mark.slow,
        ),
        ({"task": "regress", "weights": "printed"}, {"task": "regress", "weights": "printed"}),
        ({"weights": "means"}, {"weights": "means"}),
    ],
)
def test_jobs_with_personal(data: Data, tmp_path: Path, settings: dict[str, Any], options: dict[str, Any]) -> None:
    np.save(tmp_path / "queries.npy", data["a"][0])
    results = tmp_path / "results"
    with Federation.flower(over_files(data, tmp_path, holdout=0.25)) as federation:
        run_job(federation, job(results, "1", learner="personal", **settings))
        asking = {"model": str(results / "1" / "model.kfd"), "queries": str(tmp_path / "queries.npy")}
        run_job(federation, job(results, "2", job="predict", site="b", **asking))
        run_job(federation, job(results, "3", job="evaluate", model=asking["model"]))
        for site, told in (("", r"name one by the setting site, there are 'a', 'b', 'c'"), ("z", "no model for site")):
            with pytest.raises(ValueError, match=told):
                run_job(federation, job(results, "4", job="predict", site=site, **asking))
        with pytest.raises(ValueError, match="job 'forget' needs a folding model, got a PersonalModel"):
            run_job(federation, job(results, "4", job="forget", site="a", model=asking["model"]))
    columns = [f"X[{i}]" for i in range(data["a"][0].shape[1])]
    with Federation.local(data, holdout=0.25, columns=columns) as local:
        expected = kernfed.PersonalLearner(**{"task": "classify", **options}).fit(local)
        tested = kernfed.evaluate(expected, local)
    expected.save(tmp_path / "expected.kfd")
    assert (tmp_path / "expected.kfd").read_bytes() == Path(asking["model"]).read_bytes()
    place, classify = results / "2" / "predictions.parquet", "task" not in settings
    written = kernfed.data.read_table(place, features="probability" if classify else "row", label="prediction")
    own = expected.for_site("b")
    np.testing.assert_array_equal(written.y, own.predict(data["a"][0]))
    if classify:
        np.testing.assert_array_equal(written.X[:, 0], own.predict_proba(data["a"][0]).max(axis=1))
    told = json.loads((results / "3" / "result.json").read_text())
    assert told["accuracy" if classify else "r2"] == (tested.accuracy if classify else tested.r2)
    assert json.loads((results / "1" / "result.json").read_text())["members"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"weights": "best"}, "weights must be one of 'auto'"),
        ({"weights": "1,much"}, "weights must be a rule or C_Q,C_P such as 0.2,0.1, got '1,much'"),
        ({"weights": "1,2,3"}, "weights must be one of"),
        ({"weights": "1,-2"}, "C_P must be >= 0"),
        ({"predictor": "forest"}, "predictor must be one of"),
        ({"features-kind": "linear"}, "features-kind must be one of"),
        ({"embedding": "linear"}, "embedding must be one of"),
        ({"components": -1}, "components must be >= 1"),
        ({"gains": "perhaps"}, "gains must be one of"),
        ({"regularization": "much"}, "regularization must be auto or a number"),
        ({"batch-size": 8}, "batch-size is for learner folding or fusion, not for personal; leave it out"),
        ({"bandwidth": "wide"}, "bandwidth must be median or a number"),
        ({"task": "rank"}, "task must be one of"),
    ],
)
def test_wrong_settings_of_personal(data: Data, tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    with Federation.local(data) as federation, pytest.raises(ValueError, match=told):
        run_job(federation, job(tmp_path, "1", learner="personal", **settings))


def test_a_site_is_named_for_personal_models_only(data: Data, tmp_path: Path) -> None:
    with Federation.local(data) as federation:
        run_job(federation, job(tmp_path, "1", hold="machines"))
        asking = {"job": "predict", "model": str(tmp_path / "1" / "model.kfd"), "queries": "none.npy"}
        with pytest.raises(ValueError, match="the setting site is for personalised models, and a FoldingModel of the"):
            run_job(federation, job(tmp_path, "2", site="a", **asking))


def test_weights_alone_are_trained_and_predict_nothing(data: Data, tmp_path: Path) -> None:
    with Federation.local(data, holdout=0.25) as federation:
        run_job(federation, job(tmp_path, "1", learner="personal", predictor="none", weights="printed"))
        model = str(tmp_path / "1" / "model.kfd")
        assert kernfed.load(model).weights_.shape == (3, 3)
        for settings in ({"job": "predict", "site": "a", "queries": "none.npy"}, {"job": "evaluate"}):
            with pytest.raises(ValueError, match="this model has weights only"):
                run_job(federation, job(tmp_path, "2", model=model, **settings))


def test_serve_does_the_job_of_the_run(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from flwr.app import Context, RecordDict

    config = {**job_settings(), "results": str(tmp_path / "results"), "sites": "a,b,c", "batch-size": 9}
    serve(over_files(data, tmp_path), Context(77, 1, {}, RecordDict(), config))
    assert (tmp_path / "results" / "77" / "model.kfd").is_file()
    assert "train: results are in" in capsys.readouterr().out
    config["min-replies"], config["timeout"], config["wait"] = 3, 0.5, 1.0
    grid = over_files(data, tmp_path)
    grid.faults = {12: Fault("dead")}
    with pytest.raises(TooFewReplies, match="'b'"):
        serve(grid, Context(78, 1, {}, RecordDict(), config))
    assert (tmp_path / "results" / "78" / "traffic.json").is_file()
    assert not (tmp_path / "results" / "78" / "result.json").exists()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"job": "dance"}, "job must be one of"),
        ({"colour": 1}, "unknown setting 'colour'"),
        ({"results": "here"}, "results must be an absolute path"),
        ({"timeout": "long"}, "timeout must be float, got 'long'"),
        ({"batch-size": True}, "batch-size must be str, got True"),
        ({"k": True}, "k must be int, got True"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_wrong_jobs(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Job.from_settings({"results": str(tmp_path), **settings}, "1")


def test_jobs_that_lack_something(data: Data, tmp_path: Path) -> None:
    with Federation.local(data) as federation:
        for settings, told in (
            ({"job": "predict"}, "job 'predict' needs the setting model"),
            ({"job": "forget"}, "job 'forget' needs the setting site"),
            ({"job": "forget", "site": "a", "rows": "1;2"}, "rows must be row ids such as 3,17,20"),
        ):
            with pytest.raises(ValueError, match=told):
                run_job(federation, job(tmp_path, "1", **settings))
