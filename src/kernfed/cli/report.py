"""``kernfed report``: one HTML page about a model, an audit or results."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import format_bytes
from kernfed.cli.console import Json, emit, progress
from kernfed.cli.model import Influence
from kernfed.cli.options import Features, RowIds, SiteColumn, check_output, require_sites, write_text
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.report.evidence import Evidence

EXAMPLE = "Example: kernfed report model.kfd --data test.parquet --label y --site hospital --out report.html"


def report(
    source: Annotated[Path, typer.Argument(help="Model file, JSON of an audit, or results (.jsonl or their folder).")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default report.html, or with --card model-card.md.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Table of rows with labels that the model was not trained on.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label in --data.")] = None,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    traffic: Annotated[Path | None, typer.Option(help="Record of traffic, as `traffic.save` writes it.")] = None,
    title: Annotated[str, typer.Option(help="Title of the page; default by what it is about.")] = "",
    card: Annotated[
        bool, typer.Option("--card", help="Of a model, a card in Markdown: what it is, data, privacy, figures, limits.")
    ] = False,
    influence: Influence = False,
    json: Json = False,
) -> None:
    """Write one HTML file that opens offline: figures with text alternatives, for phone, paper, light and dark."""
    from kernfed.report import read_source, write_html
    from kernfed.report.evidence import Evidence
    from kernfed.report.source import read_traffic

    kinds = (".md",) if card else (".html", ".htm")
    out = out if out is not None else Path("model-card.md" if card else "report.html")
    if out.suffix.lower() not in kinds:
        raise InputError(f"--out must end in {kinds[0]}, got {out}")
    check_output("--out", out, source, data, traffic)
    subject = read_source(source)
    if traffic is not None and subject.page is not None:
        raise InputError("--traffic is for models and audits, results have none; leave it out")
    sent = () if traffic is None else read_traffic(traffic)
    evidence = Evidence(traffic=sent)
    if data is not None:
        if subject.model is None or label is None:
            needed = "a model" if subject.model is None else "--label"
            raise InputError(f"--data needs {needed}: {source} is tested on labelled rows")
        columns = (features, label, site, ids)
        evidence = replace(_tested(subject.model, data, columns, influence), traffic=sent)
    elif any(option is not None for option in (label, site, features, ids)):
        raise InputError("--label, --site, --features and --id describe a table; name it with --data")
    elif influence:
        raise InputError("--influence compares answers for rows; name a table of them with --data")
    if card:
        _write_card(subject.model, evidence, title, out, json)
        return
    with progress("drawing"):
        page = subject.report(evidence, title)
        write_html(page, out)
    size = out.stat().st_size
    result = {
        "out": out,
        "kind": page.kind,
        "bytes": size,
        "figures": len(page.figures),
        "sections": [section.title for section in page.sections],
    }
    emit(result, json, f"wrote {out} ({format_bytes(size)}, {len(page.figures)} figures)")


def _write_card(model: Any, evidence: "Evidence", title: str, out: Path, json: bool) -> None:
    from kernfed.report.models import model_card

    if model is None:
        raise InputError("--card is for models; audits and results have pages of their own, leave it out")
    write_text(out, model_card(model, evidence, title=title))
    emit({"out": out, "kind": "card", "bytes": out.stat().st_size}, json, f"wrote {out}")


def _tested(
    model: Any, data: Path, columns: tuple[str | None, str, str | None, str | None], influence: bool
) -> "Evidence":
    """Evidence from a table of rows; a model whose machines are at its sites cannot answer from here."""
    from kernfed.jobs.jobs import asks_sites
    from kernfed.jobs.tables import TableFile, rows_by_site
    from kernfed.report import gather_evidence

    if asks_sites(model):
        raise InputError("the machines of this model are at its sites and cannot be asked from here: leave --data out")
    file = TableFile(data, *columns)
    require_sites(model, file.site)
    table = file.read_for(model)
    with progress(f"testing on {len(table):,} rows"):
        return gather_evidence(model, rows_by_site(table), influence=influence)
