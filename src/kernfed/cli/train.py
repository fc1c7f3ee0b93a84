"""``kernfed train``: a model file from one table with labels and sites."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, Table, emit, format_bytes, format_seconds, note, progress
from kernfed.cli.tables import BatchSize, DataFile, Features, Label, Measure, Partition, Seed, SiteColumn, rows_by_site

EXAMPLE = "Example: kernfed train --data emb.parquet --features emb --label y --site hospital --out model.kfd"


def train(
    data: DataFile,
    label: Label,
    out: Annotated[Path, typer.Option(help="Model file to write.")],
    site: SiteColumn = None,
    features: Features = None,
    measure: Measure = "rms",
    batch_size: BatchSize = 100,
    partition: Partition = "order",
    layers: Annotated[int, typer.Option(help="Layers of each machine.", min=1)] = 1,
    aggregate: Annotated[str, typer.Option(help="min, or kth to survive wrong sites.")] = "min",
    k: Annotated[int, typer.Option(help="Which smallest score counts under kth.", min=1)] = 2,
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train on one pooled table; the model file holds every site's machines, which contain its rows."""
    from kernfed.data import read_table
    from kernfed.federation import Federation, FoldingLearner

    learner = FoldingLearner(measure, batch_size, partition, layers, dtype, aggregate, k, hold="machines")
    with progress(f"reading {data}"):
        table = read_table(data, features=features, label=label, site=site)
    started = time.perf_counter()
    with progress("training"), Federation.local(rows_by_site(table), seed=seed, columns=table.columns) as federation:
        model = learner.fit(federation)
    seconds = time.perf_counter() - started
    model.save(out)
    size = out.stat().st_size
    members = [(name, f"{member.rows:,}", f"{len(member.classes)}", f"{member.machines:,}")
               for name, member in sorted(model.members.items())]  # fmt: skip
    shown = members if len(members) <= 20 else [*members[:19], (f"... {len(members) - 19} more", "", "", "")]
    result = {"out": out, "bytes": size, "seconds": seconds, "sites": len(model.members), "rows": len(table),
              "classes": model.classes_, "columns": model.width, "unprotected": model.unprotected_,
              "parameters": model.parameters.to_values()}  # fmt: skip
    emit(result, json, Table(("site", "rows", "classes", "machines"), shown),
         f"{len(table):,} rows, {len(model.classes_)} classes and {len(model.members)} site(s) "
         f"in {format_seconds(seconds)}; wrote {out} ({format_bytes(size)})")  # fmt: skip
    note("The file contains the rows it was trained on: keep it as you keep them.")
