"""Jobs of a run that nobody watches, from plain settings, with results in a folder: train, predict, evaluate, change.

``check_job`` refuses what cannot work, settings and names and files, before anybody is asked or waited for. A ServerApp
ends with its run, so what a run found is read from files: ``<results>/<run>/result.json`` comes last and names the
others. Without it a run has not succeeded.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.data import read_raw_table, read_table, write_table
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.secure import check_encryptable, combined_answer
from kernfed.files import atomic_path, load
from kernfed.jobs import jobs
from kernfed.jobs.jobs import CHANGES, Change, row_ids
from kernfed.jobs.learning import USUAL_LEARNER, Learning
from kernfed.jobs.tables import TableFile
from kernfed.kahm.model import FoldingModel
from kernfed.secure.protocol import open_keys
from kernfed.site.fields import Setting, Value, settings_by_name
from kernfed.testing.outcomes import Evaluation
from kernfed.testing.predictors import predictor_for

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

#: Settings every job has beside those of learners. An empty text or 0 stands for "not given".
COMMON = (
    Setting("job", "What the run does: train, predict, evaluate, forget, add-rows or add-site.", "train"),
    Setting("results", "Folder of results, an absolute path on the ServerApp's machine."),
    Setting("sites", "Names of the sites that are waited for, with commas."),
    Setting("min-sites", "Sites that must be there before the job begins.", 1),
    Setting("min-replies", "Sites that must answer each question; 0 for all.", 0),
    Setting("wait", "Seconds that sites are waited for.", 60.0),
    Setting("timeout", "Seconds that sites have for each question.", 600.0),
    Setting("seed", "Seed of everything that is drawn.", 0),
    Setting("caller", "Name under which sites note the questions.", "flower"),
    Setting("model", "Model file, of every job but train."),
    Setting("queries", "Table of rows to predict."),
    Setting("features", "Columns of queries or new, where they are not those of the model."),
    Setting("keys", "Public keys, of predict whose answer is encrypted."),
    Setting("site", "The site that a change is about, or whose predictor of a personalised model answers."),
    Setting("rows", "Row ids to forget, with commas; empty for the whole site."),
    Setting("new", "Table of rows to add."),
    Setting("label", "Column of the label in new."),
    Setting("ids", "Column of whole numbers that name the rows in new."),
    Setting("nodes", "Folder of the settings of virtual sites, in a simulation."),
    Setting("learner", "Which learner trains.", USUAL_LEARNER),
    Setting("preparation", "auto (where tables are raw), none, or a file of kernfed prepare.", "auto"),
    Setting("influence", "1 to name sites that harm the others, of evaluate.", 0),
)
RESULT = "result.json"
#: Encrypted queries of one run: some 40 kB of each site for every one.
MOST_ENCRYPTED = 4096


@cache
def job_settings() -> dict[str, Value]:
    """All settings that a job may have: those every job has, and those of learners, which are not given at first."""
    common = {setting.name: setting.usual for setting in COMMON}
    of_learners = {name: next(iter(owners.values())).absent for name, owners in settings_by_name().items()}
    twice = sorted(set(of_learners) & set(common))
    if twice:
        raise InputError(f"setting {twice[0]!r} of a learner is one that every job has; name it otherwise")
    return {**common, **of_learners}


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
        settings = {**known, **{name: _as_text(value, known[name]) for name, value in given.items()}}
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
            sites=_site_names(settings["sites"]),
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
        """Options ``min_replies`` and ``timeout`` of every question that the job asks."""
        return {"min_replies": self.min_replies, "timeout": self.timeout}

    def file(self, name: str) -> Path:
        """The file that setting ``name`` must give."""
        if not self.settings[name]:
            raise InputError(f"job {self.kind!r} needs the setting {name}, a path on the ServerApp's machine")
        return Path(self.settings[name])


def _as_text(value: Any, usual: Any) -> Any:
    """A number where text is wanted as that text: a batch size was a number before it could be "auto"; 0 is none."""
    if isinstance(usual, str) and type(value) is int:
        return str(value) if value else ""
    return value


def _site_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"sites must name each site once, got {twice[0]!r} twice")
    return names


def run_job(federation: Federation, job: Job) -> Path:
    """Do the job and return the folder with its results: traffic.json, result.json, and what the job makes."""
    check_job(job)
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


# Before anybody is asked ------------------------------------------------------------------------------------------


def check_job(job: Job, *, files: bool = True) -> None:
    """Refuse a job whose settings, names or files cannot be what it needs; without ``files`` these are not opened."""
    if job.kind == "train":
        _learner(job)
        return
    if job.kind in ("forget", "add-rows", "add-site") and not job.settings["site"]:
        more = ", and rows to forget only these, as 3,17,20" if job.kind == "forget" else ""
        raise InputError(f"job {job.kind!r} needs the setting site{more}")
    row_ids(job.settings["rows"])
    if job.kind == "add-rows" and not (job.settings["new"] and job.settings["label"]):
        raise InputError("job 'add-rows' needs the settings new, a table of the rows, and label, its column of labels")
    job.file("model")
    if files and job.kind in CHANGES:
        _requested_change(job).check(load(job.file("model")), job.sites)


def _requested_change(job: Job) -> Change:
    features, label, ids = (job.settings[name] or None for name in ("features", "label", "ids"))
    new = TableFile(job.file("new"), features, label, ids=ids) if job.kind == "add-rows" else None
    return Change(job.kind, job.settings["site"], row_ids(job.settings["rows"]), new)


# What is done -----------------------------------------------------------------------------------------------------


def _learner(job: Job) -> Any:
    given = {name: job.settings[name] for name in settings_by_name() if job.settings[name]}
    return Learning(job.settings["learner"] or USUAL_LEARNER, given, prefix="").make()


def _train(federation: Federation, job: Job) -> dict[str, Any]:
    learner = _learner(job)
    jobs.prepare(federation, job.settings["preparation"] or "auto", **job.asking)
    return _saved(jobs.train(federation, learner, **job.asking).model, job)


def _predict(federation: Federation, job: Job) -> dict[str, Any]:
    if job.settings["keys"]:
        return _encrypted(federation, job)
    model = predictor_for(_model(federation, job), job.settings["site"], "the setting site")
    rows = _queries(model, job)
    predicted = jobs.predict(model, rows, **job.asking)
    columns = {"row": np.arange(1, len(rows) + 1), **predicted.columns}
    write_table(job.folder / "predictions.parquet", columns)
    return {"predictions": "predictions.parquet", "rows": len(rows), "missing": dict(predicted.missing)}


def _queries(model: Any, job: Job) -> Any:
    """Rows to predict; a matrix is taken as prepared already."""
    place, preparation = job.file("queries"), getattr(model, "preparation", None)
    if preparation is None or place.suffix.lower() == ".npy":
        return read_table(place, features=job.settings["features"] or None).X
    return read_raw_table(place, features=list(preparation.used))


def _encrypted(federation: Federation, job: Job) -> dict[str, Any]:
    """An answer that nobody here can read: the run asks and combines, and the secret key is with whoever started it."""
    model = _model(federation, job)
    if not isinstance(model, FoldingModel) or model.connection is None:
        problem = (
            f"encrypted answers need a folding model whose machines are at its sites, got a {type(model).__name__}"
        )
        raise InputError(f"{problem}: train with learner folding and measure rms")
    check_encryptable(model)
    keys = open_keys(job.file("keys").read_bytes())
    rows = model._queries(_queries(model, job))
    if not 1 <= len(rows) <= MOST_ENCRYPTED:
        raise InputError(f"a run answers 1 to {MOST_ENCRYPTED:,} encrypted queries, got {len(rows):,}")
    asking = job.asking
    if job.min_replies is not None:  # what one site alone attains would be known of that site
        asking["min_replies"] = max(job.min_replies, min(2, len(model.sites)))
    answer = combined_answer(federation, model, rows, site_key=keys.site_key, server=keys.server, **asking)
    with atomic_path(job.folder / "answer.kfsm") as temporary:
        temporary.write_bytes(answer.message)
    return {"answer": "answer.kfsm", "rows": len(rows), "missing": dict(answer.missing)}


def _evaluate(federation: Federation, job: Job) -> dict[str, Any]:
    influence = bool(job.settings["influence"])
    tested = jobs.evaluate(load(job.file("model")), federation, influence=influence, **job.asking)
    _write_json(job.folder / "evaluation.json", tested.to_json())
    name, value = ("accuracy", tested.accuracy) if isinstance(tested, Evaluation) else ("r2", tested.r2)
    figure: dict[str, Any] = {name: None if np.isnan(value) else value}
    if tested.influence is not None:
        figure["named"] = list(tested.influence.named)
    return {"evaluation": "evaluation.json", **figure, "missing": dict(tested.missing)}


def _change(federation: Federation, job: Job) -> dict[str, Any]:
    changed = _requested_change(job).apply(load(job.file("model")), federation)
    return {**_saved(changed.model, job), **changed.to_json()}


def _model(federation: Federation, job: Job) -> Any:
    return jobs.connected(load(job.file("model")), federation)


def _saved(model: Any, job: Job) -> dict[str, Any]:
    model.save(job.folder / "model.kfd")
    return {"model": "model.kfd", **jobs.model_facts(model)}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


JOBS: dict[str, Callable[[Federation, Job], dict[str, Any]]] = {
    "train": _train,
    "predict": _predict,
    "evaluate": _evaluate,
    **dict.fromkeys(CHANGES, _change),
}


def serve(grid: "Grid", context: "Context") -> None:
    """Main function of a ServerApp of Flower: do the job that the run's configuration names, and write its results.

    A job that fails raises, so that Flower calls the run failed.
    """
    job = Job.from_settings(context.run_config, run=str(context.run_id))
    check_job(job)  # before any site is waited for

    def report(text: str) -> None:
        print("\n".join(f"kernfed: {line}" for line in text.splitlines()), flush=True)

    with Federation.flower(
        grid, seed=job.seed, caller=job.caller, expect=job.sites, min_sites=job.min_sites, wait=job.wait, report=report
    ) as federation:
        report(f"{job.kind}: results are in {run_job(federation, job)}")
