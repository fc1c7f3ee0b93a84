"""Data of the experiments: the named data sets, and embeddings that a user brings for those that are not among them.

Embeddings are a file ``<name>.npz`` in the data folder (KERNFED_DATA) with arrays x_train (n, p), y_train (n,), x_test
(m, p) and y_test (m,).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._random import generator
from kernfed._validation import IntArray, check_choice, check_rows
from kernfed.data import Dataset, data_folder, list_datasets, load_dataset, scale_tanh, scale_times10
from kernfed.data.arrays import open_npz
from kernfed.data.table import DataError

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_SCALINGS = {"none": lambda x: x, "tanh": scale_tanh, "times10": scale_times10}


def missing_data(name: str) -> str:
    """Why the data set ``name`` cannot be loaded here, in words without any path; empty if it can."""
    here = {info.name: info.available for info in list_datasets()}
    folder = data_folder()
    if here.get(name, folder is not None and (folder / f"{name}.npz").is_file()):
        return ""
    return f"needs {name}.npz in the folder KERNFED_DATA"


def load_rows(name: str, scaling: str) -> Dataset:
    """A named data set, or the embeddings in ``<name>.npz``; look with ``missing_data`` first."""
    if name in {info.name for info in list_datasets()}:
        return load_dataset(name, scaling=scaling)
    check_choice(scaling, "scaling", tuple(_SCALINGS))
    reason = missing_data(name)
    folder = data_folder()
    if reason or folder is None:
        raise FileNotFoundError(reason)
    with open_npz(folder / f"{name}.npz") as file:
        absent = [key for key in _ARRAYS if key not in file]
        if absent:
            raise DataError(f"{file.path}: there is no array {absent[0]!r}; expected {', '.join(_ARRAYS)}")
        x_train, y_train, x_test, y_test = (file[key] for key in _ARRAYS)
    found = []
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        rows = check_rows(x, f"x_{part} of {name}.npz", width=np.shape(x_train)[-1])
        if y.shape != (len(rows),) or y.dtype.kind not in "iu":
            raise DataError(f"{name}.npz: y_{part} must be {len(rows)} class numbers, got {y.dtype} of {y.shape}")
        found += [_SCALINGS[scaling](rows).astype(np.float32), y.astype(np.int64)]
    names = tuple(str(label) for label in np.unique(found[1]))
    return Dataset(name, found[0], found[1], found[2], found[3], names, f"embeddings {name}; scaling: {scaling}")


def load_groups(name: str) -> npt.NDArray[Any] | None:
    """Group of every training row (n,), such as its language: array group_train of ``<name>.npz``, None without one."""
    folder = data_folder()
    if missing_data(name) or folder is None:
        raise FileNotFoundError(missing_data(name))
    with open_npz(folder / f"{name}.npz") as file:
        if "group_train" not in file:
            return None
        groups, count = file["group_train"], len(file["y_train"])
    if groups.shape != (count,) or groups.dtype.kind not in "iuUS":
        raise DataError(f"{name}.npz: group_train must name {count} groups, got {groups.dtype} of {groups.shape}")
    return groups


def take_rows(data: Dataset, train: IntArray, test: IntArray | None = None, note: str = "") -> Dataset:
    """The training rows numbered ``train``, and the test rows numbered ``test`` or all."""
    chosen = np.arange(len(data.y_test)) if test is None else test
    note = note or f"{len(train)} and {len(chosen)} rows"
    return Dataset(data.name, data.x_train[train], data.y_train[train], data.x_test[chosen], data.y_test[chosen],
                   data.class_names, f"{data.note}; {note}")  # fmt: skip


def slice_rows(data: Dataset, n_train: int, n_test: int, seed: int) -> Dataset:
    """A random slice with about as many rows of each class in training, for quick runs."""
    train, test = slice_numbers(data, n_train, n_test, seed)
    return take_rows(data, train, test, f"slice of {len(train)} and {len(test)} rows")


def slice_numbers(data: Dataset, n_train: int, n_test: int, seed: int) -> tuple[IntArray, IntArray]:
    """Training and test rows of such a slice."""
    draws = generator(seed, "slice", data.name)
    train = _per_class(data.y_train, n_train, draws)
    return train, np.sort(draws.choice(len(data.y_test), min(n_test, len(data.y_test)), replace=False))


def _per_class(labels: IntArray, count: int, draws: np.random.Generator) -> IntArray:
    classes = np.unique(labels)
    each = max(1, count // len(classes))
    chosen = [draws.permutation(np.flatnonzero(labels == label))[:each] for label in classes]
    return np.sort(np.concatenate(chosen))
