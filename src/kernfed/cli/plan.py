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
    make_mechanism,
    statement,
)
from kernfed.cli.tables import DataFile, Features, Label, Measure, SiteColumn, rows_by_site

EXAMPLE = """Example: kernfed plan --data emb.parquet --label y --site hospital --queries 1000

With privacy: kernfed plan --data emb.parquet --label y --privacy element-laplace --epsilon 1 --bounds 0,1"""


def plan(
    data: DataFile,
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    hold: Annotated[str, typer.Option(help="sites (only scores leave) or machines (rows leave).")] = "sites",
    queries: Annotated[int, typer.Option(help="Queries to be answered afterwards.", min=0)] = 1000,
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
    basis: Basis = "random",
    label_epsilon: LabelEpsilon = None,
    json: Json = False,
) -> None:
    """Dry run: which messages would be exchanged, how many bytes, and what they would tell. Nothing is trained.

    With --privacy also what would be promised, per element and per record. Nothing is released.
    """
    import numpy as np

    from kernfed.data import read_table
    from kernfed.federation.planning import plan_folding
    from kernfed.federation.schema import Schema

    given = {"privacy": privacy, "epsilon": epsilon, "delta": delta, "bounds": bounds, "d": d, "radius": radius,
             "dimension": dimension, "basis": basis}  # fmt: skip
    table = read_table(data, features=features, label=label, site=site)
    learner = make_learner(make_mechanism(given, table.X.shape[1]), table, {"measure": measure, "hold": hold},
                           batch_size=batch_size, smoothing="none", label_epsilon=label_epsilon)  # fmt: skip
    schemas = {}
    for name, (X, y) in rows_by_site(table).items():
        labels, counts = np.unique(y, return_counts=True)
        schemas[name] = Schema(X.shape[1], tuple(labels.tolist()), tuple(counts.tolist()), table.columns)
    traffic = plan_folding(learner, schemas, queries)
    terms = None if learner.recipe is None else learner.recipe.terms(table.X.shape[1])
    what = "the rows themselves, inside machines" if terms is None else "released rows, inside machines"
    said = what if hold == "machines" else "class counts and scores of queries"
    promised = ["No differential privacy: nothing bounds what the answers tell about one record."]
    if terms is not None:
        promised = [f"Each site would release once, by {terms.request['mechanism']['kind']}:",
                    *(f"  {line}" for line in terms.promises)]  # fmt: skip
    result = {"hold": hold, "queries": queries, "bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down,
              "exchanges": traffic.to_json(), "privacy": "none" if terms is None else statement(terms)}  # fmt: skip
    emit(result, json, str(traffic), "", f"{format_bytes(traffic.bytes_up)} would leave the sites: {said}.", *promised)
