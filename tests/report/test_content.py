"""Figures told as tables, and numbers for people."""

import pytest

from kernfed.report.content import (
    Bars,
    Curves,
    HeatMap,
    Pictures,
    ReportData,
    Section,
    Series,
    byte_unit,
    figure_table,
    written,
)


def test_bars_as_a_table_have_marks_intervals_and_lines():
    bars = Bars(
        "t",
        "w",
        ("a", "b"),
        (0.5, 0.25),
        value_name="mine",
        marks={"other": (0.1, None)},
        lines={"pooled": 0.9},
        intervals=((0.4, 0.6), (0.2, 0.3)),
    )
    table = figure_table(bars)
    assert table.columns == ("", "mine", "other", "at least", "at most")
    assert table.rows == (
        ("a", "50.0 %", "10.0 %", "40.0 %", "60.0 %"),
        ("b", "25.0 %", "", "20.0 %", "30.0 %"),
        ("pooled", "90.0 %", "", "", ""),
    )


def test_heat_maps_and_curves_as_tables():
    heat = HeatMap("t", "w", ("r",), ("x", "y"), ((1.0, 0.5),), "row", "column")
    assert figure_table(heat).columns == ("row \\ column", "x", "y")
    assert figure_table(heat).rows == (("r", "1", "0.5"),)
    curves = Curves("t", "w", (Series("a", (1.0, 2.0), (3.0, 4.5), spread=(None, 0.25)),), "x", "y")
    assert figure_table(curves).columns == ("curve", "x", "y", "standard deviation")
    assert figure_table(curves).rows == (("a", "1", "3", ""), ("a", "2", "4.5", "0.25"))
    pictures = Pictures("t", "w", (("p", ((0.0, 1.0), (2.0, 3.0))),))
    assert figure_table(pictures).rows == (("p", "2 by 2", "0", "3", "1.5"),)
    plain = Curves("t", "w", (Series("a", (1.0,), (3.0,)),), "x", "y")
    assert figure_table(plain).columns == ("curve", "x", "y")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "", ""),
        (float("nan"), "share", ""),
        (0.0, "share", "0.0 %"),
        (999.0, "bytes", "999 B"),
        (999.6, "bytes", "1 kB"),
        (5e12, "bytes", "5 TB"),
        (0.00012346, "", "0.0001235"),
        (-3.0, "", "-3"),
        (float("inf"), "", "inf"),
    ],
)
def test_numbers_for_people(value, unit, text):
    assert written(value, unit) == text


def test_byte_units_leave_one_to_three_digits():
    for count in (0, 1, 999, 1000, 123_456, 10**9, 7 * 10**12):
        divisor, _ = byte_unit(count)
        assert count == 0 or 0.99 <= count / divisor < 1000


def test_a_section_is_found_by_its_title():
    report = ReportData("model", "t", "l", sections=(Section("One"),))
    assert report.section("One").title == "One"
    with pytest.raises(KeyError, match="no section 'Two'"):
        report.section("Two")
