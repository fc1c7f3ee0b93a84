"""Rows of a request: what is read, and that everything else is refused in one sentence."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest

from kernfed.data import Preparation
from kernfed.serve.requests import MOST_CHARACTERS, Columns, RequestError
from kernfed.serve.rows import ARROW, CSV, JSON, content_kind, read_rows

ABC = Columns(("a", "b", "c"), 3)
NAMELESS = Columns((), 2)
ROWS = [[1.0, 2.0, 3.0], [4.0, 5.5, -6.0]]


def stream(table, **options):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def as_json(rows):
    return json.dumps({"rows": rows}).encode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (as_json(ROWS), JSON),
        (json.dumps(ROWS).encode(), JSON),
        (as_json([{"c": 3, "a": 1, "b": 2, "z": "more"}, {"a": 4, "b": 5.5, "c": -6}]), JSON),
        (b"c,a,b,name\n3,1,2,x\n-6,4,5.5,y\n", CSV),
        (b"\xef\xbb\xbfa;b;c\r\n1;2;3\r\n\r\n4;5.5;-6\r\n", CSV),
        (b"1,2,3\n4,5.5,-6", CSV),
        (stream(pa.table({"b": [2.0, 5.5], "a": [1, 4], "c": pa.array([3, -6], pa.int8())})), ARROW),
    ],
)
def test_every_form_is_the_same_matrix(body, kind):
    np.testing.assert_array_equal(read_rows(body, kind, ABC, 10), ROWS)


def test_columns_of_lists_are_columns_of_their_own():
    emb = Columns(("emb[0]", "emb[1]", "age"), 3)
    expected = [[1.0, 2.0, 50.0]]
    np.testing.assert_array_equal(read_rows(as_json([{"emb": [1, 2], "age": 50}]), JSON, emb, 10), expected)
    table = pa.table({"age": [50.0], "emb": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))})
    np.testing.assert_array_equal(read_rows(stream(table), ARROW, emb, 10), expected)


def test_raw_columns_are_prepared_alike_from_every_form():
    preparation = Preparation.fit({"age": [41, 58, None, 70] * 5, "ward": ["a", "b", "b", "a"] * 5})
    wanted = Columns(preparation.used, len(preparation.used), preparation)
    expected = preparation.apply({"age": [58.0, np.nan], "ward": ["b", "never met"]})[0]
    rows = [{"age": 58, "ward": "b"}, {"age": None, "ward": "never met"}]
    table = pa.table({"ward": pa.array(["b", "never met"]).dictionary_encode(), "age": pa.array([58.0, None])})
    for body, kind in [
        (as_json(rows), JSON),
        (as_json([[58, "b"], [None, "never met"]]), JSON),
        (b"ward,age\nb,58\nnever met,\n", CSV),
        (stream(table), ARROW),
    ]:
        np.testing.assert_array_equal(read_rows(body, kind, wanted, 10), expected)
    for body, kind in [
        (as_json([{"age": 58, "ward": "b" * (MOST_CHARACTERS + 1)}]), JSON),
        (stream(pa.table({"age": [58.0], "ward": ["b" * (MOST_CHARACTERS + 1)]})), ARROW),
    ]:
        with pytest.raises(RequestError, match="at most 1,000 characters, one has 1,001") as refused:
            read_rows(body, kind, wanted, 10)
        assert refused.value.status == 422


@pytest.mark.parametrize(
    ("body", "kind", "wanted", "status", "words"),
    [
        (b"", JSON, ABC, 422, "no body"),
        (b"{", JSON, ABC, 400, "must be JSON"),
        (b"\xff\xfe", JSON, ABC, 400, "must be JSON"),
        (b"[" * 100_000, JSON, ABC, 400, "nested too deeply"),
        (b'{"rows": [[NaN, 1, 2]]}', JSON, ABC, 422, "must be finite, got NaN"),
        (b'{"rows": [[1e999, 1, 2]]}', JSON, ABC, 422, "finite"),
        (b'{"rows": [[1e200, 1, 2]]}', JSON, ABC, 422, "at most 1e"),
        (b'{"rows": [[1' + b"0" * 400 + b", 1, 2]]}", JSON, ABC, 422, "must be finite"),
        (b'{"rows": [[1' + b"0" * 9000 + b", 1, 2]]}", JSON, ABC, 422, "must be finite"),
        (b'{"rows": []}', JSON, ABC, 422, "at least one row"),
        (b'{"rows": 3}', JSON, ABC, 422, "at least one row"),
        (b"3", JSON, ABC, 422, "at least one row"),
        (as_json([[1, 2]]), JSON, ABC, 422, "row 1 has 2 values, the model has 3 columns"),
        (as_json([[1, 2, 3], {"a": 1}]), JSON, ABC, 422, "all lists of values, or all objects"),
        (as_json([[1, 2, "3"]]), JSON, ABC, 422, "row 1, value 3 must be a number, got '3'"),
        (as_json([[1, 2, None]]), JSON, ABC, 422, "got null"),
        (as_json([[1, 2, [3]]]), JSON, ABC, 422, "got a list"),
        (as_json([{"a": 1, "b": 2}]), JSON, ABC, 422, "row 1 has no column 'c'"),
        (as_json([{"a": 1}]), JSON, NAMELESS, 422, "have no names"),
        (as_json([[1, 2, 3]] * 11), JSON, ABC, 413, "at most 10 rows"),
        (b"a,b,c\n" + b"1,2,3\n" * 11, CSV, ABC, 413, "at most 10 rows"),
        (b"a,b,c\n", CSV, ABC, 422, "no rows"),
        (b"a,b\n1,2\n", CSV, ABC, 422, "no column 'c'"),
        (b"a,b,c\n1,2\n", CSV, ABC, 422, "has 2 cells, expected 3"),
        (b"a,b,c\n1,2,x\n", CSV, ABC, 422, "expected numbers, got 'x'"),
        (b"a,b,c\n1,2,nan\n", CSV, ABC, 422, "finite"),
        (b"a,b,c\n1,2,\xff\n", CSV, ABC, 400, "CSV in UTF-8"),
        (b"\n\n", CSV, ABC, 422, "no rows"),
        (b"not arrow", ARROW, ABC, 400, "must be an Arrow stream"),
        (stream(pa.table({"a": [1.0] * 11, "b": [1.0] * 11, "c": [1.0] * 11})), ARROW, ABC, 413, "at most 10 rows"),
        (stream(pa.table({"a": [1.0], "b": [1.0]})), ARROW, ABC, 422, "no column 'c'"),
        (stream(pa.table({"a": [1.0], "b": [None], "c": [1.0]})), ARROW, ABC, 422, "must hold numbers"),
        (stream(pa.table({"a": [1.0], "b": pa.array([None], pa.int8()), "c": [1.0]})), ARROW, ABC, 422, "missing"),
        (stream(pa.table({"a": [1.0], "b": ["x"], "c": [1.0]})), ARROW, ABC, 422, "must hold numbers"),
        (stream(pa.table({"a": [1.0], "b": [1.0], "c": [1.0]}), compression="zstd"), ARROW, ABC, 415, "compressed"),
        (stream(pa.table({"a": pa.array([], pa.float64())})), ARROW, ABC, 422, "no rows"),
        (stream(pa.table({"a": [1.0]})), ARROW, NAMELESS, 422, "the stream has 1 columns, the model has 2"),
        (stream(pa.table({"a": [np.inf], "b": [1.0]})), ARROW, NAMELESS, 422, "finite"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(body, kind, wanted, status, words):
    with pytest.raises(RequestError) as refused:
        read_rows(body, kind, wanted, 10)
    assert refused.value.status == status
    assert words in str(refused.value)
    assert len(str(refused.value)) < 700
    assert "\n" not in str(refused.value)


def test_content_types_are_read_from_their_header():
    assert [content_kind(header) for header in (JSON, " Text/CSV ; charset=utf-8")] == [JSON, CSV]
    with pytest.raises(RequestError, match="content type must be one of") as refused:
        content_kind("text/plain")
    assert refused.value.status == 415


def test_damaged_streams_are_refused_or_read(rng):
    """Whatever bytes change on the way: a refusal, or a matrix of finite numbers."""
    whole = bytearray(stream(pa.table({"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0] * 4})))
    refused, statuses = 0, set()
    for _ in range(300):
        damaged = bytearray(whole[: int(rng.integers(8, len(whole) + 1))])
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = int(rng.integers(256))
        try:
            assert np.isfinite(read_rows(bytes(damaged), ARROW, ABC, 10)).all()
        except RequestError as error:
            statuses.add(error.status)
            refused += 1
    assert statuses <= {400, 413, 415, 422}
    assert refused > 30
