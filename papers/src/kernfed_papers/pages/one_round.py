"""Tables of ``kernfed bench one-round``: one per way to spread rows, and how everything was set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernfed.report import PageTable
from kernfed_papers.experiment import Row
from kernfed_papers.one_round.cells import split_label
from kernfed_papers.one_round.methods import METHODS, OURS, PEER, POOLED
from kernfed_papers.one_round.sets import SETS, SPREADS
from kernfed_papers.runner import row_cells

#: What the differences are of.
_HEADLINE = "fusion"
#: Peers that exchange more than once; they are shown, and do not count as peers in one round.
_MANY_ROUNDS = ("DeepAFL", "FedAvg 10", "FedAvg 100")
#: Points by which a pooled method may be ahead and still be reached.
_NEAR = 0.5
_BEST = " *"


@dataclass(frozen=True)
class _Line:
    """Accuracies (%) of one set by column."""

    name: str
    by_column: dict[str, float] = field(default_factory=dict)

    def best(self, columns: Sequence[str]) -> float | None:
        return max((self.by_column[column] for column in columns if column in self.by_column), default=None)

    def ahead(self, columns: Sequence[str]) -> float | None:
        """How far the headline method is ahead of the best of ``columns``."""
        best, ours = self.best(columns), self.by_column.get(_HEADLINE)
        return None if best is None or ours is None else ours - best


def one_round_tables(rows: Sequence[Row]) -> tuple[PageTable, ...]:
    """A table for each spread that has results, then one that says how each number came about."""
    accuracies = [row for row in rows if row.unit == "%" and row.ours is not None]
    tables = [_spread_table(accuracies, spread.sites, f"{spread.alpha:g}") for spread in SPREADS]
    return (*(table for table in tables if table.rows), _settings_table(accuracies))


def columns_of(group: str) -> tuple[str, ...]:
    """Columns of a group of methods, in order."""
    return tuple(column for method in METHODS.values() if method.group == group for column in method.columns)


def _spread_table(rows: Sequence[Row], sites: int, alpha: str) -> PageTable:
    """One line per set; what does not depend on the spread is in both tables."""
    spread = {split_label(row.label)[0] for row in rows if split_label(row.label)[1] == sites}
    lines: dict[str, _Line] = {}
    for row in rows:
        name, own_sites, column = split_label(row.label)
        if own_sites in (None, sites) and (name in spread or _fits(name, sites)):
            lines.setdefault(name, _Line(name)).by_column[column] = float(row.ours or 0.0)
    shown = [column for group in (POOLED, PEER, OURS) for column in columns_of(group)]
    shown = [column for column in shown if any(column in line.by_column for line in lines.values())]
    single = [column for column in columns_of(PEER) if column not in _MANY_ROUNDS]
    against = {"pooled": columns_of(POOLED), "one-round peer": single, "peer of any rounds": columns_of(PEER)}
    ordered = sorted(lines.values(), key=lambda line: _order(line.name))
    compared = against if _HEADLINE in shown else {}
    head = ("set", *shown, *(f"{_HEADLINE} - best {what}" for what in compared))
    body = tuple(
        (line.name, *_cells(line, shown), *(_signed(line.ahead(columns)) for columns in compared.values()))
        for line in ordered
    )
    return PageTable(head, body, _caption(ordered, sites, alpha, against))


def _fits(name: str, sites: int) -> bool:
    """Whether a set has rows enough for so many sites: its count is a part of its name."""
    count = int(name.removesuffix(" rows").partition(", ")[2].replace(",", ""))
    return next(spread for spread in SPREADS if spread.sites == sites).fits(count)


def _cells(line: _Line, columns: Sequence[str]) -> tuple[str, ...]:
    best = line.best(columns_of(POOLED))
    cells = []
    for column in columns:
        value = line.by_column.get(column)
        marked = _BEST if value is not None and value == best and column in columns_of(POOLED) else ""
        cells.append("" if value is None else f"{value:.2f}{marked}")
    return tuple(cells)


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _caption(lines: Sequence[_Line], sites: int, alpha: str, against: Mapping[str, Sequence[str]]) -> str:
    what = f"Test accuracy (%), {sites} sites by Dirichlet {alpha}, means over seeds; * is the best pooled method."
    ahead = [(line.ahead(against["pooled"]), line.ahead(against["one-round peer"])) for line in lines]
    known = [(pooled, peer) for pooled, peer in ahead if pooled is not None and peer is not None]
    if not known:
        return what
    near = sum(pooled >= -_NEAR for pooled, _ in known)
    above = sum(peer > 0 for _, peer in known)
    return (
        f"{what} {_HEADLINE.capitalize()} is within {_NEAR:g} points of the best pooled method, or above, on {near} of "
        f"{len(known)} sets, and above every peer in one round on {above}."
    )


def _order(name: str) -> tuple[int, str]:
    names = list(SETS)
    known = name.partition(",")[0]
    return (names.index(known) if known in names else len(names), name)


def _settings_table(rows: Sequence[Row]) -> PageTable:
    """Every number with its deviation over seeds, its grid and what was chosen of it."""
    ordered = sorted(rows, key=lambda row: _order(row.label))
    body = tuple((row.label, row_cells(row)[2], row.note) for row in ordered)
    caption = "How each number came about: deviations are over seeds, grids as they were after widening."
    return PageTable(("set: method", "accuracy (%)", "setting"), body, caption, folded=True)
