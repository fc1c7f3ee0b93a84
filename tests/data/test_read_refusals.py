"""Every refusal is one DataError of one sentence that names the file and, where there is one, column and row."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kernfed.data import arrow, read_table
from kernfed.errors import DataError

NO_FEATURE = "no column to learn from, name one with features= (on the command line --features); the columns are "
WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    ".parquet": lambda t, p: pa.parquet.write_table(t, p, row_group_size=3),
    ".feather": lambda t, p: pa.feather.write_feather(t, str(p), chunksize=3),
    ".csv": lambda t, p: pa.csv.write_csv(t, p),
}


def refusal(path: Path, **options: object) -> str:
    """The message without the file, which it must start with."""
    with pytest.raises(DataError) as error:
        read_table(path, **options)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert not re.search(r"\. [A-Z]", message)
    return message.removeprefix(f"{path}: ")


@pytest.fixture(params=WRITERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    def write(**columns: object) -> Path:
        path = tmp_path / f"t{request.param}"
        WRITERS[request.param](pa.table(columns), path)
        return path

    return write


@pytest.fixture(params=[".parquet", ".feather"])
def store_binary(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    def write(**columns: object) -> Path:
        path = tmp_path / f"t{request.param}"
        WRITERS[request.param](pa.table(columns), path)
        return path

    return write


@pytest.fixture
def csv(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "t.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"features": "a,z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"features": "a:z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"label": "z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"site": "z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"ids": "z"}, "there is no column 'z'; the columns are 'a', 'b', 'c'"),
        ({"features": "b:a"}, "features 'b:a' must go forward, but column 'a' comes first"),
        ({"features": "a:c", "label": "b"}, "column 'b' cannot be a feature, it is the label column"),
        ({"features": "a,a"}, "column 'a' is named 2 times among the features"),
        ({"features": []}, f"{NO_FEATURE}'a', 'b', 'c'"),
    ],
)
def test_columns(store, options, message):
    assert refusal(store(a=[1.0], b=[2.0], c=["x"]), **options) == message


def test_no_numeric_column(store):
    message = refusal(store(c=["x"], d=["y"]), label="c")
    assert message == f"{NO_FEATURE}'c', 'd'"


def test_long_lists_of_columns_are_cut(store):
    message = refusal(store(**{f"f{i}": [1.0] for i in range(500)}), label="y")
    assert "'f0', 'f1'" in message
    assert "... (480 more) ..., 'f490'" in message
    assert message.endswith("'f499'")


def test_a_name_that_occurs_twice(tmp_path, csv):
    path = tmp_path / "t.feather"
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    pa.feather.write_feather(table, str(path))
    expected = "column 'a' occurs 2 times, names must be distinct"
    assert refusal(path) == expected
    assert refusal(csv("a,a\n1,2\n"), features="a") == expected


def test_text_as_feature(store_binary):
    path = store_binary(a=[1.0], c=["x"], d=[["x"]])
    assert refusal(path, features="c") == "column 'c' must hold numbers or lists of numbers, got string"
    assert "column 'd' must hold numbers or lists of numbers, got list<" in refusal(path, features="d")


def test_a_label_of_an_unusable_type(store_binary):
    path = store_binary(a=[1.0], y=[[1]])
    assert "column 'y' must hold text, numbers or booleans, got list<" in refusal(path, features="a", label="y")


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [1, 5, 8])
def test_not_finite(store, value, row):
    numbers = [float(i) for i in range(8)]
    numbers[row - 1] = value
    path = store(f0=[1.0] * 8, f1=numbers)
    assert refusal(path) == f"column 'f1', row {row}: expected a finite float64 number, got {value}"


def test_too_large_for_the_type(store):
    message = refusal(store(f0=[1.0, 1e300]), dtype="float32")
    assert message == "column 'f0', row 2: expected a finite float32 number, got inf"


@pytest.mark.parametrize("column", ["f0", "label", "site", "nr"])
@pytest.mark.parametrize("row", [1, 5])
def test_missing(store, column, row):
    columns = {
        "f0": [float(i) for i in range(6)],
        "label": list("ababab"),
        "site": list("xxyyzz"),
        "nr": list(range(6)),
    }
    columns[column][row - 1] = None
    message = refusal(store(**columns), features="f0", label="label", site="site", ids="nr")
    assert message == f"column '{column}', row {row}: the value is missing; impute or drop such rows"


def test_a_label_that_is_not_finite(store):
    message = refusal(store(x=[1.0, 2.0], y=[0.5, float("nan")]), label="y")
    assert message == "column 'y', row 2: expected a finite number, got nan"


def test_a_document_as_label(store):
    message = refusal(store(x=[1.0, 2.0], y=["short", "long" * 300]), label="y")
    assert message == "column 'y', row 2: expected at most 1000 characters, got 1200"


@pytest.mark.parametrize("batch_rows", [2, 4096])
def test_ragged_lists(store_binary, monkeypatch, batch_rows):
    monkeypatch.setattr(arrow, "_BATCH_ROWS", batch_rows)
    path = store_binary(emb=[[1.0, 2.0, 3.0]] * 4 + [[1.0, 2.0]] + [[1.0, 2.0, 3.0]])
    assert refusal(path, features="emb") == "column 'emb', row 5: expected a list of 3 numbers as in row 1, got 2"


def test_lists_with_gaps(store_binary):
    full = [[1.0, 2.0]] * 4
    assert "column 'emb', row 5: the value is missing" in refusal(store_binary(emb=[*full, None]), features="emb")
    message = refusal(store_binary(emb=[*full, [1.0, None]]), features="emb")
    assert message == "column 'emb', row 5: expected 2 numbers, one is missing in the list"
    message = refusal(store_binary(emb=[*full, [1.0, float("nan")]]), features="emb")
    assert message == "column 'emb[1]', row 5: expected a finite float64 number, got nan"
    message = refusal(store_binary(emb=pa.array([None, None], pa.list_(pa.float64()))), features="emb")
    assert message == "column 'emb', row 1: the value is missing; impute or drop such rows"
    message = refusal(store_binary(emb=pa.array([[], []], pa.list_(pa.float64()))), features="emb")
    assert message == "column 'emb', row 1: expected a list of at least 1 number, got 0"


# ---------------------------------------------------------------- CSV


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\nx,4\n", {}, "column 'a', row 2: expected a number, got 'x'"),
        ("q,a\n\nw,1\n\n\nv,zz\n", {}, "column 'a', row 2: expected a number, got 'zz'"),
        ("a,b\n1,x\n", {"features": "b"}, "column 'b', row 1: expected a number, got 'x'"),
        ("a\n1\nNA\n", {}, "column 'a', row 2: expected a number, got 'NA'"),
        ("a\n1\n" + "9" * 30 + "x" * 30, {}, f"column 'a', row 2: expected a number, got '{'9' * 30 + 'x' * 10}...'"),
        ("a\n1\n\n2\n", {}, "column 'a', row 2: the value is missing; impute or drop such rows"),
        ("a,b\n,2\n", {}, "column 'a', row 1: the value is missing; impute or drop such rows"),
        ("a,b\n1,2\n3\n", {}, "row 2 has 1 values, the header has 2"),
        ("a,b\n1\n", {}, "row 1 has 1 values, the header has 2"),
        ("a,b\n1,2\n3,4,5\n", {}, "row 2 has 3 values, the header has 2"),
        ("", {}, "a CSV table needs a header and at least 1 row"),
        ("a,b\n", {}, "a CSV table needs a header and at least 1 row"),
        ("a;b\n1;2\n", {"label": "b"}, "there is no column 'b'; the columns are 'a;b'"),
        (b"a,b\n1,2\n1,\xff\n", {"label": "b"}, "column 'b', row 2: expected UTF-8 text, got invalid UTF8 data"),
    ],
)
def test_csv(csv, text, options, message):
    if isinstance(text, bytes):
        # The header and the first row are checked first; a wrong byte further down is found by its column.
        text = text.replace(b"1,2\n", b"1,2\n" * 20_000)
        message = message.replace("row 2", "row 20001")
    assert refusal(csv(text), **options) == message


@pytest.mark.parametrize("text", ["a,b\n1,2\n".encode("utf-16"), b"\x00\x01\x02\xff" * 100, b'a,b\n"1,2\n' * 3])
def test_not_csv(csv, text):
    refusal(csv(text))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", [".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npz", ".npy"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1", b"\x93NUMPY", b"PK\x03\x04", b"a,b\n1,2\n" * 50])
def test_foreign_files(tmp_path, suffix, content):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(content)
    assert re.match(
        r"cannot be read as (Parquet|Arrow|npz|npy), it is damaged or of another kind \(.+\)$", refusal(path)
    )


def stored_bytes(suffix: str) -> bytes:
    buffer = io.BytesIO()
    x = np.random.default_rng(0).standard_normal((50, 4))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4), "y": ["a", "b"] * 25})
    if suffix == ".parquet":
        pa.parquet.write_table(table, buffer)
    elif suffix == ".feather":
        pa.feather.write_feather(table, buffer)
    elif suffix == ".arrow":
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
    elif suffix == ".npz":
        np.savez_compressed(buffer, x=x, y=np.array(["a", "b"] * 25))
    else:
        np.save(buffer, x)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow", ".npz", ".npy"])
def test_truncated_files(tmp_path, suffix):
    whole = stored_bytes(suffix)
    path = tmp_path / f"t{suffix}"
    options = {} if suffix == ".npy" else {"features": "x", "label": "y"}
    path.write_bytes(whole)
    assert len(read_table(path, **options)) == 50
    end = len(whole) if suffix != ".arrow" else len(whole) - 8  # a stream may go without its end mark
    for size in sorted({*range(0, end, max(1, end // 60)), end - 1}):
        path.write_bytes(whole[:size])
        refusal(path, **options)


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow", ".npz", ".npy"])
def test_damaged_files_are_read_or_refused(tmp_path, suffix):
    whole = stored_bytes(suffix)
    path = tmp_path / f"t{suffix}"
    options = {} if suffix == ".npy" else {"features": "x", "label": "y"}
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            read_table(path, **options)
        except DataError:
            refused += 1
    assert refused > 0


def test_pickles_are_refused(tmp_path):
    objects = np.array([{"a": 1}, None], dtype=object)
    np.save(tmp_path / "t.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "t.npz", X=objects, allow_pickle=True)
    for path in (tmp_path / "t.npy", tmp_path / "t.npz"):
        assert "cannot be read as np" in refusal(path)


def test_an_npz_named_npy_and_the_reverse(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2))
    np.save(tmp_path / "b.npy", np.eye(2))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    assert "magic string is not correct" in refusal(tmp_path / "a.npy")
    assert "it is no zip archive" in refusal(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.arange(3), "array 'X' must be a matrix (rows, columns), got shape (3,)"),
        (np.empty((0, 3)), "array 'X' must be a matrix (rows, columns), got shape (0, 3)"),
        (np.array([["a"]]), "array 'X' must hold real numbers, got dtype <U1"),
        (np.eye(2) * 1j, "array 'X' must hold real numbers, got dtype complex128"),
        (np.diag([1, np.nan]), "column 'X[1]', row 2: expected a finite float64 number, got nan"),
    ],
)
def test_npz_features(tmp_path, X, message):
    np.savez(tmp_path / "t.npz", X=X)
    assert refusal(tmp_path / "t.npz") == message


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.arange(3), "arrays must have equal numbers of rows, got {'X': 2, 'y': 3}"),
        (np.array([0, np.inf]), "column 'y', row 2: expected a finite number, got inf"),
        (np.eye(2), "array 'y' must hold one number or text per row, got shape (2, 2), dtype float64"),
        (np.array(["x" * 2000, ""]), "array 'y' must hold at most 1000 characters per row"),
        (np.array([b"\xff", b""]), "cannot be read as UTF-8 text, it is damaged or of another kind"),
    ],
)
def test_npz_labels(tmp_path, y, message):
    np.savez(tmp_path / "t.npz", X=np.eye(2), y=y)
    assert refusal(tmp_path / "t.npz", label="y").startswith(message)


def test_npz_keys(tmp_path):
    np.savez(tmp_path / "t.npz", z=np.eye(2))
    assert refusal(tmp_path / "t.npz") == f"{NO_FEATURE}'z'"
    assert refusal(tmp_path / "t.npz", label="y") == "there is no column 'y'; the columns are 'z'"


def test_npy_too_large_for_the_type(tmp_path):
    np.save(tmp_path / "t.npy", np.array([[1.0, 1e300]]))
    message = refusal(tmp_path / "t.npy", dtype="float32")
    assert message == "column 'array[1]', row 1: expected a finite float32 number, got inf"


def test_npy_has_no_columns(tmp_path):
    np.save(tmp_path / "t.npy", np.eye(2))
    assert "a bare matrix without named columns" in refusal(tmp_path / "t.npy", label="y")


def test_paths(tmp_path):
    assert refusal(tmp_path / "none.csv") == "there is no such file"
    assert refusal(tmp_path) == "a folder, expected a file"
    (tmp_path / "t.xlsx").write_bytes(b"x")
    assert refusal(tmp_path / "t.xlsx").startswith("suffix '.xlsx' is not known, expected one of .parquet, ")


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
def test_no_rows(tmp_path, suffix):
    WRITERS[suffix](pa.table({"x": pa.array([], pa.float64())}), tmp_path / f"t{suffix}")
    assert refusal(tmp_path / f"t{suffix}") == "the table has no rows"


def test_unknown_dtype(tmp_path):
    with pytest.raises(ValueError, match="dtype must be one of 'auto', 'float32', 'float64', got 'int8'"):
        read_table(tmp_path / "t.csv", dtype="int8")
