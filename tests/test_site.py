"""The documentation site builds without a warning, and its generated pages are those that the code generates."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis.com" not in page


def test_every_numbered_statement_leads_to_code(generate):
    assert generate.missing(generate.collect()) == []


def test_the_page_from_paper_to_code_is_up_to_date(generate):
    committed = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert committed == generate.papers_page(), "run: python docs/generate.py --papers"


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


def test_pictures_can_be_drawn_and_are_there(tmp_path):
    pictures = load("pictures")
    drawn = list(pictures.draw_all(tmp_path))
    assert [path.name for path in drawn] == [f"{name}.png" for name in pictures.PICTURES]
    assert all(path.stat().st_size > 10_000 for path in drawn)
    assert all((ROOT / "docs" / "figures" / path.name).exists() for path in drawn)
