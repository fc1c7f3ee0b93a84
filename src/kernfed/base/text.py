"""Text for people and values for JSON: tables of text, bytes, durations, and plain values of nested results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TextTable:
    """Rows of text under column names. A column of numbers is aligned to the right; a dot stands for none."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def numeric(self, place: int) -> bool:
        """Whether column ``place`` holds numbers."""
        cells = [row[place] for row in self.rows if row[place] not in ("", ".")]
        return bool(cells) and all(cell.lstrip("+-")[:1].isdigit() for cell in cells)

    def shortened(self, most: int) -> "TextTable":
        """The table with at most so many rows; the last of them says how many more there are."""
        if len(self.rows) <= most:
            return self
        more = (f"... {len(self.rows) - most + 1} more", *[""] * (len(self.columns) - 1))
        return TextTable(self.columns, [*self.rows[: most - 1], more], self.title)


def aligned(table: TextTable) -> str:
    """The table as plain text: title, column names and rows, columns two spaces apart."""
    lines = [tuple(table.columns), *(tuple(row) for row in table.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    sides = [str.rjust if table.numeric(place) else str.ljust for place in range(len(widths))]
    text = [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(([table.title] if table.title else []) + text)


def plain(value: Any) -> Any:
    """Nested mappings, sequences, arrays, paths and numpy scalars as what JSON can hold; NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy, which need not be imported for this
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def format_bytes(count: float) -> str:
    """Bytes in decimal units.

    >>> format_bytes(999), format_bytes(198_066_000)
    ('999 B', '198 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """A duration, to about three digits.

    >>> format_seconds(0.0123), format_seconds(1.5), format_seconds(125)
    ('12.3 ms', '1.50 s', '2 min 5 s')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
