import numpy as np
import pyarrow.parquet
import pytest

from kernfed.data import read_table, write_table
from kernfed.errors import DataError

COLUMNS = {
    "f0": np.array([0.1, -1e-300, 3.0]),
    "f1": np.array([1, 2, 3]),
    "flag": np.array([True, False, True]),
    "label": np.array(["a, b", 'say "x"', "ü"]),
    "nr": ["r1", "r2", "r3"],
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".PARQUET"])
def test_what_is_written_is_read(tmp_path, suffix):
    path = write_table(tmp_path / f"out{suffix}", COLUMNS)
    table = read_table(path, features="f0,f1", label="label", ids="nr")
    assert table.X.tolist() == [[0.1, 1], [-1e-300, 2], [3.0, 3]]
    assert table.y.tolist() == COLUMNS["label"].tolist()
    assert table.ids.tolist() == COLUMNS["nr"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_matrix_becomes_a_list_column(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    path = write_table(str(tmp_path / "out.parquet"), {"emb": x})
    assert np.array_equal(read_table(path, features="emb").X, x)
    with pytest.raises(DataError, match=r"column 'emb' must be one-dimensional, got shape \(3, 2\)"):
        write_table(tmp_path / "out.csv", {"emb": x})


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write_table(tmp_path / "out.parquet", {"a": [1, 2]})
    before = path.read_bytes()

    def fail(_table, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pyarrow.parquet, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(path, {"a": [3, 4]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_there_must_be_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"out.csv: there is no folder .*none$"):
        write_table(tmp_path / "none" / "out.csv", {"a": [1]})


def test_an_old_file_is_replaced(tmp_path):
    path = write_table(tmp_path / "out.parquet", {"a": [1, 2]})
    write_table(path, {"b": [3]})
    assert pyarrow.parquet.read_table(path).to_pydict() == {"b": [3]}


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("t.txt", {"a": [1]}, "a table is written as .csv or .parquet, got suffix '.txt'"),
        ("t.csv", {}, "a table needs at least 1 column, got none"),
        ("t.csv", {"a": [1], "b": [1, 2]}, r"columns must have equal lengths, got \{'a': 1, 'b': 2\}"),
        ("t.csv", {"a": np.array(["x", 1], dtype=object)}, "column 'a' must hold values of one type"),
        ("t.parquet", {"a": np.array([1j])}, "column 'a' must hold values of one type"),
        ("t.parquet", {"a": np.empty((2, 0))}, r"column 'a' must be one-dimensional, got shape \(2, 0\)"),
        ("t.parquet", {"a": 3}, r"column 'a' must be one-dimensional, got shape \(\)"),
    ],
)
def test_refusals(tmp_path, name, columns, message):
    with pytest.raises(DataError, match=message):
        write_table(tmp_path / name, columns)
    assert list(tmp_path.iterdir()) == []
