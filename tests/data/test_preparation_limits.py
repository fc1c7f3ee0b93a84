"""Settings of a preparation are bounded, and so is what it makes of every cell there can be."""

import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernfed.data import Preparation, Rules
from kernfed.data.columns import RawColumn, text_column
from kernfed.data.preparation_plans import PLANS, read_plan
from kernfed.errors import InputError

#: Settings of each kind of plan that an honest person may write.
HONEST = {
    "number": {"low": 10.0, "high": 60.0, "center": 35.0, "spread": 25.0, "missing": True},
    "boolean": {"missing": True},
    "category": {"values": ["a", "2", "2026-11-17"], "missing": True},
    "ordered": {"values": ["a", "2", "2026-11-17"], "missing": True},
    "time": {"center": 18000.0, "spread": 400.0, "parts": ["years", "month", "weekday", "hour"], "missing": True},
    "list": {"width": 2},
    "text": {"width": 2, "digest": "0" * 16},
    "drop": {},
}
TINY, HUGE = 5e-324, sys.float_info.max
NUMBERS = np.array([0.0, -0.0, 1.0, 35.5, 1e100, -1e100, 1e308, -1e308, TINY, np.nan, np.inf, -np.inf])
CELLS = [
    RawColumn("x", "number", NUMBERS),
    RawColumn("x", "boolean", np.array([0.0, 1.0, np.nan])),
    RawColumn(
        "x", "time", np.array([0.0, 20000.3, -719162.0, 2932896.0, 2**63 / 86_400e6, -(2**63) / 86_400e6, 1e300])
    ),
    RawColumn("x", "other", np.full(3, np.nan)),
    text_column("x", ["a", "1e308", "-1e400", "nan", "inf", "0001-01-01", "9999-12-31", "\x00", "x" * 10_000, "", "٣"]),
]
LISTS = [np.array([[1e308, -1e308], [np.nan, np.inf]]), np.array([[3e38, 0.1]], dtype=np.float32)]


def plan_of(kind, **changed):
    return read_plan({"name": "x", "kind": kind, **HONEST[kind], **changed})


def test_every_kind_of_plan_is_tried_here():
    assert set(HONEST) == set(PLANS)


@pytest.mark.parametrize("kind", PLANS)
def test_the_text_of_every_kind_of_plan_is_bounded(kind):
    plan_of(kind, name="x" * 1000, why="y" * 1000)
    with pytest.raises(InputError, match="the name of a column must have at most 1,000 characters"):
        plan_of(kind, name="x" * 1001)
    with pytest.raises(InputError, match="why of column 'x' must have at most 1,000 characters"):
        plan_of(kind, why="x" * 1001)
    for word in ("name", "why"):
        with pytest.raises(InputError, match="can be written as UTF-8"):
            plan_of(kind, **{word: "\ud800"})


@pytest.mark.parametrize(
    ("kind", "changed", "told"),
    [
        ("category", {"values": ["w" * 1001]}, "a word of column 'x' must have at most 1,000 characters"),
        ("ordered", {"values": ["a", "w" * 1001]}, "a word of column 'x' must have at most 1,000 characters"),
        ("category", {"values": [str(number) for number in range(10_001)]}, "1 to 10,000 words"),
        ("category", {"values": ["\udfff"]}, "can be written as UTF-8"),
        ("text", {"digest": "0" * 1001}, "digest of column 'x' must have at most"),
        ("list", {"width": 1_000_001}, "width of column 'x' must be <= 1000000"),
        ("number", {"low": -1e102}, "low of column 'x' must be >= -1e\\+101"),
        ("number", {"spread": TINY}, "spread of column 'x' must be >= 1e-200"),
        ("number", {"spread": 1e-12}, "spread of column 'x' must be at least 1e-09 of the distance"),
        ("number", {"center": 1e15}, "choose center between them"),
        ("number", {"low": 60.0 - 1e-8}, "must differ by at least 1e-09 of their size"),
        ("number", {"curve": "log", "unit": 1e-150}, "unit of column 'x' must be >= 5e-119"),
        ("time", {"spread": TINY}, "spread of column 'x' must be >= 1e-09"),
        ("time", {"center": 1e300}, "center of column 'x' must be <= 1e\\+09|1000000000"),
    ],
)
def test_settings_beyond_a_limit_are_refused_without_a_row(kind, changed, told):
    with pytest.raises(InputError, match=told):
        plan_of(kind, **changed)


def test_names_of_columns_are_counted_before_they_are_made(monkeypatch):
    wide = [{"name": f"{number}" * 100, "kind": "list", "width": 600_000} for number in (1, 2)]
    with monkeypatch.context() as patched:
        patched.setattr(PLANS["list"], "outputs", lambda _: pytest.fail("a million names were made"))
        with pytest.raises(InputError, match="must leave 1 to 1,000,000 columns"):
            Preparation.from_values(wide)
        with pytest.raises(InputError, match="at most 100,000,000 characters"):
            Preparation.from_values([{"name": "x" * 1000, "kind": "list", "width": 600_000}])


