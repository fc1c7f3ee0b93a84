"""Named data sets, read from a folder that the user provides; ``digits`` needs none.

The folder is the one in the environment variable KERNFED_DATA. Without it, a checkout of the repository
looks for ``shared/data`` beside itself. Nothing is downloaded.

One more is made to order: a task whose heterogeneity is set by two numbers (``fednewton_synthetic``).
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import IntArray, check_choice, check_count, check_number
from kernfed.base.random import generator
from kernfed.data.catalog import (
    BROUGHT,
    ENTRIES,
    OFFICE,
    OFFICE_FEATURES,
    OFFICE_FILE,
    OFFICE_ORIGIN,
    OFFICE_SHA256,
    CatalogEntry,
)
from kernfed.data.partition import holdout
from kernfed.data.read import Arrays, open_npz
from kernfed.data.table import listing
from kernfed.errors import DataError, DatasetNotFoundError, InputError

Features = npt.NDArray[np.float32]

SCALINGS = ("none", "unit", "tanh", "times10")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows (n, p) float32 with class numbers (n,) and the names of the classes."""

    name: str
    x_train: Features
    y_train: IntArray
    x_test: Features
    y_test: IntArray
    class_names: tuple[str, ...]
    note: str


@dataclass(frozen=True, eq=False)
class Domains:
    """Rows (n, p) float32 and class numbers (n,) by domain, without a split into training and test."""

    name: str
    features: str
    domains: Mapping[str, tuple[Features, IntArray]]
    class_names: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class DatasetInfo:
    """One line about a data set: whether it can be loaded here, and its size."""

    name: str
    available: bool
    n_train: int
    n_test: int
    n_features: int
    n_classes: int
    origin: str


@dataclass(frozen=True)
class BroughtInfo:
    """One line about a file that a user may bring for an experiment: whether it is here, and what the paper's holds.

    ``arrays`` is the whole of it in words; sizes that the paper does not state are None.
    """

    name: str
    available: bool
    n_train: int | None
    n_test: int | None
    n_features: int
    n_classes: int
    groups: str
    columns: str
    origin: str
    arrays: str


def scale_unit(x: npt.ArrayLike, largest: float = 255.0) -> Features:
    """Pixels 0 .. largest to 0 .. 1, as DP-KAHM does."""
    return np.asarray(x, np.float32) / np.float32(largest)


def scale_tanh(x: npt.ArrayLike, largest: float = 1.0) -> Features:
    """tanh(x / largest): GIKM 5 for pixels (largest 255); GIKM 5 and SFM 4.2 for image features."""
    return np.tanh(scale_unit(x, largest))


def scale_times10(x: npt.ArrayLike) -> Features:
    """Ten times x: text embeddings of SFM 4.2, whose raw values vary little."""
    return np.asarray(x, np.float32) * np.float32(10)


def data_folder() -> Path | None:
    """The folder with the data files, or None if none is known. It need not exist if it was set."""
    chosen = os.environ.get("KERNFED_DATA")
    if chosen:
        return Path(chosen)
    root = Path(__file__).resolve().parents[3]
    beside = root.parent / "shared" / "data"
    is_checkout = (root / "pyproject.toml").is_file() and (root / "src" / "kernfed").is_dir()
    return beside if is_checkout and beside.is_dir() else None


def folder_words() -> str:
    """Where data are looked for, in words; says so where the folder does not exist."""
    folder = data_folder()
    if folder is None:
        return "none; set the environment variable KERNFED_DATA to a folder of npz files"
    if not folder.is_dir():
        return f"{folder}, which {_fault(folder)}; set the environment variable KERNFED_DATA to a folder of npz files"
    return str(folder)


def _fault(folder: Path) -> str:
    return "is no folder" if folder.exists() else "does not exist"


