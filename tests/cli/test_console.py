import json
from pathlib import Path

import numpy as np
import pytest

from kernfed.base.text import TextTable, aligned, format_bytes, format_seconds, plain
from kernfed.cli.console import emit, note, progress

SCORES = TextTable(("name", "score"), [("a", "9.5%"), ("longer", "10.25%")], "Scores")


def test_table_is_aligned_plain_text():
    assert aligned(SCORES) == "Scores\nname     score\na         9.5%\nlonger  10.25%"


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [(["1", "-2 s"], True), (["1", ""], True), (["1", "n/a"], False), ([""], False), ([], False)],
)
def test_only_columns_of_numbers_go_to_the_right(cells, numeric):
    assert TextTable(("x",), [(cell,) for cell in cells]).numeric(0) is numeric


def test_table_without_rows_or_title_is_its_header():
    assert aligned(TextTable(("site", "bytes"), [])) == "site  bytes"


def test_json_result_is_one_object_and_nothing_else(capsys):
    emit({"values": np.arange(2), "share": np.float32(0.5)}, True, SCORES, "done")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"values": [0, 1], "share": 0.5}
    assert printed.err == ""


def test_result_for_people_is_its_views_in_order(capsys):
    emit({"ignored": 1}, False, SCORES, "done")
    assert capsys.readouterr().out == aligned(SCORES) + "\ndone\n"


def test_table_is_drawn_on_a_terminal_with_brackets_left_alone(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    emit({}, False, TextTable(("task",), [("[bold]x[/bold]",)], "All [tasks]"))
    printed = capsys.readouterr().out
    assert "[bold]x[/bold]" in printed
    assert "All [tasks]" in printed
    assert "─" in printed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.bool_(True), True),
        (np.int64(3), 3),
        (float("nan"), None),
        (np.array([1.0, np.inf]), [1.0, None]),
        (Path("a") / "b", str(Path("a") / "b")),
        ({1: (Path("x"), [np.float64("-inf")])}, {"1": ["x", [None]]}),
        ("text", "text"),
        (None, None),
    ],
)
def test_values_become_what_json_holds(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


def test_notes_and_progress_leave_stdout_alone(capsys):
    with progress("work", 2) as advance:
        advance()
        advance(1, "more")
        note("a remark")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "a remark\n")


@pytest.mark.parametrize("total", [None, 3])
def test_progress_shows_on_a_terminal(capsys, monkeypatch, total):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("fitting [machines]", total) as advance:
        advance()
    printed = capsys.readouterr()
    assert "fitting [machines]" in printed.err
    assert ("1/3" in printed.err) == (total is not None)
    assert printed.out == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (1_500_000_000, "1.5 GB"),
        (2.5e15, "2500.0 TB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000132, "0.0132 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.994, "9.99 s"),
        (12.34, "12.3 s"),
        (99.6, "1 min 40 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_seconds_for_people(seconds, text):
    assert format_seconds(seconds) == text
