"""``kernfed evaluate``: accuracy, confusion and calibration of a model, or the errors of a regressor, per site."""

from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, TextTable, emit, progress
from kernfed.cli.tables import (
    Features,
    Label,
    RowIds,
    SiteColumn,
    read_queries,
    require_machines,
    require_sites,
    rows_by_site,
)

EXAMPLE = "Example: kernfed evaluate model.kfd --data test.parquet --label y --site hospital"
#: Confusion matrices up to this many classes are printed.
_SHOWN_CLASSES = 20


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model file of `kernfed train` or `model.save`.")],
    data: Annotated[Path, typer.Option("--data", help="Table of rows with labels that were not trained on.")],
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    json: Json = False,
) -> None:
    """Test a model on labelled rows, site by site and all together; a personalised one by each site's own predictor."""
    from kernfed.federation import load
    from kernfed.federation.testing.evaluation import evaluate_rows
    from kernfed.federation.testing.predictors import is_regressor
    from kernfed.federation.testing.regression import regression_rows

    loaded = load(model)
    require_machines(loaded, model, f"let them test it with kernfed flower-run DIR evaluate --set model={model}")
    require_sites(loaded, site)
    table = read_queries(loaded, data, features, label=label, site=site, ids=ids)
    if is_regressor(loaded):
        with progress(f"testing on {len(table):,} rows"):
            errors = regression_rows(loaded, rows_by_site(table))
        emit(errors.to_json(), json, str(errors))
        return
    with progress(f"testing on {len(table):,} rows"):
        tested = evaluate_rows(loaded, rows_by_site(table))
    classes = [str(name) for name in tested.classes_]
    views: list[TextTable | str] = [str(tested)]
    if len(classes) <= _SHOWN_CLASSES:
        confusion = tested.pooled.confusion
        names = [*classes, "other"] if confusion[-1].any() else classes
        rows = [(name, *(f"{count:,}" for count in line)) for name, line in zip(names, confusion, strict=False)]
        views += ["", TextTable(("true \\ predicted", *classes), rows)]
    emit(tested.to_json(), json, *views)
