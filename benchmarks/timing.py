"""What the benchmarks share: interleaved timing, a table of ratios, and the same as JSON.

A ratio is meant to hold on any machine, so reference and ours alternate in one process: what slows the machine down
for a while slows both.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_info

from kernfed import __version__
from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.console import show

Work = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """Our cost beside that of a reference; ``limit`` is the largest ratio ours / reference that is accepted."""

    work: str
    reference_work: str
    reference: float
    ours: float
    limit: float
    unit: Literal["seconds", "bytes"] = "seconds"

    @property
    def ratio(self) -> float:
        """Ours over reference."""
        return self.ours / self.reference

    @property
    def ok(self) -> bool:
        """Whether the ratio is within its limit."""
        return self.ratio <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "work": self.work,
            "compare_with": self.reference_work,
            "unit": self.unit,
            "reference": self.reference,
            "ours": self.ours,
            "ratio": self.ratio,
            "limit": self.limit,
            "ok": self.ok,
        }


def interleave(reference: Work, ours: Work, rounds: int, *, reference_once: bool = False) -> tuple[float, float]:
    """Best seconds of each over ``rounds`` alternating calls, after one call of each that does not count.

    ``reference_once`` is for a reference of many seconds: it is called once, in the middle, and that call counts.
    """
    best = [float("inf"), float("inf")]
    for turn in range(rounds + 1):
        for place, work in enumerate((reference, ours)):
            if place == 0 and reference_once and turn != (rounds + 1) // 2:
                continue
            start = time.perf_counter()
            work()
            if turn > 0:
                best[place] = min(best[place], time.perf_counter() - start)
    return best[0], best[1]


def blas_threads() -> int:
    """Threads a matrix product uses by default."""
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max(pools, default=1)


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools})
    return {
        "package": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas,
        "threads": blas_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }


def report(name: str, title: str, rows: Sequence[Comparison], facts: dict[str, Any], folder: Path) -> None:
    """Print ``rows`` as a table and as one line of JSON, and write the line to ``folder / name.json``."""
    line = json.dumps({"benchmark": name, **facts, "rows": [row.as_dict() for row in rows]})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(line + "\n")
    show(
        TextTable(
            ("work", "compared with", "reference", "ours", "ratio", "at most", "ok"),
            [_cells(row) for row in rows],
            title,
        )
    )
    print(line)


def _cells(row: Comparison) -> tuple[str, ...]:
    shown = format_seconds if row.unit == "seconds" else format_bytes
    return (
        row.work,
        row.reference_work,
        shown(row.reference),
        shown(row.ours),
        f"{row.ratio:.3g}",
        f"{row.limit:.3g}",
        "yes" if row.ok else "NO",
    )
