"""Reports of many sites and classes: both ends are drawn, the rest is folded, and nothing is lost."""

from xml.etree import ElementTree

import numpy as np
import pytest

from kernfed.report.charts import END, draw, is_wide, panels
from kernfed.report.content import Bars, HeatMap, PageTable, ReportData, Section, figure_table, site_table
from kernfed.report.evidence import Evidence
from kernfed.report.heat import heat_map_width
from kernfed.report.pages import render_html
from kernfed.report.sections import accuracy_section, error_tables, labels_map
from kernfed.testing.outcomes import Evaluation, count_outcomes

SITES = tuple(f"site {place:02d}" for place in range(40))
LETTERS = np.array([chr(65 + place) for place in range(26)])


def falling(count, **options):
    values = tuple(1 - place / 100 for place in range(count))
    return Bars("Accuracy", "words", tuple(f"s{place}" for place in range(count)), values, **options)


def texts(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


@pytest.fixture(scope="module")
def evidence():
    """Forty sites that meet 26 classes; of every class some are taken for the next one."""
    rng = np.random.default_rng(5)
    tested, labels = {}, {}
    for place, site in enumerate(SITES):
        true = rng.integers(0, 26, 20 + place)
        said = np.where(rng.random(len(true)) < 0.2, (true + 1) % 26, true)
        tested[site] = count_outcomes(LETTERS, LETTERS[true], np.eye(26)[said])
        labels[site] = {letter: int((LETTERS[true] == letter).sum()) for letter in LETTERS.tolist()}
    return Evidence(Evaluation(LETTERS, tested), tested=labels)


def test_many_sorted_bars_are_drawn_by_their_ends_on_one_scale():
    figure = falling(40, unit="bytes", marks={"m": tuple(range(40))})
    first, last = panels(figure)
    assert first.labels == figure.labels[:END]
    assert last.labels == figure.labels[-END:]
    assert last.marks["m"] == tuple(range(30, 40))
    assert first.top == last.top == 39  # a mark is the largest of all
    assert [part.title for part in (first, last)] == ["Accuracy: The 10 highest of 40", "Accuracy: The 10 lowest of 40"]
    assert len(figure_table(figure).rows) == 40
    assert is_wide(figure)


def test_few_bars_and_bars_in_no_order_stay_together():
    figure = falling(24)
    assert panels(figure) == (figure,)
    mixed = Bars("t", "w", SITES, tuple(float(place % 7) for place in range(40)))
    assert panels(mixed) == (mixed,)


def test_both_ends_are_on_the_page_under_their_headings_with_all_numbers():
    page = render_html(ReportData("model", "t", "l", sections=(Section("s", figures=(falling(40),)),)))
    assert page.count('<div class="end">') == 2
    assert "<p>The 10 highest of 40</p>" in page
    assert page.count('<th scope="row"') == 40


def test_a_number_of_a_bar_begins_where_no_mark_reaches():
    root = ElementTree.fromstring(draw(falling(3, marks={"alone": (1.0, 1.0, 1.0)}), "f1"))
    numbers = [node for node in root.iter() if node.text == "100.0 %"]
    right = float(root.get("width"))
    assert numbers
    marks = [float(node.get("x")) for node in root.iter() if node.tag.endswith("use") and node.get("y")]
    end = next(float(node.get("x")) for node in numbers if node.get("x"))
    assert max(x for x in marks if x < right) + 4 < end - 6.4 * len("100.0 %") + 3


def test_of_many_sites_a_matrix_draws_both_ends_with_a_gap(evidence):
    heat = labels_map("Who has which class", evidence.tested, "rows")
    assert heat.rows[0] == SITES[-1]  # the site with most rows
    assert len(heat.rows) == len(figure_table(heat).rows) == 40
    drawn = texts(draw(heat, "f1"))
    assert "20 between" in drawn
    assert sum(text in SITES for text in drawn) == 20
    assert heat_map_width(heat) > 900


def test_a_large_matrix_has_numbers_and_a_larger_one_a_scale():
    def matrix(size):
        names = tuple(f"c{place}" for place in range(size))
        return HeatMap("t", "w", names, names, tuple(map(tuple, np.eye(size).tolist())), "row", "column", "share", 1.0)

    assert texts(draw(matrix(26), "f1")).count("100") == 26
    large = texts(draw(matrix(40), "f1"))
    assert "100" not in large
    assert [text for text in large if text.endswith("%")] == ["0.0 %", "50.0 %", "100.0 %"]


def test_what_many_sites_were_tested_on_is_folded_and_the_worst_errors_are_listed(evidence):
    section = accuracy_section(evidence)
    assert [figure.title for figure in section.figures] == ["Accuracy per site", "Confusion matrix"]
    errors, tested = section.tables
    assert tested.folded
    assert len(tested.rows) == 40
    counts = evidence.evaluation.pooled.confusion[:26].copy()
    np.fill_diagonal(counts, 0)
    assert [int(row[2]) for row in errors.rows] == sorted(counts.ravel().tolist(), reverse=True)[:10]
    few = Evaluation(LETTERS[:3], {"a": count_outcomes(LETTERS[:3], LETTERS[:3], np.eye(3)[[1, 1, 2]])})
    assert error_tables(few) == ()


def test_tables_of_many_sites_are_folded_in_one_fold():
    rows = tuple((site, *("1000000",) * 30) for site in SITES)
    table = site_table(("site", *map(str, range(30))), rows, "Sites")
    assert table == PageTable(table.columns, rows, "Sites: all 40", folded=True)
    page = render_html(ReportData("model", "t", "l", sections=(Section("s", tables=(table,)),)))
    assert page.count("<summary>") == 1
    assert page.count("<table>") > 1
    assert not site_table(("site",), (("a",),), "Sites").folded


@pytest.mark.parametrize(("wide", "lone"), [("bb", 0), ("b", 1), ("bwb", 2), ("bbwb", 1), ("w", 0)])
def test_a_figure_that_stands_alone_has_its_words_beside_it(wide, lone):
    big = HeatMap("t", "w", ("r",), SITES, ((1.0,) * 40,), "row", "column")
    figures = tuple(big if kind == "w" else falling(2) for kind in wide)
    page = render_html(ReportData("model", "t", "l", sections=(Section("s", figures=figures),)))
    assert page.count('lone">') == lone
