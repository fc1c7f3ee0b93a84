"""``kernfed hub`` and ``kernfed change``: the server between callers and sites, and changes of models at its sites."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_bytes
from kernfed.cli.command import Command
from kernfed.cli.console import Json, emit, progress
from kernfed.cli.options import HubAddress, check_output, open_hub
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.jobs.jobs import Change, Changed

app = typer.Typer(
    name="hub",
    help="The server that carries questions to sites: make one, run it, say who may ask whom.",
    no_args_is_help=True,
)
INIT_EXAMPLE = "Example: kernfed hub init hub --address hub.example.org:4222"
SITE_EXAMPLE = "Example: kernfed hub add-site hub north"
CALLER_EXAMPLE = "Example: kernfed hub add-caller hub alice --sites north,south"
REVOKE_EXAMPLE = "Example: kernfed hub revoke hub alice"
RUN_EXAMPLE = "Example: kernfed hub run hub"
SHOW_EXAMPLE = "Example: kernfed hub show hub --configuration"
RENEW_EXAMPLE = "Example: kernfed hub renew hub"
KEY_EXAMPLE = "Example: kernfed hub new-key north.seed"

Folder = Annotated[Path, typer.Argument(help="Folder of the hub, as kernfed hub init made it.")]
PublicKey = Annotated[
    str, typer.Option("--key", help="Public key of kernfed hub new-key; without it a seed is made here.")
]


@app.command("init", cls=Command, epilog=INIT_EXAMPLE)
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make; it must not exist or be empty.")],
    address: Annotated[str, typer.Option(help="HOST:PORT at which sites and callers reach it.")] = "127.0.0.1:4222",
    listen: Annotated[
        str, typer.Option(help="HOST:PORT at which it listens; default every address of the machine.")
    ] = "",
    prefix: Annotated[str, typer.Option(help="First word of all subjects, where federations share a hub.")] = "kernfed",
    json: Json = False,
) -> None:
    """Make a hub: an authority for ten years, a certificate for one, and a configuration that lets in nobody yet."""
    from kernfed.federation.engines.nats_hub import Hub

    hub = Hub.create(folder, address, listen, prefix)
    emit(
        {"folder": folder, "address": hub.address, "listen": hub.listen},
        json,
        f"{folder}: a hub at tls://{hub.address}, listening at {hub.listen}",
        f"Next: kernfed hub add-site {folder} NAME, kernfed hub add-caller {folder} NAME, kernfed hub run {folder}",
    )


@app.command("add-site", cls=Command, epilog=SITE_EXAMPLE)
def add_site(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the site.")],
    key: PublicKey = "",
    json: Json = False,
) -> None:
    """Let a site come: it may hear its own questions and answer them, nothing else."""
    _add(folder, "site", name, (), key, json)


@app.command("add-caller", cls=Command, epilog=CALLER_EXAMPLE)
def add_caller(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the caller, as sites' policies know it.")],
    sites: Annotated[str, typer.Option(help="Sites that it may ask, with commas; * for all, also later ones.")] = "*",
    key: PublicKey = "",
    json: Json = False,
) -> None:
    """Let a caller come: it may ask these sites under its own name, and hear the answers to itself."""
    _add(folder, "caller", name, tuple(word.strip() for word in sites.split(",") if word.strip()), key, json)


def _add(folder: Path, role: str, name: str, sites: tuple[str, ...], key: str, as_json: bool) -> None:
    from kernfed.federation.engines.nats_hub import changing

    with changing(folder) as before:
        hub, place = before.add(role, name, sites=sites, key=key)
        running = hub.reload()
    result = {"role": role, "name": name, "key": hub.party(name).key, "credentials": place}
    how = "It holds a secret seed: bring it to its owner safely, and delete it here"
    if key:
        how = f"Its owner puts it beside the seed, which must be named {place.stem}.seed"
    eager = [party.name for party in hub.parties if role == "site" and "*" in party.sites]
    later = [f"{', '.join(eager)}: may ask it now; add it to sites in their credentials"] if eager else []
    views = (f"{role} {name!r} has the key {result['key']}", f"{place}: {how}", *later)
    emit({**result, "running": running, "add_to": eager}, as_json, *views)


@app.command("revoke", cls=Command, epilog=REVOKE_EXAMPLE)
def revoke(
    folder: Folder, name: Annotated[str, typer.Argument(help="Name of the site or caller.")], json: Json = False
) -> None:
    """Take a party's key away: a running server ends its connections at once and lets it in no more."""
    from kernfed.federation.engines.nats_hub import changing

    with changing(folder) as hub:
        party = hub.party(name)
        running = hub.revoke(name).reload()
    how = "its connections have ended" if running else "the server is not running here; it starts without the key"
    emit(
        {"name": name, "role": party.role, "key": party.key, "running": running},
        json,
        f"{party.role} {name!r} is revoked: {how}",
    )


