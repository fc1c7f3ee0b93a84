"""``kernfed evaluate``: accuracy, confusion and calibration of a model, or the errors of a regressor, per site."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, progress
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, MinReplies, evaluate_at_hub, refuse_with_hub
from kernfed.cli.raw import majority_of, majority_words
from kernfed.cli.tables import (
    Features,
    OptionalLabel,
    RowIds,
    SiteColumn,
    read_queries,
    require_machines,
    require_rows,
    require_sites,
    rows_by_site,
)

EXAMPLE = "Example: kernfed evaluate model.kfd --data test.parquet --label y --site hospital"
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
    from kernfed.testing.evaluation import evaluate_rows, regression_rows
    from kernfed.testing.influence import influence_rows
    from kernfed.testing.predictors import is_regressor

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
