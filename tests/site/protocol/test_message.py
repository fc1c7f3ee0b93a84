"""Messages: what goes in comes out, and hostile bytes raise ``MessageError`` and nothing else."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.engines import read_message, with_header, write_message
from kernfed.errors import MessageError, StoreError
from kernfed.site.protocol.message import (
    Payload,
    Question,
    Refusal,
    Reply,
    decode_question,
    decode_reply,
    digest,
    encode_question,
    encode_reply,
    error_refusal,
)

ASKED = Payload({"X": np.arange(6.0).reshape(2, 3)}, {"handle": "h", "n": [1, None]})
ANSWER = Payload({"scores": np.eye(2), "batches": np.zeros((2, 2), dtype=np.int32)}, {"classes": [0, 1]})
QUESTION = Question("run", "id", "scores", ASKED, "caller")
REPLY = Reply("a", "run", "id", "scores", digest(ASKED.values), "scores", ANSWER)
SENT_QUESTION, SENT_REPLY = encode_question(QUESTION), encode_reply(REPLY)


def same(first: Payload, second: Payload) -> None:
    assert first.values == second.values
    assert set(first.arrays) == set(second.arrays)
    for name, array in first.arrays.items():
        assert array.dtype == second.arrays[name].dtype.newbyteorder("=")
        np.testing.assert_array_equal(array, second.arrays[name])
        assert array.shape == second.arrays[name].shape


@pytest.mark.parametrize(
    "array",
    [
        np.float64([[1, -0.0], [np.nan, np.inf]]),
        np.float32([1.5]),
        np.arange(5),
        np.arange(3, dtype=np.int32),
        np.int16([-3]),
        np.int8([7]),
        np.uint8([255]),
        np.array([True, False]),
        np.zeros((0, 7)),
        np.zeros((3, 0, 2)),
        np.array(3.0),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(10.0)[::3],
        np.arange(4.0).astype(">f8"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_arrive_as_they_are(array: Any) -> None:
    found = decode_question(encode_question(Question("r", "i", "t", Payload({"it": array}))))
    same(found.payload, Payload({"it": array}))
    assert not found.payload.arrays["it"].flags.writeable  # a view of the message, not a copy


def test_question_and_reply_arrive_as_they_are() -> None:
    found = decode_question(SENT_QUESTION)
    same(found.payload, QUESTION.payload)
    assert (found.run, found.id, found.task, found.caller) == ("run", "id", "scores", "caller")
    reply = decode_reply(SENT_REPLY, QUESTION, "a")
    same(reply.payload, REPLY.payload)
    assert (reply.site, reply.information, reply.refusal) == ("a", "scores", None)
    no = Reply("a", "run", "id", "scores", REPLY.parameters, refusal=Refusal("policy", 'no, "never" \n ü'))
    assert decode_reply(encode_reply(no), QUESTION, "a").refusal == no.refusal


def test_a_site_that_could_not_read_the_question_is_heard() -> None:
    blind = encode_reply(Reply("a", "", "", "", "", refusal=Refusal("bad question", "what?")))
    assert decode_reply(blind, QUESTION, "a").refusal == Refusal("bad question", "what?")
    with pytest.raises(MessageError, match="site must be 'b', got 'a'"):
        decode_reply(blind, QUESTION, "b")
    with pytest.raises(MessageError, match="run must be 'run', got ''"):
        decode_reply(encode_reply(Reply("a", "", "", "", "")), QUESTION, "a")


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None]), np.float16([1]), np.uint64([1])])
def test_arrays_that_cannot_travel(array: Any) -> None:
    with pytest.raises(MessageError, match=r"array 'it' of dtype .* cannot travel"):
        encode_question(Question("r", "i", "t", Payload({"it": array})))


@pytest.mark.parametrize("value", [np.nan, np.inf, {"a": [-np.inf]}])
def test_values_that_are_not_finite_cannot_travel(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_question(Question("r", "i", "t", Payload(values={"v": value})))


def test_digest_is_of_content() -> None:
    assert digest({"a": 1, "b": [2.5, None]}) == digest({"b": [2.5, None], "a": 1})
    assert len({digest({"a": value}) for value in (1, 2, "1", None, True, [1], {"x": 1}, 1.5)}) == 8
    assert digest({"a": 1}) == "015abd7f5cc57a2d"  # the same on every machine


def test_altered_parameters_are_noticed() -> None:
    with pytest.raises(MessageError, match="do not match their digest; it was altered"):
        decode_question(with_header(SENT_QUESTION, values={"handle": "other", "n": [1, None]}))


# Hostile bytes -----------------------------------------------------------------------------------------------------


def refused(data: bytes) -> bool:
    """Whether both readers refuse ``data``; anything but ``MessageError`` fails the test."""
    outcomes = []
    for read in (decode_question, lambda found: decode_reply(found, QUESTION, "a")):
        told = ""
        try:
            read(data)
        except MessageError as error:
            told = str(error)
        assert len(told) < 1000  # whatever came, the sentence stays readable
        outcomes.append(bool(told))
    return all(outcomes)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    assert refused(data)
    refused(len(data).to_bytes(8, "little") + data)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([SENT_QUESTION, SENT_REPLY]), st.data())
def test_cut_messages(message: bytes, data: st.DataObject) -> None:
    assert refused(message[: data.draw(st.integers(0, len(message) - 1))])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([SENT_QUESTION, SENT_REPLY]), st.data())
def test_flipped_bits(message: bytes, data: st.DataObject) -> None:
    changed = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(changed))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
FLAT = PLAIN | st.lists(PLAIN, max_size=4) | st.dictionaries(st.text(max_size=10), PLAIN, max_size=4)
JSON = FLAT | st.lists(FLAT, max_size=3) | st.dictionaries(st.text(max_size=10), FLAT, max_size=3)
FIELDS = [
    "is",
    "protocol",
    "package",
    "run",
    "id",
    "task",
    "caller",
    "site",
    "parameters",
    "information",
    "values",
    "refusal",
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([SENT_QUESTION, SENT_REPLY]), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_headers_with_other_content(message: bytes, changes: dict[str, Any]) -> None:
    refused(with_header(message, **changes))


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F64", "F32", "I64", "BOOL", "F16", "C64", ""]) | JSON,
        "shape": st.lists(st.integers(-2, 2**65), max_size=5) | JSON,
        "data_offsets": st.lists(st.integers(-9, 2**65), min_size=1, max_size=3) | JSON,
    },
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=5), ENTRIES | JSON, max_size=3), st.binary(max_size=40))
def test_descriptions_of_arrays_with_other_content(tensors: dict[str, Any], body: bytes) -> None:
    refused(write_message(read_message(SENT_QUESTION)[0], tensors, body))
    refused(write_message(read_message(SENT_REPLY)[0], tensors, body))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]},
        {"dtype": "F64", "shape": [2**62, 2**62], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [0, 2**63], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [0, 10**30], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [1] * 100, "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2] * 100_000, "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [-1, -1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 8, 16]},
        {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]},
        {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]},
        {"dtype": "F64", "shape": [True], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1.0], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": "1", "data_offsets": [0, 8]},
        {"dtype": ["F64"], "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1]},
        [],
        None,
    ],
    ids=lambda entry: json.dumps(entry)[:60],
)
def test_arrays_that_lie_about_their_size(entry: Any) -> None:
    header = read_message(SENT_QUESTION)[0]
    message = write_message(header, {"X": entry}, b"\0" * 8)
    tracemalloc.start()
    try:
        assert refused(message)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(message) + 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 10**8 + 1, 2**32])
def test_headers_that_lie_about_their_size(size: int) -> None:
    assert refused(size.to_bytes(8, "little") + b"{}")
    assert refused(size.to_bytes(8, "little") + b" " * 100)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_none(number: str) -> None:
    """Python's JSON reads them, and a class called NaN would equal nothing, not even itself."""
    header = json.dumps({**read_message(SENT_QUESTION)[0], "values": "here"}).replace('"here"', f'{{"v": {number}}}')
    with pytest.raises(MessageError, match="numbers must be finite"):
        decode_question(write_message(header))


