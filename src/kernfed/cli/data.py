"""Commands about tables: ``kernfed data``, ``kernfed prepare`` and ``kernfed embed``."""

import time
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.command import Command
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import (
    DataFile,
    Features,
    Label,
    RowIds,
    Seed,
    SiteColumn,
    TextColumns,
    check_output,
    check_outputs,
    check_table_output,
    text_encoders,
)
from kernfed.errors import InputError

app = typer.Typer(name="data", help="Data sets at hand, and tables divided among sites.", no_args_is_help=True)
LIST_EXAMPLE = "Example: kernfed data list"
PARTITION_EXAMPLE = "Example: kernfed data partition --data emb.parquet --label y --sites 10 --out sites.csv"


class Kind(StrEnum):
    """How rows of a table are divided among sites."""

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
    result = {
        "folder": folder_words(),
        "datasets": [asdict(info) for info in shipped],
        "files": [asdict(info) for info in brought],
    }
    emit(
        result,
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


PREPARE_EXAMPLE = """\
Example: kernfed prepare --data patients.csv --label readmitted --site hospital --out preparation.toml

With an order of words: kernfed prepare --data patients.csv --label readmitted --ordered "severity=mild<severe"
"""


def prepare(
    data: DataFile,
    label: Annotated[str | None, typer.Option(help="Column of the label, which is not prepared.")] = None,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    ordered: Annotated[
        list[str] | None, typer.Option(help='Words of a column in order: "severity=mild<moderate<severe"; repeatable.')
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Of a column against what would be chosen: name=category, number or drop; repeatable."),
    ] = None,
    text: TextColumns = None,
    min_rows: Annotated[int, typer.Option(help="Rows that a word needs to have a column of its own.", min=1)] = 10,
    out: Annotated[Path | None, typer.Option(help="TOML file to write, for `kernfed train --preparation`.")] = None,
    json: Json = False,
) -> None:
    """Say what would be done with every column and why, from statistics that sites would add up; nothing is trained.

    With --site also which site's column looks to be in another unit.
    """
    import numpy as np

    from kernfed.data import Preparation, Rules, read_raw_table
    from kernfed.data.preparation_choice import suspect_units
    from kernfed.data.preparation_statistics import MIN_ROWS, TableStatistics
    from kernfed.jobs.tables import site_places

    check_outputs({"--out": out}, data)
    rules = Rules(
        min_rows, ordered=_orders(ordered or []), kinds=_pairs("--kind", kind or []), texts=text_encoders(text, "auto")
    )
    with progress(f"reading {data}"):
        table = read_raw_table(data, features=features, label=label, site=site, ids=ids)
        every = np.arange(len(table))
        statistics = {
            name: TableStatistics.of(table.take(every[rows]), min_rows=MIN_ROWS, categories=rules.categories)
            for name, rows in sorted(site_places(table.site).items())
        }
    preparation = Preparation.from_statistics(statistics.values(), rules)
    if out is not None:
        preparation.save(out)
    suspicions = suspect_units(statistics)
    counts = {plan.name: len(plan.outputs()) for plan in preparation.plans}
    rows = [(name, kind, f"{counts[name]}", what, why) for name, kind, what, why in preparation.summary()]
    result = {
        "rows": len(table),
        "sites": len(statistics),
        "columns": [dict(zip(("name", "kind", "made", "what", "why"), row, strict=True)) for row in rows],
        "features": preparation.columns,
        "units": [vars(suspicion) for suspicion in suspicions],
        "out": out,
    }
    where = f"; wrote {out}" if out is not None else "; use --out FILE to write it down and edit it"
    emit(
        result,
        json,
        TextTable(("column", "kind", "columns", "what is done", "why"), rows),
        "",
        f"{len(table):,} rows of {len(statistics)} site(s), {len(preparation.plans)} columns: "
        f"{len(preparation.columns)} to learn from{where}",
    )
    for suspicion in suspicions:
        note(f"kernfed: warning: {suspicion}")


def _orders(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Ordered words by column, of texts such as "severity=mild<severe"."""
    return {
        name: tuple(word.strip() for word in words.split("<")) for name, words in _pairs("--ordered", given).items()
    }


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise InputError(f"{option} must be column=..., got {text!r}")
        pairs[name.strip()] = value.strip()
    return pairs


EMBED_EXAMPLE = """Example: kernfed embed --data posts.csv --text post --out posts.parquet

By a folder of model2vec or sentence-transformers: kernfed embed --data posts.csv --text post --encoder models/minilm
--out posts.parquet

Images, by a folder of timm: kernfed embed --data scans.csv --images file --encoder models/effnet --out s.parquet"""


def embed(
    data: DataFile,
    out: Annotated[Path, typer.Option(help="Parquet file to write: all other columns, and the vectors.")],
    text: Annotated[str | None, typer.Option(help="Column of text.")] = None,
    images: Annotated[str | None, typer.Option(help="Column of paths of images, from the folder of --data on.")] = None,
    encoder: Annotated[
        str,
        typer.Option(help="words, or a folder of model2vec, sentence-transformers or timm."),
    ] = "",
    json: Json = False,
) -> None:
    """Encode a column without a network; interrupted, the same command goes on where it was.

    The vectors take the place of the column, under its name. Which encoder made them, with its fingerprint, is told by
    the file (Parquet metadata) and on the last line.
    """
    import pyarrow.parquet

    from kernfed.data.columns import read_arrow
    from kernfed.data.encoders import encode_in_parts, remove_parts
    from kernfed.files import atomic_path

    if (text is None) == (images is None):
        raise InputError("say either --text COLUMN or --images COLUMN")
    if out.suffix.lower() != ".parquet":
        raise InputError(f"--out must end in .parquet, got {out}")
    check_output("--out", out, data)
    column = text or images or ""
    if not data.is_file():
        raise InputError(f"{data}: there is no such file")
    table = read_arrow(data)
    if column not in table.column_names:
        raise InputError(f"{data}: there is no column {column!r}; there are {', '.join(table.column_names[:20])}")
    chosen = _encoder(encoder, None if images is None else data.parent)
    cells = ["" if cell is None else str(cell) for cell in table.column(column).to_pylist()]
    parts = out.with_name(f"{out.name}.parts")
    started = time.perf_counter()
    with progress(f"encoding {column!r}", len(cells)) as advance:
        vectors = encode_in_parts(chosen, cells, parts, advance)
    written = _with_vectors(table, column, vectors, chosen)
    with atomic_path(out) as temporary:
        pyarrow.parquet.write_table(written, temporary)
    remove_parts(parts)
    seconds, size = time.perf_counter() - started, out.stat().st_size
    result = {"rows": len(cells), "width": chosen.width, "encoder": chosen.name, "digest": chosen.digest}
    emit(
        {**result, "seconds": seconds, "out": out, "bytes": size},
        json,
        f"{len(cells):,} rows as vectors of {chosen.width} numbers by encoder {chosen.name!r} ({chosen.digest}) in "
        f"{format_seconds(seconds)}; wrote {out} ({format_bytes(size)})",
    )


def _encoder(name: str, pictures: Path | None) -> Any:
    """The encoder of a name or a folder; ``pictures`` is where paths of images begin."""
    from kernfed.data.encoders import USUAL_ENCODER, find_encoder, open_encoder

    folder = Path(name)
    is_folder = bool(name) and folder.is_dir()
    if pictures is not None:
        from kernfed.data.encoders import ImageEncoder

        if not is_folder:
            raise InputError(f"--images needs --encoder FOLDER, a folder of timm, got {name!r}")
        return ImageEncoder(folder, pictures)
    return open_encoder(folder) if is_folder else find_encoder(name or USUAL_ENCODER)


def _with_vectors(table: Any, column: str, vectors: Any, encoder: Any) -> Any:
    """The Arrow table with vectors (n, w) in place of a column; its metadata says what they are."""
    import pyarrow as pa

    flat = pa.array(vectors.ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    metadata = {b"kernfed.encoder": encoder.name.encode(), b"kernfed.encoder.digest": encoder.digest.encode()}
    made = table.set_column(table.column_names.index(column), column, lists)
    return made.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
