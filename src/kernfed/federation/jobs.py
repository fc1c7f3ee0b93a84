"""Jobs of a run that nobody watches: train, predict, evaluate or forget, from plain settings, with results in a folder.

A ServerApp ends with its run, so what a run found is read from files: ``<results>/<run>/result.json`` comes last and
names the others. Without it a run has not succeeded.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.data import read_table, write_table
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.testing.evaluation import Evaluation, evaluate
from kernfed.federation.testing.predictors import is_regressor, predictor_for
from kernfed.files import atomic_path, load
from kernfed.kahm.model import FoldingModel, SiteScores
from kernfed.personal.problem import FEATURES
from kernfed.personal.weights import KERNELS

#: Settings every job has, with what they are unless they are given. An empty text or 0 stands for "not given".
DEFAULTS: Mapping[str, str | int | float] = {
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
    "privacy": "",
    # of folding
    "measure": "rms",
    "batch-size": 100,
    "partition": "order",
    "layers": 1,
    "dtype": "float64",
    "aggregate": "min",
    "k": 2,
    "hold": "sites",
    # of ridge; its features are "kernel" here, for "features" are the columns of queries
    "method": "conjugate",
    "rounds": 10,
    "n-components": 2000,
    "bandwidth": "median",
    "regularization": 1e-3,
    "task": "classify",
    "kernel": "fourier",
    # of personal, with task and bandwidth as above; its weights are a rule, or C_Q,C_P as two numbers
    "weights": "auto",
    "predictor": "ridge",
    "personal-kernel": "given",
    "personal-components": 200,
    "embedding": "fourier",
    "gains": 1,
}
RESULT = "result.json"


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
        unknown = sorted(set(given) - set(DEFAULTS))
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(DEFAULTS))}")
        found = {**DEFAULTS, **given}
        for name, usual in DEFAULTS.items():
            wanted: Any = (int, float) if isinstance(usual, float) else type(usual)
            if not isinstance(found[name], wanted) or isinstance(found[name], bool):
                raise InputError(f"{name} must be {type(usual).__name__}, got {found[name]!r}")
        if not Path(found["results"]).is_absolute():
            raise InputError(f"results must be an absolute path on the ServerApp's machine, got {found['results']!r}")
        return cls(
            kind=check_choice(found["job"], "job", tuple(JOBS)),
            folder=Path(found["results"]) / run,
            sites=tuple(name.strip() for name in found["sites"].split(",") if name.strip()),
            min_sites=check_count(found["min-sites"], "min-sites"),
            min_replies=check_count(found["min-replies"], "min-replies", at_least=0) or None,
            wait=check_number(found["wait"], "wait", at_least=0),
            timeout=check_number(found["timeout"], "timeout", above=0),
            seed=check_count(found["seed"], "seed", at_least=0),
            caller=found["caller"],
            settings=found,
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
        found = JOBS[job.kind](federation, job)
    finally:  # what left the sites must be known even where the job failed
        federation.traffic.save(job.folder / "traffic.json")
    result = {
        "job": job.kind,
        "seconds": time.monotonic() - started,
        "sites": list(federation.sites),
        **found,
        "bytes_up": federation.traffic.bytes_up,
        "bytes_down": federation.traffic.bytes_down,
    }
    _write_json(job.folder / RESULT, result)
    return job.folder


def _train(federation: Federation, job: Job) -> dict[str, Any]:
    learner = _LEARNERS[check_choice(job.settings["learner"], "learner", tuple(_LEARNERS))]
    return _saved(learner(job.settings).fit(federation, **job.asking), job)


def _folding(s: Mapping[str, Any]) -> FoldingLearner:
    return FoldingLearner(
        s["measure"],
        s["batch-size"],
        s["partition"],
        s["layers"],
        s["dtype"],
        s["aggregate"],
        s["k"],
        hold=s["hold"],
        privacy=_mechanism(s["privacy"]),
    )


def _ridge(s: Mapping[str, Any]) -> RidgeLearner:
    return RidgeLearner(
        s["method"],
        s["rounds"],
        s["n-components"],
        _bandwidth(s),
        s["regularization"],
        s["task"],
        features=s["kernel"],
        privacy=_mechanism(s["privacy"]),
    )


def _personal(s: Mapping[str, Any]) -> PersonalLearner:
    weights: str | tuple[float, ...] = s["weights"]
    if "," in s["weights"]:
        try:
            weights = tuple(float(number) for number in s["weights"].split(","))
        except ValueError:
            raise InputError(f"weights must be a rule or C_Q,C_P such as 0.2,0.1, got {s['weights']!r}") from None
    return PersonalLearner(
        weights,
        check_choice(s["embedding"], "embedding", KERNELS),
        s["task"],
        model=check_choice(s["predictor"], "predictor", ("ridge", "logistic", "none")),
        bandwidth=_bandwidth(s),
        features=check_choice(s["personal-kernel"], "personal-kernel", FEATURES),
        n_components=check_count(s["personal-components"], "personal-components"),
        gains=check_count(s["gains"], "gains", at_least=0, at_most=1) == 1,
        privacy=_mechanism(s["privacy"]),
    )


def _bandwidth(s: Mapping[str, Any]) -> float | str:
    try:
        return "median" if s["bandwidth"] == "median" else float(s["bandwidth"])
    except ValueError:
        raise InputError(f"bandwidth must be median or a number, got {s['bandwidth']!r}") from None


def _mechanism(text: str) -> Any:
    """The mechanism that a JSON object of ``mechanism_to_values`` names, or None without one."""
    if not text:
        return None
    from kernfed.federation.release.charging import mechanism_from_values  # most jobs release nothing

    try:
        return mechanism_from_values(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(f"privacy must be a JSON object with a mechanism and its parameters: {error}") from None


_LEARNERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {"folding": _folding, "ridge": _ridge, "personal": _personal}


def _predict(federation: Federation, job: Job) -> dict[str, Any]:
    model = predictor_for(_model(federation, job), job.settings["site"], "the setting site")
    table = read_table(job.file("queries"), features=job.settings["features"] or None)
    missing: Mapping[str, str] = {}
    options: dict[str, Any] = {}
    if isinstance(model, FoldingModel):
        if model.connection is not None:
            once: Any = _AskedOnce(model.connection)
            model, options = replace(model, connection=once), job.asking
        missing = model.answers(table.X, **options).missing
    columns = {"row": np.arange(1, len(table) + 1), "prediction": model.predict(table.X, **options)}
    if not is_regressor(model):
        columns["probability"] = model.predict_proba(table.X, **options).max(axis=1)
    if hasattr(model, "explain"):
        found = model.explain(table.X, **options)
        columns |= {"site": found.site, "batch": found.batch, "score": found.score}
    write_table(job.folder / "predictions.parquet", columns)
    return {"predictions": "predictions.parquet", "rows": len(table), "missing": dict(missing)}


class _AskedOnce:
    """A connection that puts the same queries to the sites once, however often their scores are wanted."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._asked: tuple[FloatArray, SiteScores] | None = None

    def scores(self, model: FoldingModel, X: FloatArray, *, explain: bool = True, **options: Any) -> SiteScores:  # noqa: ARG002
        """Scores with their batches, wanted or not: they come with the same message."""
        if self._asked is None or self._asked[0] is not X:
            self._asked = X, self._connection.scores(model, X, explain=True, **options)
        return self._asked[1]


def _evaluate(federation: Federation, job: Job) -> dict[str, Any]:
    found = evaluate(_model(federation, job), federation, **job.asking)
    _write_json(job.folder / "evaluation.json", found.to_json())
    name, value = ("accuracy", found.accuracy) if isinstance(found, Evaluation) else ("r2", found.r2)
    figure = {name: None if np.isnan(value) else value}
    return {"evaluation": "evaluation.json", **figure, "missing": dict(found.missing)}


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
