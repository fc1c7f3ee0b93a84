"""One number for all sites from one number of each."""

from collections.abc import Iterable


def median_by_rows(values: Iterable[tuple[float, float]]) -> float:
    """The smallest value that half of all rows reach, of (value, rows) of each site; 1 where there are none.

    >>> median_by_rows([(5.0, 10), (1.0, 30), (2.0, 35)])
    2.0
    """
    ordered = sorted(values)
    half, reached = sum(rows for _, rows in ordered) / 2, 0.0
    for value, rows in ordered:
        reached += rows
        if reached >= half:
            return float(value)
    return 1.0
