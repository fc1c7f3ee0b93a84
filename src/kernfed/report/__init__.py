"""Reports: one HTML file about a model, an audit or results, that opens from disk and asks for nothing.

``write_html(model_report(model, gather_evidence(model, {site: (X, y)})), "report.html")``
"""

from kernfed_papers.pages.document import write_document
from kernfed_papers.pages.result_pages import results_report
from kernfed_papers.pages.results import read_results

from kernfed.report.audits import audit_from_json, audit_report
from kernfed.report.content import ReportData
from kernfed.report.evidence import Evidence, gather_evidence
from kernfed.report.html import render_html, write_html
from kernfed.report.models import model_report
from kernfed.report.source import read_source

__all__ = [
    "Evidence",
    "ReportData",
    "audit_from_json",
    "audit_report",
    "gather_evidence",
    "model_report",
    "read_results",
    "read_source",
    "render_html",
    "results_report",
    "write_document",
    "write_html",
]
