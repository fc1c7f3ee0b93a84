"""``kernfed verify-site``: what a site can be made to tell, tested on its own policy and rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, note, progress
from kernfed.cli.tables import DataFile, Features, Label, Persons, RowIds, Seed, check_output, row_numbers
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.testing.verify.inspection import Inspection

EXAMPLE = "Example: kernfed verify-site site.toml --data rows.parquet --label y --out page.html"
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
    from kernfed.data import read_table
    from kernfed.site.policy import Policy
    from kernfed.site.rows import check_site_rows
    from kernfed.testing.verify.inspection import inspect_site, steps

    if out is not None:
        if out.suffix.lower() not in (".html", ".md"):
            raise InputError(f"--out must end in .html or .md, got {out.name}")
        check_output("--out", out, policy, data)
    rules = Policy.read(policy)
    table = read_table(data, features=features, label=label, ids=ids, persons=persons)
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
    emit(inspection.to_json(), json, *_views(inspection))
    if out is not None:
        note(f"wrote {out}")
    if not inspection.holds:
        raise typer.Exit(1)


def _views(inspection: "Inspection") -> list[TextTable | str]:
    from kernfed.testing.verify.inspection import REMAINING, policy_lines

    check = inspection.check
    told = [(line.task, line.verdict, line.why) for line in inspection.tasks if line.verdict != "refused"]
    refused = [line.task for line in inspection.tasks if line.verdict == "refused"]
    attacks = [(outcome.attack, _HELD[outcome.held], outcome.told) for outcome in inspection.outcomes]
    views: list[Any] = [
        f"What site {inspection.site!r} can be made to tell",
        "",
        *(f"  LEAK  {leak}" for leak in inspection.leaks),
        *([""] if inspection.leaks else []),
        TextTable(("question", "what it tells", "why"), told),
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
