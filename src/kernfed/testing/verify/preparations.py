"""Preparations that nobody needs: plans at the ends of what numbers can be, and plans of one word.

Everything in them is of the right type, so that a site has to decide by its bounds, and never by what its cells hold.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernfed.site.protocol.message import Payload

Plan = dict[str, Any]

#: The largest number there is, and the smallest above 0.
LARGEST, SMALLEST = sys.float_info.max, 5e-324
#: A word that no cell holds: flags of it are 0 in every row.
NOBODY = "nobody has this"
#: Sizes of numbers that a plan is made of: most are far from those of any column.
_SIZES = (SMALLEST, sys.float_info.min, 1e-12, 1e-6, 1e-3, 0.3, 1.0, 10.0, 1e3, 1e6, 1e12, 1e150, 1e300, LARGEST)
#: Spreads that divide a number to infinity, to almost that, and to 0.
_SPREADS = (SMALLEST, SMALLEST, sys.float_info.min, 1e-12, 1e-6, 1e300, LARGEST)
_WORDS = (NOBODY, "0", "1", "2", "-1", "3", "0.0", "1e300")


def question(plans: Sequence[Plan]) -> Payload:
    """The question that has a site use these plans, one for each of its columns."""
    return Payload(values={"preparation": [dict(plan) for plan in plans], "remarks": []})


def wide(name: str, limit: float = 1e9) -> Plan:
    """Numbers within +-limit as they are."""
    return {"name": name, "kind": "number", "low": -limit, "high": limit, "center": 0.0, "spread": 1.0}


def word_flag(name: str, word: str = NOBODY) -> Plan:
    """One flag for one word: whether a row's cell is that word, and 0 in every row where no cell is."""
    return {"name": name, "kind": "category", "values": [word], "other": False, "missing": False}


def above(name: str, threshold: float, spread: float = SMALLEST, high: float = LARGEST) -> Plan:
    """0 for values up to the threshold; above it the difference over ``spread``, by default beyond all numbers."""
    return {"name": name, "kind": "number", "low": threshold, "high": high, "center": threshold, "spread": spread}


def below(name: str, threshold: float, spread: float = SMALLEST, low: float = -LARGEST) -> Plan:
    """0 for values from the threshold on; below it minus the difference over ``spread``."""
    return {"name": name, "kind": "number", "low": low, "high": threshold, "center": threshold, "spread": spread}


def logarithmic(name: str, threshold: float, unit: float = SMALLEST) -> Plan:
    """The logarithm of the distance from the threshold in steps of ``unit``."""
    curve = {"curve": "log", "offset": threshold, "unit": unit}
    return {**wide(name, LARGEST), **curve, "spread": SMALLEST}


def edge(name: str, threshold: float, reach: float) -> Plan:
    """Values from the threshold on over as small a spread as the reach above it can be divided by without overflow."""
    return above(name, threshold, 2e-9 * reach, threshold + reach)


def around(name: str, threshold: float) -> list[Plan]:
    """Plans of one column, by which values on the two sides of a threshold may be told apart."""
    reach = max(1.0, abs(threshold))
    return [
        above(name, threshold),
        below(name, threshold),
        edge(name, threshold, reach),
        below(name, threshold, 2e-9 * reach, threshold - reach),
        above(name, threshold, LARGEST),
        logarithmic(name, threshold),
        {**wide(name, 1e12), "curve": "log", "offset": threshold, "unit": 1e-100, "spread": 1e-6},
        {**logarithmic(name, threshold), "center": LARGEST},
        {**wide(name, LARGEST), "center": -LARGEST},
        {**wide(name, LARGEST), "center": threshold, "spread": SMALLEST},
        {"name": name, "kind": "time", "center": threshold, "spread": SMALLEST, "parts": ["years"]},
        {"name": name, "kind": "time", "center": -LARGEST, "spread": SMALLEST, "parts": ["years"]},
    ]


def hostile_question(names: Sequence[str], draws: np.random.Generator) -> Payload:
    """Plans of these columns with one that is hostile, or with the same hostile plan for all.

    The others leave numbers as they are, or make 0 of every cell: then whether rows change follows from one column.
    """
    chosen, way = names[int(draws.integers(len(names)))], int(draws.integers(3))
    plan = _hostile_plan(chosen, draws)
    others = (lambda name: {**plan, "name": name}, wide, word_flag)[way]
    return question([plan if name == chosen else others(name) for name in names])


def _hostile_plan(name: str, draws: np.random.Generator) -> Plan:
    """A plan that no honest coordinator chooses; two of three are within what a site can follow."""
    if draws.integers(3):
        return _followed_plan(name, draws)
    threshold, spread = _number(draws), _SPREADS[draws.integers(len(_SPREADS))]
    kind = int(draws.integers(5))
    if kind < 2:
        return (above, below)[kind](name, threshold, spread)
    if kind == 2:
        return {"name": name, "kind": "time", "center": threshold, "spread": spread, "parts": ["years"]}
    if kind == 3:
        return {**logarithmic(name, threshold, spread), "center": _number(draws)}
    low, high = sorted((threshold, _number(draws)))
    return {**wide(name), "low": low, "high": high, "center": _number(draws), "spread": spread}


def _followed_plan(name: str, draws: np.random.Generator) -> Plan:
    """A plan of ordinary numbers and words: steep at a threshold, of one word, or of an order of words."""
    kind = int(draws.integers(5))
    if kind == 0:
        return word_flag(name, _WORDS[draws.integers(len(_WORDS))])
    if kind == 1:
        return {"name": name, "kind": "ordered", "values": ["0", "1", NOBODY], "missing": False}
    threshold, reach = float(draws.normal()) * 10.0 ** int(draws.integers(-2, 5)), 10.0 ** int(draws.integers(-2, 12))
    if kind == 2:
        return {"name": name, "kind": "time", "center": threshold, "spread": 1e-6, "parts": ["years"]}
    if kind == 3:
        return {**wide(name), "curve": "log", "offset": threshold, "unit": 1 / reach, "spread": 1e-6}
    return edge(name, threshold, reach)


def _number(draws: np.random.Generator) -> float:
    """0, or a number of any size and sign."""
    return float(draws.choice((-1.0, 0.0, 1.0), p=(0.4, 0.2, 0.4))) * _SIZES[draws.integers(len(_SIZES))]
