"""What commands that read a table share: the options, and rows by site."""

import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.errors import InputError, NotConnected

if TYPE_CHECKING:
    from kernfed.data import Preparation, RawTable, Table

DataFile = Annotated[Path, typer.Option("--data", help="Table: Parquet, Arrow, CSV or npz.")]
Features = Annotated[
    str | None,
    typer.Option(
        help="One list column, a range f0:f127, or names with commas; default every numeric column left, "
        "without row numbers such as a pandas index."
    ),
]
Label = Annotated[str, typer.Option(help="Column of the label.")]
OptionalDataFile = Annotated[Path | None, typer.Option("--data", help="Table: Parquet, Arrow, CSV or npz.")]
OptionalLabel = Annotated[str | None, typer.Option("--label", help="Column of the label.")]
SiteColumn = Annotated[str | None, typer.Option("--site", help="Column that names each row's site; default one site.")]
RowIds = Annotated[
    str | None, typer.Option("--id", help="Column that names rows, in ledgers of releases too, and is no feature.")
]
Persons = Annotated[str | None, typer.Option("--person", help="Column that says whose row it is, and is no feature.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.", min=0)]
#: Name of the only site where no column names sites.
ONE_SITE = "all"
_NUMBER_AT_END = re.compile(r"(\d{1,9})(\]?)\Z")


def columns_line(table: "Table") -> str:
    """Which columns are learned from and which were left out, on one line; numbered neighbours as first ... last."""
    from kernfed.data.table import shortened

    runs: list[list[str]] = []
    for name in table.columns:
        if runs and name == _next_name(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    named = [f"{run[0]!r} ... {run[-1]!r}" if len(run) > 2 else ", ".join(map(repr, run)) for run in runs]
    left_out = [f"{name!r} ({why})" for name, why in table.left_out.items()]
    line = f"{len(table.columns):,} feature{'' if len(table.columns) == 1 else 's'}: {shortened(named, 10)}"
    return f"{line}; left out: {shortened(left_out, 10)}" if left_out else line


def _next_name(name: str) -> str | None:
    """The name that counts on from this one: f10 after f9, emb[10] after emb[9]."""
    number = _NUMBER_AT_END.search(name)
    if number is None:
        return None
    return f"{name[: number.start()]}{int(number[1]) + 1:0{len(number[1])}}{number[2]}"


def check_output(option: str, path: Path, *inputs: Path | None) -> None:
    """Refuse a place where no file can be written or where an input lies, before anything long is begun."""
    if path.is_symlink():  # a file takes the place of the link itself, which may be /dev/stdout
        raise InputError(f"{option} must be a file, {path} is a link; name the file it leads to")
    if path.exists() and not path.is_file():
        raise InputError(f"{option} must be a file, {path} is {'a folder' if path.is_dir() else 'something else'}")
    if not path.parent.is_dir():
        raise InputError(f"{option}: folder {path.parent} does not exist; make it first")
    for read in inputs:
        if read is not None and read.exists() and path.exists() and path.samefile(read):
            raise InputError(f"{option} must not be a file that is read, got {path} for both")
    try:  # named as atomic_path will name it
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part"):
            pass
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written: {error.strerror}") from None


def check_outputs(places: Mapping[str, Path | None], *inputs: Path | None) -> None:
    """Refuse places ``{option: file}`` as :func:`check_output` does, and two options for one file."""
    options: dict[Path, str] = {}
    for option, path in places.items():
        if path is None:
            continue
        other = options.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"{other} and {option} must be two files, got {path} for both")
        check_output(option, path, *inputs)


