"""Reports in a real browser: nothing is asked for, nothing is hidden, light, dark, phone and paper.

Screenshots are kept in the folder that KERNFED_ARTEFACTS names, otherwise with pytest's temporary files.
"""

import os
from pathlib import Path

import pytest

from kernfed.report import audit_report, gather_evidence, model_report, write_html
from kernfed.report.charts import panels
from kernfed.report.content import (
    PUBLISHED,
    SHARE,
    Bars,
    Curves,
    HeatMap,
    PageTable,
    Pictures,
    ReportData,
    Section,
    Series,
    site_table,
)
from kernfed.report.sections import labels_map

pytestmark = pytest.mark.slow

KINDS = ("machines", "sites", "ridge", "audit", "results", "hostile", "broad", "many")
_HOSTILE = "<script>document.title = 'broken'</script>"


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    chosen = os.environ.get("KERNFED_ARTEFACTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def broad_report():
    """More columns, longer names and longer words than a sheet of paper is wide."""
    figures = []
    for columns in (11, 45):
        names = tuple(f"hospital {place}" for place in range(columns))
        values = tuple(tuple((place + row) % 7 / 7 for place in range(columns)) for row in range(4))
        figures.append(
            HeatMap(f"{columns} columns", "Shares of nothing at all.", names[:4], names, values, "class", "site", SHARE)
        )
    table = PageTable(
        ("statement", "function", "status", "remark"), (("Theorem " * 6, "f" * 30, "words " * 9, "why " * 40),)
    )
    names = PageTable(("site", "why"), (("n" * 120, "r" * 120),), "Long names", folded=True)
    return ReportData(
        "model", "Broad", "All at once.", sections=(Section("s", (), tuple(figures), tables=(table, names)),)
    )


def many_report():
    """Forty sites and 26 classes: both ends of bars, a matrix with a gap, and a larger one with a scale."""
    sites = tuple(f"university-hospital-of-region-{place:02d}" for place in range(40))
    classes = tuple(chr(65 + place) for place in range(26))
    values = tuple(1 - place / 100 for place in range(40))
    bars = Bars("Accuracy", "Of forty sites, sorted.", sites, values, marks={"alone": values})
    counts = {
        site: {name: (3 * row + place) % 11 for place, name in enumerate(classes)} for row, site in enumerate(sites)
    }
    square = tuple(tuple((row * place) % 9 / 9 for place in range(40)) for row in range(40))
    weights = HeatMap("Weights", "Who learns from whom.", sites, sites, square, "site", "learns from", SHARE, 1.0)
    figures = (bars, labels_map("Who has which class", counts, "rows"), weights)
    table = site_table(("site", "rows"), tuple((site, "12") for site in sites), "Sites")
    return ReportData("model", "Many", "All of them.", sections=(Section("s", (), figures, tables=(table,)),))


def results_page():
    """Curves beside published ones, pictures, and a table of both numbers, as a page of results has them."""
    series = (
        Series("ours", (1.0, 5.0), (81.5, 83.5), spread=(0.5, 0.5)),
        Series(f"ours{PUBLISHED}", (1.0, 5.0), (80.5, 84.25), dashed=True),
    )
    curves = Curves("SFM Table 2", "Accuracy over epsilon, ours and published.", series, "epsilon", "accuracy", True)
    pictures = Pictures("Weights", "Who learns from whom, darker where more.", (("ours", ((0.5, 0.5), (0.25, 0.75))),))
    rows = (
        ("alpha 1: accuracy", "81", "80.5", "-0.5", "%", "mean of two seeds"),
        ("alpha 5: accuracy", "83", "84.25", "1.25", "%", "mean of two seeds, with a longer remark than the others"),
    )
    table = PageTable(("", "published", "ours", "difference", "unit", "note"), rows, "SFM Table 2, published and ours")
    section = Section("SFM Table 2", ("All in *words*.",), (curves, pictures), tables=(table,))
    return ReportData("results", "Results", "Two numbers, both near the printed ones.", sections=(section,))


@pytest.fixture(scope="module")
def reports(small_models, small_holdout, small_audit, tmp_path_factory):
    """Reports of every kind, as data and as files."""
    models, traffic = small_models
    renamed = {f"{_HOSTILE}{name}": rows for name, rows in small_holdout.items()}
    told = [{**entry, "site": _HOSTILE + entry["site"]} for entry in traffic]
    found = {
        "machines": model_report(models["machines"], gather_evidence(models["machines"], small_holdout, traffic)),
        "sites": model_report(models["sites"]),
        "ridge": model_report(models["ridge"], gather_evidence(models["ridge"], small_holdout)),
        "audit": audit_report(small_audit, traffic),
        "results": results_page(),
        "broad": broad_report(),
        "many": many_report(),
        "hostile": model_report(models["machines"], gather_evidence(models["machines"], renamed, told), title=_HOSTILE),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, report in found.items():
        write_html(report, folder / f"{name}.html")
    return found, folder


class Visit:
    """An opened page and what it did."""

    def __init__(self, browser, path, *, width=1200, height=900, scheme="light"):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.page = self.context.new_page()
        self.requests, self.problems = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_report_opens_quietly_with_every_figure(browser, reports, artefacts, name):
    data, folder = reports
    with Visit(browser, folder / f"{name}.html") as visit:
        page = visit.page
        assert page.title() == data[name].title
        figures = page.locator("figure svg[role=img]")
        drawings = [panels(figure) if isinstance(figure, Bars) else (figure,) for figure in data[name].figures]
        expected = [figure for parts in drawings for figure in parts]
        assert figures.count() == len(expected)
        for place, figure in enumerate(expected):
            drawn = figures.nth(place)
            assert drawn.is_visible()
            box = drawn.bounding_box()
            assert box["width"] > 200
            assert box["height"] > 60
            assert drawn.locator("title").text_content() == " ".join(figure.title.split())
            assert len(drawn.locator("desc").text_content()) > 20
        page.screenshot(path=artefacts / f"{name}-light.png", full_page=True)
        assert visit.requests == [(folder / f"{name}.html").as_uri()]
        assert visit.problems == []
        assert page.locator("script").count() == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_phone_needs_no_sideways_scrolling(browser, reports, artefacts, name):
    with Visit(browser, reports[1] / f"{name}.html", width=375, height=720) as visit:
        visit.page.screenshot(path=artefacts / f"{name}-phone.png", full_page=True)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 375
        smallest = visit.page.evaluate("""Math.min(...[...document.querySelectorAll('figure svg text')].map(text =>
            parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a || 99))""")
        assert smallest >= 9


#: Texts of cells, in a heat map of at most ten columns, by their size on the screen.
_DIGITS = """[...document.querySelectorAll('figure svg text')].filter(text => /^[0-9]{1,4}$/.test(text.textContent)
    && /on-(low|high)/.test(text.getAttribute('style')))
    .map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""


def test_numbers_in_cells_can_be_read_on_a_phone(browser, reports):
    with Visit(browser, reports[1] / "machines.html", width=390) as visit:
        sizes = visit.page.evaluate(_DIGITS)
    assert len(sizes) > 9
    assert min(sizes) >= 10


def test_published_and_ours_are_seen_together_on_a_phone(browser, reports):
    with Visit(browser, reports[1] / "results.html", width=390) as visit:
        row = visit.page.locator("tr", has=visit.page.locator("th", has_text="alpha 1: accuracy"))
        for name in ("published", "ours", "difference"):
            box = row.locator(f"td[data-name={name}]").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        label, number = row.locator("th").bounding_box(), row.locator("td").first.bounding_box()
        assert label["y"] + label["height"] <= number["y"] + 1


#: By how many pixels content is wider than the box it is in, at most, of all boxes that scroll on a screen.
_CUT = """Math.max(0, ...[...document.querySelectorAll('.scroll')].map(box =>
    Math.max(...[box, ...box.querySelectorAll('table, svg')].map(inner => inner.getBoundingClientRect().right))
    - document.querySelector('.page').getBoundingClientRect().right))"""


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_cut_on_paper(browser, reports, artefacts, name):
    """688 px are the width of A4 between margins of 14 mm."""
    with Visit(browser, reports[1] / f"{name}.html", width=688) as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate(_CUT) <= 1
        assert visit.page.locator("details table").first.is_visible()
        overflow = visit.page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX")
        assert overflow == "visible"
        boxes = visit.page.evaluate("""[...document.querySelectorAll('td, tbody th')].map(cell =>
            [cell.scrollWidth - cell.clientWidth, cell.textContent]).filter(([more]) => more > 1)""")
        assert boxes == []
        visit.page.pdf(path=artefacts / f"{name}.pdf", format="A4")


def test_dark_is_dark_and_figures_follow(browser, reports, artefacts):
    seen = {}
    for scheme in ("light", "dark"):
        with Visit(browser, reports[1] / "machines.html", scheme=scheme) as visit:
            seen[scheme] = visit.page.evaluate("""[getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.querySelector('figure svg text')).fill,
                getComputedStyle(document.querySelector('figure svg path[style*="series-1"]')).fill]""")
            visit.page.screenshot(path=artefacts / f"machines-{scheme}.png", full_page=True)
    assert seen["light"][0] == "rgb(255, 255, 255)"
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))


def test_the_summary_fits_one_screen(browser, reports):
    with Visit(browser, reports[1] / "machines.html", height=800) as visit:
        box = visit.page.locator("header").bounding_box()
        assert box["y"] + box["height"] < 800


def test_paper_is_light_and_shows_the_numbers(browser, reports, artefacts):
    with Visit(browser, reports[1] / "machines.html", scheme="dark") as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not visit.page.locator("nav").is_visible()
        paper = visit.page.pdf(path=artefacts / "machines.pdf", format="A4")
    assert paper.startswith(b"%PDF-")
    assert len(paper) > 10_000


def test_the_keyboard_reaches_numbers_and_sections(browser, reports):
    with Visit(browser, reports[1] / "machines.html") as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
        page.locator("figure summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("figure details").first.get_attribute("open") is not None
        assert page.locator("figure details table").first.is_visible()
        page.locator("nav a").last.focus()
        page.keyboard.press("Enter")
        assert page.url.endswith(f"#s{page.locator('section').count()}")


def test_hostile_names_are_text(browser, reports):
    with Visit(browser, reports[1] / "hostile.html") as visit:
        assert visit.page.locator("h1").text_content() == _HOSTILE
        assert visit.page.locator("figure svg text", has_text="script>").count() > 0
