"""What a printed table is."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTable:
    """A printed table: values by row and column, all in one unit; None where the paper prints nothing."""

    caption: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
