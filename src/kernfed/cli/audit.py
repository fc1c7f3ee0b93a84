"""``kernfed audit``: what attacks achieve against a release or a model, held against the stated guarantee."""

import json as json_text
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kernfed.base.text import TextTable
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import Features, Label, RowIds, Seed, check_outputs, write_text
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.data import Table
    from kernfed.jobs.learning import Learning
    from kernfed.jobs.tables import TableFile
    from kernfed.privacy import AuditReport

EXAMPLE = """Example: kernfed audit --data rows.parquet --label y --privacy record-gaussian --epsilon 3 --radius 1
--page audit.md

Of a model: kernfed audit --model model.kfd --data members.parquet --others others.parquet --label y"""
USUAL_TRIALS = 2000


def audit(
    ctx: typer.Context,
    data: Annotated[Path, typer.Option("--data", help="Table of rows to protect; with --model those it was made of.")],
    label: Label,
    others: Annotated[
        Path | None,
        typer.Option(help="Table of rows of the same kind that are not in the data; default half of --data."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Audit the answers of this model file instead of a mechanism.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="Column that names each row's site, and is no feature; all rows are attacked as one site's."),
    ] = None,
    features: Features = None,
    ids: RowIds = None,
    trials: Annotated[
        int | None,
        typer.Option(help=f"Attempts of each attack and of the bound on epsilon; default {USUAL_TRIALS}.", min=20),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of intervals and bounds.")] = 0.95,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write with everything found.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page for the privacy officer to write, .md or .html.")] = None,
    json: Json = False,
) -> None:
    """Attack a release, or a model's answers, and say whether what is found contradicts the stated guarantee.

    The attacks see raw rows: give their figures only to those who may. Exit code 1 means that it is contradicted.
    """
    from kernfed.jobs.tables import TableFile, columns_line
    from kernfed.privacy.roc import check_confidence
    from kernfed.report import audit_report, officer_page, write_html

    _check_places(out, page, (data, others, model))
    check_confidence(confidence)
    learning: Learning = ctx.obj
    options: dict[str, Any] = {"confidence": confidence, "seed": seed}
    table = TableFile(data, features, label, site, ids)
    said: list[str] = []
    about: dict[str, Any] = {}
    if model is not None:
        _refuse_with_model({**learning.values, "trials": trials})
        report, traffic = _audit_file(model, table, others, options), None
    elif "privacy" not in learning.values:
        raise InputError("give --privacy with its options to audit a mechanism, or --model to audit a model's answers")
    else:
        inside, outside = _populations(table, others, seed)
        options["trials"] = USUAL_TRIALS if trials is None else trials
        report, traffic = _audit_release(learning.make(inside), inside, outside, options)
        said, about = [columns_line(inside)], {"features": inside.columns, "left_out": dict(inside.left_out)}
    result = {**report.to_json(), "traffic": traffic, **about}
    if out is not None:
        write_text(out, json_text.dumps(result, indent=1, allow_nan=False) + "\n")
    if page is not None:
        if page.suffix.lower() == ".html":
            write_html(audit_report(report, traffic or ()), page)
        else:
            write_text(page, officer_page(report, traffic))
    emit(result, json, *said, *_views(report))
    for written in filter(None, (out, page)):
        note(f"wrote {written}")
    if report.contradicted:
        raise typer.Exit(1)


def _check_places(out: Path | None, page: Path | None, inputs: tuple[Path | None, ...]) -> None:
    """Refuse places that cannot be written before the attacks, which take long."""
    if page is not None and page.suffix.lower() not in (".md", ".html"):
        raise InputError(f"--page must end in .md or .html, got {page.name}")
    check_outputs({"--out": out, "--page": page}, *inputs)


def _refuse_with_model(given: Mapping[str, Any]) -> None:
    """Refuse what would do nothing where answers are attacked."""
    for option, value in given.items():
        if value is not None:
            raise InputError(
                f"--model takes no --{option}: the model says its own guarantee, and every row is tried "
                "once; leave it out"
            )


def _audit_release(learner: Any, inside: Any, outside: Any, options: Any) -> tuple["AuditReport", Any]:
    from kernfed.testing.audit import audit_mechanism

    with progress("attacking"):
        return audit_mechanism(learner, (inside.X, inside.y), (outside.X, outside.y), **options)


def _audit_file(model: Path, data: "TableFile", others: Path | None, options: Any) -> "AuditReport":
    from kernfed.federation import load
    from kernfed.testing.audit import audit_model

    if others is None:
        raise InputError("--model needs --others: rows of the same kind that the model was not made of")
    _check_apart(data.path, others)
    loaded = load(model)
    inside, outside = (file.read_for(loaded) for file in (data, replace(data, path=others)))
    assert inside.y is not None
    assert outside.y is not None
    with progress("attacking"):
        return audit_model(loaded, (inside.X, inside.y), (outside.X, outside.y), **options)


def _populations(data: "TableFile", others: Path | None, seed: int) -> "tuple[Table, Table]":
    """Table of the rows to protect and table of other rows of the same kind, which need no sites and ids."""
    from kernfed.base.random import generator

    table = replace(cast("Table", data.read_to_learn()), site=None, ids=None)
    if others is not None:
        _check_apart(data.path, others)
        outside = replace(data, path=others, site=None, ids=None).read_for(table)
        if outside.X.shape[1] != table.X.shape[1]:
            raise InputError(
                f"{others}: there are {outside.X.shape[1]} features, {data.path} has {table.X.shape[1]}; see --features"
            )
        return table, outside
    if len(table) < 20:
        raise InputError(
            f"{data.path}: half of the rows are attacked and half stand for others; 20 rows or more are needed"
        )
    order = generator(seed, "audit", "halves").permutation(len(table))
    parts = (order[: len(order) // 2], order[len(order) // 2 :])
    first, second = (replace(table, X=table.X[part], y=table.y[part]) for part in parts)  # type: ignore[index]
    return first, second


def _check_apart(data: Path, others: Path) -> None:
    if others.exists() and data.exists() and others.samefile(data):
        raise InputError(f"--others must hold rows that are not in --data, got {others} for both")


def _views(report: "AuditReport") -> list[TextTable | str]:
    rows = []
    for attack in report.attacks:
        low, high = attack.roc.auc_interval
        points = [f"{p.tpr:.2%} [{p.interval[0]:.2%}, {p.interval[1]:.2%}]" for p in attack.roc.points]
        rows.append((attack.name, f"{attack.roc.auc:.3f} [{low:.3f}, {high:.3f}]", *points))
    rates = [f"TPR at {p.rate:.1%} FPR" for p in report.attacks[0].roc.points]
    views: list[TextTable | str] = [
        f"Audit of {report.subject}",
        *report.promised(),
        "",
        TextTable(("attack", "AUC", *rates), rows),
        "",
    ]
    views += [str(report.membership)] if report.membership is not None else []
    views += [str(bound) for bound in report.bounds]
    return [*views, f"Verdict: {report.verdict}"]
