"""What a release promises, in numbers and in one sentence."""

import math
from dataclasses import dataclass
from typing import Any

from kernfed._validation import check_choice, check_number
from kernfed.errors import InputError

UNITS = ("element", "record")
#: A delta below this is said to be so: its digits would only distract.
_NEGLIGIBLE = 1e-30


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a ``unit``, for data sets that differ as ``adjacency`` says.

    ``adjacency`` completes "... for". ``bounds`` are the public bounds to which values were clipped, ``d`` the
    largest change of an element that is protected, each where the mechanism has one. An infinite epsilon means no
    guarantee at this delta.

    >>> print(Guarantee(1.00001, 1e-5, "record", "one row replaced by any other"))
    record: (1.001, 1e-05)-differential privacy for one row replaced by any other
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    bounds: tuple[float, float] | None = None
    d: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.unit, "unit", UNITS)
        check_number(self.delta, "delta", at_least=0, at_most=1)
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be >= 0, got {self.epsilon!r}")

    def __str__(self) -> str:
        clipped = (
            ""
            if self.bounds is None
            else f", values clipped to the public bounds [{self.bounds[0]:g}, {self.bounds[1]:g}]"
        )
        if math.isinf(self.epsilon):
            return f"{self.unit}: no guarantee at delta {delta_words(self.delta)} for {self.adjacency}{clipped}"
        pair = f"({round_up(self.epsilon):g}, {delta_words(self.delta)})"
        return f"{self.unit}: {pair}-differential privacy for {self.adjacency}{clipped}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for messages and reports; ``bounds`` as a list."""
        bounds = None if self.bounds is None else list(self.bounds)
        names = ("epsilon", "delta", "unit", "adjacency", "d")
        return {**{name: getattr(self, name) for name in names}, "bounds": bounds}


def round_up(value: float, digits: int = 4) -> float:
    """The value to that many significant digits, never less than the truth."""
    if value == 0 or math.isinf(value):
        return value
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return rounded if rounded >= value else round(rounded + 10.0**-places, places)


def delta_words(delta: float) -> str:
    """A delta for people, never less than the truth.

    >>> delta_words(1e-5), delta_words(7e-56), delta_words(0.0)
    ('1e-05', 'below 1e-30', '0')
    """
    tiny = 0 < delta < _NEGLIGIBLE
    return f"below {_NEGLIGIBLE:g}" if tiny else f"{round_up(delta):g}"
