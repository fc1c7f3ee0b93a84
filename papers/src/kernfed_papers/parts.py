"""Experiments in parts: each part is a line of the result file, and what is there is not run again."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from kernfed_papers.experiment import Experiment, Part, Row, Selection
from kernfed_papers.pages.result_lines import Line, read_lines
from kernfed_papers.pages.results import read_results
from kernfed_papers.runner import Result, append_line, processor_seconds

#: Fields of a result that would be the same in every line of hundreds.
_ONCE = ("protocol", "axes", "remarks")


def run_parts(
    experiment: Experiment, selection: Selection, folder: Path | None, tell: Callable[[str], None]
) -> tuple[list[Result], dict[str, str]]:
    """Run the parts that ``<folder>/<id>.jsonl`` does not hold yet, and keep each as soon as it is done.

    Returns what was run, and which parts failed and why; one that fails does not stop the others. ``tell`` is given a
    line about every part.
    """
    assert experiment.parts is not None
    parts = experiment.parts(selection)
    path = None if folder is None else folder / f"{experiment.id}.jsonl"
    done = {(line.part, line.seed) for line in kept_lines(path)}
    results: list[Result] = []
    failed: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        if (part.name, part.seed) in done:
            continue
        name = f"{number} of {len(parts)}: {part.name}, seed {part.seed}"
        if part.missing:
            tell(f"{name}: not run: {part.missing}")
            continue
        try:
            result = _run(experiment, part)
        except Exception as error:
            failed[f"{part.name}, seed {part.seed}"] = f"{type(error).__name__}: {error}"
            tell(f"{name} failed, {type(error).__name__}: {error}")
            continue
        if path is not None:
            _keep(result, part, path)
        results.append(result)
        told = "; ".join(_words(row) for row in result.rows if row.unit == "%")
        tell(f"{name}: {told} ({result.processor_seconds:.1f} s of processors)")
    return results, failed


def kept_lines(path: Path | None) -> list[Line]:
    """Lines of full runs that a result file holds; none where there is no file."""
    if path is None or not path.exists():
        return []
    return [line for line in read_lines(path) if not line.quick and not line.not_run]


def kept_rows(experiment: Experiment, folder: Path | None) -> list[Row]:
    """Means over seeds of all rows that are kept."""
    path = None if folder is None else folder / f"{experiment.id}.jsonl"
    if path is None or not kept_lines(path):
        return []
    return [row for summary in read_results(path, [experiment]) for row in summary.rows]


def _run(experiment: Experiment, part: Part) -> Result:
    started, spent = time.perf_counter(), processor_seconds()
    rows = tuple(part.run())
    return Result(
        experiment,
        part.seed,
        False,
        rows,
        time.perf_counter() - started,
        processor_seconds=processor_seconds() - spent,
    )


def _keep(result: Result, part: Part, path: Path) -> None:
    values = {name: value for name, value in result.to_json().items() if name not in _ONCE}
    append_line(path, json.dumps({**values, "part": part.name}, allow_nan=False))


def _words(row: Row) -> str:
    note = f" [{row.note}]" if row.note else ""
    return f"{row.label.rpartition(': ')[2]} {row.ours:.2f} %{note}"
