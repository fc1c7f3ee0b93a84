"""``kernfed conform``: a model that says what it does not know, from rows that it was not trained on."""

from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, TextTable, emit, progress
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, MinReplies, conform_at_hub, refuse_with_hub
from kernfed.cli.tables import (
    Features,
    OptionalLabel,
    RowIds,
    SiteColumn,
    check_output,
    read_queries,
    require_machines,
    require_rows,
    rows_by_site,
)

EXAMPLE = "Example: kernfed conform model.kfd --data aside.parquet --label y --site hospital --out sure.kfd"


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
    json: Json = False,
) -> None:
    """Count scores of rows that were kept aside, so that `kernfed predict --coverage 0.9 --abstain 0.01` can answer.

    With --credentials the sites of a hub count, each on the rows that it keeps aside.
    """
    from kernfed.federation import conform as conform_model
    from kernfed.federation import load, save

    check_output("--out", out, *([] if data is None else [data]))
    loaded = load(model)
    if credentials is not None:
        refuse_with_hub({"--data": data, "--label": label, "--site": site, "--features": features, "--id": ids})
        sure = conform_at_hub(loaded, credentials, hub, min_replies)
    else:
        data, label = require_rows(data, label)
        way = "let them count with --credentials FILE of a hub"
        require_machines(loaded, model, way)
        table = read_queries(loaded, data, features, label=label, site=site, ids=ids)
        with progress(f"counting {len(table):,} rows"):
            sure = conform_model(loaded, holdout=rows_by_site(table))
    save(sure, out)
    record = sure.conformal_
    classes = sure.classes_.tolist()
    rows = dict(zip(map(str, classes), record.counts[:-1].sum(axis=1).tolist(), strict=True))
    result = {
        "out": out,
        "rows": record.rows,
        "unknown": record.unknown,
        "sites": record.sites,
        "missing": dict(record.missing),
        "classes": rows,
    }
    table_of_rows = TextTable(("class", "rows"), [(name, f"{count:,}") for name, count in rows.items()])
    missing = [f"{name} is missing: {reason}" for name, reason in record.missing.items()]
    emit(result, json, table_of_rows.shortened(20), *missing, f"{record}; wrote {out}")
