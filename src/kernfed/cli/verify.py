"""``kernfed verify`` and ``kernfed verify-site``: whether rows are forgotten, and what a site can be made to tell."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import DataFile, Features, Label, Persons, RowIds, Seed, check_page_output
from kernfed.cli.site import HoldOut, PolicyFile, SitePlace
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.privacy.roc import Attack
    from kernfed.site.site import Site
    from kernfed.site.verification import Verification
    from kernfed.testing.verify.inspection import Inspection

VERIFY_EXAMPLE = "Example: kernfed verify store/a --data rows.parquet --label y --model model.kfd"
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
    from kernfed.jobs.tables import TableFile
    from kernfed.site.store import SiteStore
    from kernfed.site.verification import verify as verify_store

    check_page_output("--out", out, data, model)
    if (data is None) != (label is None):
        raise InputError("--data and --label belong together: the site's table, and the column of its labels")
    site = _service(place, data) if place.is_file() else None
    folder, named = _store(place, name) if site is None else (site.store.path, site.name)
    if data is not None and label is not None:
        file = TableFile(data, features, label, ids=ids, persons=persons)
        site = SitePlace(folder, named, policy, holdout, seed).open(file)
    with progress("verifying"):
        result = verify_store(SiteStore(folder), site, model=model, name=named, head=head, key=key)
        attacks = {} if site is None or out is None else _attacks(site, seed)
    if out is not None:
        from kernfed.report.pages import write_page
        from kernfed.report.site_pages import forgetting_report

        write_page(forgetting_report(result, attacks), out)
    emit(result.to_json(), json, *_forgetting_views(result, site is not None))
    if out is not None:
        note(f"wrote {out}")
    if not result.holds:
        raise typer.Exit(1)


def _service(settings: Path, data: Path | None) -> "Site":
    """The site of a service, with its rows and its store."""
    from kernfed.federation.engines.nats_credentials import read_service

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


def _forgetting_views(result: "Verification", with_rows: bool) -> list[TextTable | str]:
    counts = result.to_json()
    rows = [(entry.name, str(entry.generation), entry.verdict, entry.why) for entry in result.remade]
    views: list[Any] = [
        f"site {result.site!r}: {counts['receipts']:,} receipt(s), {counts['forgotten']:,} row(s) forgotten, "
        f"{counts['added']:,} added"
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


VERIFY_SITE_EXAMPLE = "Example: kernfed verify-site site.toml --data rows.parquet --label y --out page.html"
_HELD = {True: "held", False: "LEAKS", None: "does not apply"}


def verify_site(
    policy: Annotated[Path, typer.Argument(help="The site's policy, a site.toml.")],
    data: DataFile,
    label: Label,
    features: Features = None,
    ids: RowIds = None,
    persons: Persons = None,
    name: Annotated[str, typer.Option(help="Name of the site.")] = "site",
    pairs: Annotated[int, typer.Option(help="Pairs of sites that are compared.", min=1)] = 200,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Page to write, .html or .md.")] = None,
    json: Json = False,
) -> None:
    """Test that nothing but releases leaves a site, and say what each question can be made to tell.

    Questions, honest and crafted, go to the site beside one with other rows and the same public facts, and every attack
    that once worked is tried. The site's own store and budget are not touched. Exit code 1 means that something leaks.
    """
    from kernfed.jobs.tables import TableFile, row_numbers
    from kernfed.site.policy import Policy
    from kernfed.site.rows import check_site_rows
    from kernfed.testing.verify.inspection import inspect_site, steps

    check_page_output("--out", out, policy, data)
    rules = Policy.read(policy)
    table = TableFile(data, features, label, ids=ids, persons=persons).read()
    assert table.y is not None
    numbers = None if table.ids is None else row_numbers(table.ids)
    rows = check_site_rows(table.X, table.y, numbers, name, table.persons)
    with progress("inspecting", steps(pairs)) as advance:
        inspection = inspect_site(
            rows, rules, name=name, columns=tuple(table.columns), pairs=pairs, seed=seed, advance=advance
        )
    if out is not None:
        from kernfed.report.pages import write_page
        from kernfed.report.site_pages import site_report

        write_page(site_report(inspection), out)
    emit(inspection.to_json(), json, *_inspection_views(inspection))
    if out is not None:
        note(f"wrote {out}")
    if not inspection.holds:
        raise typer.Exit(1)


def _inspection_views(inspection: "Inspection") -> list[TextTable | str]:
    from kernfed.testing.verify.inspection import REMAINING, policy_lines

    check = inspection.check
    answered = [(line.task, line.verdict, line.why) for line in inspection.tasks if line.verdict != "refused"]
    refused = [line.task for line in inspection.tasks if line.verdict == "refused"]
    attacks = [(outcome.attack, _HELD[outcome.held], outcome.told) for outcome in inspection.outcomes]
    views: list[Any] = [
        f"What site {inspection.site!r} can be made to tell",
        "",
        *(f"  LEAK  {leak}" for leak in inspection.leaks),
        *([""] if inspection.leaks else []),
        TextTable(("question", "what it tells", "why"), answered),
        f"Refused: {', '.join(refused) or 'none'}",
        "",
        TextTable(("policy", ""), list(policy_lines(inspection.policy).items())),
        "",
        f"Noninterference: {check.pairs:,} pairs of sites, {check.questions:,} questions to each, "
        f"{inspection.tested_rows:,} of {inspection.rows:,} rows; {len(check.differences):,} replies differ",
        "",
        TextTable(("attack", "outcome", "what happened"), attacks),
        "",
        "What remains:",
        *(f"  {line}" for line in REMAINING),
        "",
        f"Verdict: {inspection.verdict}",
    ]
    return views
