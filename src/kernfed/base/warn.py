"""Warnings that name the line of whoever called kernfed, however deep inside it they are raised."""

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the first line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kernfed":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
