"""``kernfed change``: a model whose machines are at the sites of a hub, with a site or rows more, or fewer."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, emit, format_bytes, progress
from kernfed.cli.hub_jobs import HubAddress, hub_federation
from kernfed.cli.running import Command
from kernfed.cli.tables import check_output
from kernfed.errors import InputError

app = typer.Typer(
    name="change",
    help="A model and the sites of a hub: forget rows or a site, add rows or a site. The older file stays as it is.",
    no_args_is_help=True,
)
FORGET_EXAMPLE = "Example: kernfed change forget model.kfd --site south --credentials alice.toml --out without.kfd"
ADD_SITE_EXAMPLE = "Example: kernfed change add-site model.kfd --site west --credentials alice.toml --out more.kfd"
ADD_ROWS_EXAMPLE = (
    "Example: kernfed change add-rows model.kfd --site north --new more.csv --label y --credentials alice.toml "
    "--out more.kfd"
)

Model = Annotated[Path, typer.Argument(help="Model file, of machines that are at the sites.")]
Site = Annotated[str, typer.Option(help="The site that it is about.")]
Credentials = Annotated[Path, typer.Option(help="File of `kernfed hub add-caller`.")]
Out = Annotated[Path, typer.Option(help="File of the changed model.")]


@app.command("forget", cls=Command, epilog=FORGET_EXAMPLE)
def forget(
    model: Model,
    site: Site,
    out: Out,
    rows: Annotated[str, typer.Option(help="Only these rows, by id, with commas; default the whole site.")] = "",
    gone: Annotated[bool, typer.Option("--gone", help="The site is gone for good: it is not asked.")] = False,
    credentials: Annotated[Path | None, typer.Option(help="File of `kernfed hub add-caller`.")] = None,
    hub: HubAddress = "",
    json: Json = False,
) -> None:
    """Let a site, or some of its rows, have no part in a model any more; the site deletes what it keeps of them.

    A site that is gone is left out with --gone, which needs no hub.
    """
    if gone == (credentials is not None):
        raise InputError("give --credentials to ask the site, or --gone where it is not there any more")
    if gone and rows:
        raise InputError("--rows are forgotten by the site itself: leave --gone out")
    if credentials is not None:
        _change("forget", model, out, credentials, hub, {"site": site, "rows": rows}, json)
        return
    from kernfed.federation import load
    from kernfed.jobs.run import without_site

    check_output("--out", out)
    loaded = load(model)
    if site not in getattr(loaded, "sites", ()):
        raise InputError(f"--site must be one of the model's, {', '.join(getattr(loaded, 'sites', ()))}; got {site!r}")
    left = without_site(loaded, site)
    left.save(out)
    _tell("forget", {"members": list(left.sites), "bytes_up": 0, "missing": {}}, out, json)


@app.command("add-site", cls=Command, epilog=ADD_SITE_EXAMPLE)
def add_site(
    model: Model, site: Site, credentials: Credentials, out: Out, hub: HubAddress = "", json: Json = False
) -> None:
    """Let another site of the hub take part in a model; the others keep their machines."""
    _change("add-site", model, out, credentials, hub, {"site": site}, json)


@app.command("add-rows", cls=Command, epilog=ADD_ROWS_EXAMPLE)
def add_rows(
    model: Model,
    site: Site,
    new: Annotated[Path, typer.Option(help="Table of the rows to add, with the model's columns.")],
    label: Annotated[str, typer.Option(help="Column of the label.")],
    credentials: Credentials,
    out: Out,
    ids: Annotated[str, typer.Option("--id", help="Column of whole numbers that name the rows.")] = "",
    features: Annotated[str, typer.Option(help="Columns, where the model has no names for them.")] = "",
    hub: HubAddress = "",
    json: Json = False,
) -> None:
    """Send further rows to a site, which keeps them and fits again the machines they enter.

    `kernfed site add` does the same at the site, and nothing travels.
    """
    about = {"site": site, "new": str(new), "label": label, "ids": ids, "features": features}
    _change("add-rows", model, out, credentials, hub, about, json)


def _change(
    kind: str, model: Path, out: Path, credentials: Path, hub: str, settings: dict[str, Any], as_json: bool
) -> None:
    """Do a job with the sites of a hub, and put its model where it is wanted."""
    from kernfed.base.plain import read_json_file
    from kernfed.jobs.run import RESULT, Job, check_job, run_job

    check_output("--out", out)
    with tempfile.TemporaryDirectory(prefix=".change-", dir=out.parent) as folder:
        given = {"results": str(Path(folder).resolve()), "job": kind, "model": str(model), **settings}
        job = Job.from_settings(given, "run")
        check_job(job)
        with hub_federation(credentials, hub) as federation, progress(f"asking the sites ({kind})"):
            place = run_job(federation, job)
        shutil.move(place / "model.kfd", out)
        _tell(kind, read_json_file(place / RESULT), out, as_json)


def _tell(kind: str, result: dict[str, Any], out: Path, as_json: bool) -> None:
    members = result["members"]
    missing = [f"site {site} is missing: {reason}" for site, reason in result["missing"].items()]
    text = f"{kind}: {len(members)} site(s), {format_bytes(result['bytes_up'])} left them; wrote {out}"
    emit({"change": kind, **result, "out": out}, as_json, *missing, text)
