"""The gateway's page in a real browser: rows go in, probabilities come out; keyboard, phone, light and dark.

Screenshots are kept in the folder that KERNFED_ARTEFACTS names, otherwise with pytest's temporary files.
"""

import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from kernfed.serve.app import make_app
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import Tokens, new_token
from serve.http_client import Running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    chosen = os.environ.get("KERNFED_ARTEFACTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def running(small):
    with Running(make_app(Gateway(small[0]))) as opened:
        yield opened


@pytest.fixture(scope="module")
def table(small, tmp_path_factory):
    """A file of queries with a column that the model does not know."""
    place = tmp_path_factory.mktemp("rows") / "new.csv"
    place.write_text("name,a,b,c\n" + "\n".join(f"row,{a},{b},{c}" for a, b, c in small[2].tolist()))
    return place


@pytest.fixture
def visit(browser, running):
    """Opens the page; at the end it must have asked nobody else, and complained of nothing."""
    contexts, problems, requests = [], [], []

    def open_page(url=None, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url or running.url)
        page.locator("#model", has_text="columns").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in requests)


def test_a_file_goes_in_and_probabilities_come_out(visit, small, table, artefacts):
    page = visit(viewport={"width": 1280, "height": 900})
    page.set_input_files("#file", table)
    page.get_by_role("button", name="Answer").click()
    page.locator("#answers > li").nth(len(small[2]) - 1).wait_for()
    expected = small[0].answer(small[2])
    for place, item in enumerate(page.locator("#answers > li").all()):
        assert item.locator("strong").text_content() == expected.labels[place]
        assert expected.site[place] in item.locator(".head").text_content()
        names, bars = item.locator("dt").all_text_contents(), item.locator("meter").all()
        shown = {name: float(bar.get_attribute("value")) for name, bar in zip(names, bars, strict=True)}
        assert shown == pytest.approx(dict(zip(["ant", "bee", "cat"], expected.probabilities[place], strict=True)))
    assert page.locator("#spoke").text_content() == "Answered by north, south."
    page.screenshot(path=artefacts / "gateway-1280.png", full_page=True)


def test_the_keyboard_is_enough(visit, small):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the rows"
    page.keyboard.press("Tab")
    page.keyboard.type(",".join(map(str, small[2][0])))
    for _ in range(3):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "send":
            break
    page.keyboard.press("Enter")
    page.locator("#answers > li").wait_for()
    assert page.locator("#answers strong").text_content() == small[0].predict(small[2][:1])[0]
    assert page.evaluate("document.activeElement.id") == "answers-title"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(visit, table, artefacts, scheme):
    page = visit(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.set_input_files("#file", table)
    page.click("#send")
    page.locator("#answers > li").first.wait_for()
    page.screenshot(path=artefacts / f"gateway-390-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")


def test_what_is_wrong_is_said_on_the_page(visit):
    page = visit()
    page.click("#send")
    assert page.locator("#said").text_content() == "Paste rows, or choose a file."
    page.fill("#rows", "a,b\n<b>1</b>,2\n")
    page.click("#send")
    page.locator("#said.wrong", has_text="no column 'c'").wait_for()
    assert page.locator("#result").is_hidden()


def test_a_token_is_asked_for_where_there_are_some(browser, small, tmp_path):
    token = new_token(tmp_path / "tokens.json", "ann")
    with Running(make_app(Gateway(small[0]), Tokens(tmp_path / "tokens.json"))) as guarded:
        page = browser.new_page()
        page.goto(guarded.url)
        page.locator("#secret").wait_for()
        page.fill("#token", token)
        page.fill("#rows", "1,2,3")
        page.click("#send")
        page.locator("#answers > li").wait_for()
        assert "columns" in page.locator("#model").text_content()
        page.close()
