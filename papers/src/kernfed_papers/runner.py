"""Find experiments, run them, measure, and keep what came out.

A module of ``kernfed_papers.experiments`` that has ``EXPERIMENTS`` (a tuple) adds them; nobody else needs to know.
Other packages declare such a tuple as an entry point of the group ``kernfed.experiments``.
"""

import datetime
import difflib
import fcntl
import importlib
import json
import os
import pkgutil
import platform
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

import kernfed_papers.experiments as package
from kernfed import __version__
from kernfed.errors import InputError
from kernfed.files import atomic_path
from kernfed_papers.checks import check_count
from kernfed_papers.experiment import Experiment, Row
from kernfed_papers.rows import differences, missing_all

__all__ = [
    "PAPERS",
    "Experiment",
    "Result",
    "Row",
    "check_folder",
    "find_experiment",
    "keep_result",
    "list_experiments",
    "machine_facts",
    "machine_words",
    "paper_of",
    "processor_seconds",
    "row_cells",
    "run_experiment",
]

#: Short names of the papers, in the order in which they are listed.
PAPERS = ("SFM", "DP-KAHM", "GIKM", "FedNewton", "KME")
#: Entry points by which other packages declare experiments: a name, and a tuple of them.
ENTRY_POINTS = "kernfed.experiments"