def describe_file(name: str) -> str:
    """What the file of a data set must hold and where to obtain it, in one sentence."""
    if name in BROUGHT:
        return f"obtain {BROUGHT[name].origin}, and store the arrays {BROUGHT[name].arrays}"
    if name == OFFICE:
        return f"obtain {OFFICE_ORIGIN}, and store the arrays {_OFFICE_ARRAYS}"
    if name in ENTRIES:
        return f"obtain {ENTRIES[name].origin}, and store the arrays {ENTRIES[name].arrays}"
    return "store the arrays x_train (n, p) numbers, y_train (n,) class numbers, x_test (m, p), y_test (m,)"


def list_brought() -> list[BroughtInfo]:
    """Every file that a user may bring for an experiment, with whether it is here."""
    return [
        BroughtInfo(
            name,
            _is_here(f"{name}.npz"),
            entry.n_train,
            entry.n_test,
            entry.n_features,
            entry.n_classes,
            entry.groups,
            entry.features,
            entry.origin,
            entry.arrays,
        )
        for name, entry in BROUGHT.items()
    ]


def list_datasets() -> list[DatasetInfo]:
    """Every data set that can be named, with whether its file is here."""
    infos = [DatasetInfo("digits", True, 1348, 449, 64, 10, _DIGITS_ORIGIN)]
    for name, entry in ENTRIES.items():
        width = int(np.prod(entry.train[1:]))
        sizes = entry.train[0], entry.test[0], width, entry.n_classes
        infos.append(DatasetInfo(name, _is_here(entry.file), *sizes, entry.origin))
    infos.append(DatasetInfo(OFFICE, _is_here(OFFICE_FILE), 2533, 0, 1280, 10, OFFICE_ORIGIN))
    return infos


def load_dataset(name: str | os.PathLike[str], *, scaling: str = "none", verify: bool = False) -> Dataset:
    """Load a data set by name (see :func:`list_datasets`), or your own from the path of an npz file.

    Images are flattened. A file of your own has the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test`` with
    class numbers from 0, and perhaps ``class_names``; there is nothing to ``verify`` it by.

    ``scaling``: "none" gives the values of the file as float32; "unit" divides pixels by the top of their
    range; "tanh" does so and applies tanh (features that are not pixels: tanh alone); "times10" multiplies
    by ten. ``verify`` compares the file with its known SHA-256 first.
    """
    if isinstance(name, os.PathLike) or name.endswith(".npz"):
        return _load_own(Path(name), scaling, verify)
    if name == OFFICE:
        raise InputError(f"{OFFICE} has domains instead of training and test rows; use load_domains({OFFICE!r})")
    check_choice(name, "name", ("digits", *ENTRIES))
    check_choice(scaling, "scaling", SCALINGS)
    if name == "digits":
        return _load_digits(scaling)
    entry = ENTRIES[name]
    with open_npz(_locate(name, entry.file, entry.sha256, verify)) as file:
        scale = _array(file, "scale") if entry.extra else None
        parts = [_part(file, entry, part, scale, scaling) for part in ("train", "test")]
        names = entry.class_names
        if names is None:
            stored = file["class_names"] if "class_names" in file else range(entry.n_classes)
            names = tuple(str(value) for value in stored)
        if len(names) != entry.n_classes:
            raise DataError(f"{file.path}: expected {entry.n_classes} class_names, got {len(names)}")
    (x_train, y_train), (x_test, y_test) = parts
    return Dataset(name, x_train, y_train, x_test, y_test, names, f"{entry.origin}; scaling: {scaling}")


def _load_own(path: Path, scaling: str, verify: bool) -> Dataset:
    """A data set in a file that nobody here knows, checked."""
    check_choice(scaling, "scaling", ("none", "tanh", "times10"))
    if verify:
        raise InputError(f"{path}: verify compares files whose SHA-256 is known; leave it out for one of your own")
    if not path.is_file():
        raise DatasetNotFoundError(
            f"there is no file {path}; expected an npz file with x_train, y_train, x_test, y_test"
        )
    with open_npz(path) as file:
        (x_train, y_train), (x_test, y_test) = (_own_part(file, part) for part in ("train", "test"))
        count = 1 + max(int(y_train.max()), int(y_test.max(initial=0)))
        names = tuple(str(value) for value in (file["class_names"] if "class_names" in file else range(count)))
    if x_test.shape[1] != x_train.shape[1] or len(names) < count:
        raise DataError(
            f"{path}: expected as many columns to test as to train and a name for each of {count} classes, got "
            f"{x_test.shape[1]}, {x_train.shape[1]} and {len(names)} names"
        )
    scaled = [_scaled(x, scaling, None) for x in (x_train, x_test)]
    return Dataset(path.stem, scaled[0], y_train, scaled[1], y_test, names, f"{path.name}; scaling: {scaling}")


