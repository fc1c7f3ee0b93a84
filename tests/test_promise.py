"""Promises as data: guarantees and terms say in words what they hold, and come back from their plain values."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernfed as kf
from kernfed import promise
from kernfed.errors import InputError
from kernfed.promise import Guarantee, Terms, read_terms_of_0_1, round_up

SAMPLES = Path(__file__).parent / "samples" / "v0.1"
ELEMENT = Guarantee(0.5, 1e-9, "element", "one element changing by at most d = 1", (0.0, 1.0), 1.0)
RECORD = Guarantee(3.0, 1e-5, "record", "one row of 4 elements replaced by any other", (0.0, 1.0), 1.0)
MECHANISM = {"kind": "element-laplace", "epsilon": 0.5, "d": 1.0, "bounds": [0.0, 1.0], "delta": 0.0}
LABELS = {"kind": "randomized-labels", "epsilon": 2.0, "classes": [0, 1]}
REQUEST = {"mechanism": MECHANISM, "labels": None, "smoothing": 0}
TERMS = Terms(MECHANISM, None, "rows", ELEMENT, RECORD, {"b": (3.0, 1e-5), "a": (math.inf, 1e-5)}, REQUEST)
RANDOMIZED = replace(TERMS, labels=LABELS, protects="rows and labels", request={**REQUEST, "labels": LABELS})


@given(st.floats(1e-60, 1e60))
def test_rounded_figures_are_never_less_than_the_truth(value):
    assert value <= round_up(value) <= value * 1.0011


def test_round_up_of_special_values():
    assert round_up(0.0) == 0.0
    assert round_up(math.inf) == math.inf
    assert round_up(1.0) == 1.0


def test_one_sentence():
    guarantee = Guarantee(382.3049, 1e-5, "record", "one row replaced", (0.0, 1.0), 1.0)
    expected = (
        "record: (382.4, 1e-05)-differential privacy for one row replaced, values clipped to the public bounds [0, 1]"
    )
    assert str(guarantee) == expected
    assert guarantee.to_dict()["bounds"] == [0.0, 1.0]


def test_no_guarantee_says_so():
    assert str(Guarantee(math.inf, 1e-5, "record", "one row replaced")).startswith(
        "record: no guarantee at delta 1e-05"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.0, "person", ""), "unit must be one of 'element', 'record', got 'person'"),
        ((1.0, 1.5, "record", ""), "delta must be <= 1"),
        ((-1.0, 0.0, "record", ""), "epsilon must be >= 0"),
        ((math.nan, 0.0, "record", ""), "epsilon must be >= 0"),
    ],
)
def test_bad_guarantees(arguments, message):
    with pytest.raises(ValueError, match=message):
        Guarantee(*arguments)


# Terms ------------------------------------------------------------------------------------------------------------


def test_a_promise_imports_nothing_but_checks_and_errors():
    names = {
        node.module
        for node in ast.walk(ast.parse(Path(promise.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kernfed")
    }
    assert names == {"kernfed.base.checks", "kernfed.base.warn", "kernfed.errors"}


def test_terms_are_put_into_words():
    assert TERMS.line() == "record (3, 1e-05), element (0.5, 1e-09) by element-laplace, labels public"
    assert TERMS.lines() == (str(ELEMENT), str(RECORD), "labels, classes and rows per class are public")
    assert str(TERMS).splitlines()[0] == "element-laplace"
    assert str(TERMS).splitlines()[-2:] == [
        "  a: (inf, 1e-05) spent by its ledger in all",
        "  b: (3, 1e-05) spent by its ledger in all",
    ]
    assert RANDOMIZED.lines()[2] == "labels are randomised with epsilon 2; the classes there can be are public"
    assert RANDOMIZED.line().endswith("labels randomised")
    assert replace(TERMS, protects="rows and targets").lines()[2] == "targets are protected with their row"


@pytest.mark.parametrize(
    "terms",
    [
        TERMS,
        RANDOMIZED,
        replace(TERMS, protects="rows and targets"),
        replace(TERMS, record=replace(RECORD, epsilon=math.inf)),
    ],
    ids=["rows", "labels", "targets", "no guarantee"],
)
def test_terms_come_back_from_their_values(terms: Terms):
    values = json.loads(json.dumps(terms.to_values(), allow_nan=False))
    assert Terms.from_values(values) == terms
    assert set(values["request"]) == {"smoothing"}  # the rest stands beside it


@pytest.mark.parametrize(
    "damage",
    [
        {"protects": "all"},
        {"protects": "rows and labels"},
        {"labels": LABELS},
        {"mechanism": {}},
        {"mechanism": 5},
        {"element": RECORD.to_dict()},
        {"record": {**RECORD.to_dict(), "epsilon": -1.0}},
        {"record": {**RECORD.to_dict(), "delta": 2.0}},
        {"record": {**RECORD.to_dict(), "epsilon": "1"}},
        {"record": {**RECORD.to_dict(), "bounds": [1.0]}},
        {"record": {**RECORD.to_dict(), "bounds": [1.0, 0.0]}},
        {"record": {**RECORD.to_dict(), "d": -1}},
        {"record": {}},
        {"spent": {"a": [1.0]}},
        {"spent": {"a": [-1.0, 0.5]}},
        {"spent": []},
        {"request": 5},
    ],
    ids=str,
)
def test_damaged_terms_are_refused(damage: dict[str, Any]):
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Terms.from_values({**TERMS.to_values(), **damage})


def told(**changes: Any) -> dict[str, Any]:
    pairs = {"element": (0.5, 1e-9), "record": (3.0, 1e-5), "spent": (4.0, 1e-5)}
    return {name: [f"{number:.16e}" for number in pair] for name, pair in {**pairs, **changes}.items()}


def test_what_sites_tell_is_checked_and_kept():
    TERMS.check_told(told())
    TERMS.check_told(told(record=(3.0 * (1 + 1e-7), 1e-5)))
    assert TERMS.with_told({"c": told()}).spent == {**TERMS.spent, "c": (4.0, 1e-5)}
    replace(TERMS, record=replace(RECORD, epsilon=math.inf)).check_told(told(record=(math.inf, 1e-5)))


@pytest.mark.parametrize(
    "changes",
    [
        {"record": (2.9, 1e-5)},
        {"record": (3.0, 1e-4)},
        {"record": (math.inf, 1e-5)},
        {"record": (math.nan, 1e-5)},
        {"element": (0.0, 1e-9)},
        {"spent": (-1.0, 1e-5)},
        {"spent": (1.0, 0.0)},
        {"spent": (math.nan, 1e-5)},
    ],
    ids=str,
)
def test_a_site_that_tells_something_else_is_refused(changes: dict[str, Any]):
    with pytest.raises(InputError):
        TERMS.check_told(told(**changes))


# Files of 0.1 -----------------------------------------------------------------------------------------------------


def test_sentences_of_0_1_are_read_as_data():
    old = {
        "request": REQUEST,
        "promises": list(TERMS.lines()),
        "element": [0.5, 1e-9],
        "record": [3.0, 1e-5],
        "spent": {"b": [3.0, 1e-5], "a": [None, 1e-5]},
    }
    assert read_terms_of_0_1(old) == TERMS
    targets = {**old, "promises": [*TERMS.lines()[:2], "targets are protected with their row"]}
    assert read_terms_of_0_1(targets) == replace(TERMS, protects="rows and targets")
    labels = {**old, "request": RANDOMIZED.request, "promises": list(RANDOMIZED.lines())}
    assert read_terms_of_0_1(labels) == RANDOMIZED


@pytest.mark.parametrize("name", ["folding-private", "ridge-private"])
def test_files_of_0_1_promise_what_they_promised(name: str, tmp_path: Path):
    model = kf.load(SAMPLES / f"{name}.kfd")
    stated = kf.privacy.mechanism_from_values(model.privacy.mechanism).guarantees(model.n_features_in_)
    assert (model.privacy.element, model.privacy.record) == stated
    assert set(model.privacy.spent) == {"north", "south"}
    assert model.privacy.request["mechanism"] == model.privacy.mechanism
    kf.save(model, tmp_path / "again.kfd")
    assert kf.load(tmp_path / "again.kfd").privacy == model.privacy