@dataclass(frozen=True)
class Result:
    """One run; ``not_run`` is the reason where there are no rows.

    ``seconds`` went by on the clock; ``processor_seconds``, of this process and those it waited for, do not grow when
    the machine does other things beside. ``remarks`` say in what files that a user brought differ from the paper's.
    """

    experiment: Experiment
    seed: int
    quick: bool
    rows: tuple[Row, ...]
    seconds: float
    not_run: str = ""
    processor_seconds: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def bytes_up(self) -> int:
        """Bytes that left the sites: the rows with that unit."""
        return self._total("bytes up")

    @property
    def bytes_down(self) -> int:
        """Bytes sent to the sites: the rows with that unit."""
        return self._total("bytes down")

    def _total(self, unit: str) -> int:
        return int(sum(row.ours or 0 for row in self.rows if row.unit == unit))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, with the day and what the numbers may depend on."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return {
            "id": self.experiment.id,
            "source": self.experiment.source,
            "protocol": self.experiment.protocol,
            "date": today,
            "seed": self.seed,
            "quick": self.quick,
            "not_run": self.not_run,
            "seconds": round(self.seconds, 3),
            "processor_seconds": round(self.processor_seconds, 3),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "machine": machine_facts(),
            "remarks": list(self.remarks),
            "axes": None if self.experiment.axes is None else asdict(self.experiment.axes),
            "rows": [_values(row) for row in self.rows],
        }

    def __str__(self) -> str:
        slice_note = ", quick slice: not comparable" if self.quick else ""
        title = f"{self.experiment.source}: {self.experiment.title} (seed {self.seed}{slice_note})"
        if self.not_run:
            return f"{title}\nnot run: {self.not_run}"
        lines: list[tuple[str, ...]] = [("", "published", "ours", "difference", "unit", "note")]
        lines += [row_cells(row) for row in self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        sides = (str.ljust, str.rjust, str.rjust, str.rjust, str.ljust, str.ljust)
        text = [
            "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
            for line in lines
        ]
        spent = f"{self.seconds:.1f} s, {self.processor_seconds:.1f} s of processors"
        told = f"{spent}; {self.bytes_up:,} bytes up, {self.bytes_down:,} down"
        return "\n".join([title, *text, told, *(f"Note: {remark}" for remark in self.remarks)])


def _values(row: Row) -> dict[str, Any]:
    """Plain values of a row; what only some rows have is left out of the others."""
    always = ("label", "published", "ours", "unit")
    return {name: value for name, value in asdict(row).items() if name in always or value not in ("", None)}


def row_cells(row: Row) -> tuple[str, ...]:
    """Label, published, ours, difference, unit and note of a row, as text."""
    published, ours = _shown(row.published, row.unit, "-"), _shown(row.ours, row.unit, "not run")
    ours += "" if row.deviation is None else f" ± {_shown(row.deviation, row.unit, '')}"
    difference = _shown(row.difference, row.unit, "", sign="+")
    return row.label, published, ours, difference, row.unit, row.note.removeprefix("not run: ")


def _shown(value: float | None, unit: str, absent: str, sign: str = "") -> str:
    """A number with the digits its unit is printed with."""
    if value is None:
        return absent
    digits = {"fraction": 4, "%": 2, "bytes up": 0, "bytes down": 0}.get(unit)
    return f"{value:{sign}.4g}" if digits is None else f"{value:{sign},.{digits}f}"


def paper_of(source: str) -> str:
    """Short name of the paper at the beginning of an experiment's source; empty for none of them.

    >>> paper_of("DP-KAHM Table 8"), paper_of("ours")
    ('DP-KAHM', '')
    """
    return next((paper for paper in PAPERS if source.startswith(paper)), "")


def _place(experiment: Experiment) -> tuple[int, list[tuple[str, int]], str]:
    """By paper, then by id with its numbers as numbers: table 2 before table 10."""
    paper = paper_of(experiment.source)
    parts = re.findall(r"(\D*)(\d*)", experiment.id)
    order = [(word, int(number or 0)) for word, number in parts]
    return PAPERS.index(paper) if paper else len(PAPERS), order, experiment.id


def list_experiments() -> tuple[Experiment, ...]:
    """All experiments: by paper, then by table and figure."""
    modules = [module.name for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
    tuples = {name: getattr(importlib.import_module(name), "EXPERIMENTS", ()) for name in modules}
    tuples |= {entry.value: entry.load() for entry in entry_points(group=ENTRY_POINTS)}
    experiments: dict[str, Experiment] = {}
    for place, declared in tuples.items():
        for experiment in declared:
            if experiment.id in experiments:
                raise InputError(f"two experiments have the id {experiment.id!r}; the second is in {place}")
            experiments[experiment.id] = experiment
    return tuple(sorted(experiments.values(), key=_place))


def find_experiment(name: str) -> Experiment:
    """The experiment with this id."""
    known = {experiment.id: experiment for experiment in list_experiments()}
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, 3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise InputError(f"no experiment {name!r}{meant} kernfed bench lists all of them")
    return known[name]


def run_experiment(
    name: str, *, seed: int = 0, quick: bool = False, folder: str | os.PathLike[str] | None = "results"
) -> Result:
    """Run an experiment and append one line to ``<folder>/<id>.jsonl`` (no file with ``folder=None``).

    An experiment of whose data nothing is here is not run, and the result says so.
    """
    experiment = find_experiment(name)
    check_count(seed, "seed", at_least=0)
    if folder is not None:
        check_folder(Path(folder), name)
    reason = missing_all(experiment.datasets)
    remarks = tuple(filter(None, map(differences, experiment.datasets)))
    started, spent = time.perf_counter(), processor_seconds()
    rows = () if reason else tuple(experiment.run(seed, quick))
    result = Result(
        experiment, seed, quick, rows, time.perf_counter() - started, reason, processor_seconds() - spent, remarks
    )
    if folder is not None:
        keep_result(result, Path(folder))
    return result


def check_folder(folder: Path, name: str) -> None:
    """Refuse a folder in which no line about the experiment ``name`` can be kept, before anything long is begun."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"results are kept in a folder, and {folder} is a file; name a folder, or a new one")
    within = folder if folder.is_dir() else folder.parent  # the folder itself is made when there is something to keep
    if not within.is_dir():
        raise InputError(f"results are kept in the folder {folder}, and {within} does not exist; make it first")
    path = folder / f"{name}.jsonl"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"the result is a line of the file {path}, which is a link or a folder; name another folder")
    try:
        with tempfile.NamedTemporaryFile(dir=within, prefix=".results.", suffix=".part"):
            pass
    except OSError as error:
        raise InputError(
            f"results are kept in {folder}, and {within} cannot be written: {error.strerror}; name another folder"
        ) from None


def keep_result(result: Result, folder: Path) -> Path:
    """Append a result to ``<folder>/<id>.jsonl``; returns the file."""
    path = folder / f"{result.experiment.id}.jsonl"
    append_line(path, json.dumps(result.to_json(), allow_nan=False))
    return path


def processor_seconds() -> float:
    """Of this process and those it waited for, so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, whole or not at all, also when several processes do so at once."""
    path.parent.mkdir(exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = path.read_bytes() if path.exists() else b""
        before += b"" if before.endswith(b"\n") or not before else b"\n"
        with atomic_path(path) as temporary:
            temporary.write_bytes(before + line.encode() + b"\n")
    finally:
        os.close(lock)


def machine_facts() -> dict[str, Any]:
    """What numbers and seconds may depend on, without naming the machine."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "kernfed": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools}),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def machine_words(facts: Mapping[str, Any]) -> str:
    """Machine facts in one line."""
    said = {name: facts.get(name, "?") for name in ("kernfed", "python", "numpy", "cores", "system", "architecture")}
    blas = ", ".join(map(str, facts.get("blas", ())))
    return "kernfed {kernfed}, Python {python}, NumPy {numpy}, {blas}, {cores} cores, {system} {architecture}".format(
        **said, blas=blas
    )
