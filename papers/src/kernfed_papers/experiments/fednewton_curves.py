"""Curves of FedNewton's figures: which methods they show, their points as rows, and where FedNewton begins to help."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from kernfed_papers.experiment import Row
from kernfed_papers.experiments.fednewton_settings import mean_and_deviation

#: Series, method and rounds of every curve.
Curves = tuple[tuple[str, str, int], ...]
#: Values of every trial by series.
Values = dict[str, list[float]]

CURVES: Curves = (
    ("DKRR", "dkrr", 0),
    ("FedAvg # 8", "fedavg", 8),
    ("FedProx # 8", "fedprox", 8),
    *((f"FedNewton # {rounds}", "newton", rounds) for rounds in (1, 2, 4, 8)),
    ("conjugate # 2", "conjugate", 2),
    ("conjugate # 8", "conjugate", 8),
    ("exact", "exact", 1),
)
SECOND_ORDER = {"FedNewton": "newton", "conjugate": "conjugate"}
ITERATIVE = {"FedAvg": "fedavg", "FedProx": "fedprox", **SECOND_ORDER}


def curves_by_round(methods: Mapping[str, str], rounds: Iterable[int]) -> Curves:
    """Every method stopped after each number of rounds, as "series, number"; and the exact solution."""
    stopped = ((f"{series}, {count}", method, count) for series, method in methods.items() for count in rounds)
    return (*stopped, ("exact", "exact", 1))


def points(values: Values, x: float, where: str, unit: str) -> Iterator[Row]:
    """One point of every curve."""
    for series, trials in values.items():
        mean, deviation = mean_and_deviation(trials)
        yield Row(f"{series}, {where}", None, mean, unit, deviation=deviation, series=series, x=x)


def round_points(values: Values, unit: str, suffix: str = "") -> Iterator[Row]:
    """Points of ``curves_by_round``, with a level line for the exact solution."""
    by_round = {name: trials for name, trials in values.items() if name != "exact"}
    counts = []
    for name, trials in by_round.items():
        series, count = name.rsplit(", ", 1)
        counts.append(float(count))
        mean, deviation = mean_and_deviation(trials)
        yield Row(
            f"{series}{suffix}, round {count}",
            None,
            mean,
            unit,
            deviation=deviation,
            series=series + suffix,
            x=float(count),
        )
    mean, deviation = mean_and_deviation(values["exact"])
    for x in (min(counts), max(counts)):
        yield Row(
            f"exact{suffix}, drawn at round {x:g}", None, mean, unit, deviation=deviation, series=f"exact{suffix}", x=x
        )


def newton_helps(values: Values) -> bool:
    """Whether eight rounds of FedNewton are, on average over trials, nearer to the exact solution than none."""
    newton, none = (
        np.mean([abs(one - exact) for one, exact in zip(values[series], values["exact"], strict=True)])
        for series in ("FedNewton # 8", "DKRR")
    )
    return bool(newton < none)


def first_that_helps(helps: Mapping[int, bool], published: float) -> Row:
    """Row of the smallest local sample size from which on FedNewton helps; ``published`` is said in words."""
    first: float | None = None
    for size in sorted(helps, reverse=True):
        if not helps[size]:
            break
        first = float(size)
    tried: Sequence[int] = sorted(helps)
    note = f"of {', '.join(map(str, tried))}; published: about {published:g}"
    return Row(
        "rows per site from which on 8 rounds of FedNewton are nearer to exact than none",
        published,
        first,
        "rows",
        note if first is not None else f"not run: in no case {note}",
    )
