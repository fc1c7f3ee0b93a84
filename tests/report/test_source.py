"""What a report is made of, by looking at the file; results are read by whoever declares a reader for them."""

from types import SimpleNamespace

import pytest

from kernfed.errors import InputError
from kernfed.report import ReportData, source


def page_of(path):
    return ReportData("results", f"Results in {path.name}", "None.")


def test_results_are_read_by_the_package_that_declares_a_reader(tmp_path, monkeypatch):
    def declared(**asked):
        assert asked == {"group": "kernfed.reports", "name": "results"}
        return [SimpleNamespace(load=lambda: page_of)]

    monkeypatch.setattr(source, "entry_points", declared)
    read = source.read_source(tmp_path)
    assert read.report().title == f"Results in {tmp_path.name}"
    assert read.report(title="Mine").title == "Mine"
    assert source.read_source(tmp_path / "a.jsonl").page.title == "Results in a.jsonl"


def test_without_a_reader_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "entry_points", lambda **_: [])
    with pytest.raises(InputError, match="kernfed-papers reads, and it is not installed; in a clone"):
        source.read_source(tmp_path)
