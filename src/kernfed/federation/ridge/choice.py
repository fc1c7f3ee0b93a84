"""What a fit chooses by itself: the bandwidth and the scale of columns on fewer features, the regularisation on all.

Exchanges of "exact" with everything chosen: survey, spreads of columns, sums of the trials, their errors, sums of the
problem, its errors. Eigenvectors go to the sites once: all candidates that can be the best are asked for together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.federation.ridge.options import RidgeOptions
from kernfed.federation.ridge.pooling import Pooled, ask_left_out, ask_trials, rows_that_count
from kernfed.federation.ridge.system import Sites
from kernfed.federation.survey import Bandwidth
from kernfed.kernels.rows import ColumnStatistics, typical_statistics
from kernfed.ridge.leave_one_out import (
    TRIAL_STEPS,
    LeftOut,
    Spectrum,
    column_penalty,
    column_units,
    grid,
    plain_bandwidth,
    rule,
    scale_of,
    trial_problems,
)
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Payload


@dataclass(frozen=True)
class Width:
    """A bandwidth and how it came about: ``RidgeChoices.bandwidth``, ``scale`` and ``widths``."""

    bandwidth: Bandwidth
    how: str = "given"
    scale: str = "entries"
    tried: Mapping[tuple[str, float], float] | None = None


def choose_width(options: RidgeOptions, sites: Sites, median: float) -> Width:
    """The bandwidth of Fourier features; ``median`` is the sites' median distance between rows."""
    wanted = options.bandwidth
    if options.committee is not None and options.features == "fourier":  # nothing is tried that sites answer alone
        return Width(median, "median") if isinstance(wanted, str) else Width(wanted)
    chosen = wanted == "auto" and options.method == "exact"
    if options.features == "given":
        return Width(1.0)
    if not chosen and (options.scale in (None, "auto") or options.method != "exact"):
        return Width(median, "median") if isinstance(wanted, str) else Width(wanted)
    spreads = None if options.scale is None else ask_spreads(sites)
    if not chosen:
        assert spreads is not None
        unit = column_units(str(options.scale), spreads)
        # Two rows of p columns of spread 1 are sqrt(2 p) apart, in the mean of squares.
        factor = math.sqrt(2 * len(spreads)) if isinstance(wanted, str) else np.asarray(wanted)
        return Width(
            plain_bandwidth(unit * factor), "median" if isinstance(wanted, str) else "given", scale_of(options.scale)
        )
    return _best_width(trial_problems(sites.parameters, options.scale, median, spreads), sites)


def _best_width(trials: dict[tuple[str, float], RidgeParameters], sites: Sites) -> Width:
    """The trial with the smallest loss left out, each at its own best regularisation: two exchanges."""
    pooled = ask_trials(sites, list(trials.values()))
    spectra = [Spectrum.of(own.moments, own.mass) for own in pooled]
    paths = [
        np.array(grid(rule(own.trace, own.n_eff), TRIAL_STEPS, least=spectrum.least))
        for own, spectrum in zip(pooled, spectra, strict=True)
    ]
    told = ask_left_out(pooled, spectra, paths)
    classify = sites.parameters.task == "classify"
    tried = {
        name: float(left.losses(own.mass, classify).min()) for name, own, left in zip(trials, pooled, told, strict=True)
    }
    best = min(tried, key=lambda name: tried[name])
    return Width(trials[best].bandwidth, "left out", best[0], tried)


def ask_spreads(sites: Sites) -> FloatArray:
    """Spread (p,) of every column over all sites' rows, 0 for a constant one: one exchange of 2 p numbers.

    Under "median" it is that of the median site.
    """

    def read(site: str, payload: Payload) -> ColumnStatistics:
        rows = payload.arrays["rows"]
        if set(payload.arrays) != {"mean", "squares", "rows"} or rows.shape != (1,) or rows.dtype != np.int64:
            raise InputError(f"expected mean, squares and rows, got {sorted(payload.arrays)}")
        sites.expected[site].check_rows(int(rows[0]))
        return ColumnStatistics.from_arrays(int(rows[0]), payload.arrays, width=sites.parameters.width)

    question = Payload(values={"parameters": sites.parameters.to_values()})
    replies = sites.ask("ridge_columns", question, read)
    parts = [read(*reply) for reply in replies.items()]
    return (reduce(add, parts) if sites.aggregate == "sum" else typical_statistics(parts)).deviation


