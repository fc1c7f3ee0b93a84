"""``docs/results.md`` and its figures, made from the committed results and from nothing else."""

import re
from collections.abc import Sequence
from pathlib import Path

from kernfed.files import atomic_path
from kernfed.report import Figure, PageTable, draw, plain_text, style_variables
from kernfed_papers.pages.result_pages import HEAD, footing, overview_table, result_figures, time_taken
from kernfed_papers.pages.results import Summary, read_results
from kernfed_papers.runner import PAPERS, paper_of, row_cells

_NOTICE = "<!-- Made by `kernfed bench --write-docs`; edit results_summary.md, or run experiments again, instead. -->"
#: Hand-written beginning of the document, beside it.
SUMMARY = "results_summary.md"


def write_document(path: Path, results: Path) -> list[Path]:
    """Write the document and its figures from a folder of results; returns everything written."""
    summaries = read_results(results)
    opening = path.parent / SUMMARY
    text = results_document(summaries, opening.read_text(encoding="utf-8") if opening.is_file() else "")
    drawings = {name: _standalone(figure, name) for name, figure in document_figures(summaries).items()}
    _write(path, text)  # before the folder of figures is made: it refuses a place where there can be no document
    if drawings:
        (path.parent / "figures").mkdir(exist_ok=True)
    for name, drawing in drawings.items():
        _write(path.parent / name, drawing)
    return [path, *(path.parent / name for name in drawings)]


def _write(path: Path, content: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def document_figures(summaries: Sequence[Summary]) -> dict[str, Figure]:
    """Figures by their path relative to the document."""
    return {
        _figure_path(summary, place): figure
        for summary in summaries
        for place, figure in enumerate(result_figures(summary))
    }


def _figure_path(summary: Summary, place: int) -> str:
    return f"figures/{summary.id}{f'-{place + 1}' if place else ''}.svg"


def results_document(summaries: Sequence[Summary], opening: str = "") -> str:
    """The whole document as Markdown; the same results give the same text."""
    ran = [summary for summary in summaries if summary.status != "not run"]
    verb = "experiment has" if len(summaries) == 1 else "experiments have"
    told = " ".join(
        filter(
            None,
            (
                f"{len(ran)} of {len(summaries)} {verb} been run.",
                time_taken(ran),
                "A difference is ours minus published. Where data or an encoder are not at hand nothing is filled in.",
            ),
        )
    )
    parts = [
        "# Published tables, run again",
        _NOTICE,
        *([_untitled(opening)] if opening.strip() else []),
        "## All experiments",
        told,
        _table(overview_table(summaries)),
    ]
    for paper in (*PAPERS, ""):
        group = [summary for summary in summaries if paper_of(summary.source) == paper]
        if group:
            parts += [f"## {paper or 'Others'}", *(block for summary in group for block in _experiment(summary))]
    return "\n\n".join(parts) + "\n"


def _untitled(opening: str) -> str:
    """The hand-written text without a title of its own."""
    return re.sub(r"\A# .*\n+", "", opening.strip())


def _experiment(summary: Summary) -> list[str]:
    blocks = [f"### {_cell(summary.source)}: {_cell(summary.title)}", _cell(summary.protocol)]
    if summary.not_run:
        return [*blocks, f"*Not run: {_cell(summary.not_run)}.* Command: `kernfed bench {summary.id}`."]
    pictures = [
        f"![{_alternative(figure)}]({_figure_path(summary, place)})"
        for place, figure in enumerate(result_figures(summary))
    ]
    whole = PageTable(HEAD, tuple(row_cells(row) for row in summary.rows))
    tables = [block for table in summary.tables or (whole,) for block in (_cell(table.caption), _table(table)) if block]
    return [*blocks, *pictures, *tables, f"{_cell(footing(summary))} Command: `kernfed bench {summary.id}`."]


def _alternative(figure: Figure) -> str:
    return re.sub(r"[\[\]]", "", _cell(f"{figure.title}. {figure.words}"))


def _table(table: PageTable) -> str:
    lines = [
        table.columns,
        tuple(
            ":--" if place == 0 else "--:" if name in HEAD[1:4] else "---" for place, name in enumerate(table.columns)
        ),
        *table.rows,
    ]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Text on one line with nothing that Markdown or HTML would read as its own."""
    safe = plain_text(text)
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        safe = safe.replace(sign, written)
    return safe


def _standalone(figure: Figure, name: str) -> str:
    """A figure as a file: with the colours that a page would give it, for light and for dark."""
    svg = draw(figure, Path(name).stem)
    head, rest = svg.split(">", 1)
    font = "svg { font-family: system-ui, sans-serif; background: var(--paper); }"
    return f"{head}><style>{style_variables()}{font}</style>{rest}\n"