def hostile(kind):
    """Plans of one kind with settings that no limit was asked for."""
    plan = plan_of(kind)
    numbers = [entry.name for entry in fields(plan) if entry.type is float]
    for size in (TINY, 1e-200, HUGE, -HUGE):
        for name in numbers:
            changed = plan_of(kind)
            object.__setattr__(changed, name, size)
            yield changed
            object.__setattr__(changed, "spread", TINY)
            yield changed
    yield plan


@pytest.mark.parametrize("kind", sorted(set(PLANS) - {"list", "text"}))
def test_prepared_rows_are_finite_and_bounded_for_every_cell_and_every_setting(kind):
    for plan in hostile(kind):
        for column in CELLS:
            made = plan.apply(column)
            assert made.shape == (len(column), len(plan.outputs()))
            assert np.isfinite(made).all()
            assert np.abs(made).max(initial=0.0) <= plan.bound <= 1e9


@pytest.mark.parametrize("values", LISTS)
def test_lists_are_finite_and_bounded_too(values):
    made = plan_of("list").apply(RawColumn("x", "list", values))
    assert made.dtype == values.dtype
    assert np.isfinite(made).all()
    assert np.abs(made.astype(np.float64)).max() <= 1e100
    kept = np.isfinite(values) & (np.abs(values.astype(np.float64)) <= 1e100)
    np.testing.assert_array_equal(made[kept], values[kept])


def test_texts_are_finite_and_bounded_whatever_an_encoder_says(monkeypatch):
    class Broken:
        name, digest, width = "words", "0" * 16, 2

        def encode(self, words):
            return np.resize([np.nan, np.inf, -1e300], (len(words), 2))

    monkeypatch.setattr("kernfed.data.preparation_plans.find_encoder", lambda _: Broken())
    made = plan_of("text").apply(text_column("x", ["a", "b", "c", ""]))
    assert np.isfinite(made).all()
    assert np.abs(made).max() <= 6.0


def test_a_limit_changes_no_bit_of_an_honest_plan():
    draws = np.random.default_rng(3)
    values = draws.lognormal(0, 3, 500)
    plan = Preparation.fit({"x": values}).plans[0]
    u = np.clip(values, plan.low, plan.high) / plan.unit
    assert (plan.curve, plan.offset) == ("log", 0.0)
    made = plan.apply(RawColumn("x", "number", values))[:, 0]
    np.testing.assert_array_equal(made, (np.log1p(u) - plan.center) / plan.spread)


# Honest plans are accepted ----------------------------------------------------------------------------------------

SIZES = st.sampled_from([1e-320, 1e-300, 1e-150, 1e-30, 1e-13, 1e-6, 1.0, 1e9, 1e20, 1e99, 1e100, 1e300])
ODD = st.lists(st.builds(lambda size, part: size * part, SIZES, st.floats(-1, 1)), min_size=1, max_size=30)
NEAR = st.builds(
    lambda center, step, places: [center + step * place for place in places],
    st.sampled_from([0.0, 1.0, -273.15, 1.7e9, 1.7e18, 1e99]),
    st.sampled_from([0.0, 1e-13, 1e-6, 1e-3, 1.0, 1e5, 1e90]),
    st.lists(st.integers(-20, 20), min_size=2, max_size=40),
)
TAILS = st.builds(
    lambda seed, power, sign: (np.random.default_rng(seed).lognormal(0, power, 60) * sign).tolist(),
    st.integers(0, 1000),
    st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    st.sampled_from([1.0, -1.0]),
)
DATES = st.lists(st.datetimes().map(str), min_size=1, max_size=20)
DAYS = st.lists(st.dates().map(str), min_size=1, max_size=20)


@given(st.one_of(ODD, NEAR, TAILS, DATES, DAYS), st.sampled_from([{}, {"x": "number"}, {"x": "category"}]))
@settings(max_examples=300, deadline=None)
def test_what_is_chosen_for_odd_columns_is_accepted_and_of_modest_size(cells, kinds):
    columns = {"x": cells * 3, "other": [True, False, True] * len(cells)}
    preparation = Preparation.fit(columns, rules=Rules(min_rows=1, kinds=kinds))
    assert Preparation.from_values(preparation.to_values()) == preparation
    X, _ = preparation.apply(columns)
    assert np.isfinite(X).all()
    assert np.abs(X).max() <= 1000


def test_a_column_far_from_zero_keeps_its_differences():
    """With six digits low and high were the same number, and the plan was refused by every site."""
    seconds = 1.7e9 + np.random.default_rng(0).normal(0, 300, 400).round(1)
    preparation = Preparation.fit({"x": seconds})
    X, _ = Preparation.from_values(preparation.to_values()).apply({"x": seconds})
    assert 0.9 < X.std() < 1.1
    assert abs(X.mean()) < 0.1
