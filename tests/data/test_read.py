from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kernfed.data import arrow, check_classes, delimited, read_table
from kernfed.data.table import Roles
from kernfed.errors import DataError


def write_stream(table: pa.Table, path: str) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


WRITERS: dict[str, tuple[str, Callable[[pa.Table, str], object]]] = {
    "parquet": ("t.parquet", lambda t, p: pa.parquet.write_table(t, p, row_group_size=3)),
    "feather": ("t.feather", lambda t, p: pa.feather.write_feather(t, p, chunksize=3)),
    "arrow, uncompressed": ("t.arrow", lambda t, p: pa.feather.write_feather(t, p, compression="uncompressed")),
    "arrow stream": ("t.arrow", write_stream),
    "csv": ("t.csv", pa.csv.write_csv),
}
BINARY = [name for name in WRITERS if name != "csv"]


def store(folder: Path, kind: str, table: pa.Table) -> Path:
    name, write = WRITERS[kind]
    write(table, str(folder / name))
    return folder / name


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=BINARY)
def binary(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(n: int = 10) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "patient": [f"p{i:03}" for i in range(n)],
            "f0": rng.standard_normal(n),
            "f1": np.arange(n),
            "ward": np.array(["north", "south"])[np.arange(n) % 2],
            "f2": np.arange(n) * 0.25,
            "diagnosis": np.arange(n) % 3,
        }
    )


def matrix(table: pa.Table, names: list[str]) -> np.ndarray:
    return np.column_stack([table[name].to_numpy() for name in names])


# ---------------------------------------------------------------- what is read


def test_roles(tmp_path, kind):
    stored = plain()
    path = store(tmp_path, kind, stored)
    table = read_table(path, label="diagnosis", site="ward", ids="patient")
    assert table.columns == ("f0", "f1", "f2")
    assert np.array_equal(table.X, matrix(stored, ["f0", "f1", "f2"]))
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    assert np.array_equal(table.y, np.arange(10) % 3)
    assert table.y.dtype == np.int64
    assert table.site.tolist() == ["north", "south"] * 5
    assert table.ids.tolist() == [f"p{i:03}" for i in range(10)]
    assert (table.source, table.label, len(table)) == (path, "diagnosis", 10)


def test_without_roles_every_numeric_column_is_a_feature(tmp_path, kind):
    table = read_table(store(tmp_path, kind, plain()))
    assert table.columns == ("f0", "f1", "f2", "diagnosis")
    assert (table.y, table.site, table.ids, table.label) == (None, None, None, None)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("f1", ["f1"]),
        ("f2,f0", ["f2", "f0"]),
        ("f0:f1", ["f0", "f1"]),
        ("f2,f0:f1", ["f2", "f0", "f1"]),
        (["f2", "f1"], ["f2", "f1"]),
    ],
)
def test_choice_of_features(tmp_path, kind, features, expected):
    stored = plain()
    table = read_table(store(tmp_path, kind, stored), features=features, label="diagnosis")
    assert table.columns == tuple(expected)
    assert np.array_equal(table.X, matrix(stored, expected))


def test_a_name_may_hold_comma_and_colon(tmp_path, kind):
    table = read_table(store(tmp_path, kind, pa.table({"a,b:c": [1.5], "a": [2.0]})), features="a,b:c")
    assert table.X.tolist() == [[1.5]]


@pytest.mark.parametrize(
    "element", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint32(), pa.bool_(), pa.decimal128(25, 1)]
)
@pytest.mark.parametrize("shape", ["list", "large", "fixed"])
def test_list_columns(tmp_path, binary, element, shape):
    kinds = {"list": pa.list_(element), "large": pa.large_list(element), "fixed": pa.list_(element, 3)}
    values = (np.arange(30).reshape(10, 3) % 2).tolist()
    numbers = np.ravel(values)
    flat = pa.array(numbers.astype(np.float16) if element == pa.float16() else numbers).cast(element)
    column = {
        "list": lambda: pa.ListArray.from_arrays(pa.array(range(0, 31, 3), pa.int32()), flat),
        "large": lambda: pa.LargeListArray.from_arrays(pa.array(range(0, 31, 3), pa.int64()), flat),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(flat, 3),
    }[shape]()
    assert column.type == kinds[shape]
    path = store(tmp_path, binary, pa.table({"y": range(10), "emb": column}))
    table = read_table(path, features="emb", label="y")
    assert table.X.tolist() == values
    assert table.columns == ("emb[0]", "emb[1]", "emb[2]")
    exact = element in (pa.float16(), pa.float32(), pa.int8(), pa.bool_())
    assert table.X.dtype == (np.float32 if exact else np.float64)


