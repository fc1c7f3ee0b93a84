"""``kernfed train``: a model file from one table with labels and sites."""

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, Table, emit, format_bytes, format_seconds, note, progress
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
    Smoothing,
    make_learner,
    make_mechanism,
    statement,
)
from kernfed.cli.tables import DataFile, Features, Label, Measure, Partition, Seed, SiteColumn, rows_by_site

EXAMPLE = """Example: kernfed train --data emb.parquet --features emb --label y --site hospital --out model.kfd

With privacy: kernfed train --data emb.parquet --label y --out model.kfd --privacy record-moments --epsilon 3 --radius 1
--store releases"""


def train(
    data: DataFile,
    label: Label,
    out: Annotated[Path, typer.Option(help="Model file to write.")],
    site: SiteColumn = None,
    features: Features = None,
    measure: Measure = "rms",
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per machine, about; default 100, and 1000 with record-moments.", min=1)
    ] = None,
    partition: Partition = "order",
    layers: Annotated[int, typer.Option(help="Layers of each machine.", min=1)] = 1,
    aggregate: Annotated[str, typer.Option(help="min, or kth to survive wrong sites.")] = "min",
    k: Annotated[int, typer.Option(help="Which smallest score counts under kth.", min=1)] = 2,
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    seed: Seed = 0,
    privacy: Privacy = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Bounds = None,
    d: Change = None,
    radius: Radius = None,
    dimension: Dimension = None,
    basis: Basis = "random",
    smoothing: Smoothing = "coupled_bootstrap",
    label_epsilon: LabelEpsilon = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder that remembers what each site released and spent; used again next time.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option("--id", help="Column that names rows for the ledger; default numbers.")
    ] = None,
    json: Json = False,
) -> None:
    """Train on one pooled table; the model file holds every site's machines, which contain its rows.

    With --privacy the machines are made of what the sites release under differential privacy, and contain that.
    """
    from kernfed.data import read_table
    from kernfed.federation import Federation

    given = {"privacy": privacy, "epsilon": epsilon, "delta": delta, "bounds": bounds, "d": d, "radius": radius,
             "dimension": dimension, "basis": basis}  # fmt: skip
    settings = {"measure": measure, "partition": partition, "layers": layers, "dtype": dtype, "aggregate": aggregate,
                "k": k, "hold": "machines"}  # fmt: skip
    with progress(f"reading {data}"):
        table = read_table(data, features=features, label=label, site=site, ids=ids)
    learner = make_learner(make_mechanism(given, table.X.shape[1]), table, settings, batch_size=batch_size,
                           smoothing=smoothing, label_epsilon=label_epsilon)  # fmt: skip
    started = time.perf_counter()
    with progress("training"), Federation.local(_site_rows(table), seed=seed, columns=table.columns,
                                                store=store) as federation:  # fmt: skip
        model = learner.fit(federation)
    seconds = time.perf_counter() - started
    model.save(out)
    size = out.stat().st_size
    members = [(name, f"{member.rows:,}", f"{len(member.classes)}", f"{member.machines:,}")
               for name, member in sorted(model.members.items())]  # fmt: skip
    shown = members if len(members) <= 20 else [*members[:19], (f"... {len(members) - 19} more", "", "", "")]
    result = {"out": out, "bytes": size, "seconds": seconds, "sites": len(model.members), "rows": len(table),
              "classes": model.classes_, "columns": model.width, "unprotected": model.unprotected_,
              "parameters": model.parameters.to_values(),
              "privacy": None if model.privacy is None else statement(model.privacy)}  # fmt: skip
    emit(result, json, Table(("site", "rows", "classes", "machines"), shown),
         f"{len(table):,} rows, {len(model.classes_)} classes and {len(model.members)} site(s) "
         f"in {format_seconds(seconds)}; wrote {out} ({format_bytes(size)})",
         *([] if model.privacy is None else [str(model.privacy)]))  # fmt: skip
    if model.privacy is None:
        note("The file contains the rows it was trained on: keep it as you keep them.")
    elif store is None:
        note(
            "Nothing remembers this release: a further one from these rows adds to it. Use --store DIR to release once."
        )


def _site_rows(table: Any) -> dict[str, Any]:
    """``{site: (X, y)}``, or ``{site: (X, y, ids)}`` where a column names the rows."""
    if table.ids is None:
        return dict(rows_by_site(table))
    import numpy as np

    numbers = row_numbers(table.ids)
    places = rows_by_site(replace(table, X=np.arange(len(table))[:, None]))
    return {name: (table.X[place[:, 0]], y, numbers[place[:, 0]]) for name, (place, y) in places.items()}


def row_numbers(ids: Any) -> Any:
    """Integers for the names of rows (n,): themselves, or 63 bits of a hash, so that the same name is the same row."""
    import numpy as np

    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    digests = (hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in ids.tolist())
    return np.frombuffer(b"".join(digests), dtype="<i8") & 0x7FFFFFFFFFFFFFFF
