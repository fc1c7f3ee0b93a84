"""What a report says, apart from how it looks: facts, sections, figures as numbers, statements with assumptions.

Everything is plain frozen data, so that what is shown can be tested without a page. Every figure has a form as a
table (``figure_table``), which stands under it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

#: How values are written: "share" as per cent, "bytes" in decimal units, anything else to four digits with the unit.
SHARE = "share"
BYTES = "bytes"
#: End of the name of a curve as printed; the curve of ours is named alike without it.
PUBLISHED = " (published)"
#: More sites than this are folded: figures draw both ends of them, tables show them when they are opened.
MOST_OPEN = 24


@dataclass(frozen=True)
class PageTable:
    """Rows of text under column names; a ``folded`` one shows its caption only until it is opened."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Bars:
    """Horizontal bars in the order given, each perhaps with further marks, and lines across all of them.

    words : what is to be seen, for those who cannot see it. marks : name -> a value per bar or None. lines : name ->
    value. intervals : (low, high) per bar, or none. value_name : what a bar is, in the table. top : value at the right
    end, by default the largest.
    """

    title: str
    words: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    unit: str = SHARE
    value_name: str = "value"
    marks: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    lines: Mapping[str, float] = field(default_factory=dict)
    intervals: tuple[tuple[float, float], ...] = ()
    top: float | None = None

    @classmethod
    def of(cls, title: str, words: str, values: Mapping[str, float], **options: Any) -> "Bars":
        """Bars of values by label; ``options`` are the other fields."""
        return cls(title, words, tuple(values), tuple(values.values()), **options)


@dataclass(frozen=True)
class HeatMap:
    """A matrix of values of at least 0, darker where larger; ``corner`` names rows and columns in the table.

    scale : the value that is darkest, by default the largest one. drawn_rows, drawn_columns : places of those that are
    drawn, in order, by default all; the table has them all.
    """

    title: str
    words: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    row_name: str
    column_name: str
    unit: str = ""
    scale: float | None = None
    drawn_rows: tuple[int, ...] = ()
    drawn_columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Series:
    """Points of one curve in order of x; ``dashed`` for published ones, ``spread`` (same length) where known."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    spread: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Curves:
    """Curves over a common horizontal axis."""

    title: str
    words: str
    series: tuple[Series, ...]
    x_name: str
    y_name: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Pictures:
    """Matrices of values of at least 0 side by side, each under its name, darker where larger."""

    title: str
    words: str
    panels: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...]


Figure = Bars | HeatMap | Curves | Pictures


@dataclass(frozen=True)
class Assumption:
    """A condition of a statement: checked and true, checked and false, or None where nobody can check it from here."""

    text: str
    holds: bool | None = None


@dataclass(frozen=True)
class Claim:
    """A statement that can be relied on as far as ``status`` says, if its assumptions hold; ``source`` says who."""

    title: str
    statement: str
    status: str
    reliable: bool
    source: str = ""
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Fact:
    """One number of the summary at the top."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report: paragraphs first, then figures, claims, points of a list, and tables.

    short : its name in the list of sections, where the title is too long for that.
    """

    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    points: tuple[str, ...] = ()
    tables: tuple[PageTable, ...] = ()
    short: str = ""


@dataclass(frozen=True)
class ReportData:
    """A whole report. kind : what it is about: "model", "audit", "site", "results". lead : the sentence to remember."""

    kind: str
    title: str
    lead: str
    facts: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()

    def section(self, title: str) -> Section:
        """The section with this title; KeyError where there is none."""
        for section in self.sections:
            if section.title == title:
                return section
        raise KeyError(f"no section {title!r}; there are {[section.title for section in self.sections]}")

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Figures of all sections, in their order."""
        return tuple(figure for section in self.sections for figure in section.figures)


def figure_table(figure: Figure) -> PageTable:
    """The numbers of a figure as a table."""
    if isinstance(figure, Bars):
        return _bars_table(figure)
    if isinstance(figure, HeatMap):
        columns = (f"{figure.row_name} \\ {figure.column_name}", *figure.columns)
        cells = [
            (name, *(written(value, figure.unit) for value in line))
            for name, line in zip(figure.rows, figure.values, strict=True)
        ]
        return PageTable(columns, tuple(cells), figure.title)
    if isinstance(figure, Pictures):
        return _pictures_table(figure)
    spreads = any(value is not None for series in figure.series for value in series.spread)
    points = [
        (series.name, written(x), written(y), *((written(_at(series.spread, place)),) if spreads else ()))
        for series in figure.series
        for place, (x, y) in enumerate(zip(series.x, series.y, strict=True))
    ]
    columns = ("curve", figure.x_name, figure.y_name, *(("standard deviation",) if spreads else ()))
    return PageTable(columns, tuple(points), figure.title)


