"""``kernfed flower-app`` and ``kernfed flower-run``: a Flower app that runs jobs of kernfed, and a run of it."""

import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.base.text import format_bytes, format_seconds
from kernfed.cli.console import Json, emit, note
from kernfed.errors import RunFailed

APP_EXAMPLE = "Example: kernfed flower-app app --address 127.0.0.1:9092"
RUN_EXAMPLE = "Example: kernfed flower-run app train --set measure=distance --out model.kfd"


class JobKind(StrEnum):
    """Jobs that a run on Flower may do, as the setting ``job`` names them."""

    TRAIN = "train"
    PREDICT = "predict"
    EVALUATE = "evaluate"
    FORGET = "forget"
    ADD_ROWS = "add-rows"
    ADD_SITE = "add-site"


def flower_app(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist or be empty.")],
    address: Annotated[str, typer.Option(help="HOST:PORT at which the SuperLink will be.")] = "127.0.0.1:9092",
    results: Annotated[
        Path | None, typer.Option(help="Folder for results on the SuperLink's machine; default inside the app.")
    ] = None,
    simulate: Annotated[
        int, typer.Option(help="Number of virtual sites, for Flower's simulation on one machine.", min=0)
    ] = 0,
    renew: Annotated[
        bool, typer.Option("--renew", help="Of an app that is there, make the server's next certificate, and no more.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a Flower app that trains and predicts with kernfed, and scripts for its certificates and keys."""
    from kernfed.jobs.flower_app import renew_certificates, write_app

    if renew:
        printed = renew_certificates(folder)
        emit(
            {"folder": folder, "told": printed},
            json,
            printed,
            "Next: restart the SuperLink, which reads it when it starts",
        )
        return
    written = write_app(folder, address, results, simulate)
    following = ", Many virtual sites on one machine" if simulate else f"; first {folder}/make-certificates.sh"
    emit(
        {"folder": folder, "files": written},
        json,
        *(f"{folder / name}" for name in written),
        f"Next: the operator's guide, docs/operator.md{following}",
    )


def flower_run(
    app: Annotated[Path, typer.Argument(help="Folder of `kernfed flower-app`.")],
    job: Annotated[JobKind, typer.Argument(help="What the run does.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the app's configuration; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Copy the model, predictions or evaluation here.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which the run is given up and stopped.")] = 3600.0,
    json: Json = False,
) -> None:
    """Run a job on a Flower deployment, show its progress, and say how it ended."""
    from kernfed.files import atomic_path
    from kernfed.jobs.flower_run import parse_settings, run_app

    given = {"job": job.value, **parse_settings(app, settings or [])}
    _check(app, given)
    try:
        finished = run_app(app, given, timeout=timeout, report=note)
    except RunFailed as error:
        note(f"kernfed: {error}")
        raise typer.Exit(1) from None
    product = finished.product()
    if out is not None:
        with atomic_path(out, private=product.suffix == ".kfd") as temporary:
            shutil.copyfile(product, temporary)
    result = finished.result
    missing = [f"site {site} is missing: {reason}" for site, reason in result.get("missing", {}).items()]
    text = (
        f"run {finished.run}: {job} with {_taking_part(result)} in {format_seconds(result['seconds'])}, "
        f"{format_bytes(result['bytes_up'])} left the sites; wrote {out or product}"
    )
    emit({"run": finished.run, "folder": finished.folder, **result, "out": out or product}, json, *missing, text)


def _check(app: Path, settings: Mapping[str, Any]) -> None:
    """Refuse what no run can do, before one is started; files may be on another machine, and are then not opened."""
    from kernfed.jobs.flower_run import read_config
    from kernfed.jobs.run import Job, check_job

    job = Job.from_settings({**read_config(app), **settings}, "check")
    check_job(job, files=Path(str(job.settings["model"])).is_file())


def _taking_part(result: Mapping[str, Any]) -> str:
    """How many sites took part, and of how many where some are missing."""
    sites = result["sites"]
    here = [site for site in sites if site not in result.get("missing", {})]
    return f"{len(sites)} site(s)" if len(here) == len(sites) else f"{len(here)} of {len(sites)} site(s)"