@app.command("run", cls=Command, epilog=RUN_EXAMPLE)
def run(folder: Folder, json: Json = False) -> None:
    """Run the server, in this process, until it is told to stop; SIGHUP lets it read its configuration again."""
    from kernfed.federation.engines.nats_hub import Hub

    hub = Hub.read(folder)
    about = {"folder": folder, "address": hub.address, "pid": os.getpid()}
    emit(about, json, f"hub at tls://{hub.address} (pid {os.getpid()})")
    sys.stdout.flush()  # another program takes the place of this one
    hub.run()


@app.command("show", cls=Command, epilog=SHOW_EXAMPLE)
def show(
    folder: Folder,
    configuration: Annotated[
        bool, typer.Option("--configuration", help="Print what a NATS server or cluster of your own needs.")
    ] = False,
    json: Json = False,
) -> None:
    """List the parties, or print the permissions for a NATS cluster that is there already."""
    from kernfed.federation.engines.nats_hub import Hub

    hub = Hub.read(folder)
    if configuration:
        emit({"configuration": hub.permissions()}, json, _CLUSTER, hub.permissions())
        return
    rows = [(party.role, party.name, ", ".join(party.sites) or ".", party.key) for party in hub.parties]
    parties = [{"role": p.role, "name": p.name, "sites": p.sites, "key": p.key} for p in hub.parties]
    emit(
        {"address": hub.address, "running": hub.process(), "parties": parties},
        json,
        TextTable(("role", "name", "may ask", "public key"), rows),
        f"tls://{hub.address}, {'running' if hub.process() is not None else 'not running here'}",
    )


_CLUSTER = """\
# For a NATS server or cluster of your own (2.10.4 or newer). Beside these keys it needs, in its own tls { } block,
#     handshake_first: true
# and max_payload of at least 1MB, which is the default. Credentials name its address in hub = "tls://HOST:PORT", and
# its authority; leave authority out if the system trusts it."""


@app.command("renew", cls=Command, epilog=RENEW_EXAMPLE)
def renew(folder: Folder, json: Json = False) -> None:
    """Make the server's next certificate, by the same authority; a running server takes it at once."""
    from kernfed.federation.engines.nats_hub import Hub

    hub = Hub.read(folder)
    hub.renew()
    running = hub.reload()
    emit({"folder": folder, "running": running}, json, f"{folder}: a certificate for another year")


@app.command("new-key", cls=Command, epilog=KEY_EXAMPLE)
def new_key(
    file: Annotated[Path, typer.Argument(help="File to write the secret seed to; it must not exist.")],
    json: Json = False,
) -> None:
    """Make a key where its owner is: the seed stays in the file, the public key goes to whoever runs the hub."""
    from kernfed.federation.engines import nats_hub

    key = nats_hub.new_key(file)
    emit({"key": key, "seed": file}, json, f"{file}: keep it, show it to nobody", f"public key: {key}")


