"""``kernfed bench``: published tables, run again."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernfed.cli.console import Json, Table, emit, format_seconds, note, progress
from kernfed.cli.tables import Seed

if TYPE_CHECKING:
    from kernfed.experiments.runner import Experiment, Result

EXAMPLE = "Example: kernfed bench gikm-table-1 --seed 0"
#: Where results are read from for the documents if --out names no other folder.
RESULTS = Path("results")


def bench(
    experiment: Annotated[str | None, typer.Argument(help="Id of the experiment; see --list.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="One line per experiment.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run all that can run here.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A slice of seconds, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for one JSON line per run; default none.")] = None,
    docs: Annotated[
        Path | None, typer.Option("--write-docs", help="Write this document from the results in --out, or ./results.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a published table again and print it beside the published numbers."""
    if sum((experiment is not None, listing, everything, docs is not None)) != 1:
        raise ValueError("name one experiment, or use --list, --all or --write-docs")
    if docs is not None:
        _write_docs(docs, out or RESULTS, json)
        return
    from kernfed.experiments.runner import list_experiments

    known = list_experiments()
    if listing:
        _list(known, json)
        return
    names = [found.id for found in known] if experiment is None else [experiment]
    started = time.perf_counter()
    results, failed = _run(names, seed, quick, out, json, keep_going=everything)
    seconds = time.perf_counter() - started
    if json:
        emit({"results": [result.to_json() for result in results], "failed": failed, "seconds": seconds}, json)
    elif everything:
        emit({}, json, _summary(results, failed), f"{len(results)} experiments in {format_seconds(seconds)}")
    if failed:
        raise typer.Exit(1)


def _run(names: list[str], seed: int, quick: bool, out: Path | None, json: bool,
         keep_going: bool) -> tuple[list["Result"], dict[str, str]]:  # fmt: skip
    """Results, and which experiments failed and why; one that fails does not stop the others."""
    from kernfed.experiments.runner import run_experiment

    results: list[Result] = []
    failed: dict[str, str] = {}
    for name in names:
        try:
            with progress(f"running {name}"):
                result = run_experiment(name, seed=seed, quick=quick, folder=out)
        except Exception as error:
            if not keep_going:
                raise
            failed[name] = f"{type(error).__name__}: {error}"
            note(f"{name} failed, {failed[name]}")
            continue
        results.append(result)
        if not json:
            print(f"{result}\n", flush=True)
            note(f"{result.experiment.source}, protocol: {result.experiment.protocol}")
    return results, failed


def _summary(results: list["Result"], failed: dict[str, str]) -> Table:
    """One line per experiment: how many rows ran, how far from print, how long."""
    rows = []
    for result in results:
        ran = sum(row.ours is not None for row in result.rows)
        compared = sum(row.difference is not None for row in result.rows)
        what = f"not run: {result.not_run}" if result.not_run else f"{ran} of {len(result.rows)} rows"
        rows.append((result.experiment.id, f"{compared}", f"{result.seconds:.1f}", what))
    rows += [(name, "0", "0.0", f"FAILED: {reason}") for name, reason in failed.items()]
    return Table(("id", "compared", "seconds", "what"), rows)


def _list(known: tuple["Experiment", ...], json: bool) -> None:
    rows = [(found.id, found.source, found.title) for found in known]
    told = [{"id": found.id, "source": found.source, "title": found.title, "protocol": found.protocol,
             "datasets": found.datasets} for found in known]  # fmt: skip
    if json or sys.stdout.isatty():
        emit({"experiments": told}, json, Table(("id", "source", "what"), rows))
    else:
        print("\n".join("  ".join(row) for row in rows))


def _write_docs(document: Path, results: Path, json: bool) -> None:
    from kernfed.report import write_document

    with progress(f"writing {document}"):
        written = write_document(document, results)
    emit({"out": document, "figures": written[1:]}, json, f"wrote {document} and {len(written) - 1} figures")
