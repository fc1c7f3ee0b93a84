"""``kernfed plan``: what would leave each site, before anything is sent."""

from typing import Annotated

import typer

from kernfed.cli.console import Json, emit, format_bytes
from kernfed.cli.privacy import (
    Basis,
    Bounds,
    Change,
    Delta,
    Dimension,
    Epsilon,
    LabelEpsilon,
    Privacy,
    Radius,
    make_learner,
    statement,
)
from kernfed.cli.tables import (
    DataFile,
    Features,
    Label,
    Measure,
    RowIds,
    SiteColumn,
    columns_line,
    read_rows,
    rows_by_site,
)
from kernfed.errors import InputError

EXAMPLE = """Example: kernfed plan --data emb.parquet --label y --site hospital --queries 1000

With privacy: kernfed plan --data emb.parquet --label y --privacy element-laplace --epsilon 1 --bounds 0,1"""
#: Queries where none are named and sites answer.
USUAL_QUERIES = 1000


def plan(
    data: DataFile,
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    hold: Annotated[str, typer.Option(help="sites (only scores leave) or machines (rows leave).")] = "sites",
    queries: Annotated[
        int | None, typer.Option(help=f"Queries that sites answer afterwards; default {USUAL_QUERIES}.", min=0)
    ] = None,
    measure: Measure = "rms",
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per machine, about; default 100, and 1000 with record-moments.", min=1)
    ] = None,
    privacy: Privacy = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Bounds = None,
    d: Change = None,
    radius: Radius = None,
    dimension: Dimension = None,
    basis: Basis = None,
    label_epsilon: LabelEpsilon = None,
    ids: RowIds = None,
    json: Json = False,
) -> None:
    """Dry run: which messages would be exchanged, how many bytes, and what they would tell. Nothing is trained.

    With --privacy also what would be promised, per element and per record. Nothing is released.
    """
    import numpy as np

    from kernfed.federation.folding.planning import plan_folding
    from kernfed.federation.protocol.schema import Schema

    if hold == "machines" and queries is not None:
        raise InputError("--queries needs --hold sites: a model of machines answers by itself, and nothing is sent")
    given = {
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "bounds": bounds,
        "d": d,
        "radius": radius,
        "dimension": dimension,
        "basis": basis,
        "label_epsilon": label_epsilon,
    }
    table = read_rows(data, features=features, label=label, site=site, ids=ids)
    learner = make_learner(given, table, {"measure": measure, "hold": hold}, batch_size=batch_size)
    asked = (USUAL_QUERIES if queries is None else queries) if hold == "sites" else 0
    schemas = {}
    for name, (X, y) in rows_by_site(table).items():
        labels, counts = np.unique(y, return_counts=True)
        schemas[name] = Schema(X.shape[1], tuple(labels.tolist()), tuple(counts.tolist()), table.columns)
    traffic = plan_folding(learner, schemas, asked)
    terms = None if learner.recipe is None else learner.recipe.terms(table.X.shape[1])
    what = "the rows themselves, inside machines" if terms is None else "released rows, inside machines"
    said = what if hold == "machines" else "class counts and scores of queries"
    promised = ["No differential privacy: nothing bounds what the answers tell about one record."]
    if terms is not None:
        promised = [
            f"Each site would release once, by {terms.request['mechanism']['kind']}:",
            *(f"  {line}" for line in terms.promises),
        ]
    result = {
        "hold": hold,
        "queries": asked,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "exchanges": traffic.to_json(),
        "features": table.columns,
        "left_out": table.left_out,
        "privacy": "none" if terms is None else statement(terms),
    }
    emit(
        result,
        json,
        str(traffic),
        "",
        columns_line(table),
        f"{format_bytes(traffic.bytes_up)} would leave the sites: {said}.",
        *promised,
    )
