"""``kernfed predict``: labels for new rows."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, Table, emit, format_seconds, note, progress
from kernfed.cli.tables import Features, check_table_output, read_queries
from kernfed.errors import InputError, RunFailed

EXAMPLE = "Example: kernfed predict model.kfd new.parquet --out pred.csv"


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
    flower: Annotated[
        Path | None, typer.Option(help="Folder of `kernfed flower-app`: the sites of its deployment answer.")
    ] = None,
    json: Json = False,
) -> None:
    """Predict the label of every row, with its probability."""
    import numpy as np

    from kernfed.data import write_table
    from kernfed.federation import load
    from kernfed.federation.testing.predictors import is_regressor, predictor_for

    if out is not None:
        check_table_output(out, model, queries)
    loaded = predictor_for(load(model), for_site, "--for-site")
    labelled = not is_regressor(loaded)
    table = read_queries(loaded, queries, features, ids=ids)
    started = time.perf_counter()
    shares: dict[str, float] = {}
    with progress(f"predicting {len(table):,} rows"):
        columns = {"row" if ids is None else ids: np.arange(1, len(table) + 1) if table.ids is None else table.ids}
        if flower is not None:
            columns |= _ask_sites(flower, model, table.X, for_site, explain)
        else:
            columns["prediction"] = loaded.predict(table.X)
        if flower is None and labelled:
            columns["probability"] = loaded.predict_proba(table.X).max(axis=1)
        if flower is None and explain:
            if not hasattr(loaded, "explain"):
                raise InputError(f"--explain needs a federated folding model, {model} is a {type(loaded).__name__}")
            found = loaded.explain(table.X)
            columns |= {"site": found.site, "batch": found.batch, "score": found.score}
            shares = found.shares()
    seconds = time.perf_counter() - started
    if out is not None:
        write_table(out, columns)
    tally, view = _summary(columns["prediction"], labelled)
    where = f"; wrote {out}" if out is not None else "; use --out FILE to keep them"
    result: dict[str, Any] = {"rows": len(table), "seconds": seconds, "out": out, **tally}
    if out is None:
        result["predictions"] = columns["prediction"]
    views: list[Table | str] = [view]
    if shares:
        result["shares"] = shares
        won = [(site, f"{share:.1%}") for site, share in list(shares.items())[:20]]
        views += ["", Table(("nearest site", "share of answers"), won)]
    emit(result, json, *views, f"{len(table):,} rows in {format_seconds(seconds)}{where}")


def _summary(predicted: Any, labelled: bool) -> tuple[dict[str, Any], Table]:
    """Rows by label, or quartiles of predicted values; as plain values and as a table."""
    import numpy as np

    if not labelled:
        places = (0, 25, 50, 75, 100)
        found = np.percentile(predicted, places).tolist()
        named = {f"{place}%": value for place, value in zip(places, found, strict=True)}
        return {"quartiles": named}, Table(("share below", "value"), [(k, f"{v:.4g}") for k, v in named.items()])
    labels, counts = np.unique(predicted, return_counts=True)
    tally = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    rows = [(str(name), f"{count:,}", f"{count / len(predicted):.1%}") for name, count in tally.items()]
    return {"counts": tally}, Table(("label", "rows", "share"), rows)


def _ask_sites(app: Path, model: Path, rows: Any, for_site: str, explain: bool) -> dict[str, Any]:
    """Columns of the output, from a run on a Flower deployment."""
    from kernfed.cli.flower_run import predict_with_flower

    try:
        found, _ = predict_with_flower(app, model, rows, site=for_site)
    except RunFailed as error:
        note(f"kernfed: {error}")
        raise typer.Exit(1) from None
    wanted = ("prediction", "probability", *(("site", "batch", "score") if explain else ()))
    return {name: found[name] for name in wanted if name in found}
