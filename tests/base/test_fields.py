"""One declaration: what a caller gives, what a message holds and what an option takes are refused alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kernfed.base.fields import Field, check_fields, check_text, declared, fields_of, from_values, options_of, to_values
from kernfed.errors import InputError


@dataclass(frozen=True)
class Inner:
    size: float = declared(1.0, above=0)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Every:
    """A field of every kind."""

    count: int = declared(at_least=1, at_most=9, help="How many.")
    share: float = declared(0.5, above=0, below=1, unit="of the rows", help="Which part.", option="part")
    word: str = declared("a", choices=("a", "b"), help="Which of two.")
    text: str = declared("", longest=5)
    flag: bool = declared(False, omit=True)
    level: float | str = declared("auto", choices=("auto", "median"), at_least=0)
    limit: int | None = declared(None, at_least=1)
    words: tuple[str, ...] = ()
    numbers: tuple[float, ...] = declared((1.0,), above=0, longest=3)
    pair: tuple[int, int] = (1, 2)
    keys: Mapping[str, str] = field(default_factory=dict)
    inner: Inner | None = None
    label: Any = declared(None, dump=lambda value: [value], load=lambda value: value[0])

    def __post_init__(self) -> None:
        check_fields(self)


WRONG = [
    ("count", 0, "count must be >= 1, got 0"),
    ("count", 10, "count must be <= 9, got 10"),
    ("count", True, "count must be an integer, got True"),
    ("count", 2.0, "count must be an integer, got 2.0"),
    ("count", 10**400, "count must be <= 9"),
    ("share", 1.0, "share must be < 1, got 1.0"),
    ("share", float("nan"), "share must be a finite number, got nan"),
    ("share", 10**400, "share must be a finite number"),
    ("share", "0.5", "share must be a finite number, got '0.5'"),
    ("word", "c", "word must be one of 'a', 'b', got 'c'"),
    ("text", 3, "text must be text, got 3"),
    ("text", "longer", "text must have at most 5 characters, got 6"),
    ("text", "\ud800", "text must be text that can be written as UTF-8"),
    ("flag", 1, "flag must be true or false, got 1"),
    ("level", "mean", "level must be one of 'auto', 'median', got 'mean'"),
    ("level", -1, "level must be >= 0, got -1"),
    ("level", None, "level must be a number or 'auto', 'median', got None"),
    ("limit", 0, "limit must be >= 1, got 0"),
    ("limit", "3", "limit must be an integer or none, got '3'"),
    ("words", "ab", "words must be a list of words (a tuple in Python), got 'ab'"),
    ("numbers", (1.0, 0.0), "numbers must be > 0, got 0.0"),
    ("numbers", (1.0,) * 4, "numbers must have at most 3 entries, got 4"),
    ("pair", (1, 2, 3), "pair must have 2 entries, got 3"),
    ("keys", {"a": 1}, "keys['a'] must be text, got 1"),
    ("keys", {1: "a"}, "keys must be an object with names"),
]


@pytest.mark.parametrize(("name", "value", "told"), WRONG)
def test_a_caller_and_a_message_are_refused_with_the_same_sentence(name, value, told):
    with pytest.raises(InputError) as given:
        Every(**{"count": 1, name: value})
    with pytest.raises(InputError) as sent:
        from_values(Every, {"count": 1, name: list(value) if isinstance(value, tuple) else value})
    assert str(given.value) == str(sent.value)
    assert str(given.value).startswith(told)


def test_plain_values_make_the_same_again():
    every = Every(3, 0.25, "b", "x", True, 2.0, 4, ("a", "b"), (2.0, 3.0), (5, 6), {"a": "b"}, Inner(2.0), "label")
    values = to_values(every)
    assert values == {
        "count": 3,
        "share": 0.25,
        "word": "b",
        "text": "x",
        "flag": True,
        "level": 2.0,
        "limit": 4,
        "words": ["a", "b"],
        "numbers": [2.0, 3.0],
        "pair": [5, 6],
        "keys": {"a": "b"},
        "inner": {"size": 2.0},
        "label": ["label"],
    }
    assert from_values(Every, values) == every
    assert "flag" not in to_values(Every(1))


def test_numbers_of_numpy_are_plain_in_messages():
    assert type(to_values(Every(np.int64(3)))["count"]) is int


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], "Every must be an object, got list"),
        ({}, "Every must have 'count'"),
        ({"count": 1, "counts": 2}, "unknown setting 'counts'; known are count, flag"),
        ({"count": 1, 3: 2}, "unknown setting 3; known are"),
        ({"count": 1, "inner": {"size": 0}}, "size must be > 0, got 0"),
        ({"count": 1, "inner": {"sizes": 0}}, "unknown setting 'sizes'; known are size"),
        ({"count": 1, "inner": 3}, "inner must be Inner or none, got 3"),
        ({"count": 1, "words": ["a", ["b"]]}, "words must be a list of words"),
    ],
)
def test_what_no_message_can_mean_is_refused(values, told):
    with pytest.raises(InputError) as error:
        from_values(Every, values)
    assert str(error.value).startswith(told)


def test_messages_name_what_a_field_belongs_to():
    with pytest.raises(InputError, match=r"^count of site 'a' must be >= 1, got 0$"):
        from_values(Every, {"count": 0}, of=" of site 'a'")
    with pytest.raises(InputError, match=r"^unknown setting 'x' in the parameters; known are"):
        from_values(Every, {"x": 0}, "the parameters")


def test_options_are_the_fields_with_a_help():
    options = {option.name: option for option in options_of(Every)}
    assert list(options) == ["count", "part", "word"]
    assert (options["part"].argument, options["part"].usual, options["part"].unit) == ("share", 0.5, "of the rows")
    assert options["word"].given("b", "--word") == "b"
    with pytest.raises(InputError, match=r"^--word must be one of 'a', 'b', got 'c'$"):
        options["word"].given("c", "--word")
    with pytest.raises(InputError, match=r"^--count must be >= 1, got 0$"):
        options["count"].given(0, "--count")


def test_an_option_may_be_declared_by_itself():
    option = Field("batch-size", "Rows per machine.", 3, read=lambda value, name: (name, value))
    assert (option.hint, option.absent, option.argument) == (int, 0, "batch_size")
    assert option.given(7, "--batch-size") == ("--batch-size", 7)


def test_fields_know_types_and_defaults():
    known = fields_of(Every)
    assert known["count"].required
    assert not known["keys"].required
    assert (known["share"].usual, known["share"].hint) == (0.5, float)
    assert known["keys"].usual == {}


def test_text_that_no_file_holds_is_refused():
    assert check_text("x", "name") == "x"
    with pytest.raises(InputError, match="must be text"):
        check_text(None, "name")
