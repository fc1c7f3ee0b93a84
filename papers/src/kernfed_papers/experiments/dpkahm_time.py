"""DP-KAHM Table 11 and Figure 17: seconds to fit a machine, against the size of its data."""

import time
from dataclasses import dataclass

from kernfed.kahm import fit_machine
from kernfed.kernels import single_blas_thread
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Axes, Experiment, Row
from kernfed_papers.published.dpkahm import SECONDS, SECONDS_OF_20_MILLION

_SUBSPACE = 20
_REPEATS = 3

#: N and p of each size N p in Table 11, which does not print them; the larger ones all are N by 10 N.
SHAPES = (
    (100, 100),
    (100, 1000),
    (300, 1000),
    (1000, 1000),
    (500, 5000),
    (600, 6000),
    (700, 7000),
    (750, 7500),
    (800, 8000),
    (850, 8500),
    (900, 9000),
    (950, 9500),
    (1000, 10_000),
)
_COLUMNS = (10, 100, 1000, 5000, 10_000, 20_000)
_ROWS = (100, 200, 400, 700, 1000)
_SUBSPACES = (5, 20, 100, 300, 500)


@dataclass(frozen=True)
class _Case:
    """One measurement: what it is called, the machine's size, the printed seconds and the curve it belongs to."""

    label: str
    count: int
    width: int
    dim: int
    printed: float | None
    series: str


def _cases() -> list[_Case]:
    cases = [_Case(f"{n * p:,} entries ({n} x {p})", n, p, _SUBSPACE, SECONDS[n * p], "Table 11") for n, p in SHAPES]
    for p in _COLUMNS:
        printed = SECONDS_OF_20_MILLION if p == _COLUMNS[-1] else None
        cases.append(_Case(f"p = {p:,}, N = 1000, n = 20", 1000, p, _SUBSPACE, printed, "p grows, N = 1000"))
    cases += [_Case(f"N = {n}, p = 1000, n = 20", n, 1000, _SUBSPACE, None, "N grows, p = 1000") for n in _ROWS]
    # Against the dimension there is no common horizontal axis: these rows have no curve.
    return cases + [_Case(f"n = {dim}, N = 1000, p = 1000", 1000, 1000, dim, None, "") for dim in _SUBSPACES]


def run(seed: int, quick: bool) -> list[Row]:
    """Seconds of every case; a quick run takes the small ones."""
    cases = [case for case in _cases() if not quick or case.count * case.width <= 300_000]
    return [
        _row(case, seconds_to_fit(case.count, case.width, case.dim, seed, 1 if quick else _REPEATS)) for case in cases
    ]


def seconds_to_fit(count: int, width: int, dim: int, seed: int, repeats: int) -> float:
    """Smallest processor seconds of some fits of a machine on Gaussian rows (count, width), on one thread."""
    rows = generator(seed, "time", f"{count} {width}").standard_normal((count, width))
    seconds = []
    with single_blas_thread():
        for _ in range(repeats):
            started = time.process_time()
            fit_machine(rows, subspace_dim=dim)
            seconds.append(time.process_time() - started)
    return min(seconds)


def _row(case: _Case, seconds: float) -> Row:
    note = "" if case.printed is None or seconds <= 0 else f"published / ours {case.printed / seconds:,.0f}"
    x = float(case.count * case.width) if case.series else None
    return Row(case.label, case.printed, seconds, "seconds", note, series=case.series, x=x)


EXPERIMENTS = (
    Experiment(
        id="dpkahm-table-11",
        title="seconds to fit one machine, against the size of its data",
        source="DP-KAHM Table 11, Figure 17",
        datasets=(),
        protocol=(
            "Rows are drawn from N(0, 1). Ours: processor seconds of one thread to fit one single-layer machine, the "
            f"smallest of {_REPEATS}; what is known of the machine stands with the result. Published: MATLAB R2017b on "
            "a MacBook Pro, 2.2 GHz Intel Core i7, 16 GB. The processors differ, so the ratio is not one of algorithms "
            "alone. Table 11 prints N p and neither N, p nor n: that the larger sizes are N by 10 N is inferred "
            "from the products, the shapes of the four smallest are guesses, and n = 20 is ours. Figure 17 has no "
            "printed numbers but one, 1600 s for 1000 by 20,000, in the text; of its grid (105)-(107) about half of "
            "the points are taken."
        ),
        run=run,
        axes=Axes("entries N p", "seconds", log_x=True, log_y=True),
    ),
)