def _own_part(file: Arrays, part: str) -> tuple[npt.NDArray[Any], IntArray]:
    """Rows (n, p) and class numbers (n,) of a part; training needs rows."""
    x, y = _array(file, f"x_{part}"), _array(file, f"y_{part}")
    numbers = x.dtype.kind in "biuf" and y.dtype.kind in "iu"
    if not numbers or x.ndim < 2 or y.shape != x.shape[:1] or (y < 0).any() or (part == "train" and not len(y)):
        raise DataError(
            f"{file.path}: expected rows x_{part} (n, ...) of numbers and class numbers y_{part} (n,) from 0, got "
            f"{x.dtype} {x.shape} and {y.dtype} {y.shape}"
        )
    return x.reshape(len(x), int(np.prod(x.shape[1:]))), y.astype(np.int64)


def load_domains(
    name: str = OFFICE, *, features: str = "efflite0", scaling: str = "none", verify: bool = False
) -> Domains:
    """Load Office-Caltech-10 by domain; how GIKM 5.3 draws training rows from it is left to the experiment.

    ``features``: "efflite0" (1280, EfficientNet-Lite0), "surf" (800 counts) or "googlenet1024" (without
    caltech10).
    """
    check_choice(name, "name", (OFFICE,))
    check_choice(features, "features", tuple(OFFICE_FEATURES))
    check_choice(scaling, "scaling", ("none", "tanh", "times10"))
    with open_npz(_locate(OFFICE, OFFICE_FILE, OFFICE_SHA256, verify)) as file:
        domains = {
            domain: (
                _scaled(_array(file, f"{features}_x_{domain}"), scaling, None),
                _array(file, f"{features}_y_{domain}").astype(np.int64),
            )
            for domain in OFFICE_FEATURES[features]
        }
        names = tuple(str(value) for value in _array(file, "class_names"))
    return Domains(OFFICE, features, domains, names, f"{OFFICE_ORIGIN}; scaling: {scaling}")


_OFFICE_ARRAYS = "FEATURES_x_DOMAIN (n, p), FEATURES_y_DOMAIN (n,) uint8, class_names (10,)"
_DIGITS_ORIGIN = "Optical Recognition of Handwritten Digits, the 1,797 images that scikit-learn carries"


def _load_digits(scaling: str) -> Dataset:
    """A fixed stratified quarter of scikit-learn's digits (8 x 8 pixels, 0 .. 16) is the test part."""
    from sklearn.datasets import load_digits  # slow to import, needed here only

    digits = load_digits()
    x = _scaled(digits.data, scaling, 16.0)
    y = digits.target.astype(np.int64)
    train, test = holdout(y, 0.25, seed=0, site="digits")
    names = tuple(str(value) for value in digits.target_names)
    return Dataset("digits", x[train], y[train], x[test], y[test], names, f"{_DIGITS_ORIGIN}; scaling: {scaling}")


def _part(
    file: Arrays, entry: CatalogEntry, part: str, scale: npt.NDArray[Any] | None, scaling: str
) -> tuple[Features, IntArray]:
    x, y = _array(file, f"x_{part}"), _array(file, f"y_{part}")
    expected = entry.train if part == "train" else entry.test
    if x.shape != expected or y.shape != expected[:1]:
        raise DataError(f"{file.path}: expected {entry.arrays}, got x_{part} {x.shape}, y_{part} {y.shape}")
    x = x.reshape(len(x), -1)
    if scale is not None:
        if scale.shape != x.shape[1:]:
            raise DataError(f"{file.path}: expected {entry.arrays}, got scale {scale.shape}")
        x = x * scale.astype(np.float32)
    return _scaled(x, scaling, entry.largest), y.astype(np.int64)


