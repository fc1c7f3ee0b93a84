"""Results of experiments as pages."""

from pathlib import Path

from kernfed.report import ReportData
from kernfed_papers.pages.result_pages import results_report
from kernfed_papers.pages.results import read_results


def read_report(path: Path) -> ReportData:
    """The page about results, a folder of ``.jsonl`` files or one of them; an entry point of this package names it."""
    return results_report(read_results(path))
