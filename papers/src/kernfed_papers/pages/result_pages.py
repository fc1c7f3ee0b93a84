"""Results of experiments as a page: an overview, figures, and published beside ours."""

import statistics
from collections.abc import Sequence

from kernfed.report import (
    BYTES,
    PUBLISHED,
    Curves,
    Fact,
    Figure,
    PageTable,
    Pictures,
    ReportData,
    Section,
    Series,
    written,
)
from kernfed_papers.experiment import Row
from kernfed_papers.pages.results import Summary
from kernfed_papers.runner import PAPERS, paper_of, row_cells

#: Curves in one figure, published ones included; more are drawn in further figures.
_MOST_CURVES = 8
#: Curves whose ends are told in words; the table has all.
_TOLD = 4
HEAD = ("", "published", "ours", "difference", "unit", "note")


def result_figures(summary: Summary) -> tuple[Figure, ...]:
    """Curves of the rows that are points of one, and a picture for each row that has a matrix."""
    figures: list[Figure] = []
    if summary.axes is not None:
        names = list(dict.fromkeys(row.series for row in summary.rows if row.series))
        pairs = [
            tuple(one for one in (_series(summary.rows, name, printed) for printed in (False, True)) if one.x)
            for name in names
        ]
        groups: list[list[Series]] = []
        for pair in pairs:
            if pair and (not groups or len(groups[-1]) + len(pair) > _MOST_CURVES):
                groups.append([])
            if pair:
                groups[-1] += pair
        figures += [_curves(summary, group, place) for place, group in enumerate(groups)]
    panels = tuple((row.label, _positive(row.matrix)) for row in summary.rows if row.matrix)
    if panels:
        named = ", ".join(name for name, _ in panels[:_TOLD]) + (" and others" if len(panels) > _TOLD else "")
        figures.append(Pictures(f"{summary.source}: pictures", f"Darker where a value is larger: {named}.", panels))
    return tuple(figures)


def _series(rows: Sequence[Row], name: str, printed: bool) -> Series:
    """Points of a curve as printed, or ours."""
    points = []
    for row in rows:
        value = row.published if printed else row.ours
        if row.series == name and row.x is not None and value is not None:
            points.append((float(row.x), float(value), None if printed else row.deviation))
    points.sort(key=lambda point: point[0])
    x, y, spread = (tuple(column) for column in zip(*points, strict=True)) if points else ((), (), ())
    return Series(name + PUBLISHED if printed else name, x, y, printed, spread)


def _curves(summary: Summary, series: Sequence[Series], part: int) -> Curves:
    axes = summary.axes
    assert axes is not None
    told = [
        f"{one.name} from {written(one.y[0])} to {written(one.y[-1])}"
        if len(one.y) > 1
        else f"{one.name} {written(one.y[0])}"
        for one in series
    ]
    ends = "; ".join(told[:_TOLD]) + (f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else "")
    log_x = axes.log_x and all(value > 0 for one in series for value in one.x)
    log_y = axes.log_y and all(value > 0 for one in series for value in one.y)
    title = f"{summary.source}: {axes.y}" + (f" ({part + 1})" if part else "")
    return Curves(title, f"{axes.y} over {axes.x}: {ends}.", tuple(series), axes.x, axes.y, log_x, log_y)


def _positive(matrix: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(max(0.0, float(value)) for value in line) for line in matrix)


def results_report(summaries: Sequence[Summary], title: str = "Published tables, run again") -> ReportData:
    """One page about all results: an overview, privacy against utility, and a section per experiment."""
    private = [summary for summary in summaries if summary.axes is not None and "epsilon" in summary.axes.x.lower()]
    figures = tuple(figure for summary in private for figure in result_figures(summary))
    sections = [Section("Overview", (_overview_words(summaries),), tables=(overview_table(summaries),))]
    if figures:
        sections.append(Section("Privacy against utility", figures=figures))
    sections += [
        _experiment_section(summary, () if summary in private else result_figures(summary))
        for summary in summaries
        if not summary.not_run
    ]
    idle = tuple((summary.source, summary.title, summary.not_run) for summary in summaries if summary.not_run)
    if idle:
        table = PageTable(("source", "what", "why it was not run"), idle, "Not run")
        sections.append(Section("Not run here", ("Nothing is filled in for these.",), tables=(table,)))
    papers = [paper for paper in PAPERS if any(paper_of(summary.source) == paper for summary in summaries)]
    lead = f"What is printed ({', '.join(papers) or 'nothing here'}) beside what this package computes."
    return ReportData("results", title, lead, _facts(summaries), tuple(sections))


