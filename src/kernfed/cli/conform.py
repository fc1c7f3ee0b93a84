"""``kernfed conform``: a model that says what it does not know, from rows that it was not trained on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit, progress
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, MinReplies, conform_at_hub, refuse_with_hub
from kernfed.cli.privacy import statement
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
from kernfed.errors import InputError

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
