"""What sites say of their data, and that they must agree before anything is computed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernfed.errors import SchemaMismatch
from kernfed.federation import Federation, FoldingLearner, Site
from kernfed.site.protocol.schema import Schema, agree
from oracles.federation import sites_data

ONE = Schema(3, ("a", "b"), (4, 2), ("x", "y", "z"), "unit", "model@1")


@pytest.mark.parametrize(
    "schema",
    [
        ONE,
        Schema(1, (), ()),
        Schema(2, (0, 5), (1, 1)),
        Schema(2, (False, True), (1, 9)),
        Schema(2, (-1.5, 2.0), (1, 1)),
        Schema(2, ("", "ü"), (1, 1)),
    ],
)
def test_values_and_back(schema: Schema) -> None:
    again = Schema.from_values(schema.to_values())
    assert again == schema
    assert [type(label) for label in again.classes] == [type(label) for label in schema.classes]
    assert again.n_rows == sum(schema.counts)


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 0},
        {"width": -2},
        {"width": "x"},
        {"counts": [1]},
        {"counts": [1, 0]},
        {"counts": [1, -1]},
        {"classes": {"dtype": "<U1", "labels": ["a", "a"]}},
        {"classes": {"dtype": "<i8", "labels": ["a", "b"]}},
        {"classes": {"dtype": "O", "labels": [["a"], None]}},
        {"columns": ["x"]},
        {"columns": None},
        {"classes": None},
        {"classes": {"dtype": "<M8[s]", "labels": [1, 2]}},
    ],
)
def test_hostile_values(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Schema.from_values({**ONE.to_values(), **changes})


def test_agreement_adds_up() -> None:
    other = replace(ONE, classes=("b", "c"), counts=(1, 7))
    empty = replace(ONE, classes=(), counts=())
    assert agree({"s": ONE, "t": other, "u": empty}) == replace(ONE, classes=("a", "b", "c"), counts=(4, 3, 7))
    with pytest.raises(ValueError, match="at least 1 site must describe its data"):
        agree({})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"width": 4, "columns": ()}, "width is 3 at most sites, but 'odd' has 4"),
        (
            {"columns": ("x", "z", "y")},
            "columns are ('x', 'y', 'z') at most sites, but 'odd' has them in "
            "another order: column 1 is 'z' and not 'y' (all need the same names",
        ),
        ({"columns": ("x", "y", "w")}, "but 'odd' lacks 'z' and has unknown 'w'"),
        ({"columns": ("x", "y", "y")}, "but 'odd' lacks 'z' (all"),
        ({"columns": ()}, "but 'odd' has no names"),
        ({"scaling": "none"}, "scaling is 'unit' at most sites, but 'odd' has 'none'"),
        ({"encoder": "model@2"}, "encoder is 'model@1' at most sites, but 'odd' has 'model@2'"),
        ({"classes": (True, False)}, "type of labels is 'text' at most sites, but 'odd' has 'boolean'"),
        ({"classes": (0, 1)}, "type of labels is 'text' at most sites, but 'odd' has 'number'"),
    ],
)
def test_the_odd_one_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaMismatch) as error:
        agree({"a": ONE, "odd": replace(ONE, **changes), "z": ONE})
    assert told in str(error.value)
    assert "'a' has" not in str(error.value)


def test_many_odd_ones_stay_readable() -> None:
    schemas = {f"s{i}": replace(ONE, scaling="usual") for i in range(30)}
    odd = {f"o{i}": replace(ONE, scaling="x" * 1000) for i in range(20)}
    with pytest.raises(SchemaMismatch, match="and 15 more") as error:
        agree({**schemas, **odd})
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"width": 4}, "width is 5 at most sites, but 'odd' has 4"),
        ({"scaling": "min-max"}, "scaling"),
        ({"encoder": "other@f00"}, "encoder"),
        ({"columns": tuple("vwxyz")}, "columns"),
        ({"labels": "abc"}, "type of labels is 'number' at most sites, but 'odd' has 'text'"),
    ],
)
def test_sites_are_told_before_anything_is_computed(rng: np.random.Generator, about: dict[str, Any], told: str) -> None:
    width, labels = about.pop("width", 5), about.pop("labels", (0, 1, 2))
    X, y = sites_data(rng, ["odd"], width=width, labels=labels)["odd"]
    odd = Site("odd", X, y, **about)
    with Federation.local({**sites_data(rng, "abc"), "odd": odd}) as federation:
        with pytest.raises(SchemaMismatch) as error:
            FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        assert told in str(error.value)
        with pytest.raises(SchemaMismatch, match="'odd'"):
            _ = federation.schema
        assert {entry.task for entry in federation.traffic} == {"describe"}  # no site was asked for more
        for name in federation.sites:
            assert federation.engine.site(name).store.names("folding") == []  # type: ignore[attr-defined]