def test_list_and_plain_columns_side_by_side(tmp_path, binary):
    stored = pa.table({"a": [[1.0, 2.0], [3.0, 4.0]], "age": [50, 60], "b": [[5.0], [6.0]]})
    table = read_table(store(tmp_path, binary, stored), features="b,age,a")
    assert table.columns == ("b[0]", "age", "a[0]", "a[1]")
    assert table.X.tolist() == [[5, 50, 1, 2], [6, 60, 3, 4]]


def test_many_batches(tmp_path, kind, monkeypatch):
    stored = plain(1000)
    monkeypatch.setattr(arrow, "_BATCH_ROWS", 7)
    monkeypatch.setattr(delimited, "_BLOCK", 256)
    table = read_table(store(tmp_path, kind, stored), features="f0,f2", label="diagnosis", ids="patient")
    assert np.array_equal(table.X, matrix(stored, ["f0", "f2"]))
    assert np.array_equal(table.y, stored["diagnosis"].to_numpy())
    assert table.ids.tolist() == stored["patient"].to_pylist()


def test_booleans_are_features_only_when_named(tmp_path, binary):
    path = store(tmp_path, binary, pa.table({"x": [1.5, 2.5], "flag": [True, False]}))
    assert read_table(path).columns == ("x",)
    assert read_table(path, features="flag,x").X.tolist() == [[1, 1.5], [0, 2.5]]


def test_empty_batches(tmp_path):
    schema = pa.schema([("x", pa.float64())])
    with pa.ipc.new_stream(str(tmp_path / "t.arrow"), schema) as writer:
        for rows in ([], [1.0, 2.0], [], [3.0]):
            writer.write_batch(pa.record_batch([pa.array(rows, pa.float64())], schema=schema))
    assert read_table(tmp_path / "t.arrow").X.tolist() == [[1], [2], [3]]


def test_more_rows_than_announced():
    batch = pa.record_batch([pa.array([1.0, 2.0])], names=["x"])
    source = arrow.ArrowSource(Path("t.parquet"), batch.schema, 3, lambda _: iter([batch, batch]))
    with pytest.raises(DataError, match=r"^t\.parquet: the table holds more rows than the 3 it announces$"):
        arrow.read_rows(source, Roles(("x",)), "auto")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype(tmp_path, kind, dtype):
    stored = plain()
    table = read_table(store(tmp_path, kind, stored), features="f0", dtype=dtype)
    assert table.X.dtype == dtype
    assert np.array_equal(table.X[:, 0], stored["f0"].to_numpy().astype(dtype))


def test_dictionary_columns(tmp_path, binary):
    stored = pa.table({"x": [1.0, 2.0, 3.0], "y": pa.array(["b", "a", "b"]).dictionary_encode()})
    assert read_table(store(tmp_path, binary, stored), label="y").y.tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("cells", "expected", "dtype"),
    [
        (["3", "1", "-2"], [3, 1, -2], np.int64),
        (["3", "1.5"], [3.0, 1.5], np.float64),
        (["07", "7"], ["07", "7"], np.str_),
        (["007", "1.5"], ["007", "1.5"], np.str_),
        (["NA", "1"], ["NA", "1"], np.str_),
        (["1e3", "0.5"], [1000.0, 0.5], np.float64),
        (['"x, y"', "ü"], ["x, y", "ü"], np.str_),
    ],
)
def test_labels_in_csv_have_the_type_that_all_of_them_have(tmp_path, cells, expected, dtype):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)), encoding="utf-8")
    y = read_table(path, label="y").y
    assert y.tolist() == expected
    assert np.issubdtype(y.dtype, dtype)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_csv_line_ends_blank_lines_and_byte_order_mark(tmp_path, end, start):
    path = tmp_path / "T.CSV"
    path.write_bytes(start + f"a,b{end}1,2{end}{end}3,4".encode())
    assert read_table(path, features="a:b").X.tolist() == [[1, 2], [3, 4]]


