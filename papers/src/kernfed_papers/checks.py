"""Checks of settings; every message says what was expected and what came."""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from kernfed.errors import InputError


def check_count(value: Any, name: str, *, at_least: int = 1) -> int:
    """An integer of at least ``at_least``, as int.

    >>> check_count(3, "rounds")
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be an integer, got {value!r}")
    if int(value) < at_least:
        raise InputError(f"{name} must be >= {at_least}, got {value!r}")
    return int(value)


def check_number(value: Any, name: str, *, zero: bool) -> float:
    """A finite number above zero, or from ``zero`` on, as float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise InputError(f"{name} must be {'>=' if zero else '>'} 0, got {value!r}")
    return float(value)


def check_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """One of a fixed set of words."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
