"""``kernfed bench``: published tables, run again."""

import time
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from kernfed.cli import (
    Json,
    OutsideCommand,
    Seed,
    TextTable,
    aligned,
    check_output,
    emit,
    format_seconds,
    note,
    progress,
)
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed_papers.experiment import Selection
    from kernfed_papers.runner import Experiment, Result

EXAMPLE = "Example: kernfed bench gikm-table-1 --seed 0"
#: Where full runs are kept, and results read from, if --out names no other folder.
RESULTS = Path("results")


def bench(
    experiment: Annotated[str | None, typer.Argument(help="Id of the experiment; without one all are listed.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="One line per experiment: can it run here, did it.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run all that can run here.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A slice of seconds, to see that it works.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results, a JSON line per run in ID.jsonl; default ./results, and a quick run is kept only "
            "where a folder is named."
        ),
    ] = None,
    docs: Annotated[
        Path | None, typer.Option("--write-docs", help="Write this document from the results in --out, or ./results.")
    ] = None,
    sets: Annotated[str, typer.Option(help="Of one-round: only these sets, by name, with commas.")] = "",
    methods: Annotated[str, typer.Option(help="Of one-round: only these methods, by name, with commas.")] = "",
    seeds: Annotated[str, typer.Option(help="Of one-round: these seeds, with commas, in the place of three.")] = "",
    rows: Annotated[
        int | None, typer.Option(min=100, help="Of one-round: training rows of a set at most, in the place of 12,000.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a published table again, print it beside the published numbers, and keep the result; or list the tables."""
    chosen = sum((experiment is not None, listing, everything, docs is not None))
    if chosen > 1:
        raise InputError("name one experiment, or use one of --list, --all and --write-docs")
    if docs is not None:
        _write_docs(docs, out or RESULTS, json)
        return
    from kernfed_papers.experiment import Selection
    from kernfed_papers.runner import list_experiments

    known = list_experiments()
    if listing or not chosen:
        _list(known, out or RESULTS, json)
        return
    names = [each.id for each in known] if experiment is None else [experiment]
    selection = Selection(_words(sets), _words(methods), _seeds(seeds), rows, seed)
    _check_selection(selection, experiment)
    started = time.perf_counter()
    results, failed = _run(names, selection, quick, out, json, keep_going=everything)
    seconds = time.perf_counter() - started
    if json:
        emit({"results": [result.to_json() for result in results], "failed": failed, "seconds": seconds}, json)
    elif everything:
        emit({}, json, _summary(results, failed), f"{len(results)} experiments in {format_seconds(seconds)}")
    if failed:
        raise typer.Exit(1)


def _run(
    names: list[str], selection: "Selection", quick: bool, out: Path | None, json: bool, keep_going: bool
) -> tuple[list["Result"], dict[str, str]]:
    """Results, and which experiments failed and why; one that fails does not stop the others."""
    from kernfed_papers.runner import check_folder, find_experiment, run_experiment

    folder = out or (None if quick else RESULTS)
    if folder is not None:
        for name in names:
            check_folder(folder, find_experiment(name).id)
    results: list[Result] = []
    failed: dict[str, str] = {}
    for name in names:
        if find_experiment(name).parts is not None and not quick:
            failed |= _run_parts(find_experiment(name), selection, folder, json, results)
            continue
        try:
            with progress(f"running {name}"):
                result = run_experiment(name, seed=selection.seed, quick=quick, folder=None)
            results.append(result)
            # what did not run is written down only where it was asked for
            _deliver(result, folder if out is not None or not result.not_run else None, json)
        except Exception as error:
            if not keep_going:
                raise
            failed[name] = f"{type(error).__name__}: {error}"
            note(f"{name} failed, {failed[name]}")
    return results, failed


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _seeds(text: str) -> tuple[int, ...]:
    words = _words(text)
    if any(not word.isdecimal() for word in words):
        raise InputError(f"--seeds must be whole numbers from 0 on with commas, got {text!r}")
    return tuple(map(int, words))


def _check_selection(selection: "Selection", experiment: str | None) -> None:
    """Options about parts are refused where there are none, before anything is begun."""
    from kernfed_papers.runner import find_experiment

    given = any((selection.sets, selection.methods, selection.seeds, selection.rows))
    if not given:
        return
    parts = None if experiment is None else find_experiment(experiment).parts
    if parts is None:
        raise InputError("--sets, --methods, --seeds and --rows are of one experiment in parts, such as one-round")
    parts(selection)


def _run_parts(
    experiment: "Experiment", selection: "Selection", folder: Path | None, json: bool, results: list["Result"]
) -> dict[str, str]:
    """Run what is not kept yet, add it to ``results``, and show the tables of all that is kept; returns failures."""
    from kernfed_papers.parts import kept_rows, run_parts

    ran, failed = run_parts(experiment, selection, folder, note)
    results += ran
    rows = kept_rows(experiment, folder) or [row for result in ran for row in result.rows]
    if experiment.tables is not None and not json:
        for table in experiment.tables(rows):
            if not table.folded:
                print(aligned(TextTable(table.columns, [list(row) for row in table.rows], table.caption)) + "\n")
        print(fill(f"Protocol of {experiment.id}: {experiment.protocol}", 120) + "\n", flush=True)
    return failed


def _show(result: "Result") -> None:
    """Table, machine and protocol on stdout; of data that are absent, what to bring."""
    from kernfed.data import describe_file, folder_words
    from kernfed_papers.rows import missing_data
    from kernfed_papers.runner import machine_facts, machine_words

    experiment = result.experiment
    print(f"{result}\n")
    absent = [name for name in experiment.datasets if missing_data(name)]
    if result.not_run:
        print(f"Data folder: {folder_words()}. Files are written with numpy.savez_compressed:")
        print("".join(f"  {name}.npz: {describe_file(name)}\n" for name in absent))
    elif absent:
        print(f"Not here: {', '.join(f'{name}.npz' for name in absent)}; kernfed data list says what to bring.\n")
    print(f"Machine: {machine_words(machine_facts())}\n")
    print(fill(f"Protocol of {experiment.id}: {experiment.protocol}", 120) + "\n", flush=True)


def _deliver(result: "Result", folder: Path | None, json: bool) -> None:
    """Keep a result, then show it: the run may have taken hours, and a pipe that is closed must not lose it.

    Where it cannot be kept after all it is shown all the same, and its line printed.
    """
    from json import dumps

    from kernfed_papers.runner import keep_result

    try:
        path = None if folder is None else keep_result(result, folder)
    except OSError:
        if not json:
            _show(result)
            print(dumps(result.to_json()))
        raise
    if path is not None:
        note(f"kept as the last line of {path}")
    if not json:
        _show(result)


def _summary(results: list["Result"], failed: dict[str, str]) -> TextTable:
    """One line per experiment: how many rows ran, how far from print, how long."""
    rows = []
    by_id: dict[str, list[Result]] = {}
    for result in results:  # of an experiment in parts there are many
        by_id.setdefault(result.experiment.id, []).append(result)
    for name, own in by_id.items():
        lines = [row for result in own for row in result.rows]
        ran = sum(row.ours is not None for row in lines)
        compared = sum(row.difference is not None for row in lines)
        what = f"not run: {own[0].not_run}" if own[0].not_run else f"{ran} of {len(lines)} rows"
        rows.append((name, f"{compared}", f"{sum(result.seconds for result in own):.1f}", what))
    rows += [(name, "0", "0.0", f"FAILED: {reason}") for name, reason in failed.items()]
    return TextTable(("id", "compared", "seconds", "what"), rows)


def _list(known: tuple["Experiment", ...], results: Path, json: bool) -> None:
    """One line per experiment, plain also on a terminal: what it is, whether it can run here, whether it did."""
    from kernfed.data import folder_words
    from kernfed_papers.rows import missing_data

    absent = {
        experiment.id: [f"{name}.npz" for name in experiment.datasets if missing_data(name)] for experiment in known
    }
    kept = {experiment.id: _kept(results, experiment.id) for experiment in known}
    told = [
        {
            "id": experiment.id,
            "source": experiment.source,
            "title": experiment.title,
            "protocol": experiment.protocol,
            "datasets": experiment.datasets,
            "missing": absent[experiment.id],
            "result": kept[experiment.id],
        }
        for experiment in known
    ]
    rows = [
        (
            experiment.id,
            experiment.source,
            _can_run(experiment, absent[experiment.id]),
            kept[experiment.id],
            experiment.title,
        )
        for experiment in known
    ]
    lines = aligned(TextTable(("",) * 5, rows)).splitlines()[1:]
    emit({"experiments": told, "folder": folder_words()}, json, *lines)
    note(f"run one with: kernfed bench ID; data folder: {folder_words()}")


def _can_run(experiment: "Experiment", absent: list[str]) -> str:
    more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    if not absent:
        return "can run"
    whole = len(absent) == len(experiment.datasets)
    return f"{'cannot run' if whole else 'can run in part'}, no {absent[0]}{more}"


def _kept(results: Path, name: str) -> str:
    """What is kept of an experiment, in a word or two."""
    from kernfed_papers.pages.result_lines import read_lines

    path = results / f"{name}.jsonl"
    if not path.is_file():
        return "no result" if results.is_dir() else ""
    try:
        lines = [line for line in read_lines(path) if not line.quick and not line.not_run]
    except (ValueError, OSError):
        return "unreadable result"
    return f"result of {lines[-1].date}" if lines else "no result"


def _write_docs(document: Path, results: Path, json: bool) -> None:
    from kernfed_papers.pages.document import write_document

    check_output("--write-docs", document)
    with progress(f"writing {document}"):
        written = write_document(document, results)
    emit({"out": document, "figures": written[1:]}, json, f"wrote {document}, figures: {len(written) - 1}")


#: What the entry point of this package names.
COMMAND = OutsideCommand(bench, EXAMPLE)