# Regularisation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strength:
    """A regularisation and how it came about; ``penalty`` is that of the weights where columns have their own units."""

    regularization: float
    how: str
    scale: str = "entries"
    penalty: FloatArray | None = None
    path: Mapping[float, float] | None = None
    errors: Mapping[float, tuple[float, float]] | None = None
    temperature: float | None = None


def choose_strength(options: RidgeOptions, pooled: Pooled) -> Strength:
    """The regularisation for the pooled sums: given, or by exact leave-one-out of all rows."""
    by_columns = options.features == "given" and options.scale == "columns"
    penalties: dict[str, FloatArray | None] = {"entries": None}
    if by_columns:
        penalties = {"columns": column_penalty(pooled.moments, pooled.mass)}
    if len(options.candidates) == 1 and not isinstance(options.regularization, str):
        ((scale, penalty),) = penalties.items()
        return Strength(options.candidates[0], "given", scale, penalty)
    if options.committee is not None:  # from the sums alone: errors left out are told by every site
        ((scale, penalty),) = penalties.items()
        return Strength(_Way(scale, penalty, pooled).middle, "sums", scale, penalty)
    if options.features == "given" and options.scale == "auto" and isinstance(options.regularization, str):
        penalties = {"entries": None, "columns": column_penalty(pooled.moments, pooled.mass)}
    ways = [_Way(scale, penalty, pooled) for scale, penalty in penalties.items()]
    given = None if isinstance(options.regularization, str) else np.array(options.regularization)
    told = ask_left_out(
        [pooled] * len(ways),
        [way.spectrum for way in ways],
        [np.array(way.path) if given is None else given for way in ways],
    )
    for way, left in zip(ways, told, strict=True):
        way.add(way.path if given is None else tuple(given.tolist()), left)
    best = min(ways, key=lambda way: way.told[way.best].loss)
    return best.strength()


@dataclass(frozen=True)
class _Told:
    """Of one candidate: what it is chosen by, the share of errors, the squared error, the temperature."""

    loss: float
    wrong: float
    squares: float
    temperature: float | None


class _Way:
    """One penalty of the weights, and what was told of candidates under it."""

    def __init__(self, scale: str, penalty: FloatArray | None, pooled: Pooled) -> None:
        self.scale, self.penalty, self.mass = scale, penalty, pooled.mass
        self.classify = pooled.sites.parameters.task == "classify"
        self.spectrum = Spectrum.of(pooled.moments, pooled.mass, penalty)
        self.middle = rule(float(self.spectrum.values.sum()), pooled.n_eff)
        self.path = grid(self.middle, least=self.spectrum.least)
        self.told: dict[float, _Told] = {}

    def add(self, path: tuple[float, ...], left: LeftOut) -> None:
        """Note what was told of candidates."""
        losses = left.losses(self.mass, self.classify)
        for place, value in enumerate(path):
            squares, wrong = float(left.squares[place]) / self.mass, float(left.wrong[place]) / self.mass
            self.told[value] = _Told(float(losses[place]), wrong, squares, left.temperature(place))

    @property
    def best(self) -> float:
        """The candidate of the smallest loss."""
        return min(self.told, key=lambda value: self.told[value].loss)

    def strength(self) -> Strength:
        """The choice."""
        told = dict(sorted(self.told.items()))
        return Strength(
            self.best,
            "left out",
            self.scale,
            self.penalty,
            {value: own.squares for value, own in told.items()},
            {value: (own.loss, own.wrong) for value, own in told.items()} if self.classify else {},
            told[self.best].temperature,
        )


def path_of_rounds(sites: Sites) -> tuple[float, ...]:
    """Nine candidates, a factor of ten apart, for methods in rounds, around ``tr(C) / n_eff``.

    Fourier features have squared length 1/2; for columns as given the trace is one exchange.
    """
    trace = 0.5 if sites.parameters.features == "fourier" else float((ask_spreads(sites) ** 2).sum())
    return grid(rule(trace, rows_that_count(sites)), TRIAL_STEPS)[::2]
