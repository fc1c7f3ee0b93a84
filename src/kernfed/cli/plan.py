"""``kernfed plan``: what would leave each site, before anything is sent."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import format_bytes
from kernfed.cli.console import Json, emit, progress
from kernfed.cli.options import (
    DataFile,
    Features,
    Label,
    PreparationOption,
    RowIds,
    Seed,
    SiteColumn,
    TextColumns,
    text_encoders,
)
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.jobs.learning import Learning

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
    from kernfed.jobs.jobs import privacy_statement, table_federation
    from kernfed.jobs.tables import TableFile, columns_line, rows_by_site

    # Without more this is the job that `kernfed train` runs; queries can only be put to sites.
    file = TableFile(data, features, label, site, ids)
    rows = file.read_to_learn(preparation, private=ctx.obj.private)
    assert rows.y is not None
    learning: Learning = ctx.obj.for_labels(rows.y, label)[0]
    learning = learning.usually(hold="machines" if queries is None else "sites")
    texts = text_encoders(text, preparation)
    with table_federation(rows, preparation, texts, seed=seed) as (federation, table):
        preparing = list(federation.traffic)
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
        "privacy": "none" if terms is None else privacy_statement(terms),
    }
    rehearsed = "Rehearsed with made-up rows of the same shape: real ones may need more rounds, or fewer."
    emit(
        result,
        json,
        str(traffic),
        "",
        columns_line(table),
        f"About {format_bytes(traffic.bytes_up)} would leave the sites: {_what_leaves(learner, traffic, terms)}.",
        rehearsed,
        *_promises(learner, terms, len({entry.site for entry in traffic})),
    )


def _terms(learner: Any, width: int) -> Any:
    """What a learner that releases rows would promise, or None."""
    if hasattr(learner, "parts"):  # of a fusion, which releases as its machines do
        learner = learner.parts()[0]
    recipe = learner.recipe() if hasattr(learner, "recipe") else None
    return None if recipe is None else recipe.terms(width)


def _what_leaves(learner: Any, traffic: Iterable[Any], terms: Any) -> str:
    """What would leave the sites, in words, for the last sentence of a plan."""
    if getattr(learner, "hold", "") == "machines" and getattr(learner, "sum", None) is None:
        return "the rows themselves, inside machines" if terms is None else "released rows, inside machines"
    kinds = {entry.information for entry in traffic}
    if getattr(learner, "hold", "") == "sites" and kinds <= {"schema", "counts", "scores"}:
        return "class counts and scores of queries"
    named = [words for kind, words in _WORDS.items() if kind in kinds]
    if "rows" in kinds:  # of a fusion that holds its machines at the sites: those that weigh its parts
        named[-1] = "some rows, without labels, as queries"
    return ", ".join(named)


def _promises(learner: Any, terms: Any, sites: int) -> list[str]:
    """The guarantee of a release, in lines."""
    if getattr(learner, "sum", None) is not None and getattr(learner, "privacy", None) is not None:
        from kernfed.federation.summing.released import promised_line

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
