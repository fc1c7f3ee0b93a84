"""Commands that take a model file: ``kernfed predict``, ``kernfed evaluate`` and ``kernfed conform``."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, format_seconds, note, progress, statement
from kernfed.cli.hub_jobs import (
    CredentialsFile,
    HubAddress,
    MinReplies,
    conform_at_hub,
    evaluate_at_hub,
    predict_at_hub,
    refuse_with_hub,
)
from kernfed.cli.raw import majority_of, majority_words
from kernfed.cli.tables import (
    Features,
    OptionalLabel,
    RowIds,
    SiteColumn,
    check_output,
    check_table_output,
    read_queries,
    require_machines,
    require_rows,
    require_sites,
    rows_by_site,
)
from kernfed.errors import InputError, RunFailed

PREDICT_EXAMPLE = "Example: kernfed predict model.kfd new.parquet --out pred.csv"
#: Columns that say who decided, and sites that are listed.
_EXPLAINED, _SHOWN_SITES = ("site", "batch", "score"), 20


def predict(
    model: Annotated[Path, typer.Argument(help="Model file of `kernfed train` or `model.save`.")],
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
    from kernfed.testing.conforming import sure_columns
    from kernfed.testing.predictors import is_regressor, predictor_for

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
    table = read_queries(predictor, queries, features, ids=ids)
    started = time.perf_counter()
    with progress(f"predicting {len(table):,} rows"):
        if credentials is not None:
            columns = predict_at_hub(predictor, table.X, credentials, hub, min_replies, coverage, abstain)
        else:
            columns = _compute(predictor, table.X) if flower is None else _ask_sites(flower, model, table.X, for_site)
            columns |= sure_columns(predictor, table.X, coverage, abstain)
    seconds = time.perf_counter() - started
    if explain and "site" not in columns:
        raise InputError(f"--explain needs a federated folding model, {model} is a {type(predictor).__name__}")
    kept = {name: values for name, values in columns.items() if explain or name not in _EXPLAINED}
    if out is not None:
        numbers = np.arange(1, len(table) + 1) if table.ids is None else table.ids
        write_table(out, {"row" if ids is None else ids: numbers, **kept})
    first = next(iter(columns))
    tally, view = _summary(columns[first], not is_regressor(predictor))
    where = f"; wrote {out}" if out is not None else "; use --out FILE to keep them"
    result: dict[str, Any] = {"rows": len(table), "seconds": seconds, "out": out, **tally}
    views: list[TextTable | str] = [view]
    if "answer" in columns:
        result["abstained"] = int((columns["answer"] == "").sum())
        views.append(f"no answer to {result['abstained']:,} of {len(table):,} rows")
    if out is None:
        result["distances" if first == "distance" else "predictions"] = columns[first]
    if explain:
        result["shares"] = _shares(columns["site"])
        won = [(site, f"{share:.1%}") for site, share in list(result["shares"].items())[:_SHOWN_SITES]]
        views += ["", TextTable(("nearest site", "share of answers"), won)]
    emit(result, json, *views, f"{len(table):,} rows in {format_seconds(seconds)}{where}")


def _compute(model: Any, rows: Any) -> dict[str, Any]:
    """Columns of the output by what the model can do: predictions, or the distances of rows from a machine."""
    from kernfed.testing.predictors import answer_columns

    if hasattr(model, "distance"):
        return {"distance": model.distance(rows)}
    if hasattr(model, "answer"):
        return answer_columns(model.answer(rows), list(getattr(model, "classes_", ())))
    raise InputError(f"a {type(model).__name__} predicts nothing, expected a model of kernfed train or a machine")


def _shares(sites: Any) -> dict[str, float]:
    """Share of the rows (n,) that each site decided, the largest first."""
    import numpy as np

    names, counts = np.unique(sites, return_counts=True)
    return {str(names[place]): counts[place] / len(sites) for place in np.argsort(-counts, kind="stable")}


def _summary(predicted: Any, labelled: bool) -> tuple[dict[str, Any], TextTable]:
    """Rows by label, or quartiles of predicted values; as plain values and as a table."""
    import numpy as np

    if not labelled:
        places = (0, 25, 50, 75, 100)
        quartiles = np.percentile(predicted, places).tolist()
        named = {f"{place}%": value for place, value in zip(places, quartiles, strict=True)}
        return {"quartiles": named}, TextTable(("share below", "value"), [(k, f"{v:.4g}") for k, v in named.items()])
    labels, counts = np.unique(predicted, return_counts=True)
    tally = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    rows = [(str(name), f"{count:,}", f"{count / len(predicted):.1%}") for name, count in tally.items()]
    return {"counts": tally}, TextTable(("label", "rows", "share"), rows)


def _ask_sites(app: Path, model: Path, rows: Any, for_site: str) -> dict[str, Any]:
    """Columns of the output, from a run on a Flower deployment."""
    from kernfed.jobs.flower_run import predict_with_flower

    try:
        return predict_with_flower(app, model, rows, site=for_site, report=note)[0]
    except RunFailed as error:
        note(f"kernfed: {error}")
        raise typer.Exit(1) from None


EVALUATE_EXAMPLE = "Example: kernfed evaluate model.kfd --data test.parquet --label y --site hospital"
Influence = Annotated[
    bool, typer.Option("--influence", help="Leave each site out of the model, and name those that harm the others.")
]
Liars = Annotated[
    int | None,
    typer.Option(help="Of sites that count for --influence, how many may lie; default 1, with --data 0.", min=0),
]
#: Confusion matrices up to this many classes are printed.
_SHOWN_CLASSES = 20


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model file of `kernfed train` or `model.save`.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Table of rows with labels that were not trained on.")
    ] = None,
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
    from kernfed.testing.evaluation import evaluate_rows
    from kernfed.testing.influence import influence_rows
    from kernfed.testing.predictors import is_regressor
    from kernfed.testing.regression import regression_rows

    loaded = load(model)
    if credentials is not None:
        here = {"--data": data, "--label": label, "--site": site, "--features": features, "--id": ids}
        refuse_with_hub(here)
        _show(evaluate_at_hub(loaded, credentials, hub, min_replies, influence=influence, liars=liars), json)
        return
    data, label = require_rows(data, label)
    way = f"let them test it with --credentials FILE of a hub, or kernfed flower-run DIR evaluate --set model={model}"
    require_machines(loaded, model, way)
    require_sites(loaded, site)
    table = read_queries(loaded, data, features, label=label, site=site, ids=ids)
    test = regression_rows if is_regressor(loaded) else evaluate_rows
    rows = rows_by_site(table)
    with progress(f"testing on {len(table):,} rows"):
        tested: Any = test(loaded, rows)
        if influence:
            tested = replace(tested, influence=influence_rows(loaded, rows, liars=liars or 0))
    _show(tested, json)


def _show(tested: Any, as_json: bool) -> None:
    """Print a test: errors of a regressor, or accuracies and the confusion of a classifier."""
    views: list[TextTable | str] = [str(tested)]
    classes = [str(name) for name in getattr(tested, "classes_", ())]
    if classes and len(classes) <= _SHOWN_CLASSES:
        confusion = tested.pooled.confusion
        names = [*classes, "other"] if confusion[-1].any() else classes
        rows = [(name, *(f"{count:,}" for count in line)) for name, line in zip(names, confusion, strict=False)]
        views += ["", TextTable(("true \\ predicted", *classes), rows)]
    told = tested.to_json()
    if classes and tested.pooled.rows:
        told |= majority_of(tested)
        views += ["", _class_table(tested.classes_, tested.pooled)]
        views += ["", f"All sites: accuracy {tested.accuracy:.2%}, {majority_words(told)}."]
        if tested.accuracy < told["majority_share"]:
            views.append("The model is worse than always saying the same.")
        views += [] if told["alarm"] is None else [told["alarm"]]
    emit(told, as_json, *views)


def _class_table(classes: Any, pooled: Any) -> TextTable:
    """Recall, F1 and area under the ROC curve of each class, those with the smallest recall first where there are many.

    A dot where no row was of the class.
    """
    counts = pooled.confusion[:-1].sum(axis=1)
    ordered = list(zip(classes.tolist(), counts.tolist(), pooled.recall, pooled.f1, pooled.auc, strict=True))
    if len(ordered) > _SHOWN_CLASSES:
        ordered.sort(key=lambda line: 2.0 if line[2] != line[2] else line[2])
    rows = [(str(name), f"{count:,}", *("." if v != v else f"{v:.4f}" for v in own)) for name, count, *own in ordered]
    return TextTable(("class", "rows", "recall", "F1", "AUC"), rows).shortened(_SHOWN_CLASSES + 1)


CONFORM_EXAMPLE = "Example: kernfed conform model.kfd --data aside.parquet --label y --site hospital --out sure.kfd"


def conform(
    model: Annotated[Path, typer.Argument(help="Model file of `kernfed train` or `model.save`.")],
    out: Annotated[Path, typer.Option(help="File to write the model with its coverage to.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Table of rows with labels that were not trained on.")
    ] = None,
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

    check_output("--out", out, *([] if data is None else [data]))
    loaded = load(model)
    if credentials is not None:
        refuse_with_hub({"--data": data, "--label": label, "--site": site, "--features": features, "--id": ids})
        sure = conform_at_hub(loaded, credentials, hub, min_replies, sum, counting_noise(epsilon, delta, strangers))
    else:
        refuse_without_hub({"--sum": sum, "--epsilon": epsilon, "--delta": delta, "--strangers": strangers or None})
        data, label = require_rows(data, label)
        way = "let them count with --credentials FILE of a hub"
        require_machines(loaded, model, way)
        table = read_queries(loaded, data, features, label=label, site=site, ids=ids)
        with progress(f"counting {len(table):,} rows"):
            sure = conform_model(loaded, holdout=rows_by_site(table))
    save(sure, out)
    record = sure.conformal_
    told: dict[str, Any] = {"out": out, "rows": record.rows, "sites": record.sites, "missing": dict(record.missing)}
    missing = [f"{name} is missing: {reason}" for name, reason in record.missing.items()]
    if record.privacy is not None:
        emit(
            {**told, "privacy": statement(record.privacy)},
            json,
            *missing,
            f"{record.privacy}",
            f"{record}; wrote {out}",
        )
        return
    rows = dict(zip(map(str, sure.classes_.tolist()), record.counts[:-1].sum(axis=1).tolist(), strict=True))
    table_of_rows = TextTable(("class", "rows"), [(name, f"{count:,}") for name, count in rows.items()])
    result = {**told, "unknown": record.unknown, "classes": rows}
    emit(result, json, table_of_rows.shortened(20), *missing, f"{record}; wrote {out}")


def counting_noise(epsilon: float | None, delta: float | None, strangers: bool) -> Any:
    """The mechanism of counts with noise, None without an epsilon."""
    if epsilon is None:
        if delta is not None or strangers:
            raise InputError("--delta and --strangers are for --epsilon; without it, leave them out")
        return None
    from kernfed.privacy import RecordHistogram

    return RecordHistogram(epsilon, 1e-5 if delta is None else delta, strangers)


def refuse_without_hub(given: Mapping[str, Any]) -> None:
    """Refuse options ``{name: value}`` that are about sites, where the rows are here."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name} is for the sites of a hub (--credentials); rows of --data are counted as they are"
            )
