"""Public limits of a preparation: what its settings may be, and how large a prepared value can get.

An asker writes the settings, so a preparation whose result is infinite for some cells would tell which rows have them.
Settings are therefore bounded when a plan is made, before a row is looked at, and every prepared value is cut to a
bound that its kind of plan has: after that a learner sees finite rows of public size, whatever the table holds.
"""

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.fields import check_text
from kernfed.data.columns import LARGEST
from kernfed.errors import InputError

#: Size of a prepared number. What ``kernfed prepare`` chooses comes to a few hundred at most; a file that leaves
#: numbers as they are may come to this; and squares of it can be added over 1e280 rows.
LARGEST_NUMBER = 1e9
#: Size of low, high, center and offset: numbers are at most ``LARGEST``, and six standard deviations beyond them 7e100.
FARTHEST = 10 * LARGEST
#: Least of spread and unit: the square root of the smallest square that a sum can hold is 2e-162.
SMALLEST_SCALE = 1e-200
#: Least width of [low, high] in parts of its larger end: nearer values are the same but for rounding.
NARROWEST = 1e-9
#: Least unit of a logarithm in parts of high - low. Histograms know values from 1e-12 to 1e100.
FINEST_UNIT = 1e-120
#: Days from 1970, and days of a spread: files count at most 2^63 microseconds, 1.1e8 days.
FARTHEST_DAY, LEAST_DAYS = 1e9, 1e-9
#: Characters of a name, a reason, a word or a fingerprint, and words of a column.
MOST_CHARACTERS, MOST_VALUES = 1000, 10_000
#: Numbers of one list or one vector of a text, and columns that a preparation may make.
MOST_OUTPUTS = 1_000_000
#: Characters of the names of all columns that a preparation makes.
MOST_NAME_CHARACTERS = 100_000_000


def saturated(made: FloatArray, bound: float) -> FloatArray:
    """Values cut to [-bound, bound], those that are not a number as 0; finite values inside keep their bits.

    >>> saturated(np.array([[np.nan, np.inf, -0.5]]), 4.0).tolist()
    [[0.0, 4.0, -0.5]]
    """
    limit = min(bound, float(np.finfo(made.dtype).max))
    cut = np.clip(np.nan_to_num(made, nan=0.0, posinf=limit, neginf=-limit), -limit, limit)
    return np.asarray(cut, dtype=made.dtype)  # lists may be float32, and stay so


def check_values(values: tuple[str, ...], column: str, at_least: int) -> None:
    """Refuse too few, too many, repeated or too long words of a column."""
    if not at_least <= len(values) <= MOST_VALUES or len(set(values)) != len(values):
        raise InputError(f"values of column {column!r:.60} must be {at_least} to {MOST_VALUES:,} words, each once")
    for word in values:
        check_text(word, f"a word of column {column!r:.60}", MOST_CHARACTERS)


def check_range(low: float, high: float, column: str) -> None:
    """Refuse a range that is empty, or so narrow that rounding decides on which side of it a value is."""
    if not low < high:
        raise InputError(f"low of column {column!r:.60} must be below high, got {low} and {high}")
    if high - low < NARROWEST * max(abs(low), abs(high)):
        raise InputError(
            f"low and high of column {column!r:.60} must differ by at least {NARROWEST:g} of their size, got {low} and "
            f"{high}; choose a wider range"
        )


def check_reach(ends: FloatArray, center: float, spread: float, column: str) -> None:
    """Refuse a center and spread by which the ends (2,) of a range, on its curve, are beyond ``LARGEST_NUMBER``."""
    if not float(np.abs(ends - center).max()) <= LARGEST_NUMBER * spread:
        raise InputError(
            f"spread of column {column!r:.60} must be at least {1 / LARGEST_NUMBER:g} of the distance from center to "
            f"low and to high, on its curve, got {spread}; choose center between them, and a larger spread"
        )
