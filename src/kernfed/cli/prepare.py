"""``kernfed prepare``: what becomes of every column of a table, and why, in a file that a person can edit."""

from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, TextTable, emit, note, progress
from kernfed.cli.raw import TextColumns, text_encoders
from kernfed.cli.tables import DataFile, Features, RowIds, SiteColumn, check_outputs, site_places
from kernfed.errors import InputError

EXAMPLE = """Example: kernfed prepare --data patients.csv --label readmitted --site hospital --out preparation.toml

With an order of words: kernfed prepare --data patients.csv --label readmitted --ordered "severity=mild<severe"
"""


def prepare(
    data: DataFile,
    label: Annotated[str | None, typer.Option(help="Column of the label, which is not prepared.")] = None,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    ordered: Annotated[
        list[str] | None, typer.Option(help='Words of a column in order: "severity=mild<moderate<severe"; repeatable.')
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Of a column against what would be chosen: name=category, number or drop; repeatable."),
    ] = None,
    text: TextColumns = None,
    min_rows: Annotated[int, typer.Option(help="Rows that a word needs to have a column of its own.", min=1)] = 10,
    out: Annotated[Path | None, typer.Option(help="TOML file to write, for `kernfed train --preparation`.")] = None,
    json: Json = False,
) -> None:
    """Say what would be done with every column and why, from statistics that sites would add up; nothing is trained.

    With --site also which site's column looks to be in another unit.
    """
    import numpy as np

    from kernfed.data import Preparation, Rules, read_raw_table
    from kernfed.data.preparation_choice import suspect_units
    from kernfed.data.preparation_statistics import MIN_ROWS, TableStatistics

    check_outputs({"--out": out}, data)
    rules = Rules(
        min_rows, ordered=_orders(ordered or []), kinds=_pairs("--kind", kind or []), texts=text_encoders(text, "auto")
    )
    with progress(f"reading {data}"):
        table = read_raw_table(data, features=features, label=label, site=site, ids=ids)
        every = np.arange(len(table))
        statistics = {
            name: TableStatistics.of(table.take(every[rows]), min_rows=MIN_ROWS, categories=rules.categories)
            for name, rows in sorted(site_places(table.site).items())
        }
    preparation = Preparation.from_statistics(statistics.values(), rules)
    if out is not None:
        preparation.save(out)
    suspicions = suspect_units(statistics)
    counts = {plan.name: len(plan.outputs()) for plan in preparation.plans}
    rows = [(name, kind, f"{counts[name]}", what, why) for name, kind, what, why in preparation.summary()]
    told = {
        "rows": len(table),
        "sites": len(statistics),
        "columns": [dict(zip(("name", "kind", "made", "what", "why"), row, strict=True)) for row in rows],
        "features": preparation.columns,
        "units": [vars(suspicion) for suspicion in suspicions],
        "out": out,
    }
    where = f"; wrote {out}" if out is not None else "; use --out FILE to write it down and edit it"
    emit(
        told,
        json,
        TextTable(("column", "kind", "columns", "what is done", "why"), rows),
        "",
        f"{len(table):,} rows of {len(statistics)} site(s), {len(preparation.plans)} columns: "
        f"{len(preparation.columns)} to learn from{where}",
    )
    for suspicion in suspicions:
        note(f"kernfed: warning: {suspicion}")


def _orders(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Words in order by column."""
    return {
        name: tuple(word.strip() for word in words.split("<")) for name, words in _pairs("--ordered", given).items()
    }


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{option} must be column=..., got {text!r}")
        pairs[name.strip()] = value.strip()
    return pairs