def test_numbers_too_long_to_read() -> None:
    header = json.dumps({**read_message(SENT_QUESTION)[0], "values": "here"}).replace('"here"', "1" * 5000)
    assert refused(write_message(header))


@pytest.mark.parametrize("depth", [*range(900, 1000, 7), 5000, 100_000])
def test_values_nested_too_deeply(depth: int) -> None:
    nested = '{"v": ' + "[" * depth + "]" * depth + "}"
    for message, field in ((SENT_QUESTION, "values"), (SENT_REPLY, "refusal"), (SENT_REPLY, "values")):
        header = json.dumps({**read_message(message)[0], field: "here"}).replace('"here"', nested)
        refused(write_message(header))


@pytest.mark.parametrize("field", FIELDS)
def test_endless_words_make_short_sentences(field: str) -> None:
    for message in (SENT_QUESTION, SENT_REPLY):
        refused(with_header(message, **{field: "x" * 1_000_000}))
        refused(with_header(message, **{field: ["x" * 1_000_000] * 3}))


# What goes wrong at a site ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("epsilon must be > 0"), "ValueError: epsilon must be > 0"),
        (KeyError("handle"), "KeyError: 'handle'"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (FileNotFoundError(2, "No such file or directory", "/data/secret ward/x.npy"), "No such file or directory"),
        (StoreError("/srv/my site/state.json is missing; restore it"), "StoreError: state.json is missing; restore it"),
        (ValueError("'/a/b.npz' and then ~/c d/e.csv"), "e.csv"),
        (ValueError('first\n  File "/x/y.py", line 3, in read\n    secret = 1'), "ValueError: first"),
        (ValueError("half a row/column: 1/2"), "half a row/column: 1/2"),
    ],
)
def test_an_error_is_told_in_one_line_without_paths(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What went wrong may be told, where it did is for the log of the site: folders and code are nobody's business."""
    try:
        raise error
    except Exception as raised:
        refusal = error_refusal(raised)
    assert told in refusal.reason
    assert refusal.code == "error"
    for place in ("\n", "secret", "/data", "/srv", "/a", "~", ".py", "line 3"):
        assert place not in refusal.reason
    assert [record.name for record in caplog.records] == ["kernfed.site"]
    assert "raise error" in caplog.text  # the traceback, with the line


def test_long_sentences_are_cut() -> None:
    assert len(error_refusal(ValueError("x" * 10_000)).reason) < 600
