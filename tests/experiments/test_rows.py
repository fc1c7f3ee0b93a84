import numpy as np
import pytest

from kernfed.data import DataError
from kernfed.experiments.rows import load_groups, load_rows, missing_data, slice_numbers, slice_rows, take_rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    return tmp_path


def arrays(rng, **changes):
    parts = {"x_train": rng.standard_normal((40, 5)), "y_train": np.arange(40) % 4,
             "x_test": rng.standard_normal((8, 5)), "y_test": np.arange(8) % 4}  # fmt: skip
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": np.zeros(7, int)}, "y_test must be 8 class numbers"),
        ({"y_train": np.zeros(40)}, "y_train must be 40 class numbers"),
        ({"x_test": np.zeros((8, 6))}, "5 columns"),
        ({"x_train": np.full((40, 5), np.nan)}, "finite"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(folder, rng, changes, message):
    np.savez(folder / "mine.npz", **arrays(rng, **changes))
    with pytest.raises(ValueError, match=message):
        load_rows("mine", "none")


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
    assert load_groups("mine") is None
    with pytest.raises(FileNotFoundError, match="other"):
        load_groups("other")
    np.savez(folder / "mine.npz", **arrays(rng, group_train=np.zeros(3, int)))
    with pytest.raises(DataError, match="group_train must name 40 groups"):
        load_groups("mine")
