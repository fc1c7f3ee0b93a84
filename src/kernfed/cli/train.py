"""``kernfed train``: a model file from one table with labels and sites, or from the sites of a hub."""

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import (
    CredentialsFile,
    Features,
    HubAddress,
    MinReplies,
    OptionalDataFile,
    OptionalLabel,
    PreparationOption,
    RowIds,
    Seed,
    SiteColumn,
    TextColumns,
    check_outputs,
    open_hub,
    refuse_with_hub,
    require_rows,
    text_encoders,
)
from kernfed.errors import InputError, LedgerNotKept, UnprotectedClasses

if TYPE_CHECKING:
    from kernfed.data import Table
    from kernfed.federation import Federation
    from kernfed.jobs.jobs import Trained
    from kernfed.jobs.learning import Learning

EXAMPLE = """Example: kernfed train --data emb.parquet --features emb --label y --site hospital --out model.kfd

Of a table with words, dates and gaps: kernfed train --data patients.csv --label readmitted --site hospital --out m.kfd

With privacy: kernfed train --data emb.parquet --label y --out model.kfd --privacy record-moments --epsilon 3 --radius 1
--store releases

Of text: kernfed train --data posts.csv --text post --label group --site forum --out model.kfd

Of another learner: kernfed train --data emb.parquet --label y --out model.kfd --learner ridge --components 300"""
#: Sites that are listed.
_SHOWN = 20
#: Share of rows that is kept aside unless something else is asked for. Of few rows none is: below 20 tested say little.
HOLDOUT, _FEW = 0.1, 200


def train(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Model file to write.")],
    data: OptionalDataFile = None,
    label: OptionalLabel = None,
    site: SiteColumn = None,
    features: Features = None,
    seed: Seed = 0,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder that remembers what each site released, spent and holds; used again next time."),
    ] = None,
    ids: RowIds = None,
    preparation: PreparationOption = "auto",
    text: TextColumns = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help=f"Share of rows that each site keeps aside to test the model on; {HOLDOUT}, or 0 with --privacy.",
            min=0,
            max=0.9,
        ),
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(help="JSON file to write with what left each site, for `kernfed report --traffic`.")
    ] = None,
    credentials: CredentialsFile = None,
    hub: HubAddress = "",
    min_replies: MinReplies = None,
    json: Json = False,
) -> None:
    """Train on one pooled table; the model file holds every site's machines, which contain its rows.

    With --hold sites they stay in the folder of --store. With --privacy they are made of what the sites release under
    differential privacy, and contain that. With --credentials the sites of a hub train, and keep their machines.
    """
    check_outputs({"--out": out, "--traffic": traffic}, data)
    texts = text_encoders(text, preparation)
    learning: Learning = ctx.obj
    if credentials is not None:
        here = {"--data": data, "--label": label, "--site": site, "--features": features, "--store": store, "--id": ids}
        refuse_with_hub(here)
        learner, started = learning.make(), time.perf_counter()
        with open_hub(credentials, hub, seed) as federation, progress("training"):
            trained = _train_at_hub(federation, learner, (preparation, texts), min_replies, traffic)
        seconds = time.perf_counter() - started
        trained.model.save(out)
        _show_hub_training(trained, seconds, learning.learner, out, traffic, json)
        return
    data, label = require_rows(data, label)
    if store is not None and store.exists() and not store.is_dir():
        raise InputError(f"--store must be a folder, {store} is none")
    from kernfed.jobs.jobs import table_federation
    from kernfed.jobs.tables import TableFile

    with progress(f"reading {data}"):
        file = TableFile(data, features, label, site, ids)
        rows = file.read_to_learn(preparation, private=learning.private)
    assert rows.y is not None
    learning, what_for = learning.for_labels(rows.y, label)
    if holdout is None:  # what a test tells of raw rows is not covered by a privacy that was asked for
        holdout = 0.0 if learning.private or len(rows) < _FEW else HOLDOUT
    started = time.perf_counter()
    opened = table_federation(rows, preparation, texts, seed=seed, store=store, holdout=holdout)
    with progress("training"), opened as (federation, table):
        learner = learning.usually(hold="machines").make(table)
        trained = _train_on_table(federation, learner, store, holdout)
    seconds = time.perf_counter() - started
    trained.model.save(out)
    if traffic is not None:
        trained.traffic.save(traffic)
    about = {"out": out, "seconds": seconds, "learner": learning.learner, "task": what_for, "traffic": traffic}
    _show_table_training(trained, table, about, json)
    for remark in _remarks(trained.model, table, store):
        note(remark)


def _train_on_table(federation: "Federation", learner: Any, store: Path | None, holdout: float) -> "Trained":
    from kernfed.jobs import jobs

    if store is None and getattr(learner, "hold", "machines") == "sites":
        raise InputError("--hold sites needs --store DIR: without it the machines are gone when this command ends")
    with warnings.catch_warnings():
        for said in (UnprotectedClasses, LedgerNotKept):  # remarks say it
            warnings.simplefilter("ignore", said)
        return jobs.train(federation, learner, test=holdout > 0)


