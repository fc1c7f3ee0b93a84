import zipfile
from dataclasses import replace

import numpy as np
import pytest

from kernfed.data.catalog import BROUGHT
from kernfed.errors import DataError
from kernfed_papers.rows import (
    differences,
    load_groups,
    load_rows,
    missing_all,
    missing_data,
    slice_numbers,
    slice_rows,
    take_rows,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    return tmp_path


def arrays(rng, **changes):
    parts = {
        "x_train": rng.standard_normal((40, 5)),
        "y_train": np.arange(40) % 4,
        "x_test": rng.standard_normal((8, 5)),
        "y_test": np.arange(8) % 4,
    }
    return {**parts, **changes}


@pytest.mark.parametrize(("scaling", "scale"), [("none", np.array), ("tanh", np.tanh), ("times10", lambda x: 10 * x)])
def test_embeddings_that_a_user_brings(folder, rng, scaling, scale):
    given = arrays(rng)
    np.savez(folder / "mine.npz", **given)
    assert missing_data("mine") == ""
    data = load_rows("mine", scaling)
    np.testing.assert_allclose(data.x_train, scale(given["x_train"]), rtol=1e-6)
    assert data.x_test.dtype == np.float32
    assert data.y_test.tolist() == given["y_test"].tolist()
    assert data.class_names == ("0", "1", "2", "3")


@pytest.mark.usefixtures("folder")
def test_a_named_data_set_needs_no_file():
    assert missing_data("digits") == ""
    assert load_rows("digits", "unit").x_train.max() == 1


@pytest.mark.usefixtures("folder")
def test_absent_data_are_named_without_the_folder():
    for name in ("mnist", "mine"):
        assert missing_data(name) == f"needs {name}.npz in the folder KERNFED_DATA"
    with pytest.raises(FileNotFoundError, match="mine"):
        load_rows("mine", "tanh")
    assert missing_all(()) == missing_all(("mine", "digits")) == ""
    assert missing_all(("mine", "mnist")) == "needs at least one of mine.npz, mnist.npz in the folder KERNFED_DATA"


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_sizes_are_compared_with_the_paper_s(folder, rng, monkeypatch, write):
    assert differences("femnist") == differences("digits") == ""
    write(folder / "femnist.npz", **arrays(rng, x_train=np.zeros((40, 784), order="F")))
    assert differences("femnist") == "the paper's features have 62 classes, femnist.npz 4"
    monkeypatch.setitem(BROUGHT, "femnist", replace(BROUGHT["femnist"], n_classes=4))
    assert differences("femnist") == ""
    write(folder / "femnist.npz", **arrays(rng, x_train=np.float64(1)))
    assert differences("femnist") == "the paper's features have 784 columns, femnist.npz 0"
    write(folder / "femnist.npz", x_train=np.zeros(3))
    assert differences("femnist") == ""  # loading it says what is wrong


def test_a_damaged_array_is_told_by_loading(folder, rng):
    given = arrays(rng)
    del given["x_train"]
    np.savez(folder / "femnist.npz", **given)
    with zipfile.ZipFile(folder / "femnist.npz", "a") as archive:
        archive.writestr("x_train.npy", b"no array")
    assert "784 columns, femnist.npz 0" in differences("femnist")
    with pytest.raises(DataError, match=r"femnist\.npz"):
        load_rows("femnist", "none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": np.zeros(7, int)}, "y_test must be 8 class numbers"),
        ({"y_train": np.zeros(40)}, "y_train must be 40 class numbers"),
        ({"y_train": np.array(["a", "b"] * 20)}, "y_train must be 40 class numbers, got <U1"),
        ({"x_test": np.zeros((8, 6))}, "x_test of mine.npz must have 5 columns"),
        ({"x_train": np.full((40, 5), np.nan)}, "x_train of mine.npz must be finite"),
        ({"x_train": np.float64(1)}, r"x_train of mine.npz must be a matrix \(rows, columns\), got shape \(\)"),
        ({"x_train": np.array(["a", "b"])}, "x_train of mine.npz must hold real numbers"),
        ({"x_train": np.ones((40, 5))}, "all rows of x_train are the same"),
        ({"x_test": np.full((8, 5), 1e38)}, r"x_test must be within 3.4e\+37, got 1e\+38"),
        ({"y_test": np.arange(8)}, "y_test has the label 4, which y_train has not; number both alike"),
        ({"y_test": -np.ones(8, int)}, "y_test has the label -1"),
        ({"y_train": 1 + np.arange(40) % 4}, "labels 0 .. C - 1 without a gap, got 4 labels from 1 to 4; number them"),
        ({"y_train": 2 * (np.arange(40) % 4)}, "got 4 labels from 0 to 6"),
        ({"y_train": np.zeros(40, int)}, r"at least 2 classes and 3 rows of each, got 1 and 40 row\(s\) of class 0"),
        ({"y_train": np.minimum(np.arange(40), 1)}, r"got 2 and 1 row\(s\) of class 0"),
        ({"x_train": np.eye(2, 5), "y_train": np.arange(2), "y_test": np.arange(8) % 2}, r"got 2 and 1 row\(s\)"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(folder, rng, changes, message):
    np.savez(folder / "mine.npz", **arrays(rng, **changes))
    with pytest.raises(DataError, match=message):
        load_rows("mine", "none")


def test_rows_are_refused_only_for_a_reason(folder, rng):
    constant = rng.standard_normal((40, 5))
    constant[:, 2] = 7  # one column is, all of them are not
    np.savez(folder / "mine.npz", **arrays(rng, x_train=constant, x_test=np.zeros((1, 5)), y_test=[3]))
    assert len(load_rows("mine", "times10").x_test) == 1


def test_missing_arrays_and_scalings_are_refused(folder):
    np.savez(folder / "mine.npz", x_train=np.zeros((2, 2)))
    with pytest.raises(DataError, match="no array 'y_train'"):
        load_rows("mine", "none")
    with pytest.raises(ValueError, match="scaling must be one of"):
        load_rows("mine", "log")


def test_a_slice_is_a_seeded_part_with_every_class():
    data = load_rows("digits", "none")
    part, again, other = (slice_rows(data, 100, 30, seed) for seed in (0, 0, 1))
    assert np.bincount(part.y_train).tolist() == [10] * 10
    assert len(part.y_test) == 30
    assert np.array_equal(part.x_train, again.x_train)
    assert not np.array_equal(part.x_train, other.x_train)
    assert {row.tobytes() for row in part.x_train} <= {row.tobytes() for row in data.x_train}


def test_rows_are_taken_by_number():
    data = load_rows("digits", "none")
    train, test = slice_numbers(data, 50, 20, 0)
    part = take_rows(data, train, test)
    assert np.array_equal(part.x_train, data.x_train[train])
    assert np.array_equal(part.y_test, data.y_test[test])
    assert np.array_equal(part.x_train, slice_rows(data, 50, 20, 0).x_train)
    assert np.array_equal(take_rows(data, train).x_test, data.x_test)


def test_groups_come_with_the_embeddings(folder, rng):
    np.savez(folder / "mine.npz", **arrays(rng, group_train=np.array(["de", "en"] * 20)))
    assert load_groups("mine").tolist() == ["de", "en"] * 20
    np.savez(folder / "mine.npz", **arrays(rng))
    with pytest.raises(DataError, match=r"mine\.npz needs group_train, the group of every training row; it has none"):
        load_groups("mine")
    with pytest.raises(FileNotFoundError, match="other"):
        load_groups("other")
    np.savez(folder / "mine.npz", **arrays(rng, group_train=np.zeros(3, int)))
    with pytest.raises(DataError, match="group_train must name 40 groups"):
        load_groups("mine")
