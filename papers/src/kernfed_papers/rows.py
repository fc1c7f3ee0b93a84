"""Data of the experiments: the named data sets, and embeddings that a user brings for those that are not among them.

Embeddings are a file ``<name>.npz`` in the data folder (KERNFED_DATA) with arrays x_train (n, p), y_train (n,), x_test
(m, p) and y_test (m,); the labels are the numbers 0 .. C - 1. ``kernfed data list`` says what each one must hold.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.data import (
    BROUGHT,
    Arrays,
    Dataset,
    check_rows,
    data_folder,
    list_datasets,
    load_dataset,
    open_npz,
    scale_tanh,
    scale_times10,
)
from kernfed.errors import DataError
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.checks import check_choice
from kernfed_papers.draws import generator

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_SCALINGS = {"none": lambda x: x, "tanh": scale_tanh, "times10": scale_times10}
#: Rows are computed with in float32, after a scaling by ten.
_LARGEST = float(np.finfo(np.float32).max) / 10
#: With fewer training rows of a class none can be set aside to choose settings of the baselines.
_LEAST_ROWS = 3


def missing_data(name: str) -> str:
    """Why the data set ``name`` cannot be loaded here, in words without any path; empty if it can."""
    return "" if _is_here(name) else _needs([name])


def missing_all(names: tuple[str, ...]) -> str:
    """Why none of these data sets can be loaded here, in words without any path; empty if one can, or none is named."""
    return _needs(names) if names and not any(map(_is_here, names)) else ""


def _is_here(name: str) -> bool:
    here = {info.name: info.available for info in list_datasets()}
    folder = data_folder()
    return here.get(name, folder is not None and (folder / f"{name}.npz").is_file())


def _needs(names: Sequence[str]) -> str:
    files = ", ".join(f"{name}.npz" for name in names)
    return f"needs {'at least one of ' if len(names) > 1 else ''}{files} in the folder KERNFED_DATA"


def load_rows(name: str, scaling: str) -> Dataset:
    """A named data set, or the embeddings in ``<name>.npz``; look with ``missing_data`` first."""
    if name in {info.name for info in list_datasets()}:
        return load_dataset(name, scaling=scaling)
    check_choice(scaling, "scaling", tuple(_SCALINGS))
    with open_npz(_path(name)) as file:
        x_train, y_train = _part(file, "train")
        x_test, y_test = _part(file, "test", x_train.shape[1])
    _check_classes(name, y_train, y_test)
    if (x_train.min(axis=0) == x_train.max(axis=0)).all():
        raise DataError(f"{name}.npz: all rows of x_train are the same, and nothing can be learned from them")
    parts = [_SCALINGS[scaling](x).astype(np.float32) for x in (x_train, x_test)]
    names = tuple(map(str, range(int(y_train.max()) + 1)))
    return Dataset(name, parts[0], y_train, parts[1], y_test, names, f"embeddings {name}; scaling: {scaling}")


def _path(name: str) -> Path:
    folder = data_folder()
    if missing_data(name) or folder is None:
        raise FileNotFoundError(_needs([name]))
    return folder / f"{name}.npz"


def _part(file: Arrays, part: str, width: int | None = None) -> tuple[FloatArray, IntArray]:
    """Training or test rows (n, p) with their class numbers (n,)."""
    absent = [key for key in _ARRAYS if key not in file]
    if absent:
        raise DataError(f"{file.path}: there is no array {absent[0]!r}; expected {', '.join(_ARRAYS)}")
    y = file[f"y_{part}"]
    try:
        x = check_rows(file[f"x_{part}"], f"x_{part} of {file.path.name}", width=width)
    except ValueError as error:
        raise DataError(str(error)) from None
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(f"{file.path.name}: y_{part} must be {len(x)} class numbers, got {y.dtype} of {y.shape}")
    largest = max(-x.min(), x.max())
    if largest > _LARGEST:
        raise DataError(f"{file.path.name}: x_{part} must be within {_LARGEST:.2g}, got {largest:.2g}")
    return x, y.astype(np.int64)


def _check_classes(name: str, y_train: IntArray, y_test: IntArray) -> None:
    """Refuse labels that are not 0 .. C - 1, classes of which training has too few rows, and test labels it has not."""
    labels, counts = np.unique(y_train, return_counts=True)
    if not np.array_equal(labels, np.arange(len(labels))):
        raise DataError(
            f"{name}.npz: y_train must have the labels 0 .. C - 1 without a gap, got {len(labels)} labels "
            f"from {labels[0]} to {labels[-1]}; number them with numpy.unique"
        )
    if len(labels) < 2 or counts.min() < _LEAST_ROWS:
        raise DataError(
            f"{name}.npz: y_train must have at least 2 classes and {_LEAST_ROWS} rows of each, got "
            f"{len(labels)} and {counts.min()} row(s) of class {counts.argmin()}"
        )
    strange = np.setdiff1d(y_test, labels)
    if len(strange):
        raise DataError(f"{name}.npz: y_test has the label {strange[0]}, which y_train has not; number both alike")


def load_groups(name: str) -> npt.NDArray[Any]:
    """Group of every training row (n,), such as its language: array group_train of ``<name>.npz``."""
    with open_npz(_path(name)) as file:
        what = BROUGHT[name].groups if name in BROUGHT else "group"
        if "group_train" not in file:
            raise DataError(f"{name}.npz needs group_train, the {what} of every training row; it has none")
        groups, count = file["group_train"], len(file["y_train"])
    if groups.shape != (count,) or groups.dtype.kind not in "iuUS":
        raise DataError(f"{name}.npz: group_train must name {count} groups, got {groups.dtype} of {groups.shape}")
    return groups


def differences(name: str) -> str:
    """In what a file that a user brought differs from the paper's, in words; empty if in nothing that can be seen.

    A file that is no such file at all is left to ``load_rows``, which says what is wrong with it.
    """
    paper = BROUGHT.get(name)
    if paper is None or missing_data(name):
        return ""
    with open_npz(_path(name)) as file:
        if any(key not in file for key in _ARRAYS):
            return ""
        y_train, y_test = file["y_train"], file["y_test"]
        shape = _stored_shape(file.path, "x_train")
    sizes = (
        ("training rows", y_train.size, paper.n_train),
        ("test rows", y_test.size, paper.n_test),
        ("columns", shape[-1] if shape else 0, paper.n_features),
        ("classes", np.unique(y_train).size, paper.n_classes),
    )
    other = [f"{theirs:,} {what}, {name}.npz {ours:,}" for what, ours, theirs in sizes if theirs not in (None, ours)]
    return f"the paper's features have {'; '.join(other)}" if other else ""


def _stored_shape(path: Path, key: str) -> tuple[int, ...]:
    """Shape of an array in an npz file, without reading the array, which may be large; () where there is none."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            old = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            return tuple(read(stream)[0])
    except (KeyError, ValueError):
        return ()


def take_rows(data: Dataset, train: IntArray, test: IntArray | None = None, note: str = "") -> Dataset:
    """The training rows numbered ``train``, and the test rows numbered ``test`` or all."""
    chosen = np.arange(len(data.y_test)) if test is None else test
    note = note or f"{len(train)} and {len(chosen)} rows"
    return Dataset(
        data.name,
        data.x_train[train],
        data.y_train[train],
        data.x_test[chosen],
        data.y_test[chosen],
        data.class_names,
        f"{data.note}; {note}",
    )


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