def test_csv_quoted_line_ends_in_a_column_that_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", 60)  # a block ends inside of quotes
    path = tmp_path / "t.csv"
    path.write_text("text,x\n" + '"two\nlines\nor three",1\n"a ""quote""",2\n' * 20, encoding="utf-8")
    assert read_table(path).X.tolist() == [[1], [2]] * 20


def test_the_file_is_not_held_beside_the_result(tmp_path, monkeypatch):
    x = np.random.default_rng(0).standard_normal((40_000, 128), dtype=np.float32)
    table = pa.table({"emb": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 128)})
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(table, path, row_group_size=len(x), compression="none")
    del table
    before, held = pa.total_allocated_bytes(), []
    check = arrow.check_block
    monkeypatch.setattr(arrow, "check_block", lambda *a: (held.append(pa.total_allocated_bytes() - before), check(*a)))
    assert np.array_equal(read_table(path, features="emb").X, x)
    assert len(held) == 10
    assert max(held) < x.nbytes / 2


# ---------------------------------------------------------------- npz and npy


def test_npz(tmp_path):
    path = tmp_path / "t.npz"
    x = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.savez(path, x_train=x, y_train=np.array([0, 1, 0]), place=np.array([b"a", b"b", b"a"]), nr=np.array([7, 8, 9]))
    table = read_table(path, features="x_train", label="y_train", site="place", ids="nr")
    assert np.array_equal(table.X, x.reshape(3, 4))
    assert table.X.dtype == np.float32
    assert table.columns == ("x_train[0]", "x_train[1]", "x_train[2]", "x_train[3]")
    assert table.y.tolist() == [0, 1, 0]
    assert table.site.tolist() == ["a", "b", "a"]
    assert table.ids.tolist() == [7, 8, 9]


@pytest.mark.parametrize("key", ["X", "x", "features"])
def test_npz_finds_the_features(tmp_path, key):
    np.savez(tmp_path / "t.npz", y=[1, 2], **{key: np.eye(2)})
    table = read_table(tmp_path / "t.npz", label="y")
    assert np.array_equal(table.X, np.eye(2))
    assert table.X.dtype == np.float64


def test_npz_joins_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.zeros((2, 1), np.float32), b=np.ones((2, 2), np.float16))
    table = read_table(tmp_path / "t.npz", features="b,a")
    assert table.X.tolist() == [[1, 1, 0], [1, 1, 0]]
    assert table.X.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f4", np.float64, np.int64, bool])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(tmp_path, dtype, order):
    x = np.asarray(np.arange(12).reshape(4, 3) % 2, dtype=dtype, order=order)
    np.save(tmp_path / "t.npy", x)
    table = read_table(tmp_path / "t.npy")
    assert np.array_equal(table.X, x)
    assert table.X.dtype in (np.float32, np.float64)
    assert table.X.dtype.isnative
    assert table.X.flags.c_contiguous
    assert table.X.flags.writeable  # in memory, not a view of the file
    assert not isinstance(table.X, np.memmap)
    assert not isinstance(table.X.base, np.memmap)


# ---------------------------------------------------------------- classes met at prediction only


@pytest.mark.parametrize("known", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], dtype=object)])
def test_unknown_class(tmp_path, kind, known):
    path = store(tmp_path, kind, pa.table({"x": [1.0, 2.0, 3.0, 4.0], "y": ["b", "a", "z", "c"]}))
    table = read_table(path, label="y")
    with pytest.raises(DataError) as error:
        check_classes(table, known)
    assert str(error.value) == (
        f"{path}: column 'y', row 3: class 'z' was not met in training; the classes are 'a', 'b'"
    )
    check_classes(table, [*known, "z", "c"])


def test_numbers_as_classes(tmp_path):
    table = read_table(store(tmp_path, "csv", pa.table({"x": [1.0, 2.0], "y": [3, 4]})), label="y")
    check_classes(table, np.array([3, 4, 5]))
    with pytest.raises(DataError, match=r"row 2: class 4 was not met in training; the classes are 3$"):
        check_classes(table, [3])
    with pytest.raises(DataError, match=r"row 1: class 3 was not met in training; the classes are '3', '4'$"):
        check_classes(table, ["3", "4"])


def test_classes_of_unread_labels(tmp_path):
    path = store(tmp_path, "csv", pa.table({"x": [1.0]}))
    with pytest.raises(DataError, match="labels were not read"):
        check_classes(read_table(path), ["a"])
