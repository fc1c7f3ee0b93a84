"""The privacy officer's page (``kernfed.privacy.officer``) as sections: the words are written in one place only."""

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kernfed.privacy.audit import AuditReport
from kernfed.privacy.officer import officer_page
from kernfed.report.content import Section, Table


def officer_sections(report: AuditReport, traffic: Iterable[Mapping[str, Any]] | None = None) -> dict[str, Section]:
    """Sections of the officer's page by title, in order."""
    page = officer_page(report, traffic)
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return {title: _section(title, body) for title, body in zip(parts[::2], parts[1::2], strict=True)}


def _section(title: str, body: str) -> Section:
    """Blocks of the little Markdown that the page uses: paragraphs, lists and tables."""
    words: list[str] = []
    points: list[str] = []
    tables: list[Table] = []
    for block in filter(None, (block.strip() for block in body.split("\n\n"))):
        lines = block.splitlines()
        if block.startswith("| "):
            head, _, *rows = (_cells(line) for line in lines)
            tables.append(Table(head, tuple(rows), title))
        elif block.startswith("- "):
            points += [_plain(line.removeprefix("- ")) for line in lines]
        else:
            words.append(_plain(" ".join(lines)))
    return Section(title, tuple(words), points=tuple(points), tables=tuple(tables))


def _cells(line: str) -> tuple[str, ...]:
    inner = line.removeprefix("| ").removesuffix(" |")
    return tuple(_plain(cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\) \| ", inner))


def _plain(text: str) -> str:
    """Text without the signs for bold and with its own signs for those that Markdown had to write otherwise."""
    return html.unescape(text.replace("**", "")).strip()
