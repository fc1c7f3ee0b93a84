"""Options that several commands share, and what is refused before anything long is begun."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.errors import InputError, NotConnected

if TYPE_CHECKING:
    from kernfed.federation import Federation

ModelFile = Annotated[Path, typer.Argument(help="Model file of `kernfed train` or `model.save`.")]
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
PreparationOption = Annotated[
    str,
    typer.Option(
        "--preparation",
        help="auto (where columns are not all complete numbers), none, or a file of `kernfed prepare`.",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        help="Column of text to learn from: NAME, or NAME=ENCODER for a folder in KERNFED_ENCODERS; repeatable.",
    ),
]
CredentialsFile = Annotated[
    Path | None,
    typer.Option("--credentials", help="File of `kernfed hub add-caller`: the sites of that hub take part."),
]
HubAddress = Annotated[
    str, typer.Option("--hub", help="tls://HOST:PORT of the hub, where it is another than in the credentials.")
]
MinReplies = Annotated[int | None, typer.Option(help="Of a hub's sites, how many must answer; default all.", min=1)]
#: Seconds that a site is waited for of which no process is connected: it may be starting again. For answers, and for
#: longer work.
SHORT_PATIENCE, LONG_PATIENCE = 2.0, 30.0


# Outputs ----------------------------------------------------------------------------------------------------------


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


def check_page_output(option: str, path: Path | None, *inputs: Path | None) -> None:
    """Refuse a place where no page can be written, before anything long is begun."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".md"):
        raise InputError(f"{option} must end in .html or .md, got {path.name}")
    check_output(option, path, *inputs)


def write_text(place: Path, text: str) -> None:
    """Write a file of text, whole or not at all."""
    from kernfed.files import atomic_path

    with atomic_path(place) as temporary:
        temporary.write_text(text, encoding="utf-8")


# Rows here, or sites of a hub --------------------------------------------------------------------------------------


def open_hub(credentials: Path, hub: str, seed: int = 0, *, patience: float = LONG_PATIENCE) -> "Federation":
    """The sites of a hub, as a federation."""
    from kernfed.federation import Federation

    return Federation.nats(hub, credentials=credentials, seed=seed, patience=patience)


def refuse_with_hub(given: Mapping[str, Any]) -> None:
    """Refuse options ``{name: value}`` that are about rows here, where the rows are at the sites."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for rows on this machine; with --credentials the sites have their own")


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
    from kernfed.jobs.jobs import asks_sites

    if asks_sites(model):
        raise NotConnected(
            f"{path}: the machines of this model are at its sites: {way}, or train it with hold=machines"
        )


def text_encoders(given: list[str] | None, preparation: str) -> dict[str, str]:
    """Encoders of columns of text by column; refused where a preparation that is there already decides."""
    from kernfed.data.encoders import USUAL_ENCODER, find_encoder

    if given and preparation != "auto":
        raise InputError("--text is for --preparation auto; a file of `kernfed prepare --text` says it itself")
    texts = {}
    for word in given or []:
        column, _, encoder = word.partition("=")
        texts[column] = find_encoder(encoder or USUAL_ENCODER).name
    return texts
