"""``kernfed embed``: a column of text, or of paths of images, as a column of vectors."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, emit, format_bytes, format_seconds, progress
from kernfed.cli.tables import DataFile, check_output
from kernfed.errors import InputError

EXAMPLE = """Example: kernfed embed --data posts.csv --text post --out posts.parquet

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
    told = {"rows": len(cells), "width": chosen.width, "encoder": chosen.name, "digest": chosen.digest}
    emit(
        {**told, "seconds": seconds, "out": out, "bytes": size},
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
    told = {b"kernfed.encoder": encoder.name.encode(), b"kernfed.encoder.digest": encoder.digest.encode()}
    made = table.set_column(table.column_names.index(column), column, lists)
    return made.replace_schema_metadata({**(table.schema.metadata or {}), **told})
