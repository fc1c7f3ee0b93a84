"""Drawings: text stays text, colours are variables, hostile names do no harm."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from kernfed.report.canvas import SERIES, WIDTH, plain_text, shortened
from kernfed.report.charts import draw, is_wide
from kernfed.report.content import Bars, Curves, HeatMap, Pictures, Series
from kernfed.report.heat import DARK_CELL, cell_text
from kernfed.report.pages import style_variables

NAMES = (
    "<script>alert(1)</script>",
    "$x^",
    "_hidden",
    "\x00\x1b[2J\u202eevil",
    "",
    "数据",
    "a" * 300,
    "\"&'",
    "--><b>",
)


def bars(names=("a", "b"), **options):
    return Bars("title", "words", tuple(names), tuple(0.1 * (1 + place) for place in range(len(names))), **options)


def heat(rows, columns, unit=""):
    values = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    names = tuple(f"r{place}" for place in range(rows)), tuple(f"c{place}" for place in range(columns))
    return HeatMap("title", "words", *names, tuple(map(tuple, values.tolist())), "row", "column", unit)


def curves(**options):
    series = (Series("a", (1.0, 2.0), (0.5, 0.25), spread=(0.1, None)), Series("a (published)", (1.0,), (0.4,), True))
    return Curves("title", "words", series, "x", "y", **options)


EVERY = {
    "bars": bars(marks={"m": (0.2, None)}, lines={"l": 0.3}, intervals=((0.0, 0.2), (0.1, 0.3))),
    "bytes": bars(unit="bytes"),
    "no bars": bars(()),
    "many bars": bars(tuple(f"s{i}" for i in range(150))),
    "heat": heat(3, 4),
    "share": heat(3, 4, "share"),
    "wide": heat(5, 60),
    "tall": heat(130, 3),
    "one cell": heat(1, 1),
    "curves": curves(),
    "log": curves(log_x=True, log_y=True),
    "pictures": Pictures("title", "words", tuple((f"p{i}", ((0.0, 1.0), (2.0, 0.5))) for i in range(5))),
    "strips": Pictures("title", "words", (("p", ((0.0,) * 9,)), ("q", ((1.0,) * 9,)))),
    "empty matrix": HeatMap("t", "w", ("r",), ("c",), ((0.0,),), "row", "column"),
}


@pytest.mark.parametrize("figure", EVERY.values(), ids=EVERY.keys())
def test_a_drawing_is_well_formed_named_and_without_colours_of_its_own(figure):
    svg = draw(figure, "f1")
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "f1-title f1-words"
    texts = {node.get("id"): node.text for node in root}
    assert (texts["f1-title"], texts["f1-words"]) == (figure.title, figure.words)
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?!-)", re.sub(r'(href="|url\()#[\w-]+', "", svg))
    assert "font-family" not in svg
    assert "<path" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_ids_of_two_drawings_never_meet_and_every_reference_is_kept():
    first, second = draw(EVERY["bars"], "f1"), draw(EVERY["bars"], "f2")
    ids = [re.findall(r'id="([^"]+)"', svg) for svg in (first, second)]
    assert not set(ids[0]) & set(ids[1])
    assert len(ids[0]) == len(set(ids[0]))
    assert set(re.findall(r"(?:url\(|href=\")#([\w-]+)", first)) <= set(ids[0])


def test_the_same_numbers_give_the_same_drawing():
    assert draw(EVERY["curves"], "f1") == draw(EVERY["curves"], "f1")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_names_stay_text(name):
    drawings = (
        bars((name,), marks={name: (0.1,)}, lines={name: 0.2}, value_name=name),
        HeatMap(name, name, (name,), (name,) * 2, ((1.0, 2.0),), name, name),
        Pictures(name, name, ((name, ((1.0,),)),)),
        Curves(name, name, (Series(name, (1.0,), (2.0,)), Series("b", (1.0,), (2.0,))), name, name),
    )
    for figure in drawings:
        root = ElementTree.fromstring(draw(figure, "f1"))
        assert {node.tag.rpartition("}")[2] for node in root.iter()} <= {
            "svg",
            "title",
            "desc",
            "defs",
            "g",
            "path",
            "use",
            "text",
            "tspan",
            "clipPath",
            "rect",
        }
    shown = [text for node in root.iter() for text in (node.text or "",)]
    assert any(shortened(name, 34) in text for text in shown)


@pytest.mark.parametrize("name", ["#0001fe", "font: 1px x", "url(#a)", "0.123456789"])
def test_names_that_look_like_markup_of_ours_are_kept(name):
    root = ElementTree.fromstring(draw(bars((name,)), "f1"))
    assert name in {node.text for node in root.iter()}


def test_text_is_cleaned_and_shortened_in_the_middle():
    assert plain_text("a\nb\tc") == "a b c"
    assert plain_text("a\u202eb\x00") == "a\ufffdb\ufffd"
    assert shortened("hospital-of-the-north-12345", 12) == "hospi…-12345"
    assert len(shortened("x" * 99, 22)) == 22
    assert shortened("short") == "short"


def test_only_large_matrices_are_wide():
    assert not is_wide(heat(3, 10))
    assert is_wide(heat(3, 40))
    assert not is_wide(bars())
    assert ElementTree.fromstring(draw(heat(3, 10), "f")).get("width") == str(WIDTH)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.0, "share", "100"),
        (0.001, "share", ""),
        (9999.0, "", "9999"),
        (123456.0, "", "123k"),
        (0.5, "", ".5"),
        (12.34, "", "12"),
    ],
)
def test_cells_have_few_signs(value, unit, text):
    assert cell_text(value, unit) == text


# Contrast ---------------------------------------------------------------------------------------------------------


def themes():
    """Colours by role, light and dark, from the style sheet."""
    light, dark = style_variables().split("@media")
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in (light, dark)]
    return [found[0], {**found[0], **found[1]}]


def luminance(rgb):
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def rgb(color):
    return np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255


def contrast(one, other):
    """WCAG 2 contrast ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_text_and_lines_have_enough_contrast(theme):
    for ground in ("paper", "wash"):
        for role in ("ink", "muted", "link", "good", "bad", "open"):
            assert contrast(rgb(theme[role]), rgb(theme[ground])) >= 4.5, (role, ground)
    for role in SERIES:
        assert contrast(rgb(theme[role]), rgb(theme["paper"])) >= 3, role


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_numbers_in_cells_can_be_read_at_every_opacity(theme):
    for opacity in np.linspace(0, 1, 201):
        cell = opacity * rgb(theme["heat"]) + (1 - opacity) * rgb(theme["paper"])
        text = theme["on-high" if opacity > DARK_CELL else "on-low"]
        assert contrast(rgb(text), cell) >= 4.5, opacity
