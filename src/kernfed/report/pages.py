"""A report as one HTML file (no script, nothing from outside, every text escaped) or as Markdown."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kernfed._version import __version__
from kernfed.files import atomic_path
from kernfed.report.canvas import plain_text
from kernfed.report.charts import drawn_parts, is_wide
from kernfed.report.content import Figure, PageTable, ReportData, Section, figure_table

#: Rows of a table that are shown; a page with more would be slow to open and nobody reads them there.
MOST_ROWS = 400
#: Longer cells are words, shorter ones names; a number has at most so many letters of a unit.
_WORDY, _NAME, _UNIT = 40, 16, 4
#: Signs that fit side by side on a sheet of paper, each column counted with the gap after it, and on a phone. A column
#: is as wide as its longest number, its text may wrap; one of its head counts as ``_HEAD`` at most.
_SHEET, _PHONE, _GAP, _HEAD = 98.0, 50.0, 1.3, 12
#: A table with more columns is a matrix, of which a phone shows a part at a time.
_MATRIX = 8
_NUMBER = re.compile(r"[-+<>≥≤ ]*\.?\d")
#: Cells that stand for no number.
_EMPTY = ("", "-", "not run")
_MARKS = {
    True: ("yes", "✓", "holds"),
    False: ("no", "✗", "does not hold"),
    None: ("open", "?", "cannot be checked here"),
}


def render_html(report: ReportData) -> str:
    """The page as one HTML document."""
    numbers = iter(range(1, 1 + len(report.figures)))
    sections = [_section_view(section, f"s{place}", numbers) for place, section in enumerate(report.sections, 1)]
    claims = any(section.claims for section in report.sections)
    page = _environment().get_template("report.html")
    text = page.render(report=report, sections=sections, marks=_MARKS, version=__version__, legend=claims)
    return text.rstrip() + "\n"


def write_html(report: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page as HTML, whole or not at all."""
    write_text(render_html(report), path)


def write_page(report: ReportData, path: Path) -> None:
    """Write the page as HTML where the file is named ``.html``, otherwise as Markdown; whole or not at all."""
    write_text(render_html(report) if path.suffix.lower() == ".html" else render_markdown(report), path)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file of text, whole or not at all."""
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
    return Environment(
        loader=PackageLoader("kernfed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Text without invisible signs, in which a number stays on the line of its unit; markup of ours as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return plain_text(value).replace(" %", "\N{NO-BREAK SPACE}%")


def _section_view(section: Section, name: str, numbers: Iterator[int]) -> dict[str, Any]:
    figures = [_figure_view(figure, f"f{next(numbers)}") for figure in section.figures]
    _find_lone(figures)
    tables = [{**vars(table), "parts": _table_views(table)} for table in section.tables]
    short = section.short or section.title
    return {**vars(section), "id": name, "short": short, "figures": figures, "tables": tables}


def _figure_view(figure: Figure, name: str) -> dict[str, Any]:
    # The drawing is ours and escapes what it is given; see canvas.
    tables = _table_views(figure_table(figure))
    return {
        "title": figure.title,
        "words": figure.words,
        "wide": is_wide(figure),
        "drawings": [(heading, Markup(svg)) for heading, svg in drawn_parts(figure, name)],
        "tables": tables,
        "broad": any(table["broad"] for table in tables),
    }


def _find_lone(figures: list[dict[str, Any]]) -> None:
    """Mark the figures beside which a page of two columns would stay empty: their words stand there instead."""
    beside = False  # whether the figure before waits for a second one
    for place, figure in enumerate(figures):
        last = place + 1 == len(figures) or figures[place + 1]["wide"]
        figure["lone"] = not figure["wide"] and not beside and last
        beside = not figure["wide"] and not beside


def _table_views(table: PageTable) -> list[dict[str, Any]]:
    """The table, or several below each other where its columns of numbers would not fit on a sheet of paper."""
    kinds = [_kind([row[place] for row in table.rows]) for place in range(len(table.columns))]
    widths = [_width(table, place, kind) for place, kind in enumerate(kinds)]
    numbers = len(kinds) - 1
    fitting = max(1, int((_SHEET - widths[0]) / max(widths[1:], default=1.0)))
    if numbers <= fitting or set(kinds[1:]) != {"number"}:
        return [_table_view(table, kinds, widths)]
    views = []
    size = -(-numbers // -(-numbers // fitting))  # parts of about one size
    for start in range(1, len(kinds), size):
        kept = [0, *range(start, min(start + size, len(kinds)))]
        part = replace(
            table,
            columns=tuple(table.columns[place] for place in kept),
            caption=f"{table.caption}, columns {kept[1]} to {kept[-1]} of {numbers}",
            rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
        )
        views.append(_table_view(part, [kinds[place] for place in kept], [widths[place] for place in kept]))
    return views


def _table_view(table: PageTable, kinds: list[str], widths: list[float]) -> dict[str, Any]:
    rows = [list(zip(row, kinds, table.columns, strict=True)) for row in table.rows[:MOST_ROWS]]
    stacked = 2 < len(kinds) <= _MATRIX and (sum(widths) > _PHONE or "words" in kinds)
    return {
        "caption": table.caption,
        "columns": list(zip(table.columns, kinds, strict=True)),
        "rows": rows,
        "left_out": max(0, len(table.rows) - MOST_ROWS),
        "stacked": stacked,
        "broad": sum(widths) > _SHEET / 2,
    }


def _width(table: PageTable, place: int, kind: str) -> float:
    """About how many signs a column is wide."""
    head = min(_HEAD, max(map(len, table.columns[place].split()), default=0))
    cells = max((len(row[place]) for row in table.rows[:MOST_ROWS]), default=0)
    return _GAP + max(head, cells if kind == "number" else min(cells, _NAME if place else 2 * _NAME))


def _kind(cells: list[str]) -> str:
    """Class of a column: numbers with their units are aligned right, long words keep some width, names one line."""
    filled = [cell for cell in cells if cell not in _EMPTY]
    if filled and all(_NUMBER.match(cell) and sum(sign.isalpha() for sign in cell) <= _UNIT for cell in filled):
        return "number"
    longest = max(map(len, filled), default=0)
    return "words" if longest > _WORDY else "text" if longest > _NAME else "name"


#: Signs that Markdown or HTML would read as markup, and what stands for them.
_SAFE = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'"))


def render_markdown(report: ReportData) -> str:
    """The page as Markdown, without facts and figures; the lead says it all in one line."""
    blocks = [f"# {_safe(report.title)}", f"**In one line.** {_safe(report.lead)}"]
    for section in report.sections:
        blocks += [f"## {_safe(section.title)}", *_blocks(section)]
    return "\n\n".join(blocks) + "\n"


def _blocks(section: Section) -> Iterator[str]:
    """Paragraphs, claims, tables and points of a section."""
    yield from map(_safe, section.words)
    if section.claims:
        yield "\n".join(f"- **{_safe(claim.title)}.** {_safe(claim.statement)}" for claim in section.claims)
    yield from map(_table, section.tables)
    if section.points:
        yield "\n".join(f"- {_safe(point)}" for point in section.points)


def _table(table: PageTable) -> str:
    lines = [map(_safe, table.columns), ["---"] * len(table.columns), *(map(_safe, row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _safe(text: str) -> str:
    """Text that stays in its place on a page: on one line, with nothing that Markdown or HTML would read as markup."""
    line = " ".join(text.split())
    for sign, safe in _SAFE:
        line = line.replace(sign, safe)
    return line
