"""``kernfed predict``: labels for new rows."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, format_seconds, note, progress
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, MinReplies, predict_at_hub
from kernfed.cli.tables import Features, check_table_output, read_queries, require_machines
from kernfed.errors import InputError, RunFailed

EXAMPLE = "Example: kernfed predict model.kfd new.parquet --out pred.csv"
#: Columns that say who decided, and sites that are listed.
_EXPLAINED, _SHOWN = ("site", "batch", "score"), 20


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
    from kernfed.testing.calibration import sure_columns
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
        won = [(site, f"{share:.1%}") for site, share in list(result["shares"].items())[:_SHOWN]]
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
    from kernfed.cli.flower_run import predict_with_flower

    try:
        return predict_with_flower(app, model, rows, site=for_site)[0]
    except RunFailed as error:
        note(f"kernfed: {error}")
        raise typer.Exit(1) from None
