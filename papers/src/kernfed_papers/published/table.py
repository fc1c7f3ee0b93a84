"""What a printed table is."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTable:
    """A printed table: values by row and column; None where the paper prints nothing.

    All are in one unit but for columns whose name has another, in brackets.
    """

    caption: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
