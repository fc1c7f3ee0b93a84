"""``kernfed plan``: what would leave each site, before anything is sent."""

from typing import Annotated

import typer

from kernfed.cli.console import Json, emit, format_bytes
from kernfed.cli.tables import BatchSize, DataFile, Features, Label, Measure, SiteColumn, rows_by_site

EXAMPLE = "Example: kernfed plan --data emb.parquet --label y --site hospital --queries 1000"


def plan(
    data: DataFile,
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    hold: Annotated[str, typer.Option(help="sites (only scores leave) or machines (rows leave).")] = "sites",
    queries: Annotated[int, typer.Option(help="Queries to be answered afterwards.", min=0)] = 1000,
    measure: Measure = "rms",
    batch_size: BatchSize = 100,
    json: Json = False,
) -> None:
    """Dry run: which messages would be exchanged, how many bytes, and what they would tell. Nothing is trained."""
    import numpy as np

    from kernfed.data import read_table
    from kernfed.federation import FoldingLearner
    from kernfed.federation.planning import plan_folding
    from kernfed.federation.schema import Schema

    learner = FoldingLearner(measure, batch_size, hold=hold)
    table = read_table(data, features=features, label=label, site=site)
    schemas = {}
    for name, (X, y) in rows_by_site(table).items():
        labels, counts = np.unique(y, return_counts=True)
        schemas[name] = Schema(X.shape[1], tuple(labels.tolist()), tuple(counts.tolist()), table.columns)
    traffic = plan_folding(learner, schemas, queries)
    said = "the rows themselves, inside machines" if hold == "machines" else "class counts and scores of queries"
    result = {"hold": hold, "queries": queries, "bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down,
              "exchanges": traffic.to_json(), "privacy": "none"}  # fmt: skip
    emit(result, json, str(traffic), "",
         f"{format_bytes(traffic.bytes_up)} would leave the sites: {said}.",
         "No differential privacy: nothing bounds what the answers tell about one record.")  # fmt: skip
