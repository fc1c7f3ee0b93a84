"""The page: everything escaped, nothing asked for, whole or not at all."""

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from kernfed.report.content import Assumption, Bars, Claim, Fact, PageTable, ReportData, Section
from kernfed.report.pages import MOST_ROWS, render_html, write_html

BAD = '<script>alert("1")</script><img src=x onerror=alert(2)>\x00\u202e{{ 7 * 7 }}'
#: Elements that have no end.
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Elements with their attributes, and whether each is closed by its own end."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def report(text="plain", **options):
    figure = Bars(text, text, (text,), (0.5,), value_name=text, marks={text: (0.2,)})
    claim = Claim(text, text, text, False, text, (Assumption(text, True), Assumption(text, False), Assumption(text)))
    table = PageTable((text, text), ((text, text),), text)
    section = Section(text, (text,), (figure,), (claim,), (text,), (table,))
    return ReportData("model", text, text, (Fact(text, text, text),), (section, section), **options)


@pytest.mark.parametrize("text", ["plain", BAD])
def test_the_page_is_well_formed_and_has_only_elements_of_ours(text):
    page = Reader(render_html(report(text)))
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "img", "iframe", "object", "embed", "link", "form", "input", "base"}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not {"src", "action", "background"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#"), tag
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"][1:] for tag, attributes in page.elements if tag in ("a", "use")}
    assert links <= set(ids)


def test_hostile_text_is_shown_as_it_is_without_invisible_signs():
    page = Reader(render_html(report(BAD)))
    joined = "".join(page.text)
    assert '<script>alert("1")</script>' in joined
    assert "{{ 7 * 7 }}" in joined
    assert "\x00" not in joined
    assert "\u202e" not in joined


def test_nothing_may_be_fetched():
    text = render_html(report())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script-src" not in policy
    assert not re.findall(r"@import|url\((?!#)|//(?!www\.w3\.org/2000/svg)[\w.]+\.\w", text)


def test_assumptions_are_told_by_sign_and_by_word():
    text = render_html(report())
    for sign, words in (("✓", "holds"), ("✗", "does not hold"), ("?", "cannot be checked here")):
        assert re.search(rf'aria-hidden="true">{re.escape(sign)}</span><span><span class="hidden">{words}: ', text)


def test_every_figure_has_its_alternative_and_its_numbers():
    page = Reader(render_html(report()))
    images = [attributes for tag, attributes in page.elements if attributes.get("role") == "img"]
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert len(images) == 2
    for image in images:
        assert set(image["aria-labelledby"].split()) <= ids
    assert len([tag for tag, _ in page.elements if tag == "details"]) == 2


def test_columns_of_numbers_are_aligned_and_long_tables_are_cut():
    rows = tuple((f"n{place}", f"{place:,}", "words " * 20) for place in range(MOST_ROWS + 5))
    found = ReportData("model", "t", "l", sections=(Section("s", tables=(PageTable(("a", "b", "c"), rows, "Long"),)),))
    text = render_html(found)
    assert f"the first {MOST_ROWS} of {MOST_ROWS + 5} rows" in text
    assert f">n{MOST_ROWS}<" not in text
    assert '<td class="number" data-name="b">399</td>' in text
    assert '<td class="words" data-name="c">' in text


def tables_of(table):
    return Reader(render_html(ReportData("model", "t", "l", sections=(Section("s", tables=(table,)),)))).elements


def test_a_matrix_too_broad_for_paper_is_told_in_parts():
    columns = ("site", *(f"c{place}" for place in range(30)))
    rows = tuple((f"s{row}", *(f"{row}.{place:02} %" for place in range(30))) for row in range(3))
    elements = tables_of(PageTable(columns, rows, "Many"))
    text = render_html(
        ReportData("model", "t", "l", sections=(Section("s", tables=(PageTable(columns, rows, "Many"),)),))
    )
    assert [tag for tag, _ in elements].count("table") == 3
    assert re.findall(r"Many, columns (\d+) to (\d+) of 30</caption>", text) == [
        ("1", "10"),
        ("11", "20"),
        ("21", "30"),
    ]
    shown = text.replace("\N{NO-BREAK SPACE}", " ")
    assert all(f">{cell}</td>" in shown for row in rows for cell in row[1:])


@pytest.mark.parametrize(
    ("table", "stacked"),
    [
        (
            PageTable(("", "published", "ours", "difference", "unit", "note"), (("a" * 50, "1", "2", "1", "%", ""),)),
            True,
        ),
        (PageTable(("site", "rows", "accuracy"), (("a", "1", "2"),)), False),
        (PageTable(("setting", "value"), (("a" * 90, "b" * 90),)), False),
        (PageTable(("site", *"0123456789"), (("a", *["100.0 %"] * 10),)), False),
    ],
    ids=["results", "narrow", "two columns", "matrix"],
)
def test_wide_tables_of_few_columns_become_lists_on_a_phone(table, stacked):
    elements = tables_of(table)
    assert any("stacked" in attributes.get("class", "").split() for _, attributes in elements) == stacked
    named = [attributes["data-name"] for tag, attributes in elements if tag == "td" and "data-name" in attributes]
    assert named == (["published", "ours", "difference", "unit"] if stacked else [])  # an empty cell has no name


def test_a_folded_table_shows_its_caption():
    table = PageTable(("a",), (("x",),), "Many details", folded=True)
    text = render_html(ReportData("model", "t", "l", sections=(Section("s", tables=(table,)),)))
    assert "<summary>Many details</summary>" in text


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    place = tmp_path / "report.html"
    place.write_text("before")
    monkeypatch.setattr("kernfed.report.pages.render_html", lambda _: "\ud800")  # cannot be encoded
    with pytest.raises(UnicodeEncodeError):
        write_html(report(), place)
    assert place.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_templates_are_part_of_the_package():
    names = {entry.name for entry in files("kernfed.report").joinpath("templates").iterdir()}
    assert {"report.html", "report.css", "table.html"} <= names
