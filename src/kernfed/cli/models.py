"""``kernfed models``: what a site keeps for the models that others have, training by training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit
from kernfed.cli.journal import Name, printable
from kernfed.errors import InputError

EXAMPLE = "Example: kernfed models store/site-a --model model.kfd"


def models(
    store: Annotated[Path, typer.Argument(help="The site's store, or a folder of stores (with --name).")],
    name: Name = None,
    model: Annotated[Path | None, typer.Option(help="A model file: mark the training that it uses here.")] = None,
    site: Annotated[str | None, typer.Option(help="With --model: the site, where its folder does not say it.")] = None,
    json: Json = False,
) -> None:
    """List the trainings that a site keeps, the newest first: handle, generation, when, of how many rows, who asked.

    A model file names one of them, and works for as long as it is kept; to go back to an older model, load its file.
    The policy's keep_models says how many are kept.
    """
    from dataclasses import asdict

    from kernfed.site.store import SiteStore, list_models

    folder = _store(store, name)
    kept = list_models(SiteStore(folder))
    used = None if model is None else _used(model, site or name or folder.name.removeprefix("site-"))
    rows = [
        (
            entry.handle,
            str(entry.generation) if entry.generation else "damaged",
            entry.method,
            entry.made[:19].replace("T", " ") or "?",
            "." if entry.rows is None else f"{entry.rows:,}",
            "released" if entry.private else "as they are",
            printable(entry.asked_by) or "?",
            *([] if model is None else ["this file" if (entry.handle, entry.generation) == used else ""]),
        )
        for entry in kept
    ]
    columns = ("handle", "generation", "learner", "made (UTC)", "rows", "rows are", "asked by")
    title = f"{len(kept)} training{'' if len(kept) == 1 else 's'} kept"
    told = [] if used is None or any((e.handle, e.generation) == used for e in kept) else [_GONE]
    emit(
        {"models": [asdict(entry) for entry in kept], "used": used},
        json,
        TextTable((*columns, *([] if model is None else ["used by"])), rows, title),
        *told,
    )


_GONE = "the training that this file uses is not kept here any more: use another file, or train again"


def _store(store: Path, name: str | None) -> Path:
    """The folder of a store: the one named, or the one of site ``name`` in a folder of stores."""
    from urllib.parse import quote

    places = [store] if name is None else [store / f"site-{quote(name, safe='')}"]
    if name is None and not (store / "state.json").is_file():
        places = sorted(place.parent for place in store.glob("site-*/state.json"))
    kept = [place for place in places if (place / "state.json").is_file()]
    if not kept:
        raise InputError(f"{store} holds no store of a site; name the folder that the site has kept")
    if len(kept) > 1:
        sites = ", ".join(place.name.removeprefix("site-") for place in kept[:20])
        raise InputError(f"{store} holds the stores of several sites, {sites}; name one with --name")
    return kept[0]


def _used(path: Path, site: str) -> tuple[str, int]:
    """Handle and generation that a model file names at a site."""
    from kernfed.federation import load

    loaded: Any = load(path)
    machines = getattr(loaded, "folding", loaded)
    members = getattr(machines, "members_", None)
    if members is None or not hasattr(machines, "handle"):
        raise InputError(f"--model must use machines at sites, a {type(loaded).__name__} is whole: its file is enough")
    if site not in members:
        sites = ", ".join(list(members)[:20])
        raise InputError(f"the model has no site {site!r}; name it with --site, there are {sites}")
    return str(machines.handle), int(members[site].generation)
