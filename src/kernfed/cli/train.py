"""``kernfed train`` and ``kernfed plan``: a model from a table or a hub's sites, and what would leave the sites."""

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, format_bytes, format_seconds, note, progress, statement
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, MinReplies, refuse_with_hub, train_at_hub
from kernfed.cli.raw import (
    PreparationOption,
    TextColumns,
    agreed,
    imbalance,
    learning_for_labels,
    majority_of,
    majority_words,
    read_rows_or_raw,
    text_encoders,
)
from kernfed.cli.tables import (
    DataFile,
    Features,
    Label,
    OptionalDataFile,
    OptionalLabel,
    RowIds,
    Seed,
    SiteColumn,
    check_outputs,
    columns_line,
    named_rows_by_site,
    prepared_table,
    raw_rows_by_site,
    require_rows,
    rows_by_site,
)
from kernfed.errors import InputError, LedgerNotKept, UnprotectedClasses

TRAIN_EXAMPLE = """Example: kernfed train --data emb.parquet --features emb --label y --site hospital --out model.kfd

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
    if credentials is not None:
        here = {"--data": data, "--label": label, "--site": site, "--features": features, "--store": store, "--id": ids}
        refuse_with_hub(here)
        asked = {"seed": seed, "min_replies": min_replies}
        raw: Any = {"preparation": preparation, "texts": texts}
        train_at_hub(ctx.obj, out, credentials, hub, asked, **raw, traffic=traffic, as_json=json)
        return
    data, label = require_rows(data, label)
    if store is not None and store.exists() and not store.is_dir():
        raise InputError(f"--store must be a folder, {store} is none")
    private = "privacy" in ctx.obj.values
    with progress(f"reading {data}"):
        columns: Any = {"features": features, "label": label, "site": site, "ids": ids}
        rows = read_rows_or_raw(data, preparation, private=private, **columns)
    learning, what_for = learning_for_labels(ctx.obj, rows.y, label)
    learning = learning.usually(hold="machines")
    if holdout is None:  # what a test tells of raw rows is not covered by a privacy that was asked for
        holdout = 0.0 if private or len(rows) < _FEW else HOLDOUT
    started = time.perf_counter()
    with progress("training"):
        fitted = _fit(learning, rows, (preparation, texts), seed=seed, store=store, holdout=holdout)
    model, table, sent = fitted.model, fitted.table, fitted.traffic
    seconds = time.perf_counter() - started
    model.save(out)
    if traffic is not None:
        sent.save(traffic)
    size, sites = out.stat().st_size, _sites(model, table)
    what = f"{len(model.classes_)} classes" if len(model.classes_) else "values"
    emit(
        {
            "out": out,
            "bytes": size,
            "seconds": seconds,
            "learner": learning.learner,
            "task": what_for,
            **fitted.tested,
            "sites": len(sites.rows),
            "traffic": traffic,
            "bytes_up": sent.bytes_up,
            "bytes_down": sent.bytes_down,
            **_about(model, table),
        },
        json,
        sites.shortened(_SHOWN),
        columns_line(table),
        *_prepared_line(model),
        f"{what_for}.",
        f"{len(table):,} rows, {what} and {len(sites.rows)} site(s) in {format_seconds(seconds)}; wrote {out} "
        f"({format_bytes(size)})",
        *([] if traffic is None else [f"{format_bytes(sent.bytes_up)} left the sites; wrote {traffic}"]),
        *([] if model.privacy is None else [str(model.privacy)]),
        *_compared(fitted.tested),
    )
    for remark in _remarks(model, table, store):
        note(remark)


def _about(model: Any, table: Any) -> dict[str, Any]:
    """What a model is and was made of, for those who read JSON."""
    return {
        "rows": len(table),
        "classes": model.classes_,
        "columns": model.n_features_in_,
        "features": table.columns,
        "left_out": table.left_out,
        "unprotected": getattr(model, "unprotected_", ()),
        "parameters": _parameters(model),
        "privacy": None if model.privacy is None else statement(model.privacy),
    }


def _parameters(model: Any) -> dict[str, Any]:
    """What a model was made with; of a fusion by part."""
    if hasattr(model, "weight_"):
        parts = {name: getattr(model, name) for name in ("folding", "ridge")}
        own = {"weight": model.weight_, "temperature": model.temperature_}
        return own | {name: part.parameters.to_values() for name, part in parts.items() if part is not None}
    values: dict[str, Any] = (model.parameters if hasattr(model, "parameters") else model.problem).to_values()
    return values


@dataclass(frozen=True)
class _Fitted:
    """A model, the rows it was made of as numbers, what left the sites, and what a test on held-out rows gave."""

    model: Any
    table: Any
    traffic: Any
    tested: dict[str, Any]


def _fit(
    learning: Any,
    rows: Any,
    preparation: tuple[str, dict[str, str]],
    *,
    seed: int,
    store: Path | None,
    holdout: float,
) -> _Fitted:
    """Let the sites of a table agree on a preparation where it is raw, and learn from them."""
    from kernfed.data import RawTable
    from kernfed.federation import Federation

    raw = isinstance(rows, RawTable)
    options: dict[str, Any] = {"seed": seed, "store": store, "holdout": holdout}
    if not raw:
        options["columns"] = rows.columns
    parts = raw_rows_by_site(rows) if raw else named_rows_by_site(rows)
    with Federation.local(parts, **options) as federation, warnings.catch_warnings():
        for said in (UnprotectedClasses, LedgerNotKept):  # by remarks
            warnings.simplefilter("ignore", said)
        table = prepared_table(rows, agreed(federation, *preparation)) if raw else rows
        learner = learning.make(table)
        if store is None and getattr(learner, "hold", "machines") == "sites":
            raise InputError("--hold sites needs --store DIR: without it the machines are gone when this command ends")
        model = learner.fit(federation)
        if not holdout:
            return _Fitted(model, table, federation.traffic, {})
        model, calibrated = _calibrated(model, federation)
        return _Fitted(model, table, federation.traffic, {**_test(model, federation), "calibrated": calibrated})


def _calibrated(model: Any, federation: Any) -> tuple[Any, bool]:
    """A model whose probabilities fit rows that it did not see, and whether they do.

    Fusions have fitted their temperature to left-out rows already, and so have models of released rows.
    """
    from kernfed.errors import KernfedError
    from kernfed.federation import calibrate
    from kernfed.kahm import FoldingModel

    if not isinstance(model, FoldingModel) or model.privacy is not None:
        return model, hasattr(model, "choice_")
    try:
        return calibrate(model, federation), True
    except KernfedError:  # sites that kept nothing aside, of classes that the model knows
        return model, False


def _test(model: Any, federation: Any) -> dict[str, Any]:
    """What a model does on the rows that sites kept aside, beside what saying always the same would."""
    from kernfed.federation import evaluate
    from kernfed.testing.predictors import is_regressor

    outcome: Any = evaluate(model, federation)
    if is_regressor(model):
        return {"tested": outcome.pooled.rows, "r2": outcome.r2}
    return {"tested": outcome.pooled.rows, "accuracy": outcome.accuracy, **majority_of(outcome)}


def _compared(tested: dict[str, Any]) -> list[str]:
    """The test in a line."""
    if not tested:
        return []
    if "r2" in tested:
        return [f"On {tested['tested']:,} held-out rows: R2 {tested['r2']:.4f}; always saying the mean would give 0."]
    lines = [f"On {tested['tested']:,} held-out rows: accuracy {tested['accuracy']:.2%}; {majority_words(tested)}."]
    return lines if tested["alarm"] is None else [*lines, tested["alarm"]]


def _prepared_line(model: Any) -> list[str]:
    """How many raw columns the features are made of, where they are made of some."""
    preparation = getattr(model, "preparation", None)
    if preparation is None:
        return []
    made = len(preparation.columns)
    return [f"{len(preparation.used)} columns of the table make these {made} features; `kernfed prepare` shows how."]


def _sites(model: Any, table: Any) -> TextTable:
    """What each site brought; of machines also how many."""
    if getattr(model, "members_", None):
        members = sorted(model.members_.items())
        rows = [(name, f"{one.rows:,}", f"{len(one.classes)}", f"{one.machines:,}") for name, one in members]
        return TextTable(("site", "rows", "classes", "machines"), rows)
    counts = {name: len(rows[1]) for name, rows in named_rows_by_site(table).items()}
    return TextTable(("site", "rows"), [(name, f"{count:,}") for name, count in sorted(counts.items())])


def _remarks(model: Any, table: Any, store: Path | None) -> list[str]:
    """What the user should know beside the result."""
    rows, classes = len(table), len(model.classes_)
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


PLAN_EXAMPLE = """Example: kernfed plan --data emb.parquet --label y --site hospital --queries 1000

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
    from kernfed.federation.planning import plan_learner

    # Without more this is the job that `kernfed train` runs; queries can only be put to sites.
    columns: Any = {"features": features, "label": label, "site": site, "ids": ids}
    rows = read_rows_or_raw(data, preparation, private="privacy" in ctx.obj.values, **columns)
    learning, _ = learning_for_labels(ctx.obj, rows.y, label)
    learning = learning.usually(hold="machines" if queries is None else "sites")
    table, preparing = _numeric_table(rows, (preparation, text_encoders(text, preparation)), seed)
    learner = learning.make(table)
    hold = getattr(learner, "hold", "machines")
    if hold == "machines" and queries is not None:
        raise InputError("--queries needs --hold sites: a model that is whole answers by itself, and nothing is sent")
    asked = (USUAL_QUERIES if queries is None else queries) if hold == "sites" else 0
    with progress("planning"):
        planned = plan_learner(learning.learner, learner, rows_by_site(table), table.columns, queries=asked, seed=seed)
    for entry in preparing:  # one message each
        sizes: Any = {"down": entry.bytes_down, "up": entry.bytes_up, "scalars": entry.scalars_up}
        planned.traffic.add(entry.site, entry.task, entry.information, **sizes)
    traffic, terms = planned.traffic, _terms(learner, table.X.shape[1])
    result = {
        "learner": learning.learner,
        "hold": hold,
        "queries": asked,
        "exact": planned.exact,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "exchanges": traffic.to_json(),
        "features": table.columns,
        "left_out": table.left_out,
        "privacy": "none" if terms is None else statement(terms),
    }
    about = "" if planned.exact else "About " if planned.rehearsed else "At most "
    rehearsed = "Rehearsed with made-up rows of the same shape: real ones may need more rounds, or fewer."
    emit(
        result,
        json,
        str(traffic),
        "",
        columns_line(table),
        f"{about}{format_bytes(traffic.bytes_up)} would leave the sites: {_told(learner, traffic, terms)}.",
        *([rehearsed] if planned.rehearsed else []),
        *_promised(learner, terms, len({entry.site for entry in traffic})),
    )


def _numeric_table(rows: Any, preparation: tuple[str, dict[str, str]], seed: int) -> tuple[Any, Iterable[Any]]:
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
