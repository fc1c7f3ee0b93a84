"""Results of experiments: lines of JSON, put together over seeds.

Quick lines are left out: they are made to see that an experiment works and are comparable with nothing. Of several
full lines with one seed the last one counts.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernfed.data import list_datasets
from kernfed.experiments.experiment import Axes, Experiment, Row
from kernfed.experiments.runner import list_experiments

#: Units in which a difference can be put in percentage points, and what a unit is in points.
_POINTS = {"%": 1.0, "fraction": 100.0}


@dataclass(frozen=True)
class Summary:
    """An experiment over all its seeds: rows are means, with the deviation over seeds where there are several.

    protocol : under which it ran, or would run. not_run : why there is nothing. seconds, bytes_up, bytes_down : means
    over seeds. processor_seconds : likewise, or None where a line has none. machines : what the numbers may depend on,
    each once. dates : first and last day.
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
        return tuple(row.difference * _POINTS[row.unit] for row in self.compared
                     if row.difference is not None and row.unit in _POINTS)  # fmt: skip


def read_results(place: Path, experiments: Sequence[Experiment] | None = None) -> tuple[Summary, ...]:
    """Summaries from a folder of ``<id>.jsonl`` files or from one such file.

    From a folder all known experiments are listed, also those without a result; others come last.
    """
    known = {experiment.id: experiment for experiment in (list_experiments() if experiments is None else experiments)}
    if not place.exists():
        raise FileNotFoundError(f"no results at {place}; make some with kernfed bench ID --out {place}")
    paths = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    lines: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for line in _read_lines(path):
            lines.setdefault(str(line["id"]), []).append(line)
    listed = [*known, *sorted(set(lines) - set(known))] if place.is_dir() else list(lines)
    if not lines:
        raise ValueError(f"{place} holds no result lines; make some with kernfed bench ID --out FOLDER")
    return tuple(_summary(name, known.get(name), lines.get(name, [])) for name in listed)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from None
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text, parse_constant=_refuse_constant)
            if not isinstance(line, dict) or not isinstance(line["id"], str) or not isinstance(line["rows"], list):
                raise ValueError("it has no id and rows")
            found.append({**line, "rows": _rows(line["rows"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is no result of an experiment: {error}") from None
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _rows(values: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows of one run; a label and a unit name one of them, or means over seeds would mix what differs."""
    rows = tuple(_row(entry) for entry in values)
    named: set[tuple[str, str]] = set()
    for row in rows:
        if (row.label, row.unit) in named:
            raise ValueError(f"two rows are named {row.label!r} with the unit {row.unit!r}")
        named.add((row.label, row.unit))
    return rows


def _row(values: Mapping[str, Any]) -> Row:
    matrix = values.get("matrix")
    row = Row(**{**values, "matrix": None if matrix is None else tuple(tuple(line) for line in matrix)})
    for name in ("published", "ours", "deviation", "x"):
        value = getattr(row, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{name} must be a number, got {value!r}")
    return row


def _summary(name: str, experiment: Experiment | None, lines: Sequence[Mapping[str, Any]]) -> Summary:
    by_seed = {line.get("seed", 0): line for line in lines if not line.get("quick")}
    source = experiment.source if experiment else str(lines[-1].get("source", name))
    base = Summary(name, source, experiment.title if experiment else "", experiment.protocol if experiment else "",
                   axes=experiment.axes if experiment else None)  # fmt: skip
    if not by_seed:
        return replace(base, not_run=_idle(experiment))
    kept = [by_seed[seed] for seed in sorted(by_seed)]
    ran = [line for line in kept if not line.get("not_run")]
    if not ran:
        return replace(base, not_run=str(kept[-1]["not_run"]))
    axes = base.axes or (Axes(**ran[-1]["axes"]) if ran[-1].get("axes") else None)
    seconds, up, down = (statistics.fmean(float(line.get(key, 0)) for line in ran)
                         for key in ("seconds", "bytes_up", "bytes_down"))  # fmt: skip
    spent = [float(line["processor_seconds"]) for line in ran if "processor_seconds" in line]
    processor = statistics.fmean(spent) if len(spent) == len(ran) else None
    return replace(
        base, processor_seconds=processor, protocol=str(ran[-1].get("protocol", base.protocol)),
        rows=_combined([line["rows"] for line in ran]), seeds=tuple(int(line.get("seed", 0)) for line in ran),
        machines=tuple(dict.fromkeys(_machine(line.get("machine", {})) for line in ran)), axes=axes,
        dates=tuple(sorted({str(line.get("date", "")) for line in ran})), seconds=seconds, bytes_up=up, bytes_down=down,
    )  # fmt: skip


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


def _machine(facts: Mapping[str, Any]) -> str:
    """What the numbers may depend on, in one line."""
    said = {name: facts.get(name, "?") for name in ("kernfed", "python", "numpy", "cores", "system", "architecture")}
    blas = ", ".join(map(str, facts.get("blas", ())))
    return "kernfed {kernfed}, Python {python}, NumPy {numpy}, {blas}, {cores} cores, {system} {architecture}".format(
        **said, blas=blas
    )