def _facts(summaries: Sequence[Summary]) -> tuple[Fact, ...]:
    ran = [summary for summary in summaries if summary.status != "not run"]
    points = [abs(point) for summary in ran for point in summary.points]
    facts = [
        Fact("Experiments", f"{len(summaries)}", f"{len(ran)} run, {len(summaries) - len(ran)} not run here"),
        Fact("Compared", f"{sum(len(summary.compared) for summary in ran):,}", "numbers"),
    ]
    if points:
        facts.append(Fact("Typical difference", f"{statistics.median(points):.2f}", "points, median of absolute ones"))
    known = [summary.processor_seconds for summary in ran if summary.processor_seconds is not None]
    if known:
        facts.append(
            Fact("Processor time", duration(sum(known)), f"{len(known)} of {_count(ran, 'run')}, one after another")
        )
    elif ran:
        clock = sum(summary.seconds for summary in ran)
        facts.append(Fact("Time on the clock", duration(clock), f"{_count(ran, 'run')}, one after another"))
    sent = sum(summary.bytes_up for summary in ran)
    return (*facts, Fact("Left the sites", written(sent, BYTES), "where it was counted"))


def _overview_words(summaries: Sequence[Summary]) -> str:
    idle = sum(summary.status == "not run" for summary in summaries)
    verb = "has" if idle == 1 else "have"
    reasons = f" {idle} {verb} no result here; the last section says why." if idle else ""
    return f"There {'is' if len(summaries) == 1 else 'are'} {_count(summaries, 'experiment')}.{reasons}"


def _count(summaries: Sequence[Summary], what: str) -> str:
    return f"{len(summaries)} {what}{'' if len(summaries) == 1 else 's'}"


def overview_table(summaries: Sequence[Summary]) -> PageTable:
    """One row per experiment: what was run, how far from print, how long."""
    rows = []
    for summary in summaries:
        points = [abs(point) for point in summary.points]
        apart = f"{statistics.median(points):.2f} / {max(points):.2f}" if points else ""
        rows.append(
            (
                summary.source,
                summary.title,
                summary.status,
                f"{len(summary.compared) or ''}",
                apart,
                "" if summary.processor_seconds is None else f"{summary.processor_seconds:,.0f}",
            )
        )
    head = ("source", "what", "status", "compared", "difference in points: median / largest", "processor seconds")
    return PageTable(head, tuple(rows), "All experiments")


def _experiment_section(summary: Summary, figures: tuple[Figure, ...]) -> Section:
    words = tuple(filter(None, (summary.protocol, footing(summary))))
    whole = PageTable(HEAD, tuple(row_cells(row) for row in summary.rows), f"{summary.source}, published and ours")
    tables = summary.tables or (whole,)
    return Section(f"{summary.source}: {summary.title}", words, figures, tables=tables, short=summary.source)


def footing(summary: Summary) -> str:
    """Seeds, seconds, bytes, machine, day and remarks, in one line."""
    several = len(summary.seeds) > 1
    seeds = (
        f"Mean and standard deviation over seeds {', '.join(map(str, summary.seeds))}"
        if several
        else (f"Seed {summary.seeds[0]}")
    )
    sent = (
        f"{summary.bytes_up:,.0f} bytes up and {summary.bytes_down:,.0f} down"
        if summary.bytes_up
        else "bytes not counted"
    )
    days = " to ".join(dict.fromkeys((summary.dates[0], summary.dates[-1])))
    each = " each" if several else ""
    spent = "" if summary.processor_seconds is None else f", {summary.processor_seconds:,.1f} s of processors"
    remarks = "".join(f" Note: {remark}." for remark in summary.remarks)
    return f"{seeds}; {summary.seconds:,.1f} s{spent}{each}; {sent}; {' and '.join(summary.machines)}; {days}.{remarks}"


def time_taken(ran: Sequence[Summary]) -> str:
    """What ``kernfed bench --all`` takes with one seed, in a sentence: processor time does not depend on other work."""
    known = [summary.processor_seconds for summary in ran if summary.processor_seconds is not None]
    clock = sum(summary.seconds for summary in ran if summary.processor_seconds is None)
    if not known:
        who = "it takes" if len(ran) == 1 else "they take"
        return f"One after another, once each, {who} {duration(clock)} on the clock." if ran else ""
    rest = f" ({len(ran) - len(known)} more took {duration(clock)} on the clock)" if len(known) < len(ran) else ""
    verb = "takes" if len(known) == 1 else "take"
    return f"One after another, once each, {len(known)} of them {verb} {duration(sum(known))} of processor time{rest}."


def duration(seconds: float) -> str:
    """Minutes and seconds.

    >>> duration(59.6), duration(3)
    ('1 min 0 s', '3 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