change_app = typer.Typer(
    name="change",
    help="A model and the sites of a hub: forget rows or a site, add rows or a site. The older file stays as it is.",
    no_args_is_help=True,
)
FORGET_EXAMPLE = "Example: kernfed change forget model.kfd --site south --credentials alice.toml --out without.kfd"
CHANGE_ADD_SITE_EXAMPLE = (
    "Example: kernfed change add-site model.kfd --site west --credentials alice.toml --out more.kfd"
)
ADD_ROWS_EXAMPLE = (
    "Example: kernfed change add-rows model.kfd --site north --new more.csv --label y --credentials alice.toml "
    "--out more.kfd"
)

ChangedModel = Annotated[Path, typer.Argument(help="Model file, of machines that are at the sites.")]
ChangedSite = Annotated[str, typer.Option(help="The site that it is about.")]
Credentials = Annotated[Path, typer.Option(help="File of `kernfed hub add-caller`.")]
Out = Annotated[Path, typer.Option(help="File of the changed model.")]


@change_app.command("forget", cls=Command, epilog=FORGET_EXAMPLE)
def change_forget(
    model: ChangedModel,
    site: ChangedSite,
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
    from kernfed.federation import load
    from kernfed.jobs.jobs import Change, Changed, row_ids, without_site

    if gone == (credentials is not None):
        raise InputError("give --credentials to ask the site, or --gone where it is not there any more")
    if gone and rows:
        raise InputError("--rows are forgotten by the site itself: leave --gone out")
    if credentials is not None:
        _change(Change("forget", site, row_ids(rows)), model, out, credentials, hub, json)
        return
    check_output("--out", out)
    loaded = load(model)
    if site not in getattr(loaded, "sites", ()):
        raise InputError(f"--site must be one of the model's, {', '.join(getattr(loaded, 'sites', ()))}; got {site!r}")
    _show_change(Changed("forget", without_site(loaded, site)), {"bytes_up": 0}, out, json)


@change_app.command("add-site", cls=Command, epilog=CHANGE_ADD_SITE_EXAMPLE)
def change_add_site(
    model: ChangedModel, site: ChangedSite, credentials: Credentials, out: Out, hub: HubAddress = "", json: Json = False
) -> None:
    """Let another site of the hub take part in a model; the others keep their machines."""
    from kernfed.jobs.jobs import Change

    _change(Change("add-site", site), model, out, credentials, hub, json)


@change_app.command("add-rows", cls=Command, epilog=ADD_ROWS_EXAMPLE)
def change_add_rows(
    model: ChangedModel,
    site: ChangedSite,
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
    from kernfed.jobs.jobs import Change
    from kernfed.jobs.tables import TableFile

    table = TableFile(new, features or None, label, ids=ids or None)
    _change(Change("add-rows", site, new=table), model, out, credentials, hub, json)


def _change(change: "Change", model: Path, out: Path, credentials: Path, hub: str, as_json: bool) -> None:
    """Change a model with the sites of a hub, and write it."""
    from kernfed.federation import load

    check_output("--out", out)
    loaded = load(model)
    change.check(loaded)
    started = time.monotonic()
    with open_hub(credentials, hub) as federation, progress(f"asking the sites ({change.kind})"):
        changed, traffic = change.apply(loaded, federation), federation.traffic
        asked: dict[str, Any] = {"job": change.kind, "seconds": time.monotonic() - started, "sites": federation.sites}
    _show_change(changed, {**asked, "bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down}, out, as_json)


def _show_change(changed: "Changed", asked: dict[str, Any], out: Path, as_json: bool) -> None:
    """Write a changed model, and print what became of it."""
    changed.model.save(out)
    result = changed.to_json()
    missing = [f"site {site} is missing: {reason}" for site, reason in result["missing"].items()]
    sites, sent = len(result["members"]), format_bytes(asked["bytes_up"])
    text = f"{changed.kind}: {sites} site(s), {sent} left them; wrote {out}"
    emit({"change": changed.kind, **asked, **result, "out": out}, as_json, *missing, text)
