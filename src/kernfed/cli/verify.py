"""``kernfed verify``: whether a site has forgotten what its receipts say, from its store, its rows and a model file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, note, progress
from kernfed.cli.site import HoldOut, PolicyFile, open_site, table_reader
from kernfed.cli.tables import Features, Persons, RowIds, Seed, check_output
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.privacy.roc import Attack
    from kernfed.site.site import Site
    from kernfed.site.verification import Verification

EXAMPLE = "Example: kernfed verify store/a --data rows.parquet --label y --model model.kfd"
#: Rows of each kind in the attack on trial.
_ATTACKED = 100


def verify(
    place: Annotated[
        Path, typer.Argument(help="The site's store, a folder of stores (with --name), or its service's site.toml.")
    ],
    name: Annotated[str | None, typer.Option(help="Name of the site; default that of its receipts.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The site's table: what is kept is made again from its rows.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label in --data.")] = None,
    features: Features = None,
    ids: RowIds = None,
    persons: Persons = None,
    policy: PolicyFile = None,
    holdout: HoldOut = 0.0,
    seed: Seed = 0,
    model: Annotated[Path | None, typer.Option(help="Model file that should descend from what the site keeps.")] = None,
    head: Annotated[str | None, typer.Option(help="A head that was noted earlier, number:hash.")] = None,
    key: Annotated[str | None, typer.Option(help="The site's public key, as `kernfed key` prints it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Page to write, .html or .md.")] = None,
    json: Json = False,
) -> None:
    """Check the receipts of what a site has forgotten and added, and what it keeps by them.

    Receipts must form a chain, be signed, and lead to what the store holds, to the byte. With --data everything is
    made again from the rows that are left, and must have the same hash; what was computed on another processor or with
    another BLAS is "not comparable", which is no finding. The exit code is 1 where something was found.
    """
    from kernfed.site.store import SiteStore
    from kernfed.site.verification import verify as verify_store

    if out is not None and out.suffix.lower() not in (".html", ".md"):
        raise InputError(f"--out must end in .html or .md, got {out.name}")
    if out is not None:
        check_output("--out", out, *(given for given in (data, model) if given is not None))
    if (data is None) != (label is None):
        raise InputError("--data and --label belong together: the site's table, and the column of its labels")
    site = _service(place, data) if place.is_file() else None
    folder, named = _store(place, name) if site is None else (site.store.path, site.name)
    if data is not None and label is not None:
        read = table_reader(folder, named, data, features=features, label=label, ids=ids, persons=persons)
        site = open_site(folder, named, read, policy, holdout=holdout, seed=seed)
    with progress("verifying"):
        result = verify_store(SiteStore(folder), site, model=model, name=named, head=head, key=key)
        attacks = {} if site is None or out is None else _attacks(site, seed)
    if out is not None:
        from kernfed.report.pages import write_page
        from kernfed.report.site_pages import forgetting_report

        write_page(forgetting_report(result, attacks), out)
    emit(result.to_json(), json, *_views(result, site is not None))
    if out is not None:
        note(f"wrote {out}")
    if not result.holds:
        raise typer.Exit(1)


def _service(settings: Path, data: Path | None) -> "Site":
    """The site of a service, with its rows and its store."""
    from kernfed.federation.engines.nats_site import read_service

    if data is not None:
        raise InputError(f"{settings} names the site's table: leave --data out, or name the store in its place")
    return read_service(settings)[0]


def _store(place: Path, name: str | None) -> tuple[Path, str]:
    """The folder of the store, and the name of its site: that of the newest receipt unless it is given."""
    from urllib.parse import quote, unquote

    from kernfed.site.receipts import FOLDER, check_receipts

    folders = [place, *([] if name is None else [place / f"site-{quote(name, safe='')}"])]
    folder = next((folder for folder in reversed(folders) if (folder / "state.json").is_file()), None)
    if folder is None:
        raise InputError(f"{place} is no store of a site; name the folder that the site has kept, or add --name")
    if name is None:
        receipts = check_receipts(folder / FOLDER).receipts
        name = str(receipts[-1].get("site", "")) if receipts else ""
    return folder, name or unquote(folder.name.removeprefix("site-"))


def _attacks(site: "Site", seed: int) -> "dict[str, tuple[Attack, Attack]]":
    """Attacks on trial, on each thing that is kept for a model."""
    from kernfed.site.protocol.task import resolve
    from kernfed.site.receipts import receipt_books

    attacks = {}
    with site.store.locked():
        for book in receipt_books():
            for name in site.store.names(book.folder) if book.attack else ():
                record = site.store.read(book.folder, name)
                pair = None if record is None else resolve(book.attack)(site, record, _ATTACKED, seed)
                if pair is not None:
                    attacks[f"{book.folder}/{name}"] = pair
    return attacks


def _views(result: "Verification", with_rows: bool) -> list[TextTable | str]:
    told = result.to_json()
    rows = [(entry.name, str(entry.generation), entry.verdict, entry.why) for entry in result.remade]
    views: list[Any] = [
        f"site {result.site!r}: {told['receipts']:,} receipt(s), {told['forgotten']:,} row(s) forgotten, "
        f"{told['added']:,} added"
    ]
    if rows:
        views.append(TextTable(("what is kept", "generation", "made again", ""), rows))
    elif not with_rows:
        views.append("Nothing was made again from rows: name the site's table with --data and --label.")
    views += [result.model] if result.model and result.model not in (*result.notes, *result.problems) else []
    views += [f"note: {line}" for line in result.notes]
    views += [f"PROBLEM: {problem}" for problem in result.problems]
    views += [] if result.problems else ["Receipts are signed and chained, and lead to what the site keeps."]
    return [*views, f"head: {result.check.head}", *(f"key: {key}" for key in result.check.keys)]
