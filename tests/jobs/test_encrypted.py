"""Encrypted answers of a job: the run asks and combines; whoever started it reads the answer with the secret key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra flower: pip install -e '.[flower]' in a clone of kernfed")

from federation.flower_grid import over_files
from kernfed import load
from kernfed.cli import app
from kernfed.errors import InputError
from kernfed.federation import Federation
from kernfed.jobs import flower_run
from kernfed.jobs import run as jobs
from kernfed.jobs.flower_app import write_app
from kernfed.jobs.run import Job, run_job
from kernfed.secure import KeyHolder, classify
from kernfed.secure.protocol import pack_keys
from oracles.federation import Data, sites_data

LEARNER = {"learner": "folding", "measure": "rms", "batch-size": "8", "partition": "order", "scale": "none"}


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, ["a", "b", "c"])


def job(folder: Path, run: str, **settings: Any) -> Job:
    return Job.from_settings({"results": str(folder / "results"), **settings}, run)


def trained(federation: Federation, folder: Path, **settings: Any) -> str:
    return str(run_job(federation, job(folder, "1", **{**LEARNER, **settings})) / "model.kfd")


def asking(folder: Path, model: str, holder: KeyHolder, queries: Any) -> dict[str, Any]:
    np.save(folder / "queries.npy", queries)
    (folder / "public.keys").write_bytes(pack_keys(holder))
    place = {"queries": str(folder / "queries.npy"), "keys": str(folder / "public.keys")}
    return {"job": "predict", "model": model, **place}


def test_the_run_writes_what_only_the_key_holder_reads(data: Data, tmp_path: Path) -> None:
    queries = np.concatenate([X[:4] for X, _ in data.values()])
    with Federation.flower(over_files(data, tmp_path)) as federation:
        path = trained(federation, tmp_path)
        model = load(path).connect(federation)
        holder = KeyHolder(3, len(model.classes_), scheme="plain")
        folder = run_job(federation, job(tmp_path, "2", **asking(tmp_path, path, holder, queries)))
        right = model.classes_[classify(model.scores_by_site(queries), bits=8)]
    told = json.loads((folder / "result.json").read_text())
    assert (told["answer"], told["rows"], told["missing"]) == ("answer.kfsm", len(queries), {})
    assert not (folder / "predictions.parquet").exists()
    assert model.classes_[holder.decide((folder / "answer.kfsm").read_bytes())].tolist() == right.tolist()
    traffic = json.loads((folder / "traffic.json").read_text())
    assert "secure_scores" in json.dumps(traffic)


def test_what_cannot_be_asked_is_refused(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = data["a"][0][:3]
    with Federation.local(data, store=tmp_path / "store") as federation:
        path = trained(federation, tmp_path)
        classes = len(load(path).classes_)
        other = asking(tmp_path, path, KeyHolder(2, classes, scheme="plain"), queries)
        with pytest.raises(InputError, match="must be made for 3 sites"):
            run_job(federation, job(tmp_path, "2", **other))
        right = asking(tmp_path, path, KeyHolder(3, classes, scheme="plain"), queries)
        monkeypatch.setattr(jobs, "MOST_ENCRYPTED", 2)
        with pytest.raises(InputError, match="answers 1 to 2 encrypted queries, got 3"):
            run_job(federation, job(tmp_path, "3", **right))
        whole = trained(federation, tmp_path, hold="machines")
        with pytest.raises(InputError, match="whose machines are at its sites"):
            run_job(federation, job(tmp_path, "4", **{**right, "model": whole}))


def test_the_command_asks_a_flower_app(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself is done here, by the function that Flower calls, with the settings that Flower is given."""
    place, rows = tmp_path / "app", tmp_path / "rows.npy"
    write_app(place)
    queries = data["b"][0][:5]
    np.save(rows, queries)
    handed: list[bytes] = []
    with Federation.local(data, store=tmp_path / "store") as federation:
        path = trained(federation, tmp_path)
        expected = load(path).connect(federation).predict(queries, secure="plain").tolist()

        def run_here(where: Path, settings: Any, **_: Any) -> flower_run.Finished:
            assert set(settings) <= set(flower_run.read_config(where))
            handed.append(Path(settings["keys"]).read_bytes())
            folder = run_job(federation, Job.from_settings({**flower_run.read_config(where), **settings}, "9"))
            return flower_run.Finished("9", folder, json.loads((folder / "result.json").read_text()))

        monkeypatch.setattr(flower_run, "run_app", run_here)
        key = tmp_path / "ann.key"
        words = ["ask", str(place), str(rows), "--model", path, "--secure", "plain", "--key", str(key), "--json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
        lacking = CliRunner().invoke(app, ["ask", str(place), str(rows), "--secure", "plain"])
    assert json.loads(done.stdout)["predictions"] == expected
    assert handed == [pack_keys(KeyHolder.load(key.read_bytes()))]
    assert (lacking.exit_code, "needs --model FILE" in lacking.stderr) == (2, True)
