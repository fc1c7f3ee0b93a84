"""JSON is read as strictly as the standard is written, at every edge by the same function."""

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernfed
from kernfed.base.plain import DEEPEST, NotFinite, read_json, read_json_file
from kernfed.errors import InputError

ROOT = Path(kernfed.__file__).parent
WRONG = [
    ("", "the body must be JSON: Expecting value"),
    ("{", "the body must be JSON: "),
    ("[1] 2", "the body must be JSON: Extra data"),
    (b"\xff\xfe\xff", "the body must be JSON: "),
    (b'"\xed\xa0\x80"', "the body must be JSON: "),  # half of a character, as bytes
    ('"\\ud800"', "the body holds half of a character"),
    ('{"\\udfff": 1}', "the body holds half of a character"),
    ('{"a": 1, "a": 2}', "the body: an object has the name 'a' twice"),
    ('[{"b": {"a": 1, "\\u0061": 2}}]', "the body: an object has the name 'a' twice"),
    ("[NaN]", "the body: numbers must be finite, got NaN"),
    ("-Infinity", "the body: numbers must be finite, got -Infinity"),
    ("1e999", "the body: numbers must be finite, got 1e999"),
    ("9" * 400, "the body: numbers must be finite, got 9999"),
    ("9" * 5000, "the body: numbers must be finite, got 9999"),
    ("[" * 100_000, "the body: the JSON is nested too deeply"),
    ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "the body: the JSON is nested too deeply"),
    ("[" + " " * 100 + "]", "the body must have at most 100 bytes, got 102"),
]


@pytest.mark.parametrize(("text", "told"), WRONG, ids=range(len(WRONG)))
def test_what_json_cannot_say_is_refused_in_one_sentence(text, told):
    most = 100 if "at most" in told else 10**6
    with pytest.raises(InputError) as error:
        read_json(text, "the body", most=most)
    assert str(error.value).startswith(told)
    assert isinstance(error.value, NotFinite) == ("finite" in told)


def test_the_deepest_and_the_largest_that_are_read():
    assert read_json("[" * DEEPEST + "]" * DEEPEST) is not None
    assert read_json("9" * 300) == int("9" * 300)
    assert read_json('"\\ud83d\\ude00"') == "\U0001f600"  # two halves are one character
    assert read_json("\ufeff[1]".encode()) == [1]
    assert read_json("[1]".encode("utf-16")) == [1]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN, st.booleans())
def test_what_is_written_is_read_to_the_bit(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json.dumps(read_json(text)) == json.dumps(value)
    assert json.dumps(read_json(text.encode())) == json.dumps(value)


def test_a_file_is_named_in_the_message(tmp_path):
    place = tmp_path / "x.json"
    place.write_text("{")
    with pytest.raises(InputError, match=r"x\.json must be JSON"):
        read_json_file(place)


def test_no_other_module_reads_json():
    """``secure/committee`` compares what it reads with the bytes that it would write."""
    allowed = {"base/plain.py", "secure/committee/terms.py"}
    reading = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads") and ast.unparse(node.value) == "json"
    }
    assert reading <= allowed