def _train_at_hub(
    federation: "Federation",
    learner: Any,
    preparation: tuple[str, dict[str, str]],
    min_replies: int | None,
    traffic: Path | None,
) -> "Trained":
    from kernfed.jobs import jobs

    try:
        jobs.prepare(federation, preparation[0], texts=preparation[1], min_replies=min_replies)
        return jobs.train(federation, learner, min_replies=min_replies)
    finally:  # what left the sites must be known even where training failed
        if traffic is not None:
            federation.traffic.save(traffic)


def _show_hub_training(
    trained: "Trained", seconds: float, learner: str, out: Path, traffic: Path | None, as_json: bool
) -> None:
    here = [site for site in trained.sites if site not in trained.missing]
    emit(
        {"out": out, "seconds": seconds, "learner": learner, "traffic": traffic, **trained.to_json()},
        as_json,
        trained.site_table(),
        f"{len(here)} of {len(trained.sites)} site(s) in {format_seconds(seconds)}, "
        f"{format_bytes(trained.traffic.bytes_up)} left them; wrote {out}",
    )


def _show_table_training(trained: "Trained", table: "Table", about: Mapping[str, Any], as_json: bool) -> None:
    from kernfed.jobs.tables import columns_line

    model, out, sent = trained.model, about["out"], format_bytes(trained.traffic.bytes_up)
    size, sites = out.stat().st_size, _site_table(model, table)
    what = f"{len(model.classes_)} classes" if len(model.classes_) else "values"
    emit(
        {**about, "bytes": size, **trained.to_json(), "sites": len(sites.rows), **_about(model, table)},
        as_json,
        sites.shortened(_SHOWN),
        columns_line(table),
        *_preparation_line(model),
        f"{about['task']}.",
        f"{len(table):,} rows, {what} and {len(sites.rows)} site(s) in {format_seconds(about['seconds'])}; wrote {out} "
        f"({format_bytes(size)})",
        *([] if about["traffic"] is None else [f"{sent} left the sites; wrote {about['traffic']}"]),
        *([] if model.privacy is None else [str(model.privacy)]),
        *_test_lines(trained.tested),
    )


def _about(model: Any, table: "Table") -> dict[str, Any]:
    """What a model is and was made of, for those who read JSON."""
    return {
        "rows": len(table),
        "columns": model.n_features_in_,
        "features": table.columns,
        "left_out": table.left_out,
        "unprotected": getattr(model, "unprotected_", ()),
        "parameters": _parameters(model),
    }


def _parameters(model: Any) -> dict[str, Any]:
    """What a model was made with; of a fusion by part."""
    if hasattr(model, "weight_"):
        parts = {name: getattr(model, name) for name in ("folding", "ridge")}
        together = {"weight": model.weight_, "temperature": model.temperature_}
        return together | {name: part.parameters.to_values() for name, part in parts.items() if part is not None}
    values: dict[str, Any] = (model.parameters if hasattr(model, "parameters") else model.problem).to_values()
    return values


def _test_lines(tested: Mapping[str, Any]) -> list[str]:
    """The test on held-out rows, and an alarm where the model is worse than saying always the same."""
    from kernfed.jobs.jobs import majority_line

    if not tested:
        return []
    if "r2" in tested:
        return [f"On {tested['tested']:,} held-out rows: R2 {tested['r2']:.4f}; always saying the mean would give 0."]
    lines = [f"On {tested['tested']:,} held-out rows: accuracy {tested['accuracy']:.2%}; {majority_line(tested)}."]
    return lines if tested["alarm"] is None else [*lines, tested["alarm"]]


def _preparation_line(model: Any) -> list[str]:
    """How many raw columns the features are made of, where they are made of some."""
    preparation = getattr(model, "preparation", None)
    if preparation is None:
        return []
    made = len(preparation.columns)
    return [f"{len(preparation.used)} columns of the table make these {made} features; `kernfed prepare` shows how."]


def _site_table(model: Any, table: "Table") -> TextTable:
    """Rows of each site; of a model with machines also classes and machines."""
    from kernfed.jobs.tables import rows_by_site

    if getattr(model, "members_", None):
        members = sorted(model.members_.items())
        rows = [(name, f"{one.rows:,}", f"{len(one.classes)}", f"{one.machines:,}") for name, one in members]
        return TextTable(("site", "rows", "classes", "machines"), rows)
    counts = {name: len(rows[1]) for name, rows in rows_by_site(table).items()}
    return TextTable(("site", "rows"), [(name, f"{count:,}") for name, count in sorted(counts.items())])


def _remarks(model: Any, table: "Table", store: Path | None) -> list[str]:
    """What the user should know beside the result."""
    from kernfed.jobs.learning import imbalance

    rows, classes = len(table), len(model.classes_)
    assert table.y is not None
    remarks = imbalance(table.y) if classes else []
    if 2 * classes > rows > 2:
        remarks.append(f"{classes} classes in {rows} rows: a label that is a quantity cannot be learned as classes.")
    if getattr(model, "members_", None):
        exposed = model.exposure()
        remarks += [] if exposed is None else [f"Not protected: {exposed}."]
        if model.hold == "sites":
            remarks.append(f"The machines are at the sites, in {store}: the file alone cannot answer.")
        elif model.privacy is None:
            remarks.append("The file contains the rows it was trained on: keep it as you keep them.")
    if model.privacy is not None and store is None:
        remarks.append(
            "Nothing remembers this release: a further one from these rows adds to it. Use --store DIR to release once."
        )
    return remarks