def _scaled(x: npt.NDArray[Any], scaling: str, largest: float | None) -> Features:
    if scaling == "tanh":
        return scale_tanh(x, largest or 1.0)
    if scaling == "times10":
        return scale_times10(x)
    if scaling == "none":
        return np.asarray(x, np.float32)
    if largest is None:
        raise InputError("scaling must be 'none', 'tanh' or 'times10' for features that are not pixels, got 'unit'")
    return scale_unit(x, largest)


def _array(file: Arrays, key: str) -> npt.NDArray[Any]:
    if key not in file:
        raise DataError(f"{file.path}: there is no array {key!r}; the arrays are {listing(file)}")
    return file[key]


def _is_here(file: str) -> bool:
    folder = data_folder()
    return folder is not None and (folder / file).is_file()


def _locate(name: str, file: str, sha256: str, verify: bool) -> Path:
    folder = data_folder()
    if folder is None or not (folder / file).is_file():
        where = "in a folder named by the environment variable KERNFED_DATA"
        if folder is not None:
            where = f"in the folder {folder}" + ("" if folder.is_dir() else f", which {_fault(folder)}")
        raise DatasetNotFoundError(
            f"the data set {name!r} needs the file {file} {where}; {describe_file(name)} with numpy.savez_compressed"
        )
    path = folder / file
    if verify:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != sha256:
            raise DataError(f"{path}: expected SHA-256 {sha256}, got {digest}")
    return path


Rows = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

#: Variance of the label noise.
NOISE = 0.2


@dataclass(frozen=True, eq=False)
class SyntheticTask:
    """Rows (X, y) by site, and test rows of the common task: x ~ N(0, I), ``y = -|1' x|`` without noise."""

    sites: dict[str, Rows]
    x_test: npt.NDArray[np.float64]
    y_test: npt.NDArray[np.float64]


def fednewton_synthetic(
    n_sites: int,
    n_per_site: int,
    alpha: float = 0.0,
    beta: float = 0.0,
    seed: int = 0,
    *,
    width: int = 10,
    n_test: int = 2500,
) -> SyntheticTask:
    """The regression task of FedNewton Section 7.

    At site j: x ~ N(u_j, I), ``y = min(-w_j' x, w_j' x) + e`` with e ~ N(0, 0.2). ``alpha`` sets the heterogeneity of
    the data, u_j ~ N(0, alpha I), and ``beta`` that of the model, w_j ~ N(1, beta I). The second argument of N is read
    as a variance everywhere, and the paper's "w_j ~ N(1, v_j), v_j ~ N(0, beta)" as w_j = 1 + v_j.

    >>> task = fednewton_synthetic(n_sites=3, n_per_site=5, alpha=0.1)
    >>> sorted(task.sites), task.sites["site 0"][0].shape, task.x_test.shape
    (['site 0', 'site 1', 'site 2'], (5, 10), (2500, 10))
    """
    digits = len(str(check_count(n_sites, "n_sites") - 1))
    count, columns = check_count(n_per_site, "n_per_site"), check_count(width, "width")
    shift, turn = (np.sqrt(check_number(v, n, at_least=0)) for v, n in ((alpha, "alpha"), (beta, "beta")))
    sites = {}
    for number in range(n_sites):
        name = f"site {number:0{digits}d}"
        draws = generator(seed, "fednewton_synthetic", name)
        mean = shift * draws.standard_normal(columns)
        weights = 1.0 + turn * draws.standard_normal(columns)
        X = mean + draws.standard_normal((count, columns))
        noise = np.sqrt(NOISE) * draws.standard_normal(count)
        sites[name] = (X, -np.abs(X @ weights) + noise)
    x_test = generator(seed, "fednewton_synthetic", "test").standard_normal((check_count(n_test, "n_test"), columns))
    return SyntheticTask(sites, x_test, -np.abs(x_test.sum(axis=1)))
