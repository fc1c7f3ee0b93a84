"""``kernfed train``: a model file from one table with labels and sites."""

import time
import warnings
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
    statement,
)
from kernfed.cli.tables import (
    DataFile,
    Features,
    Label,
    Measure,
    Partition,
    RowIds,
    Seed,
    SiteColumn,
    check_outputs,
    columns_line,
    named_rows_by_site,
    read_rows,
)
from kernfed.errors import InputError, LedgerNotKept, UnprotectedClasses

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
    k: Annotated[int | None, typer.Option(help="Which smallest score counts under kth; default 2.", min=1)] = None,
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    seed: Seed = 0,
    privacy: Privacy = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Bounds = None,
    d: Change = None,
    radius: Radius = None,
    dimension: Dimension = None,
    basis: Basis = None,
    smoothing: Smoothing = None,
    label_epsilon: LabelEpsilon = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder that remembers what each site released and spent; used again next time.")
    ] = None,
    ids: RowIds = None,
    traffic: Annotated[
        Path | None, typer.Option(help="JSON file to write with what left each site, for `kernfed report --traffic`.")
    ] = None,
    json: Json = False,
) -> None:
    """Train on one pooled table; the model file holds every site's machines, which contain its rows.

    With --privacy the machines are made of what the sites release under differential privacy, and contain that.
    """
    from kernfed.federation import Federation

    check_outputs({"--out": out, "--traffic": traffic}, data)
    if store is not None and store.exists() and not store.is_dir():
        raise InputError(f"--store must be a folder, {store} is none")
    if k is not None and aggregate == "min":
        raise InputError("--k needs --aggregate kth: under min the smallest score counts")
    given = {
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "bounds": bounds,
        "d": d,
        "radius": radius,
        "dimension": dimension,
        "basis": basis,
        "smoothing": smoothing,
        "label_epsilon": label_epsilon,
    }
    settings = {
        "measure": measure,
        "partition": partition,
        "layers": layers,
        "dtype": dtype,
        "aggregate": aggregate,
        "k": 2 if k is None else k,
        "hold": "machines",
    }
    with progress(f"reading {data}"):
        table = read_rows(data, features=features, label=label, site=site, ids=ids)
    learner = make_learner(given, table, settings, batch_size=batch_size)
    started = time.perf_counter()
    with (
        progress("training"),
        Federation.local(named_rows_by_site(table), seed=seed, columns=table.columns, store=store) as federation,
        warnings.catch_warnings(),
    ):
        for said in (UnprotectedClasses, LedgerNotKept):  # by remarks
            warnings.simplefilter("ignore", said)
        model = learner.fit(federation)
    seconds = time.perf_counter() - started
    model.save(out)
    sent = federation.traffic
    if traffic is not None:
        sent.save(traffic)
    size = out.stat().st_size
    members = [
        (name, f"{member.rows:,}", f"{len(member.classes)}", f"{member.machines:,}")
        for name, member in sorted(model.members_.items())
    ]
    shown = members if len(members) <= 20 else [*members[:19], (f"... {len(members) - 19} more", "", "", "")]
    result = {
        "out": out,
        "bytes": size,
        "seconds": seconds,
        "sites": len(model.members_),
        "rows": len(table),
        "traffic": traffic,
        "bytes_up": sent.bytes_up,
        "bytes_down": sent.bytes_down,
        "classes": model.classes_,
        "columns": model.n_features_in_,
        "features": table.columns,
        "left_out": table.left_out,
        "unprotected": model.unprotected_,
        "parameters": model.parameters.to_values(),
        "privacy": None if model.privacy is None else statement(model.privacy),
    }
    emit(
        result,
        json,
        Table(("site", "rows", "classes", "machines"), shown),
        columns_line(table),
        f"{len(table):,} rows, {len(model.classes_)} classes and {len(model.members_)} site(s) "
        f"in {format_seconds(seconds)}; wrote {out} ({format_bytes(size)})",
        *([] if traffic is None else [f"{format_bytes(sent.bytes_up)} left the sites; wrote {traffic}"]),
        *([] if model.privacy is None else [str(model.privacy)]),
    )
    for remark in _remarks(model, len(table), store):
        note(remark)


def _remarks(model: Any, rows: int, store: Path | None) -> list[str]:
    """What the user should know beside the result."""
    from kernfed.kahm.aggregate import exposure

    found, classes = [], len(model.classes_)
    if 2 * classes > rows > 2:
        found.append(f"{classes} classes in {rows} rows: a label that is a quantity cannot be learned as classes.")
    exposed = exposure(model.classes_, model.holds, model.parameters.aggregate, model.parameters.k)
    if exposed is not None:
        found.append(f"Not protected: {exposed}.")
    if model.privacy is None:
        found.append("The file contains the rows it was trained on: keep it as you keep them.")
    elif store is None:
        found.append(
            "Nothing remembers this release: a further one from these rows adds to it. Use --store DIR to release once."
        )
    return found
