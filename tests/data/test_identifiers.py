"""A feature that numbers the rows is told of, unless somebody named it; other whole numbers are not."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kernfed.data import read_table, write_table
from kernfed.errors import IdentifierAmongFeatures

SITES = np.array(["n", "s"])


def draws(n):
    return np.random.default_rng(n).normal(size=n)


def sparse(n, seed=0):
    """Numbers of seven digits, none twice."""
    return 1_000_000 + np.random.default_rng(seed).choice(9_000_000, n, replace=False)


def written(folder, suffix, **columns):
    path = folder / f"rows{suffix}"
    write_table(path, columns)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("n", "values"),
    [
        (100, sparse(100)),
        (2000, sparse(2000).astype(float)),  # as pandas makes them where one was missing
        (20, np.arange(20)),
        (50, np.random.default_rng(1).permutation(50) - 7),
        (500, 1_700_000_000 + np.random.default_rng(2).permutation(500)),
    ],
    ids=["sparse", "floats", "few", "shuffled", "large"],
)
def test_a_column_that_numbers_the_rows_is_told_of(tmp_path, suffix, n, values):
    path = written(tmp_path, suffix, patient=values, f0=draws(n), y=np.arange(n) % 2)
    told = r"rows\.\w+: column 'patient' has a different whole number in every row, .* is a feature; .* --id\b"
    with pytest.warns(IdentifierAmongFeatures, match=told) as found:
        table = read_table(path, label="y")
    assert table.columns == ("patient", "f0")
    assert len(found) == 1
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(path, label="y", ids="patient").columns == ("f0",)
        assert read_table(path, label="y", features="patient,f0").columns == ("patient", "f0")
        assert read_table(path, label="y", features=["patient"]).columns == ("patient",)


@pytest.mark.parametrize(
    ("n", "values"),
    [
        (19, np.arange(19)),
        (99, sparse(99)),
        (99, np.r_[np.arange(98), 99]),
        (1000, np.r_[sparse(999), sparse(999)[:1]]),  # one number twice, beyond the first rows
        (1000, np.r_[np.arange(999), 999.5]),
        (1000, np.random.default_rng(3).poisson(40, 1000)),
        (1000, draws(1000)),
        (1000, np.zeros(1000)),
    ],
    ids=["few", "few sparse", "gap", "twice", "half", "counts", "measured", "constant"],
)
def test_other_columns_are_not(tmp_path, n, values):
    path = written(tmp_path, ".parquet", age=values, f0=draws(n), y=np.arange(n) % 2)
    assert read_table(path, label="y").columns == ("age", "f0")


def test_numbers_that_begin_anew_at_every_site(tmp_path):
    site, number = SITES[np.arange(60) % 2], np.arange(60) // 2
    path = written(tmp_path, ".csv", number=number, f0=draws(60), site=site)
    with pytest.warns(IdentifierAmongFeatures, match="'number' has"):
        read_table(path, site="site")
    read_table(path)  # unknown sites: every number is there twice, as a count could be
    number[59] = 5
    read_table(written(tmp_path, ".csv", number=number, f0=draws(60), site=site), site="site")


def test_sites_of_a_few_rows_number_nothing(tmp_path):
    site = np.array([f"s{i:02}" for i in range(60)])
    path = written(tmp_path, ".csv", age=np.arange(60) // 2, f0=draws(60), site=site)
    assert read_table(path, site="site").columns == ("age", "f0")


def test_an_identifier_beside_lists_is_the_only_feature_and_told_of(tmp_path):
    stored = pa.table({"patient": sparse(200), "emb": list(np.random.default_rng(4).random((200, 3)))})
    pa.parquet.write_table(stored, tmp_path / "rows.parquet")
    with pytest.warns(IdentifierAmongFeatures, match="'patient' has"):
        assert read_table(tmp_path / "rows.parquet").columns == ("patient",)
    assert read_table(tmp_path / "rows.parquet", ids="patient").columns == ("emb[0]", "emb[1]", "emb[2]")


def test_list_elements_and_arrays_cannot_be_left_out_and_are_not_told_of(tmp_path):
    numbers = np.c_[np.arange(200.0), draws(200)]
    pa.parquet.write_table(pa.table({"emb": list(numbers)}), tmp_path / "rows.parquet")
    np.savez(tmp_path / "rows.npz", X=numbers)
    for name in ("rows.parquet", "rows.npz"):
        assert read_table(tmp_path / name).X.shape == (200, 2)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_table_of_such_numbers_is_of_measurements(tmp_path, count):
    columns = {f"c{i}": sparse(150, i) for i in range(count)}
    path = written(tmp_path, ".csv", **columns, f0=draws(150))
    if count > 3:
        read_table(path)
        return
    named = ", ".join(map(repr, columns))
    with pytest.warns(IdentifierAmongFeatures, match=f"columns {named} have a different .* are features"):
        read_table(path)
