"""Results of experiments: lines of JSON, put together over seeds.

Quick lines are left out: they are made to see that an experiment works and are comparable with nothing. Of several
full lines with one seed the last that ran counts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernfed.data import list_datasets
from kernfed.errors import InputError
from kernfed.report import PageTable
from kernfed_papers.experiment import Axes, Experiment, Row
from kernfed_papers.pages.result_lines import Line, read_lines
from kernfed_papers.runner import list_experiments

#: Units in which a difference can be put in percentage points, and what a unit is in points.
_POINTS = {"%": 1.0, "fraction": 100.0}


@dataclass(frozen=True)
class Summary:
    """An experiment over all its seeds: rows are means, with the deviation over seeds where there are several.

    protocol : under which it ran, or would run. not_run : why there is nothing. seconds, bytes_up, bytes_down : means
    over seeds. processor_seconds : likewise, or None where a line has none. machines : what the numbers may depend on,
    each once. dates : first and last day. remarks : in what the features differ from the paper's. tables : of the rows,
    where the experiment makes its own of them.
    """

    id: str
    source: str
    title: str
    protocol: str
    rows: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = ()
    seconds: float = 0.0
    processor_seconds: float | None = None
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    machines: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    not_run: str = ""
    axes: Axes | None = None
    remarks: tuple[str, ...] = ()
    tables: tuple[PageTable, ...] = ()

    @property
    def status(self) -> str:
        """Run, run in part, or not run."""
        ran = [row.ours is not None for row in self.rows]
        return "run" if ran and all(ran) else "run in part" if any(ran) else "not run"

    @property
    def compared(self) -> tuple[Row, ...]:
        """Rows with a published number and one of ours."""
        return tuple(row for row in self.rows if row.difference is not None)

    @property
    def points(self) -> tuple[float, ...]:
        """Differences in percentage points, of the rows that are shares."""
        return tuple(
            row.difference * _POINTS[row.unit]
            for row in self.compared
            if row.difference is not None and row.unit in _POINTS
        )


def read_results(place: Path, experiments: Sequence[Experiment] | None = None) -> tuple[Summary, ...]:
    """Summaries from a folder of ``<id>.jsonl`` files or from one such file.

    From a folder all known experiments are listed, also those without a result; others come last.
    """
    known = {experiment.id: experiment for experiment in (list_experiments() if experiments is None else experiments)}
    if not place.exists():
        raise FileNotFoundError(f"no results at {place}; make some with kernfed bench ID --out {place}")
    paths = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    lines: dict[str, list[Line]] = {}
    for path in paths:
        for line in read_lines(path):
            lines.setdefault(line.id, []).append(line)
    listed = [*known, *sorted(set(lines) - set(known))] if place.is_dir() else list(lines)
    if not lines:
        raise InputError(f"{place} holds no result lines; make some with kernfed bench ID --out FOLDER")
    if all(line.quick for own in lines.values() for line in own):
        raise InputError(
            f"{place} holds only lines of quick runs, which are comparable with nothing; run "
            f"kernfed bench {next(iter(lines))} without --quick"
        )
    return tuple(_summary(name, known.get(name), lines.get(name, [])) for name in listed)


def _summary(name: str, experiment: Experiment | None, lines: Sequence[Line]) -> Summary:
    source = experiment.source if experiment else lines[-1].source
    base = Summary(
        name,
        source,
        experiment.title if experiment else "",
        experiment.protocol if experiment else "",
        axes=experiment.axes if experiment else None,
    )
    full = [line for line in lines if not line.quick]
    if not full:
        return replace(base, not_run=_idle(experiment))
    by_seed = _by_seed([line for line in full if not line.not_run])
    if not by_seed:
        return replace(base, not_run=full[-1].not_run)
    ran = [by_seed[seed] for seed in sorted(by_seed)]
    spent = [line.processor_seconds for line in ran if line.processor_seconds is not None]
    rows = _combined([line.rows for line in ran])
    return replace(
        base,
        tables=experiment.tables(rows) if experiment and experiment.tables else (),
        protocol=base.protocol if ran[-1].protocol is None else ran[-1].protocol,
        rows=rows,
        seeds=tuple(line.seed for line in ran),
        seconds=statistics.fmean(line.seconds for line in ran),
        processor_seconds=statistics.fmean(spent) if len(spent) == len(ran) else None,
        bytes_up=statistics.fmean(line.bytes_up for line in ran),
        bytes_down=statistics.fmean(line.bytes_down for line in ran),
        machines=tuple(dict.fromkeys(line.machine for line in ran)),
        dates=tuple(sorted({line.date for line in ran})),
        axes=base.axes or ran[-1].axes,
        remarks=tuple(dict.fromkeys(remark for line in ran for remark in line.remarks)),
    )


def _by_seed(lines: Sequence[Line]) -> dict[int, Line]:
    """The last line of each seed; lines that are parts of a run are put together."""
    by_seed: dict[int, Line] = {}
    for line in lines:
        before = by_seed.get(line.seed)
        by_seed[line.seed] = _joined(before, line) if before is not None and line.part else line
    return by_seed


def _joined(before: Line, line: Line) -> Line:
    """Two parts of a run as one; of rows with one label and unit the later counts."""
    rows = {(row.label, row.unit): row for row in (*before.rows, *line.rows)}
    return replace(
        line,
        rows=tuple(rows.values()),
        seconds=before.seconds + line.seconds,
        processor_seconds=(before.processor_seconds or 0.0) + (line.processor_seconds or 0.0),
        bytes_up=before.bytes_up + line.bytes_up,
        bytes_down=before.bytes_down + line.bytes_down,
    )


def _idle(experiment: Experiment | None) -> str:
    """Why there is no result; it does not depend on which data are on this machine."""
    known = {info.name for info in list_datasets()}
    needed = experiment.datasets if experiment else ()
    if needed and not known & set(needed):
        return f"needs {' or '.join(f'{name}.npz' for name in needed)}, embeddings that a user brings"
    return "there is no full run yet"


def _combined(runs: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """Means over seeds of the rows with one label and unit; rows that only some seeds have are kept."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for rows in runs:
        for row in rows:
            grouped.setdefault((row.label, row.unit), []).append(row)
    return tuple(_mean_row(rows) for rows in grouped.values())


def _mean_row(rows: Sequence[Row]) -> Row:
    ours = [row.ours for row in rows if row.ours is not None]
    if len(ours) < 2:
        return next((row for row in rows if row.ours is not None), rows[0])
    return replace(rows[0], ours=statistics.fmean(ours), deviation=statistics.stdev(ours))
