"""``kernfed audit``: what attacks achieve against a release or a model, held against the stated guarantee."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.console import Json, Table, emit, note, progress
from kernfed.cli.privacy import (
    Basis,
    Bounds,
    Change,
    Delta,
    Dimension,
    Epsilon,
    Privacy,
    Radius,
    make_learner,
    make_mechanism,
)
from kernfed.cli.tables import Features, Label, Seed, read_queries

if TYPE_CHECKING:
    from kernfed.privacy import AuditReport

EXAMPLE = """Example: kernfed audit --data rows.parquet --label y --privacy record-gaussian --epsilon 3 --radius 1
--page audit.md

Of a model: kernfed audit --model model.kfd --data members.parquet --others others.parquet --label y"""


def audit(
    data: Annotated[Path, typer.Option("--data", help="Table of rows to protect; with --model those it was made of.")],
    label: Label,
    others: Annotated[
        Path | None,
        typer.Option(help="Table of rows of the same kind that are not in the data; default half of --data."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Audit the answers of this model file instead of a mechanism.")
    ] = None,
    features: Features = None,
    privacy: Privacy = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Bounds = None,
    d: Change = None,
    radius: Radius = None,
    dimension: Dimension = None,
    basis: Basis = "random",
    trials: Annotated[int, typer.Option(help="Attempts of each attack and of the bound on epsilon.", min=20)] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of intervals and bounds.")] = 0.95,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write with everything found.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page for the privacy officer to write, .md or .html.")] = None,
    json: Json = False,
) -> None:
    """Attack a release, or a model's answers, and say whether what is found contradicts the stated guarantee.

    The attacks see raw rows: give their figures only to those who may. Exit code 1 means that it is contradicted.
    """
    from kernfed.federation.auditing import audit_mechanism
    from kernfed.privacy import officer_page

    if page is not None and page.suffix not in (".md", ".html"):
        raise ValueError(f"--page must end in .md or .html, got {page.name}")
    given = {"privacy": privacy, "epsilon": epsilon, "delta": delta, "bounds": bounds, "d": d, "radius": radius,
             "dimension": dimension, "basis": basis}  # fmt: skip
    options: dict[str, Any] = {"confidence": confidence, "seed": seed}
    traffic = None
    if model is not None:
        if privacy is not None or others is None:
            raise ValueError("--model takes --others, rows it was not made of, and no --privacy: it says its own")
        report = _audit_file(model, data, others, features, label, options)
    else:
        if privacy is None:
            raise ValueError(
                "give --privacy with its options to audit a mechanism, or --model to audit a model's answers"
            )
        inside, outside = _populations(data, others, features, label, seed)
        mechanism = make_mechanism(given, inside.X.shape[1])
        learner = make_learner(mechanism, inside, {}, batch_size=None, smoothing="coupled_bootstrap")
        with progress("attacking"):
            report, traffic = audit_mechanism(
                learner, (inside.X, inside.y), (outside.X, outside.y), trials=trials, **options
            )
    if out is not None:
        out.write_text(json_text.dumps(report.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if page is not None:
        text = officer_page(report, traffic)
        page.write_text(page_html(text) if page.suffix == ".html" else text, encoding="utf-8")
    emit(report.to_json(), json, *_views(report))
    for written in filter(None, (out, page)):
        note(f"wrote {written}")
    if report.contradicted:
        raise typer.Exit(1)


def _audit_file(model: Path, data: Path, others: Path, features: str | None, label: str, options: Any) -> "AuditReport":
    from kernfed.federation import load
    from kernfed.federation.auditing import audit_model

    loaded = load(model)
    inside, outside = (read_queries(loaded, path, features, label=label) for path in (data, others))
    assert inside.y is not None
    assert outside.y is not None
    with progress("attacking"):
        return audit_model(loaded, (inside.X, inside.y), (outside.X, outside.y), **options)


def _populations(data: Path, others: Path | None, features: str | None, label: str, seed: int) -> tuple[Any, Any]:
    """Table of the rows to protect and table of other rows of the same kind."""
    from dataclasses import replace

    from kernfed._random import generator
    from kernfed.data import read_table

    table = read_table(data, features=features, label=label)
    if others is not None:
        return table, read_table(others, features=features, label=label)
    if len(table) < 20:
        raise ValueError(f"{data}: half of the rows are attacked and half stand for others; 20 rows or more are needed")
    order = generator(seed, "audit", "halves").permutation(len(table))
    parts = (order[: len(order) // 2], order[len(order) // 2 :])
    first, second = (replace(table, X=table.X[part], y=table.y[part]) for part in parts)  # type: ignore[index]
    return first, second


def _views(report: "AuditReport") -> list[Table | str]:
    rows = []
    for attack in report.attacks:
        low, high = attack.roc.auc_interval
        points = [f"{p.tpr:.2%} [{p.interval[0]:.2%}, {p.interval[1]:.2%}]" for p in attack.roc.points]
        rows.append((attack.name, f"{attack.roc.auc:.3f} [{low:.3f}, {high:.3f}]", *points))
    rates = [f"TPR at {p.rate:.1%} FPR" for p in report.attacks[0].roc.points]
    views: list[Table | str] = [f"Audit of {report.subject}", f"  {report.element}", f"  {report.record}", "",
                                Table(("attack", "AUC", *rates), rows), ""]  # fmt: skip
    views += [str(report.membership)] if report.membership is not None else []
    views += [str(bound) for bound in report.bounds]
    return [*views, f"Verdict: {report.verdict}"]


def page_html(markdown: str) -> str:
    """The officer's page as one HTML file: headings, paragraphs, lists and tables, which is all that the page has."""
    parts, title = [], ""
    for block in markdown.strip().split("\n\n"):
        lines = block.splitlines()
        if block.startswith("#"):
            level = len(block) - len(block.lstrip("#"))
            title = title or block.lstrip("# ")
            parts.append(f"<h{level}>{_inline(block.lstrip('# '))}</h{level}>")
        elif block.startswith("|"):
            head, _, *body = [[_inline(cell.strip()) for cell in _cells(line)] for line in lines]
            rows = [_row("th", head), *(_row("td", cells) for cells in body)]
            parts.append(f"<table>{''.join(rows)}</table>")
        elif block.startswith("- "):
            parts.append("<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>")
        else:
            parts.append(f"<p>{_inline(' '.join(lines))}</p>")
    style = ("body{font:16px/1.5 sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
             "table{border-collapse:collapse}"
             "td,th{border:1px solid #999;padding:.3rem .5rem;text-align:left;vertical-align:top}")  # fmt: skip
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_inline(title)}</title>'
            f"<style>{style}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n")  # fmt: skip


def _row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _cells(line: str) -> list[str]:
    """Cells of a row; a bar with a backslash belongs to its cell."""
    return [cell.replace("\0", "|") for cell in line.replace("\\|", "\0").strip("| ").split("|")]


def _inline(text: str) -> str:
    """Bold text; everything else was made safe for HTML where the page was written."""
    pieces = text.split("**")
    return "".join(f"<b>{piece}</b>" if place % 2 else piece for place, piece in enumerate(pieces))
