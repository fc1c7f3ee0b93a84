"""The numbers that the papers print, each under its paper, table, row and column; one module per paper."""

from collections.abc import Mapping

from kernfed.errors import InputError
from kernfed_papers.published import dpkahm, fednewton, gikm, kme, sfm
from kernfed_papers.published.table import PublishedTable

__all__ = ["TABLES", "PublishedTable", "published"]

_PAPERS = {"GIKM": gikm, "SFM": sfm, "DP-KAHM": dpkahm, "FedNewton": fednewton, "KME": kme}

#: Tables by paper (short name) and number.
TABLES: Mapping[tuple[str, int], PublishedTable] = {
    (paper, number): table for paper, module in _PAPERS.items() for number, table in module.TABLES.items()
}


def published(paper: str, table: int, row: str, column: str) -> float | None:
    """The printed number in a cell.

    >>> published("GIKM", 1, "Accuracy", "MNIST")
    0.987
    """
    printed = TABLES.get((paper, table))
    if printed is None:
        known = ", ".join(f"{name} {number}" for name, number in TABLES)
        raise InputError(f"no table {table} of {paper}; there are {known}")
    if row not in printed.rows or column not in printed.columns:
        raise InputError(
            f"{paper} Table {table} has rows {', '.join(printed.rows)} and columns "
            f"{', '.join(printed.columns)}, no cell {row!r}, {column!r}"
        )
    return printed.rows[row][printed.columns.index(column)]
