"""``kernfed key``: the long-lived key of a site or helper, by which others know it in masked sums."""

import re
from json import dumps
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from kernfed.cli.console import Json, emit
from kernfed.errors import InputError

EXAMPLE = "Example: kernfed key --store store/a --name a"


def key(
    store: Annotated[Path, typer.Option(help="The site's store, or the folder of stores that has it; made if absent.")],
    name: Annotated[str, typer.Option(help="Name of the site or helper.")],
    drop_runs: Annotated[
        bool,
        typer.Option(
            "--drop-runs",
            help="Delete the keys of runs that are under way: after the store was restored from a backup, always.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make the long-lived key of a site, once, and print its public half for the site.toml of all others.

    The private half stays in the store, in sum.key, readable by its owner only. A member of a committee whose store was
    restored from a backup may have forgotten what it answered: --drop-runs keeps it from answering the same run twice.
    """
    from kernfed.federation.summing.party import ONCE, identity_at
    from kernfed.files import private_folder
    from kernfed.secure.committee.member import drop_one_time_keys

    if not name:
        raise InputError("--name must be the name of the site, got none")
    inside = store / f"site-{quote(name, safe='')}"
    place = inside if inside.is_dir() else store
    private_folder(place)
    public = identity_at(place).public
    dropped = drop_one_time_keys(place / ONCE) if drop_runs else 0
    told = {"site": name, "key": public, "dropped": dropped}
    where = "Add this line to [roster] in every site.toml, and that of a member of the committee to [committee], too."
    after = f"\n\n{dropped} key(s) of runs dropped." if drop_runs else ""
    emit(told, json, f'{toml_key(name)} = "{public}"\n\n{where}{after}')


def toml_key(name: str) -> str:
    """A name as a key in a TOML file: in quotes unless it is a plain word."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else dumps(name)
