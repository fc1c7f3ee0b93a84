"""Jobs of a run that nobody watches: train, predict, evaluate or forget, from plain settings, with results in a folder.

A ServerApp ends with its run, so what a run found is read from files: ``<results>/<run>/result.json`` comes last and
names the others. Without it a run has not succeeded.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernfed._validation import check_choice, check_count, check_number
from kernfed.data import read_table, write_table
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.settings import Given, Value, make_learner, settings_by_name
from kernfed.federation.testing.evaluation import evaluate
from kernfed.federation.testing.outcomes import Evaluation
from kernfed.federation.testing.predictors import answer_columns, predictor_for
from kernfed.files import atomic_path, load

#: Settings every job has, with what they are unless they are given. An empty text or 0 stands for "not given".
COMMON: Mapping[str, Value] = {
    "job": "train",
    "results": "",
    "sites": "",
    "min-sites": 1,
    "min-replies": 0,
    "wait": 60.0,
    "timeout": 600.0,
    "seed": 0,
    "caller": "flower",
    "model": "",
    "queries": "",
    "features": "",
    "site": "",
    "rows": "",
    "nodes": "",
    "learner": "folding",
}
RESULT = "result.json"


@cache
def job_settings() -> dict[str, Value]:
    """All settings that a job may have: those every job has, and those of learners, which are not given at first."""
    own = {name: next(iter(owners.values())).absent for name, owners in settings_by_name().items()}
    twice = sorted(set(own) & set(COMMON))
    if twice:
        raise InputError(f"setting {twice[0]!r} of a learner is one that every job has; name it otherwise")
    return {**COMMON, **own}


@dataclass(frozen=True)
class Job:
    """What a run shall do. ``folder`` is where its results go."""

    kind: str
    folder: Path
    sites: tuple[str, ...] = ()
    min_sites: int = 1
    min_replies: int | None = None
    wait: float = 60.0
    timeout: float = 600.0
    seed: int = 0
    caller: str = "flower"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, given: Mapping[str, Any], run: str) -> "Job":
        """Job from settings such as a run's configuration; unknown or wrong ones are refused, never ignored."""
        known = job_settings()
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
        settings = {**known, **given}
        for name, usual in known.items():
            wanted: Any = (int, float) if isinstance(usual, float) else type(usual)
            if not isinstance(settings[name], wanted) or isinstance(settings[name], bool):
                raise InputError(f"{name} must be {type(usual).__name__}, got {settings[name]!r}")
        if not Path(settings["results"]).is_absolute():
            raise InputError(
                f"results must be an absolute path on the ServerApp's machine, got {settings['results']!r}"
            )
        return cls(
            kind=check_choice(settings["job"], "job", tuple(JOBS)),
            folder=Path(settings["results"]) / run,
            sites=tuple(name.strip() for name in settings["sites"].split(",") if name.strip()),
            min_sites=check_count(settings["min-sites"], "min-sites"),
            min_replies=check_count(settings["min-replies"], "min-replies", at_least=0) or None,
            wait=check_number(settings["wait"], "wait", at_least=0),
            timeout=check_number(settings["timeout"], "timeout", above=0),
            seed=check_count(settings["seed"], "seed", at_least=0),
            caller=settings["caller"],
            settings=settings,
        )

    @property
    def asking(self) -> dict[str, Any]:
        """Options of every question."""
        return {"min_replies": self.min_replies, "timeout": self.timeout}

    def file(self, name: str) -> Path:
        """The file that setting ``name`` must give."""
        if not self.settings[name]:
            raise InputError(f"job {self.kind!r} needs the setting {name}, a path on the ServerApp's machine")
        return Path(self.settings[name])


def run_job(federation: Federation, job: Job) -> Path:
    """Do the job and return the folder with its results: traffic.json, result.json, and what the job makes."""
    job.folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        about = JOBS[job.kind](federation, job)
    finally:  # what left the sites must be known even where the job failed
        federation.traffic.save(job.folder / "traffic.json")
    result = {
        "job": job.kind,
        "seconds": time.monotonic() - started,
        "sites": list(federation.sites),
        **about,
        "bytes_up": federation.traffic.bytes_up,
        "bytes_down": federation.traffic.bytes_down,
    }
    _write_json(job.folder / RESULT, result)
    return job.folder


def _train(federation: Federation, job: Job) -> dict[str, Any]:
    given = {name: job.settings[name] for name in settings_by_name() if job.settings[name]}
    return _saved(make_learner(job.settings["learner"], Given(given)).fit(federation, **job.asking), job)


def _predict(federation: Federation, job: Job) -> dict[str, Any]:
    model = predictor_for(_model(federation, job), job.settings["site"], "the setting site")
    if not hasattr(model, "answer"):
        raise InputError(f"job 'predict' needs a model that predicts, a {type(model).__name__} measures distances")
    table = read_table(job.file("queries"), features=job.settings["features"] or None)
    asks = getattr(model, "connection", None) is not None
    answer = model.answer(table.X, **(job.asking if asks else {}))
    columns = {"row": np.arange(1, len(table) + 1), **answer_columns(answer)}
    write_table(job.folder / "predictions.parquet", columns)
    return {"predictions": "predictions.parquet", "rows": len(table), "missing": dict(answer.missing)}


def _evaluate(federation: Federation, job: Job) -> dict[str, Any]:
    tested = evaluate(_model(federation, job), federation, **job.asking)
    _write_json(job.folder / "evaluation.json", tested.to_json())
    name, value = ("accuracy", tested.accuracy) if isinstance(tested, Evaluation) else ("r2", tested.r2)
    figure = {name: None if np.isnan(value) else value}
    return {"evaluation": "evaluation.json", **figure, "missing": dict(tested.missing)}


def _forget(federation: Federation, job: Job) -> dict[str, Any]:
    site = job.settings["site"]
    if not site:
        raise InputError("job 'forget' needs the setting site, and rows to forget only these, as 3,17,20")
    try:
        rows = [int(number) for number in job.settings["rows"].split(",") if number.strip()]
    except ValueError:
        raise InputError(f"rows must be row ids such as 3,17,20, got {job.settings['rows']!r}") from None
    model = _model(federation, job)
    if not hasattr(model, "forget"):
        raise InputError(f"job 'forget' needs a folding model, got a {type(model).__name__}: train again without them")
    return _saved(model.forget(site, rows=rows or None), job)


def _model(federation: Federation, job: Job) -> Any:
    model = load(job.file("model"))
    return model.connect(federation) if getattr(model, "hold", "machines") == "sites" else model


def _saved(model: Any, job: Job) -> dict[str, Any]:
    model.save(job.folder / "model.kfd")
    members = {"members": list(model.sites)} if hasattr(model, "sites") else {}
    return {"model": "model.kfd", **members, "classes": model.classes_.tolist(), "missing": dict(model.missing_)}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


JOBS: dict[str, Callable[[Federation, Job], dict[str, Any]]] = {
    "train": _train,
    "predict": _predict,
    "evaluate": _evaluate,
    "forget": _forget,
}
