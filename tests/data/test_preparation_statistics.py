"""What is counted of columns: additive, without rows or rare words, and refused where no rows can have it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernfed.data import Preparation, raw_table
from kernfed.data.preparation_choice import suspect_units
from kernfed.data.preparation_statistics import COUNTS, Histogram, TableStatistics, bin_bounds, bins_of
from kernfed.errors import InputError

DRAWS = np.random.default_rng(5)
COLUMNS = {
    "age": np.where(DRAWS.random(200) < 0.1, np.nan, DRAWS.normal(50, 10, 200).round()),
    "ward": np.array(["a", "b", "c", None], dtype=object)[DRAWS.integers(0, 4, 200)],
    "seen": np.datetime64("2020-01-01") + DRAWS.integers(0, 900, 200),
    "emb": DRAWS.normal(size=(200, 2)),
}


def statistics(rows=slice(None), min_rows=1):
    return TableStatistics.of(raw_table({name: values[rows] for name, values in COLUMNS.items()}), min_rows=min_rows)


@given(st.lists(st.floats(-1e90, 1e90), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_every_value_lies_in_its_bin(values):
    array = np.array(values)
    low, high = bin_bounds(bins_of(array))
    small = np.abs(array) < 2.0**-40
    assert ((low <= array) & (array <= high) | small).all()
    assert (high[~small] - low[~small] <= 0.0313 * np.abs(array[~small])).all()


def test_quantiles_are_those_of_the_values_to_a_bin():
    values = DRAWS.lognormal(3, 1, 5000)
    histogram = Histogram.of(values)
    for share in (0.01, 0.25, 0.5, 0.9, 0.999):
        assert histogram.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.035)


def test_statistics_of_parts_add_up_to_those_of_the_whole():
    parts = statistics(slice(0, 80)) + statistics(slice(80, None))
    whole = statistics()
    assert parts.columns.keys() == whole.columns.keys()
    for name, own in whole.columns.items():
        other = parts.columns[name]
        assert [getattr(own, count) for count in COUNTS if count not in ("different", "counting")] == [
            getattr(other, count) for count in COUNTS if count not in ("different", "counting")
        ]
        assert dict(own.histogram.counts) == dict(other.histogram.counts)
        assert own.named == other.named
        assert other.total == pytest.approx(own.total)
        assert other.days_square == pytest.approx(own.days_square)
    together = Preparation.from_statistics([statistics(slice(0, 80)), statistics(slice(80, None))])
    assert together == Preparation.fit(COLUMNS)


def test_words_of_few_rows_are_not_named():
    words = ["often"] * 20 + ["seldom"] * 4 + ["once"]
    own = TableStatistics.of(raw_table({"x": words}), min_rows=5).columns["x"]
    assert own.named == {"often": 20}
    assert own.rare == 5


def test_a_message_and_back():
    arrays, values = statistics().to_message()
    assert TableStatistics.from_message(arrays, values) == statistics()
    assert "emb" not in values["words"]


def spoil(arrays, values, how):
    arrays = {name: array.copy() for name, array in arrays.items()}
    age = values["columns"].index("age")
    if how == "more parts":
        arrays["counts"][age, COUNTS.index("words")] += 500
    elif how == "negative":
        arrays["counts"][age, COUNTS.index("missing")] = -1
    elif how == "bins":
        arrays["bins"][0, 2] += 1
    elif how == "sum":
        arrays["sums"][age, 0] *= 2
    elif how == "square":
        arrays["sums"][age, 1] /= 2
    elif how == "word":
        values = {**values, "words": {"ward": {"x" * 100: 3}}}
    elif how == "infinite":
        arrays["sums"][age, 0] = np.inf
    elif how == "shape":
        arrays["counts"] = arrays["counts"][:, :3]
    elif how == "far bin":
        arrays["bins"][0, 1] = 10**9
    elif how == "twice":
        values = {**values, "columns": ["age"] * len(values["columns"])}
    return arrays, values


@pytest.mark.parametrize(
    "how",
    ["more parts", "negative", "bins", "sum", "square", "word", "infinite", "shape", "far bin", "twice"],
)
def test_statistics_that_no_rows_have_are_refused(how):
    with pytest.raises(InputError):
        TableStatistics.from_message(*spoil(*statistics().to_message(), how))


def test_columns_that_one_table_lacks_are_left_out():
    one = TableStatistics.of(raw_table({"a": [1.0, 2.5] * 10, "b": [1.5, 2.0] * 10}))
    other = TableStatistics.of(raw_table({"a": [1.0, 2.5] * 10, "c": [1.5, 2.0] * 10}))
    assert Preparation.from_statistics([one, other]).left_out == dict.fromkeys("bc", "not every site has it")


def sites(factor, column="age"):
    draws = np.random.default_rng(3)
    values = {name: draws.normal(55 + place, 12, 150).clip(18) for place, name in enumerate("abcd")}
    values["d"] = values["d"] * factor
    return {name: TableStatistics.of(raw_table({column: own})) for name, own in values.items()}


@pytest.mark.parametrize("factor", [12, 10, 1000, 1 / 12, 0.1])
def test_a_site_in_another_unit_is_named(factor):
    (suspicion,) = suspect_units(sites(factor))
    assert (suspicion.site, suspicion.column) == ("d", "age")
    assert suspicion.factor == pytest.approx(max(factor, 1 / factor))
    assert "column 'age' of site 'd' looks to be in another unit" in str(suspicion)


@pytest.mark.parametrize("factor", [1, 1.3, 0.8, 4.5])
def test_sites_that_only_differ_are_not(factor):
    assert suspect_units(sites(factor)) == []


def test_two_sites_cannot_tell_whose_unit_is_another():
    both = sites(12)
    assert suspect_units({name: both[name] for name in "cd"}) == []