def check_table_output(path: Path, *inputs: Path) -> None:
    """Refuse a place where no table can be written, before anything long is begun."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out must end in .csv or .parquet, got {path}")
    check_output("--out", path, *inputs)


def read_rows(path: Path, *, features: str | None, label: str, site: str | None, ids: str | None) -> "Table":
    """Table to learn from; where ids are read they name every row of a site once."""
    from kernfed.data import read_table

    table = read_table(path, features=features, label=label, site=site, ids=ids)
    check_ids(table.ids, table.site)
    return table


def check_ids(ids: Any, site: Any) -> None:
    """Refuse ids (n,) of which one names two rows of a site."""
    import numpy as np

    if ids is None:
        return
    for name, rows in site_places(site).items():
        named, counts = np.unique(ids[rows], return_counts=True)
        if counts.max() > 1:
            raise InputError(
                f"--id must name every row of a site once, {str(named[counts.argmax()])!r} names "
                f"{counts.max()} rows of site {name!r}"
            )


def raw_rows_by_site(table: "RawTable") -> dict[str, Any]:
    """``{site: (raw table, y)}``, or ``{site: (raw table, y, ids)}`` where a column names the rows."""
    import numpy as np

    numbers = None if table.ids is None else row_numbers(table.ids)
    every = np.arange(len(table))
    parts: dict[str, Any] = {}
    for name, rows in site_places(table.site).items():
        own = table.take(every[rows])
        parts[name] = (own, own.y) if numbers is None else (own, own.y, numbers[rows])
    return parts


def prepared_table(table: "RawTable", preparation: "Preparation") -> "Table":
    """The matrix of a raw table, with all that describes its rows."""
    from kernfed.data import Table

    X, columns = preparation.apply(table)
    described = (table.y, table.site, table.ids)
    return Table(X, *described, columns, Path(table.source), table.label, preparation.left_out, table.persons)


def rows_by_site(table: "Table") -> dict[str, tuple[Any, Any]]:
    """``{site: (X, y)}`` of a table that has labels."""
    assert table.y is not None
    return {name: (table.X[rows], table.y[rows]) for name, rows in _places(table).items()}


def named_rows_by_site(table: "Table") -> dict[str, Any]:
    """``{site: (X, y)}``, or ``{site: (X, y, ids)}`` where a column names the rows."""
    if table.ids is None:
        return dict(rows_by_site(table))
    numbers, places = row_numbers(table.ids), _places(table)
    return {name: (X, y, numbers[places[name]]) for name, (X, y) in rows_by_site(table).items()}


def row_numbers(ids: Any) -> Any:
    """Integers for the names of rows (n,): themselves, or 63 bits of a hash, so that the same name is the same row."""
    import numpy as np

    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    digests = (hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in ids.tolist())
    return np.frombuffer(b"".join(digests), dtype="<i8") & 0x7FFFFFFFFFFFFFFF


def _places(table: "Table") -> dict[str, Any]:
    """Which rows of a table are each site's."""
    return site_places(table.site)


def site_places(site: Any) -> dict[str, Any]:
    """Which rows are each site's, of the names (n,) of their sites, or None where there is one."""
    from kernfed.data import partition_by_column

    if site is None:
        return {ONE_SITE: slice(None)}
    return {str(name): rows for name, rows in partition_by_column(site).items()}


def require_rows(data: Path | None, label: str | None) -> tuple[Path, str]:
    """The table and its column of labels, which are needed where no hub's sites take part."""
    for option, value in (("--data", data), ("--label", label)):
        if value is None:
            raise InputError(f"Missing option '{option}', or --credentials for the sites of a hub")
    assert data is not None
    assert label is not None
    return data, label


def require_sites(model: Any, column: str | None) -> None:
    """Refuse to test a personalised model without the column of the sites, or one that has weights alone."""
    from kernfed.testing.predictors import is_personal

    if is_personal(model):
        model.for_site(model.sites[0])
        if column is None:
            raise InputError(
                f"the model has a predictor for each site, such as {model.sites[0]!r}: name the column of "
                "the sites with --site COLUMN"
            )


def require_machines(model: Any, path: Path, way: str) -> None:
    """Refuse a model whose machines are at its sites, where nobody can ask them; ``way`` is how they are asked."""
    if getattr(model, "hold", "machines") == "sites":
        raise NotConnected(
            f"{path}: the machines of this model are at its sites: {way}, or train it with hold=machines"
        )


def read_queries(
    model: Any,
    path: Path,
    features: str | None,
    *,
    label: str | None = None,
    site: str | None = None,
    ids: str | None = None,
) -> "Table":
    """Table of queries with the columns of a model, or of a table, in their order, unless ``features`` names others."""
    from kernfed.data import read_raw_table, read_table
    from kernfed.data.columns import RAW_SUFFIXES

    preparation = getattr(model, "preparation", None)
    if preparation is not None and path.suffix.lower() in RAW_SUFFIXES:
        if features is not None:
            raise InputError("--features is for models of numbers, this one prepares the columns it was trained on")
        raw = read_raw_table(path, features=list(preparation.used), label=label, site=site, ids=ids)
        return prepared_table(raw, preparation)
    columns = list(getattr(model, "feature_names_in_", ()) or getattr(model, "columns", ()))
    if (
        features is None
        and columns
        and path.suffix.lower() not in (".npz", ".npy")
        and not any("[" in name for name in columns)
    ):
        return read_table(path, features=columns, label=label, site=site, ids=ids)
    table = read_table(path, features=features or _list_column(columns), label=label, site=site, ids=ids)
    width = getattr(model, "n_features_in_", table.X.shape[1])
    if table.X.shape[1] != width:
        raise InputError(f"{path}: the model has {width} features, the table has {table.X.shape[1]}; see --features")
    return table


def _list_column(columns: list[str]) -> str | None:
    """The list columns behind names such as ``emb[0]``, with commas."""
    names = list(dict.fromkeys(name.rsplit("[", 1)[0] for name in columns if "[" in name))
    return ",".join(names) or None
