"""Reports: one HTML file about a model, an audit or results, that opens from disk and asks for nothing.

``write_html(model_report(model, gather_evidence(model, {site: (X, y)})), "report.html")``

What a page says is ``ReportData``, and whoever makes one of other things has it drawn by ``write_html``: a package that
declares a reader as an entry point of the group ``kernfed.reports`` has ``kernfed report`` read its files. A model of
another package has the page of any model, and what is particular to it where it has a method ``report_parts``.
"""

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
    HasReport,
    HeatMap,
    ModelParts,
    PageTable,
    Pictures,
    ReportData,
    Section,
    Series,
    missing_tables,
    written,
)
from kernfed.report.evidence import Evidence, gather_evidence
from kernfed.report.models import model_card, model_report
from kernfed.report.officer import audit_report, officer_page
from kernfed.report.pages import render_html, style_variables, write_html
from kernfed.report.rounds import bytes_curve, history_curve
from kernfed.report.source import ReportSource, audit_from_json, read_source

__all__ = [
    "BYTES",
    "PUBLISHED",
    "SHARE",
    "Bars",
    "Curves",
    "Evidence",
    "Fact",
    "Figure",
    "HasReport",
    "HeatMap",
    "ModelParts",
    "PageTable",
    "Pictures",
    "ReportData",
    "ReportSource",
    "Section",
    "Series",
    "audit_from_json",
    "audit_report",
    "bytes_curve",
    "draw",
    "gather_evidence",
    "history_curve",
    "missing_tables",
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
