"""Reports: one HTML file about a model, an audit or results, that opens from disk and asks for nothing.

``write_html(model_report(model, gather_evidence(model, {site: (X, y)})), "report.html")``

What a page says is ``ReportData``, and whoever makes one of other things has it drawn by ``write_html``: a package that
declares a reader as an entry point of the group ``kernfed.reports`` has ``kernfed report`` read its files.
"""

from kernfed.report.audits import audit_from_json, audit_report
from kernfed.report.canvas import plain_text
from kernfed.report.charts import draw
from kernfed.report.content import (
    BYTES,
    PUBLISHED,
    SHARE,
    Bars,
    Curves,
    Fact,
    Figure,
    HeatMap,
    PageTable,
    Pictures,
    ReportData,
    Section,
    Series,
    written,
)
from kernfed.report.evidence import Evidence, gather_evidence
from kernfed.report.models import model_card, model_report
from kernfed.report.officer import officer_page
from kernfed.report.pages import render_html, style_variables, write_html
from kernfed.report.source import ReportSource, read_source

__all__ = [
    "BYTES",
    "PUBLISHED",
    "SHARE",
    "Bars",
    "Curves",
    "Evidence",
    "Fact",
    "Figure",
    "HeatMap",
    "PageTable",
    "Pictures",
    "ReportData",
    "ReportSource",
    "Section",
    "Series",
    "audit_from_json",
    "audit_report",
    "draw",
    "gather_evidence",
    "model_card",
    "model_report",
    "officer_page",
    "plain_text",
    "read_source",
    "render_html",
    "style_variables",
    "write_html",
    "written",
]
