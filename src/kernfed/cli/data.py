"""``kernfed data``: data sets at hand, and tables divided among sites."""

import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, TextTable, emit
from kernfed.cli.running import Command
from kernfed.cli.tables import Label, Seed, check_table_output
from kernfed.errors import InputError

app = typer.Typer(name="data", help="Data sets at hand, and tables divided among sites.", no_args_is_help=True)
LIST_EXAMPLE = "Example: kernfed data list"
PARTITION_EXAMPLE = "Example: kernfed data partition --data emb.parquet --label y --sites 10 --out sites.csv"


class Kind(StrEnum):
    """Ways to divide a table."""

    DIRICHLET = "dirichlet"
    LABEL_SKEW = "label-skew"
    QUANTITY = "quantity"
    ONE_CLASS = "one-class"


#: Kinds of division for which an option does something.
_TAKERS = {
    "sites": (Kind.DIRICHLET, Kind.LABEL_SKEW, Kind.QUANTITY),
    "alpha": (Kind.DIRICHLET, Kind.QUANTITY),
    "share": (Kind.LABEL_SKEW,),
}


_TO_BRING = (
    "Files that you may bring, with what the papers have: x_train (train, features), y_train (train,) integers "
    "0 .. classes - 1, x_test (test, features), y_test (test,), and where groups are named group_train (train,), text "
    "or integers"
)


@app.command("list", cls=Command, epilog=LIST_EXAMPLE)
def list_data(json: Json = False) -> None:
    """Data sets that experiments use, and files to bring for others: what is here, and where to obtain the rest."""
    from dataclasses import asdict

    from kernfed.data import list_datasets
    from kernfed.data.datasets import folder_words, list_brought

    shipped, brought = list_datasets(), list_brought()
    rows = [
        (
            info.name,
            "yes" if info.available else "no",
            f"{info.n_train:,}",
            f"{info.n_test:,}",
            f"{info.n_features:,}",
            str(info.n_classes),
            info.origin,
        )
        for info in shipped
    ]
    head = ("name", "here", "train", "test", "features", "classes", "from")
    files = [
        (
            f"{info.name}.npz",
            "yes" if info.available else "no",
            _number(info.n_train),
            _number(info.n_test),
            f"{info.n_features:,}",
            str(info.n_classes),
            info.groups or ".",
            info.columns,
            info.origin,
        )
        for info in brought
    ]
    told = {
        "folder": folder_words(),
        "datasets": [asdict(info) for info in shipped],
        "files": [asdict(info) for info in brought],
    }
    emit(
        told,
        json,
        TextTable(head, rows),
        f"\n{_TO_BRING}",
        TextTable((*head[:-1], "groups", "columns", "from"), files),
        f"\nData folder: {folder_words()}",
    )


def _number(count: int | None) -> str:
    return "." if count is None else f"{count:,}"


@app.command("partition", cls=Command, epilog=PARTITION_EXAMPLE)
def partition(
    data: Annotated[Path, typer.Option("--data", help="Table with labels.")],
    label: Label,
    out: Annotated[Path, typer.Option(help="CSV or Parquet file to write: row, label and site.")],
    sites: Annotated[
        int | None, typer.Option(help="Number of sites; default 10, and one per label with one-class.", min=1)
    ] = None,
    kind: Annotated[Kind, typer.Option(help="How labels, or rows, are divided.")] = Kind.DIRICHLET,
    alpha: Annotated[
        float | None, typer.Option(help="Concentration of dirichlet and quantity, small is uneven; default 0.5.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of labels each site has, for label-skew; default 0.2.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Name a site for every row, as published studies do, to try a federation out."""
    import numpy as np

    from kernfed import data as kd

    for option, value in (("sites", sites), ("alpha", alpha), ("share", share)):
        if value is not None and kind not in _TAKERS[option]:
            raise InputError(
                f"--kind {kind} takes no --{option}, which is for {' or '.join(_TAKERS[option])}; leave it out"
            )
    check_table_output(out, data)
    count, concentration = sites or 10, 0.5 if alpha is None else alpha
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kd.IdentifierAmongFeatures)  # nothing is learned here
        table = kd.read_table(data, label=label)
    assert table.y is not None
    parts = {
        Kind.DIRICHLET: lambda y: kd.partition_dirichlet(y, count, concentration, seed),
        Kind.LABEL_SKEW: lambda y: kd.partition_label_skew(y, count, 0.2 if share is None else share, seed),
        Kind.QUANTITY: lambda y: kd.partition_quantity(y, count, concentration, seed),
        Kind.ONE_CLASS: kd.partition_one_class,
    }[kind](table.y)
    width = len(str(len(parts) - 1))
    names = np.empty(len(table), dtype=f"<U{5 + width}")
    for number, rows in enumerate(parts):
        names[rows] = f"site-{number:0{width}}"
    kd.write_table(out, {"row": np.arange(1, len(table) + 1), label: table.y, "site": names})
    shown = [
        (f"site-{number:0{width}}", f"{len(rows):,}", str(len(np.unique(table.y[rows]))))
        for number, rows in enumerate(parts[:20])
    ]
    sizes = {f"site-{number:0{width}}": len(rows) for number, rows in enumerate(parts)}
    more = f"and {len(parts) - 20} more sites; " if len(parts) > 20 else ""
    emit({"out": out, "sizes": sizes}, json, TextTable(("site", "rows", "labels"), shown), f"{more}wrote {out}")
