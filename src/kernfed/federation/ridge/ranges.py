"""The range of values to regress: what a site sends of it, how that is checked, and the range of all sites."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.site.protocol.message import Payload
from kernfed.site.site import Site

Range = tuple[float, float]
#: What rounding may do, relative to the size of what is compared.
_ROUNDING = 1e-6


def range_values(task: str) -> dict[str, Any]:
    """The part of a question that asks for the range; empty for classes, whose questions stay as they are."""
    return {"range": True} if task == "regress" else {}


def range_arrays(site: Site, payload: Payload, task: str) -> dict[str, FloatArray]:
    """The smallest and the largest of the site's values as ``range`` (2,), where the question asks for them.

    Each is the value of one row: a site whose policy has labels "targets", of which none is told, sends none.
    """
    if payload.values.get("range") is not True or task != "regress" or site.policy.labels == "targets":
        return {}
    y = site.some_rows().y
    return {"range": np.array([float(y.min()), float(y.max())])}


def read_range(
    sent: Mapping[str, npt.NDArray[Any]], rows: int, scatter: float, around: float, mean: float | None = None
) -> Range | None:
    """The range in the arrays of one site, None where it sent none; an error where its sums rule it out.

    ``scatter`` is the site's ``sum (y - around)^2``. No value is farther from ``around`` than its root, one is at
    least as far as ``sqrt(scatter / rows)``, and the ``mean``, where it is known, is inside.
    """
    if "range" not in sent:
        return None
    array = sent["range"]
    if array.shape != (2,) or array.dtype != np.float64 or not np.isfinite(array).all() or array[0] > array[1]:
        raise InputError(f"the range must be two finite float64 numbers, low <= high, got {array!r:.80}")
    low, high = map(float, array)
    # The sums are rounded relative to the values, not to their distance from the mean.
    slack = _ROUNDING * max(abs(low), abs(high), abs(around))
    reach, root = max(abs(low - around), abs(high - around)), math.sqrt(max(scatter, 0.0))
    if not root / math.sqrt(rows) * (1 - _ROUNDING) - slack <= reach <= root * (1 + _ROUNDING) + slack:
        raise InputError(f"values of mean square {scatter / rows:.6g} cannot have the range {low:.6g} to {high:.6g}")
    if mean is not None and not low - slack <= mean <= high + slack:
        raise InputError(f"values of mean {mean:.6g} cannot have the range {low:.6g} to {high:.6g}")
    return low, high


def common_range(ranges: Sequence[Range | None], aggregate: str) -> Range | None:
    """The range that holds those of all sites; None where a site sent none.

    Under "median" it ends one width beyond the median range at most, so that a minority of wrong sites cannot move it
    farther: the medians of the lower and of the upper ends are those of the median range.
    """
    known = [own for own in ranges if own is not None]
    if not known or len(known) < len(ranges):
        return None
    lows, highs = np.array(known).T
    low, high = float(lows.min()), float(highs.max())
    if aggregate == "median":
        middle_low, middle_high = float(np.median(lows)), float(np.median(highs))
        width = middle_high - middle_low
        low, high = max(low, middle_low - width), min(high, middle_high + width)
    return low, high