def site_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str) -> PageTable:
    """A table with a row for each site, folded where there are many."""
    many = len(rows) > MOST_OPEN
    return PageTable(columns, tuple(rows), f"{caption}: all {len(rows):,}" if many else caption, folded=many)


def _bars_table(figure: Bars) -> PageTable:
    columns: dict[str, Sequence[float | None]] = {figure.value_name: figure.values, **figure.marks}
    if figure.intervals:
        columns |= {"at least": [low for low, _ in figure.intervals], "at most": [high for _, high in figure.intervals]}
    rows = [
        (label, *(written(values[place], figure.unit) for values in columns.values()))
        for place, label in enumerate(figure.labels)
    ]
    rows += [(name, written(value, figure.unit), *[""] * (len(columns) - 1)) for name, value in figure.lines.items()]
    return PageTable(("", *columns), tuple(rows), figure.title)


def _pictures_table(figure: Pictures) -> PageTable:
    """What can be said of pictures in few numbers."""
    rows = []
    for name, matrix in figure.panels:
        values = [value for line in matrix for value in line]
        rows.append(
            (
                name,
                f"{len(matrix)} by {len(matrix[0])}",
                written(min(values)),
                written(max(values)),
                written(sum(values) / len(values)),
            )
        )
    return PageTable(("picture", "size", "smallest", "largest", "mean"), tuple(rows), figure.title)


def _at(values: tuple[float | None, ...], place: int) -> float | None:
    return values[place] if place < len(values) else None


def listed(names: Sequence[object], most: int = 20) -> str:
    """The first names in a sentence, and how many more there are.

    >>> listed("abcd", 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def written(value: float | None, unit: str = "") -> str:
    """A number for people; nothing where there is none.

    >>> written(0.98031, "share"), written(1234567, "bytes"), written(12.0, "rows"), written(1500)
    ('98.0 %', '1.23 MB', '12', '1,500')
    """
    if value is None or value != value:
        return ""
    if unit == SHARE:
        return f"{100 * value:.1f} %"
    if unit == BYTES:
        divisor, name = byte_unit(value)
        return f"{value / divisor:.3g} {name}"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def byte_unit(largest: float) -> tuple[float, str]:
    """Divisor and name of the decimal unit in which ``largest`` bytes have one to three digits before the point."""
    for power, name in enumerate(("B", "kB", "MB", "GB")):
        if largest < 999.5 * 1000.0**power:
            return 1000.0**power, name
    return 1e12, "TB"


#: Columns of the table of sites that took no part.
MISSING_COLUMNS = ("site", "why it took no part")


@dataclass(frozen=True)
class ModelParts:
    """What is particular to a model on its page.

    title, lead : of the page. privacy : sentences on what its sites send and its file holds. settings : what it was
    made with. claims, tables : stand with the guarantees and with the settings. papers : those whose theorems speak of
    it.
    """

    title: str
    lead: str
    facts: tuple[Fact, ...] = ()
    privacy: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[PageTable, ...] = ()
    papers: tuple[str, ...] = ()


#: What the sites send and what the file holds, in words.
SENT = {
    "sites": "Rows stay at their sites, and so do the machines made from them. This file holds a handle, names and "
    "numbers of rows. What leaves a site are its scores of queries; who may ask many learns something of the rows, and "
    "a site's own policy decides who may ask, and how often.",
    "machines": "The file of this model contains the rows it was trained on, in another form. Whoever has the file has "
    "the rows: keep it as you keep them.",
    "released": "The machines are made of rows to which noise was added. What is computed from these rows, this file "
    "included, keeps the promise below.",
    "ridge": "The file holds weights of features, no rows. In training the sites sent sums over their rows (gradients, "
    "products or second moments).",
    "released sums": "The file holds weights of features, no rows. The sites released noisy sums over their rows once, "
    "and what is computed from these keeps the promise below.",
    "personal": "In training the sites sent means and second moments of their features. The file holds no rows.",
    "released embeddings": "The sites released noisy mean embeddings of their rows once. What is computed from these, "
    "the weights in this file, keeps the promise below. The file holds no rows.",
}


@runtime_checkable
class HasReport(Protocol):
    """A model of another package that says by itself what is particular to it."""

    def report_parts(self) -> ModelParts:
        """What the page of the model shows beside what all models have."""


def missing_note(missing: Mapping[str, str]) -> str:
    """How many sites took no part in training, as a note beside a number."""
    return f"{len(missing)} took no part" if missing else "all took part"


def missing_tables(missing: Mapping[str, str]) -> tuple[PageTable, ...]:
    """Which sites took no part, and why; nothing where all did."""
    rows = tuple((str(site), str(reason)) for site, reason in missing.items())
    return (site_table(MISSING_COLUMNS, rows, "Missing sites"),) if rows else ()
