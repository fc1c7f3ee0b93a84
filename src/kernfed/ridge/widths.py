"""Bandwidths of random features that are tried, and what columns are divided by."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.ridge.parameters import RidgeParameters

#: Bandwidths that are tried, in median distances. With 2,000 features on letter, satimage, pendigits, USPS and
#: 20 Newsgroups the best was among them; at an eighth of the median every set lost more than five points.
FACTORS = (0.25, 0.5, 1.0, 2.0)
#: Features of a trial. The order of bandwidths was that of 2,000 features, or within 0.4 points of it, on those sets.
TRIAL_COMPONENTS = 500


def trial_problems(
    problem: RidgeParameters, wanted: str | None, median: float, spreads: FloatArray | None
) -> dict[tuple[str, float], RidgeParameters]:
    """Small problems by scale and factor of the median distance; ``wanted`` is "auto", a scale, or None for one unit.

    ``spreads`` (p,) are those of the columns, None where they are not known.
    """
    scales = ("entries", "columns") if wanted == "auto" else (scale_of(wanted),)
    if spreads is None or _alike(spreads):
        scales = ("entries",)  # columns of one spread: both are the same
    small = replace(problem, n_components=min(TRIAL_COMPONENTS, problem.n_components), regularization=(1.0,))
    widths: dict[str, float | tuple[float, ...]] = {"entries": median}
    if spreads is not None:
        widths["columns"] = plain_bandwidth(column_units("columns", spreads) * math.sqrt(2 * len(spreads)))
    return {
        (scale, factor): replace(small, bandwidth=plain_bandwidth(np.asarray(widths[scale]) * factor))
        for scale in scales
        for factor in FACTORS
    }


def column_units(scale: str, spreads: FloatArray) -> FloatArray:
    """What each column is divided by: its spread, or for "entries" the root mean square of all; never 0."""
    moving = spreads[spreads > 0]
    common = float(np.sqrt((moving**2).mean())) if moving.size else 1.0
    return np.where(spreads > 0, spreads, common) if scale == "columns" else np.full(len(spreads), common)


def scale_of(wanted: str | None) -> str:
    """The scale that is meant by what was asked for."""
    return "columns" if wanted == "columns" else "entries"


def plain_bandwidth(bandwidth: npt.ArrayLike) -> float | tuple[float, ...]:
    """One number where all columns have the same, otherwise one for each."""
    array = np.asarray(bandwidth, dtype=np.float64)
    if array.ndim == 0 or (array == array.flat[0]).all():
        return float(array.flat[0])
    return tuple(array.tolist())


def _alike(spreads: FloatArray) -> bool:
    moving = spreads[spreads > 0]
    return not moving.size or bool(moving.max() <= 1.01 * moving.min())
