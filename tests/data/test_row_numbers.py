"""An index that pandas or R wrote into a file is no feature, unless it is named."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from kernfed.data import read_table


def frame(n=6, seed=0):
    draws = np.random.default_rng(seed)
    columns = {"f0": draws.random(n), "f1": draws.random(n), "y": np.arange(n) % 2, "note": ["text"] * n}
    return pd.DataFrame(columns).iloc[draws.permutation(n)]


def read_again(path, written):
    written.to_csv(path)
    pd.read_csv(path, dtype=str).to_csv(path)  # "", then "Unnamed: 0" beside another ""
    pd.read_csv(path, dtype=str).to_csv(path, index=False)  # "Unnamed: 0.1", "Unnamed: 0"


def to_feather(path, written):
    pyarrow.feather.write_feather(pa.Table.from_pandas(written), path)


@pytest.mark.parametrize(
    ("name", "change", "write", "index"),
    [
        ("t.parquet", lambda d: d, lambda p, d: d.to_parquet(p), ["__index_level_0__"]),
        ("t.parquet", lambda d: d.rename_axis("f9"), lambda p, d: d.to_parquet(p), ["f9"]),
        ("t.parquet", lambda d: d.reset_index(drop=True), lambda p, d: d.to_parquet(p), []),
        ("t.parquet", lambda d: d, lambda p, d: d.to_parquet(p, index=False), []),
        (
            "t.parquet",
            lambda d: d.set_index([np.arange(6), np.ones(6)]),
            lambda p, d: d.to_parquet(p),
            ["__index_level_0__", "__index_level_1__"],
        ),
        ("t.feather", lambda d: d, to_feather, ["__index_level_0__"]),
        ("t.csv", lambda d: d, lambda p, d: d.to_csv(p), [""]),
        ("t.csv", lambda d: d.set_index([np.arange(6), np.ones(6)]), lambda p, d: d.to_csv(p), [""]),
        ("t.csv", lambda d: d, lambda p, d: d.to_csv(p, index=False), []),
        ("t.csv", lambda d: d, read_again, ["Unnamed: 0.1", "Unnamed: 0"]),
    ],
)
def test_an_index_that_pandas_wrote_is_left_out(tmp_path, name, change, write, index):
    written = change(frame())
    write(tmp_path / name, written)
    table = read_table(tmp_path / name, label="y")
    assert table.columns == ("f0", "f1")
    assert np.array_equal(table.X, written[["f0", "f1"]].to_numpy())
    assert table.left_out == {**dict.fromkeys(index, "index"), "y": "label", "note": "text"}


@pytest.mark.parametrize(
    ("name", "write", "index"),
    [("t.parquet", lambda p, d: d.to_parquet(p), "__index_level_0__"), ("t.csv", lambda p, d: d.to_csv(p), "")],
)
def test_an_index_that_is_named_is_read(tmp_path, name, write, index):
    written = frame()
    write(tmp_path / name, written)
    table = read_table(tmp_path / name, features=["f1", index], label="y")
    assert np.array_equal(table.X, np.column_stack([written["f1"], written.index]))
    assert table.left_out == {}
    assert read_table(tmp_path / name, features="f0", ids=index).ids.tolist() == written.index.tolist()
    with_role = read_table(tmp_path / name, label="y", ids=index)
    assert with_role.left_out == {index: "ids", "y": "label", "note": "text"}


def test_lists_are_learned_from_where_an_index_is_the_only_other_number(tmp_path):
    written = pd.DataFrame({"emb": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}, index=[7, 5])
    written.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", label="y")
    assert table.columns == ("emb[0]", "emb[1]")
    assert table.left_out == {"y": "label", "__index_level_0__": "index"}


def test_every_column_that_is_left_out_has_its_reason(tmp_path):
    stored = pa.table(
        {
            "a": [1.0],
            "sick": [True],
            "emb": [[1.0]],
            "words": [["x"]],
            "day": pa.array([0], pa.date32()),
            "ward": pa.array(["n"]).dictionary_encode(),
            "h": ["north"],
            "p": [4],
        }
    )
    pa.parquet.write_table(stored, tmp_path / "t.parquet")
    reasons = {"sick": "boolean", "emb": "list of numbers", "words": "list", "day": "date32[day]", "ward": "dictionary"}
    found = read_table(tmp_path / "t.parquet", site="h", ids="p").left_out
    assert found == {**reasons, "h": "site", "p": "ids"}
    np.savez(tmp_path / "t.npz", X=np.eye(2), x=np.eye(2), y=[0, 1])
    assert read_table(tmp_path / "t.npz", label="y").left_out == {"x": "another array", "y": "label"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"index_columns": 3}',
        b'{"index_columns": null}',
        b"[" * 100_000,
        b'{"index_columns": [{"kind": "range"}, ["f0"], null, "absent"]}',
    ],
    ids=range(8),
)
def test_metadata_that_pandas_did_not_write_changes_nothing(tmp_path, metadata):
    stored = pa.table({"f0": [1.0, 2.0]}).replace_schema_metadata({b"pandas": metadata})
    pa.parquet.write_table(stored, tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").columns == ("f0",)


def test_what_the_metadata_names_is_what_is_left_out(tmp_path):
    metadata = {b"pandas": json.dumps({"index_columns": ["f1"]}).encode()}
    stored = pa.table({"f0": [1.0], "f1": [2.0]}).replace_schema_metadata(metadata)
    pa.parquet.write_table(stored, tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert (table.columns, table.left_out) == (("f0",), {"f1": "index"})
