import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from kernfed.data import (
    data_folder,
    datasets,
    list_datasets,
    load_dataset,
    load_domains,
    scale_tanh,
    scale_times10,
    scale_unit,
)
from kernfed.data.catalog import BROUGHT, ENTRIES
from kernfed.data.datasets import describe_file, folder_words, list_brought
from kernfed.errors import DataError, DatasetNotFoundError, InputError

NAMES = [
    "digits",
    "mnist",
    "fashion_mnist",
    "dna",
    "letter",
    "pendigits",
    "satimage",
    "shuttle",
    "usps",
    "20ng_minilm",
    "cifar10_efflite0",
    "office_caltech10",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A file like mnist.npz with few rows."""
    entry = dataclasses.replace(ENTRIES["mnist"], train=(6, 28, 28), test=(4, 28, 28))
    monkeypatch.setitem(ENTRIES, "mnist", entry)
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(256, size=(6, 28, 28)).astype(np.uint8),
        "y_train": np.arange(6, dtype=np.uint8),
        "x_test": rng.integers(256, size=(4, 28, 28)).astype(np.uint8),
        "y_test": np.arange(4, dtype=np.uint8),
    }
    np.savez_compressed(folder / "mnist.npz", **arrays)
    return arrays


@pytest.mark.usefixtures("folder")
def test_digits_need_no_folder():
    digits = load_dataset("digits", scaling="unit")
    assert digits.x_train.shape == (1348, 64)
    assert digits.x_test.shape == (449, 64)
    assert digits.x_train.dtype == np.float32
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    assert digits.y_train.dtype == np.int64
    assert digits.class_names == tuple("0123456789")
    assert np.abs(np.bincount(digits.y_train) - 3 * np.bincount(digits.y_test)).max() <= 4
    again = load_dataset("digits")
    assert np.array_equal(again.x_test, digits.x_test * 16)
    rows = {row.tobytes() for row in digits.x_train}
    assert sum(row.tobytes() in rows for row in digits.x_test) == 0


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ("none", lambda x: x),
        ("unit", lambda x: x / 255),
        ("tanh", lambda x: np.tanh(x / 255)),
        ("times10", lambda x: x * 10),
    ],
)
def test_scalings_of_pixels(small_mnist, scaling, expected):
    data = load_dataset("mnist", scaling=scaling)
    for part in ("train", "test"):
        x = getattr(data, f"x_{part}")
        assert x.dtype == np.float32
        flat = small_mnist[f"x_{part}"].reshape(len(x), 784).astype(np.float64)
        np.testing.assert_allclose(x, expected(flat), rtol=1e-6)
        assert np.array_equal(getattr(data, f"y_{part}"), small_mnist[f"y_{part}"])
    assert data.class_names == tuple("0123456789")
    assert data.note.endswith(f"scaling: {scaling}")


def test_scaling_functions():
    assert scale_unit([0, 255]).tolist() == [0, 1]
    np.testing.assert_allclose(scale_tanh([0, 255], 255), [0, np.tanh(1)], rtol=1e-6)
    np.testing.assert_allclose(scale_tanh([0.5]), [np.tanh(0.5)], rtol=1e-6)
    assert scale_times10(np.array([0.5], np.float16)).tolist() == [5]
    assert {f(np.arange(3, dtype=np.uint8)).dtype for f in (scale_unit, scale_tanh, scale_times10)} == {
        np.dtype(np.float32)
    }


def test_features_stored_with_a_scale(folder, monkeypatch):
    entry = dataclasses.replace(ENTRIES["cifar10_efflite0"], train=(3, 2), test=(1, 2))
    monkeypatch.setitem(ENTRIES, "cifar10_efflite0", entry)
    x = np.array([[0, 255], [100, 1], [7, 9]], np.uint8)
    scale = np.array([0.5, 0.01], np.float32)
    y = np.zeros(3, np.uint8)
    np.savez(folder / "cifar10_efflite0.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1], scale=scale)
    np.testing.assert_allclose(load_dataset("cifar10_efflite0").x_train, x * scale.astype(float), rtol=1e-6)
    tanh = load_dataset("cifar10_efflite0", scaling="tanh")
    np.testing.assert_allclose(tanh.x_test, np.tanh(x[:1] * scale.astype(float)), rtol=1e-6)
    with pytest.raises(ValueError, match="not pixels, got 'unit'"):
        load_dataset("cifar10_efflite0", scaling="unit")
    arrays = {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}
    np.savez(folder / "cifar10_efflite0.npz", **arrays, scale=scale[:1])
    with pytest.raises(DataError, match=r"got scale \(1,\)"):
        load_dataset("cifar10_efflite0")
    np.savez(folder / "cifar10_efflite0.npz", **arrays, scale=scale, class_names=np.array(["a"]))
    with pytest.raises(DataError, match="expected 10 class_names, got 1"):
        load_dataset("cifar10_efflite0")


@pytest.mark.usefixtures("small_mnist")
def test_verify(folder, monkeypatch):
    with pytest.raises(DataError, match=r"expected SHA-256 06af5dfe.*, got"):
        load_dataset("mnist", verify=True)
    digest = hashlib.sha256((folder / "mnist.npz").read_bytes()).hexdigest()
    monkeypatch.setitem(ENTRIES, "mnist", dataclasses.replace(ENTRIES["mnist"], sha256=digest))
    assert len(load_dataset("mnist", verify=True).x_train) == 6


@pytest.mark.parametrize("change", ["drop", "shorten", "truncate"])
def test_a_file_that_is_not_what_it_should_be(small_mnist, folder, change):
    path = folder / "mnist.npz"
    if change == "drop":
        del small_mnist["y_test"]
        np.savez(path, **small_mnist)
        message = "there is no array 'y_test'; the arrays are 'x_train', 'y_train', 'x_test'"
    elif change == "shorten":
        np.savez(path, **small_mnist | {"y_test": np.zeros(3)})
        message = r"expected x_train \(6, 28, 28\) uint8, .* got x_test \(4, 28, 28\), y_test \(3,\)"
    else:
        path.write_bytes(path.read_bytes()[:-100])
        message = "cannot be read as npz"
    with pytest.raises(DataError, match=message):
        load_dataset("mnist")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_an_absent_data_set_says_what_is_needed(folder, name):
    load = load_domains if name == "office_caltech10" else load_dataset
    with pytest.raises(DatasetNotFoundError) as error:
        load(name)
    message = str(error.value)
    assert isinstance(error.value, FileNotFoundError)
    assert f"{name}.npz in the folder {folder}" in message
    assert "obtain" in message
    assert "numpy.savez_compressed" in message
    assert "://" not in message


def test_without_any_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("KERNFED_DATA", raising=False)
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "site-packages" / "kernfed" / "data" / "datasets.py"))
    assert data_folder() is None
    with pytest.raises(DatasetNotFoundError, match="in a folder named by the environment variable KERNFED_DATA"):
        load_dataset("mnist")
    assert [info.name for info in list_datasets() if info.available] == ["digits"]


def test_a_checkout_looks_beside_itself(tmp_path, monkeypatch):
    monkeypatch.delenv("KERNFED_DATA", raising=False)
    package = tmp_path / "repo" / "src" / "kernfed" / "data"
    package.mkdir(parents=True)
    monkeypatch.setattr(datasets, "__file__", str(package / "datasets.py"))
    beside = tmp_path / "shared" / "data"
    beside.mkdir(parents=True)
    assert data_folder() is None
    (tmp_path / "repo" / "pyproject.toml").touch()
    assert data_folder() == beside
    beside.rmdir()
    assert data_folder() is None


def test_the_environment_wins(folder):
    assert data_folder() == folder


@pytest.mark.parametrize("name", BROUGHT)
def test_a_file_to_bring_says_what_it_must_hold(folder, name):
    entry, told = BROUGHT[name], describe_file(name)
    assert told.startswith(f"obtain {entry.origin}, and store the arrays x_train (")
    assert f", {entry.n_features}) numbers" in told
    assert f"integers 0 .. {entry.n_classes - 1}" in told
    assert ("group_train" in told) == bool(entry.groups)
    assert "://" not in told
    (info,) = [info for info in list_brought() if info.name == name]
    assert not info.available
    (folder / f"{name}.npz").touch()
    assert [info.name for info in list_brought() if info.available] == [name]


def test_a_folder_that_is_none_is_reported(folder, monkeypatch):
    assert folder_words() == str(folder)
    (folder / "file").touch()
    for name, fault in (("gone", "does not exist"), ("file", "is no folder")):
        monkeypatch.setenv("KERNFED_DATA", str(folder / name))
        assert folder_words().startswith(f"{folder / name}, which {fault}; set the environment variable KERNFED_DATA")
        with pytest.raises(
            DatasetNotFoundError, match=f"mnist.npz in the folder {folder / name}, which {fault}; obtain"
        ):
            load_dataset("mnist")


@pytest.mark.usefixtures("small_mnist")
def test_list():
    infos = {info.name: info for info in list_datasets()}
    assert list(infos) == NAMES
    assert [name for name in NAMES if infos[name].available] == ["digits", "mnist"]
    assert (infos["mnist"].n_train, infos["mnist"].n_features) == (6, 784)


@pytest.mark.usefixtures("folder")
def test_refusals():
    with pytest.raises(ValueError, match=r"name must be one of 'digits', 'mnist'.*, got 'minst'"):
        load_dataset("minst")
    with pytest.raises(ValueError, match="scaling must be one of 'none', 'unit', 'tanh', 'times10', got 'log'"):
        load_dataset("digits", scaling="log")
    with pytest.raises(ValueError, match=r"use load_domains\('office_caltech10'\)"):
        load_dataset("office_caltech10")
    with pytest.raises(ValueError, match="features must be one of 'efflite0', 'surf', 'googlenet1024', got 'vgg'"):
        load_domains(features="vgg")


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("name", NAMES[1:-1])
def test_real_data(name):
    info = next(info for info in list_datasets() if info.name == name)
    assert info.available
    data = load_dataset(name, verify=True)
    assert data.x_train.shape == (info.n_train, info.n_features)
    assert data.x_test.shape == (info.n_test, info.n_features)
    assert np.array_equal(np.unique(data.y_train), np.arange(info.n_classes))
    assert len(data.class_names) == info.n_classes
    assert np.isfinite(data.x_train).all()
    largest = ENTRIES[name].largest
    assert largest is None or (data.x_train.min(), data.x_train.max()) == (0, largest)


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize(("features", "width"), [("efflite0", 1280), ("surf", 800), ("googlenet1024", 1024)])
def test_real_domains(features, width):
    office = load_domains(features=features, scaling="tanh", verify=True)
    sizes = {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}
    if features == "googlenet1024":
        del sizes["caltech10"]
    assert {name: x.shape for name, (x, _) in office.domains.items()} == {name: (n, width) for name, n in sizes.items()}
    assert {name: y.shape for name, (_, y) in office.domains.items()} == {name: (n,) for name, n in sizes.items()}
    assert len(office.class_names) == 10
    assert max(np.abs(x).max() for x, _ in office.domains.values()) <= 1


# A file of one's own ----------------------------------------------------------------------------------------------


def own_file(path, **changed):
    arrays = {"x_train": np.ones((3, 2, 2)), "y_train": np.array([0, 2, 1]), "x_test": np.zeros((1, 2, 2))}
    np.savez(path, **{**arrays, "y_test": np.array([1]), **changed})
    return path


def test_a_data_set_of_ones_own_is_loaded_by_its_path(tmp_path):
    path = own_file(tmp_path / "mine.npz", class_names=np.array(["a", "b", "c"]))
    for given in (path, str(path)):
        data = load_dataset(given, scaling="times10")
        assert (data.name, data.class_names) == ("mine", ("a", "b", "c"))
        assert data.x_train.tolist() == [[10.0] * 4] * 3
        assert data.y_train.tolist() == [0, 2, 1]
        assert data.x_test.shape == (1, 4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y_train": np.array([0, -1, 1])}, "class numbers y_train"),
        ({"y_train": np.array([0, 1])}, "class numbers y_train"),
        ({"y_test": np.array([0.5])}, "class numbers y_test"),
        ({"x_train": np.array(["a", "b", "c"])}, "rows x_train"),
        ({"x_train": np.ones((0, 2, 2)), "y_train": np.zeros(0, int)}, "rows x_train"),
        ({"x_test": np.zeros((1, 5))}, "as many columns to test as to train"),
        ({"class_names": np.array(["a"])}, "a name for each of 3 classes"),
    ],
)
def test_a_file_that_is_no_data_set_is_refused_by_what_is_wrong(tmp_path, changed, words):
    with pytest.raises(DataError, match=words):
        load_dataset(own_file(tmp_path / "mine.npz", **changed))


def test_a_path_to_nothing_and_what_cannot_be_verified_are_refused(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="there is no file"):
        load_dataset(tmp_path / "none.npz")
    with pytest.raises(InputError, match="leave it out for one of your own"):
        load_dataset(own_file(tmp_path / "mine.npz"), verify=True)
