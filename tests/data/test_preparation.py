"""Raw columns become numbers: what is chosen for each kind, and that the choice can be kept, edited and applied."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hospital import LABEL, SEVERITY, SITE, hospital_table
from kernfed.data import Preparation, Rules, raw_table, read_raw_table
from kernfed.data.columns import text_column
from kernfed.data.preparation_plans import FLAG, PLANS
from kernfed.data.preparation_statistics import TableStatistics
from kernfed.errors import DataError, InputError


@pytest.fixture(scope="module")
def columns():
    table = hospital_table(3000)
    return {name: values for name, values in table.items() if name not in (LABEL, SITE)}


@pytest.fixture(scope="module")
def preparation(columns):
    return Preparation.fit(columns, rules=Rules(ordered={"severity": SEVERITY}))


def kinds(preparation):
    return {plan.name: plan.kind for plan in preparation.plans}


def test_every_kind_of_column_gets_its_plan(preparation):
    assert kinds(preparation) == {
        "patient": "drop",
        "admitted": "time",
        "seen": "time",
        "age": "number",
        "sex": "category",
        "ward": "category",
        "severity": "ordered",
        "smoker": "boolean",
        "creatinine": "number",
        "crp": "number",
        "bmi": "number",
        "sodium": "number",
        "country": "drop",
    }
    plans = {plan.name: plan for plan in preparation.plans}
    assert preparation.left_out["patient"] == "a different word in every row: an identifier"
    assert preparation.left_out["country"] == "always the same value"
    assert (plans["creatinine"].curve, plans["crp"].curve, plans["bmi"].curve) == ("log", "log", "none")
    assert (plans["creatinine"].missing, plans["bmi"].missing) == (True, False)
    assert plans["seen"].parts == ("years", "month", "weekday", "hour")
    assert plans["admitted"].parts == ("years", "month", "weekday")
    assert "burns" not in plans["ward"].values
    assert plans["ward"].other


def skewness(values):
    return ((values - values.mean()) ** 3).mean() / values.std() ** 3


def test_numbers_come_out_on_one_scale(preparation, columns):
    X, names = preparation.apply(columns)
    assert X.shape == (3000, len(names))
    assert np.isfinite(X).all()
    for name in ("age", "creatinine", "crp", "bmi", "sodium"):
        own = X[:, names.index(name)]
        assert abs(own.mean()) < 0.1
        assert 0.85 < own.std() < 1.1
    present = np.isfinite(columns["crp"])
    assert skewness(columns["crp"][present]) > 4
    assert abs(skewness(X[present, names.index("crp")])) < 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_says_the_same_as_columns_in_memory(preparation, columns, tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    frame = pd.DataFrame(columns)
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    table = read_raw_table(path)
    assert Preparation.fit(table, rules=Rules(ordered={"severity": SEVERITY})) == preparation
    np.testing.assert_allclose(preparation.apply(table)[0], preparation.apply(columns)[0], atol=1e-12)
    np.testing.assert_array_equal(preparation.apply(frame)[0], preparation.apply(columns)[0])


def test_a_file_that_a_person_edits(preparation, tmp_path):
    path = tmp_path / "preparation.toml"
    preparation.save(path)
    assert Preparation.load(path) == preparation
    text = path.read_text()
    path.write_text(text.replace('name = "bmi"\nkind = "number"', 'name = "bmi"\nkind = "drop"'))
    with pytest.raises(InputError, match=r"unknown setting 'center' in column 'bmi' of kind 'drop'"):
        Preparation.load(path)
    path.write_text(text.replace("low = 0.0", "low = 900.0", 1))
    with pytest.raises(InputError, match="low of column 'age' must be below high"):
        Preparation.load(path)
    path.write_text('[[column]]\nname = "bmi"\nkind = "number"\nlow = 10\nhigh = 60\ncenter = 35\nspread = 25\n')
    X, names = Preparation.load(path).apply({"bmi": [10.0, 60.0, 35.0, 1000.0, None]})
    assert names == ("bmi",)
    assert X[:, 0].tolist() == [-1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "must hold .*column"),
        ("[[column]]\nkind = 'number'", "name of a column must be text"),
        ("[[column]]\nname = 'a'\nkind = 'word'", "kind of column 'a' must be one of"),
        ("[[column]]\nname = 'a'\nkind = 'drop'", "must leave 1 to 1,000,000 columns to learn from"),
        ("[[column]]\nname = 'a'\nkind = 'boolean'\n[[column]]\nname = 'a'\nkind = 'boolean'", "every column once"),
        ("[[column]]\nname = 'a'\nkind = 'category'\nvalues = ['x', 'x']", "values of column 'a' must be 1 to 10,000"),
        ("[[column]]\nname = 'a'\nkind = 'ordered'\nvalues = ['x']", "values of column 'a' must be 2 to"),
        ("[[column]]\nname = 'a'\nkind = 'time'\nparts = ['minute']", "parts of column 'a' must be one of"),
        ("[[column]]\nname = 'a'\nkind = 'number'\nspread = 0", "spread of column 'a' must be > 0"),
        ("[[column]]\nname = 'a'\nkind = 'number'\nspread = nan", "spread of column 'a' must be a finite number"),
        ("[[column]]\nname = 'a'\nkind = 'boolean'\nmissing = 1", "missing of column 'a' must be true or false, got 1"),
        ("[[column", "is no preparation in TOML"),
    ],
)
def test_files_that_are_refused(tmp_path, content, told):
    path = tmp_path / "preparation.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=told):
        Preparation.load(path)


def test_rows_at_prediction_are_never_refused_for_their_values(preparation, columns):
    strange = {name: values[:4].astype(object) for name, values in columns.items()}
    strange["ward"] = ["spaceship", None, "surgery", ""]
    strange["age"] = ["old", None, "58", "1e400"]
    strange["admitted"] = ["soon", None, "2021-02-31", "17.11.2021"]
    strange["smoker"] = ["perhaps", "yes", "no", None]
    X, names = preparation.apply({**strange, "further": [1, 2, 3, 4]})
    assert np.isfinite(X).all()
    wards = [name for name in names if name.startswith("ward=")]
    assert X[0, names.index("ward=(other)")] == FLAG
    assert X[1, [names.index(name) for name in wards]].tolist() == [0] * len(wards)  # none was missing in training
    assert X[:, names.index("age=(missing)")].tolist() == [FLAG, FLAG, 0, FLAG]
    assert X[:, names.index("admitted: years")].tolist()[:3] == [0, 0, 0]


def test_a_column_that_is_missing_is_named(preparation, columns):
    with pytest.raises(DataError, match="column 'bmi' missing, needed as at training"):
        preparation.apply({name: values for name, values in columns.items() if name != "bmi"})
    kept = {name: values for name, values in columns.items() if name not in ("patient", "country")}
    assert preparation.apply(kept)[0].shape[0] == 3000  # what is left out need not be there


def of(values, **rules):
    return Preparation.fit({"x": values, "other": np.linspace(0, 1, len(values))}, rules=Rules(**rules)).plans[0]


@pytest.mark.parametrize(
    ("values", "kind", "why"),
    [
        (np.arange(40), "drop", "numbers the rows: an identifier"),
        (np.random.default_rng(1).permutation(1000)[:40] * 7, "number", "number"),
        (["2020-01-01"] * 40, "drop", "always the same value"),
        ([f"{day}.3.1950" for day in range(1, 21)] * 2, "time", "dates within about"),
        (["yes", "no", "", "no"] * 10, "boolean", "true or false, 25.0% missing"),
        ([0, 1] * 20, "boolean", "true or false"),
        ([1, 2, 3, 4] * 10, "number", "number"),
        (["1", "2", "3", ">3"] * 10, "category", "4 words"),
        ([*map(str, range(40)), ">40"] * 2, "number", "number, 2.4% cannot be read"),
        (
            ["a long sentence about this patient and that one"] * 20 + ["another long one about the next"] * 20,
            "drop",
            "text of sentences: learn from it with --text",
        ),
        ([None] * 40, "drop", "no values"),
        (["a", "b"] * 3 + [None] * 34, "drop", "every word is rare, below 10 rows"),
        ([3.0] * 39 + [None], "drop", "always the same value"),
        ([[0.1, 0.2]] * 40, "list", "embeddings"),
    ],
)
def test_what_is_chosen_and_why(values, kind, why):
    plan = of(values)
    assert plan.kind == kind
    assert plan.why.startswith(why)


def test_declared_kinds_and_orders():
    assert of([1, 2, 3, 4] * 10, kinds={"x": "category"}).values == ("1", "2", "3", "4")
    assert of([1, 2, 3, 4] * 10, kinds={"x": "drop"}).why == "as declared"
    ordered = of(["low", "high", None, "mid"] * 10, ordered={"x": ("low", "mid", "high")})
    column = ordered.apply(text_column("x", ["low", "mid", "high", "higher", None]))
    assert column[:, 0].tolist() == [-1.5, 0, 1.5, 0, 0]
    assert column[:, 1].tolist() == [0, 0, 0, FLAG, FLAG]
    with pytest.raises(InputError, match="there is no column 'y'"):
        of([1, 2], kinds={"y": "drop"})
    with pytest.raises(InputError, match="must be category, number or drop"):
        Rules(kinds={"x": "word"})


HOURS = np.arange(480) % 24


@pytest.mark.parametrize("hours", [HOURS, [str(hour) for hour in HOURS], HOURS * 0.5])
def test_a_declared_category_of_many_numbers_has_its_words(hours):
    """Words of more than 20 different numbers were not counted, so that each seemed to be rare."""
    plan = of(hours, kinds={"x": "category"})
    assert plan.kind == "category"
    assert len(plan.values) == 24
    assert of(hours).kind == "number"


def test_words_of_a_declared_category_need_as_many_rows_as_any():
    hours = [*np.repeat(np.arange(22), 20), *range(100, 130)]
    table = raw_table({"x": hours, "other": hours})
    counted = TableStatistics.of(table, min_rows=5, categories=("x", "not there")).columns
    assert counted["x"].named == {str(hour): 20 for hour in sorted(range(22), key=str)}
    assert counted["x"].rare == 30
    assert counted["other"].named == {}


def test_a_declared_kind_is_honoured_against_every_rule():
    sentences = ["a long sentence about this patient and that one", "another long one about the next patient"] * 20
    assert of(sentences, kinds={"x": "category"}).values == tuple(sorted(set(sentences)))
    assert of(np.arange(40), kinds={"x": "number"}).kind == "number"
    assert of(np.arange(40)).why == "numbers the rows: an identifier"


def test_words_in_order_lie_evenly_between_the_ends_that_the_docs_name():
    plan = of(["a", "b", "c", "d"] * 10, ordered={"x": ("d", "c", "b", "a")})
    values = plan.apply(text_column("x", ["d", "c", "b", "a"]))[:, 0].tolist()
    assert values == [-1.5, -0.5, 0.5, 1.5]
    for said in (type(plan).__doc__, Path("docs/tables.md").read_text(encoding="utf-8")):
        assert "from -1.5 for the first to 1.5 for the last" in " ".join(said.split())


def test_categories_that_pandas_orders_stay_in_order():
    grades = pd.Categorical(["b", "a", "c"] * 10, categories=["c", "b", "a"], ordered=True)
    plan = Preparation.fit(pd.DataFrame({"grade": grades})).plans[0]
    assert (plan.kind, plan.values) == ("ordered", ("c", "b", "a"))


def test_lists_are_as_they_are():
    vectors = np.random.default_rng(0).normal(size=(30, 3))
    preparation = Preparation.fit({"emb": vectors, "flag": [True, False] * 15})
    X, names = preparation.apply({"emb": vectors, "flag": [True, False] * 15})
    assert names == ("emb[0]", "emb[1]", "emb[2]", "flag")
    np.testing.assert_array_equal(X[:, :3], vectors)
    with pytest.raises(InputError, match="lists of 3 numbers"):
        preparation.apply({"emb": vectors[:, :2], "flag": [True, False] * 15})


def test_plain_numbers_need_no_preparation():
    assert not Preparation.fit({"a": np.arange(30) * 0.3, "b": [1.0, 2.0] * 15}).needed
    assert Preparation.fit({"a": np.arange(30) * 0.3, "b": ["x", "y"] * 15}).needed


def test_every_plan_is_read_from_its_own_values(preparation):
    assert set(kinds(preparation).values()) | {"list", "text"} == set(PLANS)
    again = Preparation.from_values(preparation.to_values())
    assert again == preparation
    assert again.digest == preparation.digest


def test_tables_of_other_kinds_are_refused():
    with pytest.raises(DataError, match="expected a data frame"):
        raw_table(3)
    with pytest.raises(DataError, match="columns of different lengths"):
        raw_table({"a": [1, 2], "b": [1]})
