"""Versions are said alike wherever they are said, and the oldest that are allowed are those that are tested."""

import re
import tomllib
from pathlib import Path

import pytest

import kernfed

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def floors(requirements):
    """Lowest version of each requirement, as numbers."""
    pairs = (re.match(r"([\w-]+)>=([\d.]+)", requirement) for requirement in requirements)
    return {pair[1]: numbers(pair[2]) for pair in pairs}


def numbers(version):
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def test_the_oldest_versions_are_those_that_are_tested():
    lines = (ROOT / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    for name, floor in floors(PROJECT["dependencies"]).items():
        assert numbers(pinned[name]) == floor, name


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("papers/src/kernfed_papers/__init__.py", r'__version__ = "(.+)"'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## (\S+)"),
    ],
)
def test_the_version_is_one(path, pattern):
    said = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert said[1] == kernfed.__version__


def test_the_papers_ask_for_nothing_that_kernfed_does_not_bring():
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, theirs = floors(PROJECT["dependencies"]), floors(papers["dependencies"])
    assert theirs.pop("kernfed") <= numbers(kernfed.__version__)
    assert {name: own.get(name) for name in theirs} == theirs


def test_the_citation_names_the_papers():
    said = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").split("## The papers")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for short, title, authors in rows:
        assert f'"{title}"' in said, short
        assert all(name.split()[-1] in said for name in authors.split(", ")), short
