"""The documentation site builds without a warning, and its generated pages are those that the code generates."""

import ast
import importlib.util
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

import kernfed
from kernfed.federation import Policy

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    """A module of the docs folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate():
    return load("generate")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site and what the build said."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder, built.stderr


def test_the_site_builds_without_a_warning_and_fetches_nothing(site):
    folder, said = site
    assert "WARNING" not in said
    for page in folder.glob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]* (?:src|href)=\"?([^\" >]+)", page.read_text(encoding="utf-8"))
        assert loaded
        assert [address for address in loaded if address.startswith(("http", "//"))] == []


@pytest.mark.slow
def test_the_search_works_in_pages_opened_from_disk(browser, site):
    context = browser.new_context(offline=True)
    page, asked, problems = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((site[0] / "index.html").as_uri())
    box = page.get_by_placeholder("Search").first
    box.click()  # the index is read when the box has the focus, and what is typed before would be lost
    page.locator(".md-search-result__meta", has_text="Type to start searching").wait_for(state="attached")
    box.press_sequentially("conformal_threshold")
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    assert "api.html" in first.get_attribute("href")
    assert problems == []
    assert [address for address in asked if not address.startswith("file:")] == []
    context.close()


def is_public(name, what, module):
    """Whether a name is one that a module without ``__all__`` defines for others."""
    return not name.startswith("_") and getattr(what, "__module__", "") == module.__name__


def public_names():
    """Where the page of the reference must have each public name: where it is defined, or at its package."""
    for name in kernfed.__all__:
        value = getattr(kernfed, name)
        if inspect.ismodule(value):
            own = [inner for inner, what in vars(value).items() if is_public(inner, what, value)]
            yield from (value.__name__, *(f"{value.__name__}.{inner}" for inner in getattr(value, "__all__", own)))
        elif name != "__version__":
            yield f"{value.__module__}.{name}"
    yield f"{Policy.__module__}.Policy"


def test_every_public_name_is_on_the_reference_page(site):
    page = (site[0] / "api.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="([\w.]+)"', page))
    assert [name for name in public_names() if name not in anchors] == []


def test_every_numbered_statement_leads_to_code(generate):
    assert generate.missing(generate.collect()) == []


def test_the_page_from_paper_to_code_is_up_to_date(generate):
    committed = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert committed == generate.papers_page(), "run: python docs/generate.py --papers"


def test_the_short_names_of_the_papers_are_explained(generate):
    page = generate.papers_page()
    table = page[page.index("## The papers\n") : page.index("## SFM: ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert [name for name, *_ in rows[2:]] == list(generate.PAPERS) == list(generate.ITEMS)
    assert all(len(row) == 3 and all(row) for row in rows)
    assert ["FedNewton", "Efficient Newton-Type Federated Learning with Non-IID Data"] in [row[:2] for row in rows]
    told = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(name in told[: told.index("papers.md#the-papers")] for name in generate.PAPERS)


def test_every_name_on_the_page_from_paper_to_code_can_be_imported(generate):
    names = set(re.findall(r"`(kernfed\.[\w.]+)`", generate.papers_page()))
    assert len(names) > 50
    for name in names:
        assert pkgutil.resolve_name(name) is not None


def test_what_private_classes_define_is_named_where_it_is_found(generate):
    source = """
class _Base:
    def a(self): "in a base"
class _Middle(_Base):
    def b(self): "in a middle"
class First(_Middle):
    def _c(self): "private"
class Second(_Middle): pass
class _Alone:
    def d(self): "in a class without heirs"
def outer():
    def inner(): "in a function"
"""
    named = {text: name for name, text in generate._docstrings(ast.parse(source), "m") if text}
    assert named == {
        "in a base": "m.First.a",
        "in a middle": "m.First.b",
        "private": "m.First",
        "in a class without heirs": "m",
        "in a function": "m.outer",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SFM Theorem 1 (64)", {("SFM", "Theorem", "1")}),
        ("DP-KAHM Theorems 3-5", {("DP-KAHM", "Theorem", str(number)) for number in (3, 4, 5)}),
        ("DP-KAHM Tables 5, 8 and 9", {("DP-KAHM", "Table", str(number)) for number in (5, 8, 9)}),
        ("GIKM Table 1 and Figure 3", {("GIKM", "Table", "1"), ("GIKM", "Figure", "3")}),
        ("KME Lemma 4.3, Corollary 4.6", {("KME", "Lemma", "4.3"), ("KME", "Corollary", "4.6")}),
        ("(SFM Theorem 9, GIKM Theorem 2)", {("SFM", "Theorem", "9"), ("GIKM", "Theorem", "2")}),
        ("SFM (133) and Theorem 1 of another paper", set()),
    ],
)
def test_references_are_read_as_people_do(generate, text, expected):
    assert generate.references(text) == expected


@pytest.mark.slow
def test_pictures_are_those_that_the_code_draws_and_are_not_written_again(tmp_path):
    pictures = load("pictures")
    drawn = list(pictures.draw_all(tmp_path))
    assert [path.name for path in drawn] == [f"{name}.png" for name in pictures.PICTURES]
    for path in drawn:
        assert pictures.looks_alike(ROOT / "docs" / "figures" / path.name, path), "run: python docs/generate.py"
        shutil.copy(ROOT / "docs" / "figures" / path.name, path)
        os.utime(path, (1, 1))
    stale = drawn[1]
    stale.write_bytes(drawn[0].read_bytes())
    os.utime(stale, (1, 1))
    list(pictures.draw_all(tmp_path))
    assert [path for path in drawn if path.stat().st_mtime != 1] == [stale]
    assert not pictures.looks_alike(drawn[0], stale)


def luminance(colour):
    """Relative luminance of a colour, as contrast is counted on the web."""
    shades = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [shade / 12.92 if shade <= 0.03928 else ((shade + 0.055) / 1.055) ** 2.4 for shade in shades]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_pictures_are_legible_on_light_and_dark_pages_and_on_a_phone():
    pictures = load("pictures")
    for colour, least in ((pictures._LABELS, 4.0), (pictures._ROWS, 3.0), (pictures._IMAGES, 2.8)):
        for ground in ("#ffffff", "#1e2129"):  # of the site's two palettes
            dark, light = sorted((luminance(colour), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= least, (colour, ground)
    for name, draw in pictures.PICTURES.items():
        path = ROOT / "docs" / "figures" / f"{name}.png"
        assert path.stat().st_size < 50_000
        shades = imread(path)
        assert shades[0, -1, 3] == shades[-1, 0, 3] == 0  # transparent
        with mpl.rc_context(pictures._STYLE):
            figure = draw()
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        shown = 358 / (figure.get_figwidth() * 72)  # pixels of a point on a phone of 390 pixels, without the margins
        assert min(sizes) * shown > 9.5
