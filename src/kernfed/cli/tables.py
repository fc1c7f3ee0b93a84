"""What commands that read a table share: the options, and rows by site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kernfed.data import Table

DataFile = Annotated[Path, typer.Option("--data", help="Table: Parquet, Arrow, CSV or npz.")]
Features = Annotated[
    str | None,
    typer.Option(help="One list column, a range f0:f127, or names with commas; default every numeric column left."),
]
Label = Annotated[str, typer.Option(help="Column of the label.")]
SiteColumn = Annotated[str | None, typer.Option("--site", help="Column that names each row's site; default one site.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.", min=0)]
Measure = Annotated[str, typer.Option(help="rms, product, min, max, euclidean, cosine or distance.")]
BatchSize = Annotated[int, typer.Option(help="Rows per machine, about.", min=1)]
Partition = Annotated[str, typer.Option(help="How a class is divided into machines: order, random or kmeans.")]
#: Name of the only site where no column names sites.
ONE_SITE = "all"


def rows_by_site(table: "Table") -> dict[str, tuple[Any, Any]]:
    """``{site: (X, y)}`` of a table that has labels."""
    from kernfed.data import partition_by_column

    if table.site is None:
        return {ONE_SITE: (table.X, table.y)}
    assert table.y is not None
    return {str(name): (table.X[rows], table.y[rows]) for name, rows in partition_by_column(table.site).items()}


def read_queries(model: Any, path: Path, features: str | None, *, label: str | None = None, site: str | None = None,
                 ids: str | None = None) -> "Table":  # fmt: skip
    """Table of queries with the columns a model was trained on, in their order, unless ``features`` names others."""
    from kernfed.data import read_table

    columns = list(getattr(model, "columns", ())) or list(getattr(model, "feature_names_in_", ()))
    if features is None and columns and path.suffix != ".npz" and not any("[" in name for name in columns):
        return read_table(path, features=columns, label=label, site=site, ids=ids)
    table = read_table(path, features=features or _list_column(columns), label=label, site=site, ids=ids)
    width = getattr(model, "width", None) or getattr(model, "n_features_in_", table.X.shape[1])
    if table.X.shape[1] != width:
        raise ValueError(f"{path}: the model has {width} features, the table has {table.X.shape[1]}; see --features")
    return table


def _list_column(columns: list[str]) -> str | None:
    """The list columns behind names such as ``emb[0]``, with commas."""
    names = list(dict.fromkeys(name.rsplit("[", 1)[0] for name in columns if "[" in name))
    return ",".join(names) or None
