"""``kernfed plan``: what would leave each site, before anything is sent."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, emit, format_bytes, progress
from kernfed.cli.privacy import statement
from kernfed.cli.raw import (
    PreparationOption,
    TextColumns,
    agreed,
    learning_for_labels,
    read_rows_or_raw,
    text_encoders,
)
from kernfed.cli.tables import (
    DataFile,
    Features,
    Label,
    RowIds,
    Seed,
    SiteColumn,
    columns_line,
    prepared_table,
    raw_rows_by_site,
    rows_by_site,
)
from kernfed.errors import InputError

EXAMPLE = """Example: kernfed plan --data emb.parquet --label y --site hospital --queries 1000

With privacy: kernfed plan --data emb.parquet --label y --privacy element-laplace --epsilon 1 --bounds 0,1

Of another learner: kernfed plan --data emb.parquet --label y --learner ridge --method exact --components 300"""
#: Queries where none are named and sites answer.
USUAL_QUERIES = 1000
#: What each kind of information is, in words.
_WORDS = {
    "masked": "masked numbers",
    "schema": "columns and classes",
    "counts": "counts of rows",
    "released": "what was released",
    "scores": "scores of queries",
    "statistics": "sums over rows",
    "rows": "the rows themselves",
}


def plan(
    ctx: typer.Context,
    data: DataFile,
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    queries: Annotated[
        int | None, typer.Option(help=f"Queries that sites answer; {USUAL_QUERIES} under --hold sites.", min=0)
    ] = None,
    seed: Seed = 0,
    ids: RowIds = None,
    preparation: PreparationOption = "auto",
    text: TextColumns = None,
    json: Json = False,
) -> None:
    """Dry run of `kernfed train`: which messages, how many bytes, and what they would tell. Nothing is trained.

    With --queries, or --hold sites, the machines stay at their sites and answer queries.

    With --privacy also what would be promised, per element and per record. Nothing is released.
    """
    from kernfed.federation.planning import planned_traffic

    # Without more this is the job that `kernfed train` runs; queries can only be put to sites.
    columns: Any = {"features": features, "label": label, "site": site, "ids": ids}
    rows = read_rows_or_raw(data, preparation, private="privacy" in ctx.obj.values, **columns)
    learning, _ = learning_for_labels(ctx.obj, rows.y, label)
    learning = learning.usually(hold="machines" if queries is None else "sites")
    table, preparing = _prepared(rows, (preparation, text_encoders(text, preparation)), seed)
    learner = learning.make(table)
    hold = getattr(learner, "hold", "machines")
    if hold == "machines" and queries is not None:
        raise InputError("--queries needs --hold sites: a model that is whole answers by itself, and nothing is sent")
    asked = (USUAL_QUERIES if queries is None else queries) if hold == "sites" else 0
    with progress("planning"):
        traffic = planned_traffic(learner, rows_by_site(table), table.columns, queries=asked, seed=seed)
    for entry in preparing:  # one message each
        sizes: Any = {"down": entry.bytes_down, "up": entry.bytes_up, "scalars": entry.scalars_up}
        traffic.add(entry.site, entry.task, entry.information, **sizes)
    terms = _terms(learner, table.X.shape[1])
    result = {
        "learner": learning.learner,
        "hold": hold,
        "queries": asked,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "exchanges": traffic.to_json(),
        "features": table.columns,
        "left_out": table.left_out,
        "privacy": "none" if terms is None else statement(terms),
    }
    rehearsed = "Rehearsed with made-up rows of the same shape: real ones may need more rounds, or fewer."
    emit(
        result,
        json,
        str(traffic),
        "",
        columns_line(table),
        f"About {format_bytes(traffic.bytes_up)} would leave the sites: {_told(learner, traffic, terms)}.",
        rehearsed,
        *_promised(learner, terms, len({entry.site for entry in traffic})),
    )


def _prepared(rows: Any, preparation: tuple[str, dict[str, str]], seed: int) -> tuple[Any, Iterable[Any]]:
    """The table as numbers, and what its sites would exchange to agree on a preparation where it is raw."""
    from kernfed.data import RawTable
    from kernfed.federation import Federation

    if not isinstance(rows, RawTable):
        return rows, ()
    with Federation.local(raw_rows_by_site(rows), seed=seed) as federation:
        return prepared_table(rows, agreed(federation, *preparation)), federation.traffic


def _terms(learner: Any, width: int) -> Any:
    """What a learner that releases rows would promise, or None."""
    if hasattr(learner, "parts"):  # of a fusion, which releases as its machines do
        learner = learner.parts()[0]
    recipe = learner.recipe() if hasattr(learner, "recipe") else None
    return None if recipe is None else recipe.terms(width)


def _told(learner: Any, traffic: Iterable[Any], terms: Any) -> str:
    """What would leave, in words."""
    if getattr(learner, "hold", "") == "machines" and getattr(learner, "sum", None) is None:
        return "the rows themselves, inside machines" if terms is None else "released rows, inside machines"
    kinds = {entry.information for entry in traffic}
    if getattr(learner, "hold", "") == "sites" and kinds <= {"schema", "counts", "scores"}:
        return "class counts and scores of queries"
    told = [words for kind, words in _WORDS.items() if kind in kinds]
    if "rows" in kinds:  # of a fusion that holds its machines at the sites: those that weigh its parts
        told[-1] = "some rows, without labels, as queries"
    return ", ".join(told)


def _promised(learner: Any, terms: Any, sites: int) -> list[str]:
    """The guarantee, in lines."""
    if getattr(learner, "sum", None) is not None and getattr(learner, "privacy", None) is not None:
        from kernfed.federation.summing.promised import promised_line

        return [
            "All sites together would release a sum, once, of which nobody sees a part:",
            promised_line(learner, sites),
        ]
    if terms is not None:
        return [f"Each site would release once, by {terms.kind}:", *(f"  {line}" for line in terms.lines())]
    mechanism = getattr(learner, "privacy", None)
    if mechanism is not None:
        return [f"Each site would release once, by {mechanism!r:.200}."]
    return ["No differential privacy: nothing bounds what the answers tell about one record."]
