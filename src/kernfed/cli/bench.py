"""``kernfed bench``: published tables, run again."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, Table, emit, note, progress
from kernfed.cli.tables import Seed

EXAMPLE = "Example: kernfed bench gikm-table-1 --seed 0"


def bench(
    experiment: Annotated[str | None, typer.Argument(help="Id of the experiment; see --list.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="One line per experiment.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run all that can run here.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A slice of seconds, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for one JSON line per run; default none.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a published table again and print it beside the published numbers."""
    from kernfed.experiments.runner import list_experiments, run_experiment

    if sum((experiment is not None, listing, everything)) != 1:
        raise ValueError("name one experiment, or use --list or --all")
    known = list_experiments()
    if listing:
        rows = [(found.id, found.source, found.title) for found in known]
        told = [{"id": found.id, "source": found.source, "title": found.title, "protocol": found.protocol,
                 "datasets": found.datasets} for found in known]  # fmt: skip
        if json or sys.stdout.isatty():
            emit({"experiments": told}, json, Table(("id", "source", "what"), rows))
        else:
            print("\n".join("  ".join(row) for row in rows))
        return
    names = [found.id for found in known] if experiment is None else [experiment]
    results = []
    for name in names:
        with progress(f"running {name}"):
            result = run_experiment(name, seed=seed, quick=quick, folder=out)
        results.append(result)
        if not json:
            print(f"{result}\n")
            note(f"{result.experiment.source}, protocol: {result.experiment.protocol}")
    if json:
        emit({"results": [result.to_json() for result in results]}, json)
