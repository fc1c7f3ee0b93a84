"""Commands that take a model file: ``kernfed predict``, ``kernfed evaluate`` and ``kernfed conform``."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_seconds
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import (
    SHORT_PATIENCE,
    CredentialsFile,
    Features,
    HubAddress,
    MinReplies,
    ModelFile,
    OptionalLabel,
    RowIds,
    SiteColumn,
    check_output,
    check_table_output,
    open_hub,
    refuse_with_hub,
    require_machines,
    require_rows,
    require_sites,
)
from kernfed.errors import InputError, RunFailed

if TYPE_CHECKING:
    from kernfed.jobs.jobs import Predicted
    from kernfed.privacy import RecordHistogram

PREDICT_EXAMPLE = "Example: kernfed predict model.kfd new.parquet --out pred.csv"
EVALUATE_EXAMPLE = "Example: kernfed evaluate model.kfd --data test.parquet --label y --site hospital"
CONFORM_EXAMPLE = "Example: kernfed conform model.kfd --data aside.parquet --label y --site hospital --out sure.kfd"

Influence = Annotated[
    bool, typer.Option("--influence", help="Leave each site out of the model, and name those that harm the others.")
]
Liars = Annotated[
    int | None,
    typer.Option(help="Of sites that count for --influence, how many may lie; default 1, with --data 0.", min=0),
]
AsideFile = Annotated[Path | None, typer.Option("--data", help="Table of rows with labels that were not trained on.")]
#: Confusion matrices up to this many classes are printed.
_SHOWN_CLASSES = 20


def predict(
    model: ModelFile,
    queries: Annotated[Path, typer.Argument(help="Table of rows to predict: Parquet, Arrow, CSV, npz or npy.")],
    out: Annotated[Path | None, typer.Option(help="CSV or Parquet file to write; default only a summary.")] = None,
    features: Features = None,
    ids: Annotated[str | None, typer.Option("--id", help="Column copied to the output to name rows.")] = None,
    for_site: Annotated[
        str, typer.Option("--for-site", help="Of a personalised model, the site whose own predictor answers.")
    ] = "",
    explain: Annotated[bool, typer.Option(help="Also write which site and batch decided.")] = False,
    coverage: Annotated[
        float | None,
        typer.Option(help="Also write the set of labels that has the true one with this probability; kernfed conform."),
    ] = None,
    abstain: Annotated[
        float | None,
        typer.Option(help="Also write an answer, empty where the model does not know: at most this share is wrong."),
    ] = None,
    flower: Annotated[
        Path | None, typer.Option(help="Folder of `kernfed flower-app`: the sites of its deployment answer.")
    ] = None,
    credentials: CredentialsFile = None,
    hub: HubAddress = "",
    min_replies: MinReplies = None,
    json: Json = False,
) -> None:
    """Predict the label of every row, with its probability; of a single machine, the distance of every row."""
    import numpy as np

    from kernfed.data import write_table
    from kernfed.federation import load
    from kernfed.jobs import jobs
    from kernfed.jobs.tables import TableFile
    from kernfed.testing.predictors import predictor_for

    if out is not None:
        check_table_output(out, model, queries)
    predictor = predictor_for(load(model), for_site, "--for-site")
    if flower is not None and credentials is not None:
        raise InputError("--flower and --credentials are two ways to the sites; give one of them")
    if flower is None and credentials is None:
        way = "let them answer with --credentials FILE of a hub, or --flower DIR, a folder of kernfed flower-app"
        require_machines(predictor, model, way)
    if flower is not None and (coverage is not None or abstain is not None):
        raise InputError("--coverage and --abstain are for models that are whole and for the sites of a hub")
    if credentials is not None and not jobs.asks_sites(predictor):
        raise InputError("this model is whole and needs no sites: leave --credentials out")
    table = TableFile(queries, features, ids=ids).read_for(predictor)
    sure = {"coverage": coverage, "abstain": abstain}
    started = time.perf_counter()
    with progress(f"predicting {len(table):,} rows"):
        if flower is not None:
            predicted = _predict_with_flower(flower, model, table.X, for_site)
        elif credentials is not None:
            with open_hub(credentials, hub, patience=SHORT_PATIENCE) as federation:
                asked = predictor.connect(federation)
                predicted = jobs.predict(asked, table.X, **sure, min_replies=min_replies)
        else:
            predicted = jobs.predict(predictor, table.X, **sure)
    seconds = time.perf_counter() - started
    if explain and "site" not in predicted.columns:
        raise InputError(f"--explain needs a federated folding model, {model} is a {type(predictor).__name__}")
    if out is not None:
        numbers = np.arange(1, len(table) + 1) if table.ids is None else table.ids
        kept = {n: values for n, values in predicted.columns.items() if explain or n not in predicted.EXPLAINED}
        write_table(out, {"row" if ids is None else ids: numbers, **kept})
    result = {"rows": len(table), "seconds": seconds, "out": out, **predicted.to_json(explain=explain, whole=not out)}
    where = f"; wrote {out}" if out is not None else "; use --out FILE to keep them"
    views = predicted.views(explain=explain)
    emit(result, json, *views, f"{len(table):,} rows in {format_seconds(seconds)}{where}")


def _predict_with_flower(app: Path, model: Path, rows: Any, for_site: str) -> "Predicted":
    """Predictions of a run on a Flower deployment."""
    from kernfed.jobs.flower_run import predict_with_flower

    try:
        return predict_with_flower(app, model, rows, site=for_site, report=note)
    except RunFailed as error:
        note(f"kernfed: {error}")
        raise typer.Exit(1) from None


# Tests ------------------------------------------------------------------------------------------------------------


def evaluate(
    model: ModelFile,
    data: AsideFile = None,
    label: OptionalLabel = None,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    credentials: CredentialsFile = None,
    hub: HubAddress = "",
    min_replies: MinReplies = None,
    influence: Influence = False,
    liars: Liars = None,
    json: Json = False,
) -> None:
    """Test a model on labelled rows, site by site and all together; a personalised one by each site's own predictor.

    With --credentials the sites of a hub test it, each on the rows that it keeps aside. With --influence every site is
    left out of the model once, and those without which the others are better off are named.
    """
    from kernfed.federation import load
    from kernfed.jobs import jobs
    from kernfed.jobs.tables import TableFile, rows_by_site

    loaded = load(model)
    options: dict[str, Any] = {"influence": influence, "liars": liars}
    if credentials is not None:
        refuse_with_hub({"--data": data, "--label": label, "--site": site, "--features": features, "--id": ids})
        with open_hub(credentials, hub) as federation, progress("testing at the sites"):
            _show_test(jobs.evaluate(loaded, federation, **options, min_replies=min_replies), json)
        return
    data, label = require_rows(data, label)
    way = f"let them test it with --credentials FILE of a hub, or kernfed flower-run DIR evaluate --set model={model}"
    require_machines(loaded, model, way)
    require_sites(loaded, site)
    table = TableFile(data, features, label, site, ids).read_for(loaded)
    with progress(f"testing on {len(table):,} rows"):
        tested = jobs.evaluate(loaded, rows=rows_by_site(table), **options)
    _show_test(tested, json)


def _show_test(tested: Any, as_json: bool) -> None:
    """Print a test: errors of a regressor, or accuracies and the confusion of a classifier."""
    from kernfed.jobs.jobs import majority_figures, majority_line

    views: list[TextTable | str] = [str(tested)]
    classes = [str(name) for name in getattr(tested, "classes_", ())]
    if classes and len(classes) <= _SHOWN_CLASSES:
        confusion = tested.pooled.confusion
        names = [*classes, "other"] if confusion[-1].any() else classes
        rows = [(name, *(f"{count:,}" for count in line)) for name, line in zip(names, confusion, strict=False)]
        views += ["", TextTable(("true \\ predicted", *classes), rows)]
    result = tested.to_json()
    if classes and tested.pooled.rows:
        result |= majority_figures(tested)
        views += ["", _class_table(tested.classes_, tested.pooled)]
        views += ["", f"All sites: accuracy {tested.accuracy:.2%}, {majority_line(result)}."]
        if tested.accuracy < result["majority_share"]:
            views.append("The model is worse than always saying the same.")
        views += [] if result["alarm"] is None else [result["alarm"]]
    emit(result, as_json, *views)


def _class_table(classes: Any, pooled: Any) -> TextTable:
    """Recall, F1 and area under the ROC curve of each class, those with the smallest recall first where there are many.

    A dot where no row was of the class.
    """
    counts = pooled.confusion[:-1].sum(axis=1)
    ordered = list(zip(classes.tolist(), counts.tolist(), pooled.recall, pooled.f1, pooled.auc, strict=True))
    if len(ordered) > _SHOWN_CLASSES:
        ordered.sort(key=lambda line: 2.0 if line[2] != line[2] else line[2])
    rows = [(str(name), f"{count:,}", *("." if v != v else f"{v:.4f}" for v in line)) for name, count, *line in ordered]
    return TextTable(("class", "rows", "recall", "F1", "AUC"), rows).shortened(_SHOWN_CLASSES + 1)


# Coverage ---------------------------------------------------------------------------------------------------------


def conform(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="File to write the model with its coverage to.")],
    data: AsideFile = None,
    label: OptionalLabel = None,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    credentials: CredentialsFile = None,
    hub: HubAddress = "",
    min_replies: MinReplies = None,
    sum: Annotated[
        str | None, typer.Option("--sum", help="secure: a hub's sites add up under masks, and nobody sees a part.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="A hub's sites count with noise: epsilon of one row and its label.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of --epsilon; default 1e-5.")] = None,
    strangers: Annotated[
        bool,
        typer.Option("--strangers", help="With --epsilon, for a model with machines: p-values too, for more noise."),
    ] = False,
    json: Json = False,
) -> None:
    """Count scores of rows that were kept aside, so that `kernfed predict --coverage 0.9 --abstain 0.01` can answer.

    With --credentials the sites of a hub count, each on the rows that it keeps aside; with --epsilon under differential
    privacy, of a model that is whole, and with --sum secure one noise is enough for all of them.
    """
    from kernfed.federation import conform as conform_model
    from kernfed.federation import load, save
    from kernfed.jobs import jobs
    from kernfed.jobs.tables import TableFile, rows_by_site

    check_output("--out", out, *([] if data is None else [data]))
    loaded = load(model)
    if credentials is not None:
        refuse_with_hub({"--data": data, "--label": label, "--site": site, "--features": features, "--id": ids})
        noise = _counting_noise(epsilon, delta, strangers)
        with open_hub(credentials, hub) as federation, progress("counting at the sites"):
            asked = jobs.connected(loaded, federation)
            sure = conform_model(asked, federation, min_replies=min_replies, sum=sum, privacy=noise)
    else:
        _refuse_without_hub({"--sum": sum, "--epsilon": epsilon, "--delta": delta, "--strangers": strangers or None})
        data, label = require_rows(data, label)
        require_machines(loaded, model, "let them count with --credentials FILE of a hub")
        table = TableFile(data, features, label, site, ids).read_for(loaded)
        with progress(f"counting {len(table):,} rows"):
            sure = conform_model(loaded, holdout=rows_by_site(table))
    save(sure, out)
    _show_coverage(sure, out, json)


def _show_coverage(model: Any, out: Path, as_json: bool) -> None:
    """Print what a coverage was counted on, and what it promises where it was counted with noise."""
    from kernfed.jobs.jobs import privacy_statement

    record = model.conformal_
    result: dict[str, Any] = {"out": out, "rows": record.rows, "sites": record.sites, "missing": dict(record.missing)}
    views: list[TextTable | str] = [f"{name} is missing: {reason}" for name, reason in record.missing.items()]
    if record.privacy is not None:
        result["privacy"] = privacy_statement(record.privacy)
        views.append(str(record.privacy))
    else:
        rows = dict(zip(map(str, model.classes_.tolist()), record.counts[:-1].sum(axis=1).tolist(), strict=True))
        result |= {"unknown": record.unknown, "classes": rows}
        counted = TextTable(("class", "rows"), [(name, f"{count:,}") for name, count in rows.items()])
        views.insert(0, counted.shortened(20))
    emit(result, as_json, *views, f"{record}; wrote {out}")


def _counting_noise(epsilon: float | None, delta: float | None, strangers: bool) -> "RecordHistogram | None":
    """The mechanism of counts with noise, None without an epsilon."""
    if epsilon is None:
        if delta is not None or strangers:
            raise InputError("--delta and --strangers are for --epsilon; without it, leave them out")
        return None
    from kernfed.privacy import RecordHistogram

    return RecordHistogram(epsilon, 1e-5 if delta is None else delta, strangers)


def _refuse_without_hub(given: Mapping[str, Any]) -> None:
    """Refuse options ``{name: value}`` that are about sites, where the rows are here."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name} is for the sites of a hub (--credentials); rows of --data are counted as they are"
            )
