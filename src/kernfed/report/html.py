"""A report as one HTML file: no script, nothing from outside, every text escaped."""

import os
import re
from dataclasses import asdict
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kernfed._version import __version__
from kernfed.files import atomic_path
from kernfed.report.content import Figure, ReportData, Section, Table, figure_table
from kernfed.report.plots import draw, is_wide
from kernfed.report.svg import plain_text

#: Rows of a table that are shown; a page with more would be slow to open and nobody reads them there.
MOST_ROWS = 400
#: Longer cells are words; a number has at most so many letters of a unit.
_WORDY, _UNIT = 40, 4
_NUMBER = re.compile(r"[-+<>≥≤ ]*\.?\d")
#: Cells that stand for no number.
_EMPTY = ("", "-", "not run")
_MARKS = {
    True: ("yes", "✓", "holds"),
    False: ("no", "✗", "does not hold"),
    None: ("open", "?", "cannot be checked here"),
}


def render_html(report: ReportData) -> str:
    """The whole page."""
    numbers = iter(range(1, 1 + len(report.figures)))
    sections = [_section_view(section, f"s{place}", numbers) for place, section in enumerate(report.sections, 1)]
    claims = any(section.claims for section in report.sections)
    page = _environment().get_template("report.html")
    text = page.render(report=report, sections=sections, marks=_MARKS, version=__version__, legend=claims)
    return text.rstrip() + "\n"


def write_html(report: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all."""
    text = render_html(report)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def style_variables() -> str:
    """The style rules that give colours to roles, for light and for dark, as a figure needs them that stands alone."""
    template = _environment().loader
    assert template is not None
    css, _, _ = template.get_source(_environment(), "report.css")
    return css[: css.index("*, ::before")].strip()


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("kernfed.report"), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, finalize=_shown)  # fmt: skip


def _shown(value: Any) -> Any:
    """Text without invisible signs, in which a number stays on the line of its unit; markup of ours as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return plain_text(value).replace(" %", "\N{NO-BREAK SPACE}%")


def _section_view(section: Section, name: str, numbers: Any) -> dict[str, Any]:
    figures = [_figure_view(figure, f"f{next(numbers)}") for figure in section.figures]
    return {"id": name, "title": section.title, "short": section.short or section.title, "words": section.words,
            "figures": figures, "points": section.points, "claims": [asdict(claim) for claim in section.claims],
            "tables": [_table_view(table) for table in section.tables]}  # fmt: skip


def _figure_view(figure: Figure, name: str) -> dict[str, Any]:
    # The drawing is ours and escapes what it is given; see plots.
    return {"title": figure.title, "words": figure.words, "wide": is_wide(figure), "svg": Markup(draw(figure, name)),
            "table": _table_view(figure_table(figure))}  # fmt: skip


def _table_view(table: Table) -> dict[str, Any]:
    kinds = [_kind([row[place] for row in table.rows]) for place in range(len(table.columns))]
    rows = [list(zip(row, kinds, strict=True)) for row in table.rows[:MOST_ROWS]]
    return {"caption": table.caption, "columns": list(zip(table.columns, kinds, strict=True)), "rows": rows,
            "left_out": max(0, len(table.rows) - MOST_ROWS), "folded": table.folded}  # fmt: skip


def _kind(cells: list[str]) -> str:
    """Class of a column: numbers with their units are aligned to the right, long words keep some width."""
    filled = [cell for cell in cells if cell not in _EMPTY]
    if filled and all(_NUMBER.match(cell) and sum(sign.isalpha() for sign in cell) <= _UNIT for cell in filled):
        return "number"
    return "words" if any(len(cell) > _WORDY for cell in filled) else "text"
