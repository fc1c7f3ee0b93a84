"""Sections as Markdown, for pages that are read as text: the privacy officer's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernfed.privacy.audit import AuditReport
from kernfed.report.content import PageTable, Section
from kernfed.report.officer import officer_sections

#: Signs that Markdown or HTML would read as their own, and what stands for them.
_SAFE = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'"))


def officer_page(report: AuditReport, traffic: Iterable[Mapping[str, Any]] | None = None) -> str:
    """An audit as a page of Markdown in plain words.

    ``traffic``: what left each site, one mapping per site and task with the keys site, task, information, messages,
    bytes_up and scalars_up, as a federation's ``traffic.to_json()`` gives it.
    """
    sections = officer_sections(report, traffic)
    return render_markdown(f"Privacy of {report.subject}", report.verdict, sections)


def render_markdown(title: str, line: str, sections: Sequence[Section]) -> str:
    """A page of these sections, figures left out; ``line`` says it all in one."""
    blocks = [f"# {_safe(title)}", f"**In one line.** {_safe(line)}"]
    for section in sections:
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
    """Text that stays in its place on a page: on one line, with nothing that Markdown or HTML would read as its own."""
    line = " ".join(text.split())
    for sign, safe in _SAFE:
        line = line.replace(sign, safe)
    return line
