"""The sets of ``kernfed bench one-round``: what they are, how many rows are used, how rows are spread over sites."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from sklearn.datasets import load_breast_cancer

from kernfed.data import Dataset, holdout, partition_dirichlet
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.tuning import stratified
from kernfed_papers.rows import load_rows, missing_data, take_rows

_BREAST_CANCER = "breast_cancer"
#: Training rows of the largest sets, so that every method can be tuned within minutes.
_CAP = 12_000
#: Sites of one partition hold at least this many rows each, and on average ten times as many.
_LEAST_ROWS = 5


@dataclass(frozen=True)
class Spread:
    """How rows are spread over sites: by Dirichlet label skew."""

    sites: int
    alpha: float

    def fits(self, rows: int) -> bool:
        """Whether there are rows enough; with few a site of a hundred would have none of most classes."""
        return rows >= (10 * _LEAST_ROWS if self.sites > 20 else 4 * _LEAST_ROWS) * self.sites

    def parts(self, labels: IntArray, seed: int) -> list[IntArray]:
        """Row numbers of each site."""
        return list(partition_dirichlet(labels, self.sites, self.alpha, seed, min_size=_LEAST_ROWS))


SPREADS = (Spread(20, 0.5), Spread(100, 0.1))


@dataclass(frozen=True)
class BenchSet:
    """One set: its file, whether its columns are of different kinds (a table), and the cap of its training rows."""

    name: str
    table: bool
    rows: int
    cap: int | None = None


SETS = {
    one.name: one
    for one in (
        BenchSet(_BREAST_CANCER, True, 426),
        BenchSet("digits", False, 1348),
        BenchSet("dna", True, 2000),
        BenchSet("satimage", True, 4435),
        BenchSet("pendigits", True, 7494),
        BenchSet("letter", True, 15_000),
        BenchSet("shuttle", True, 43_500, _CAP),
        BenchSet("usps", False, 7291),
        BenchSet("20ng_minilm", False, 11_314),
        BenchSet("mnist", False, 60_000, _CAP),
        BenchSet("fashion_mnist", False, 60_000, _CAP),
        BenchSet("cifar10_efflite0", False, 50_000, _CAP),
    )
}


def used_rows(name: str, rows: int | None) -> int:
    """Training rows that are used: all, at most the cap of the set, or at most ``rows`` where that is given."""
    one = SETS[name]
    return min(one.rows, rows or one.cap or one.rows)


def absent(name: str) -> str:
    """Why a set cannot be loaded here, or nothing."""
    return "" if name == _BREAST_CANCER else missing_data(name)


@lru_cache(maxsize=1)
def raw_rows(name: str, rows: int) -> Dataset:
    """Rows as they are in the file, a stratified part of ``rows`` for training, the same for every seed."""
    data = _breast_cancer() if name == _BREAST_CANCER else load_rows(name, "none")
    return take_rows(data, stratified(data.y_train, rows, f"one-round {name}"))


def _breast_cancer() -> Dataset:
    """Wisconsin breast cancer, of scikit-learn; a fixed stratified quarter is the test part."""
    source = load_breast_cancer()
    x, y = source.data.astype(np.float32), source.target.astype(np.int64)
    train, test = holdout(y, 0.25, 0, site=_BREAST_CANCER)
    names = tuple(map(str, source.target_names))
    return Dataset(_BREAST_CANCER, x[train], y[train], x[test], y[test], names, "Wisconsin breast cancer")


@lru_cache(maxsize=1)
def even_rows(name: str, rows: int) -> Dataset:
    """The same rows in one unit, by statistics of the training rows, for methods that choose no unit themselves.

    Columns of a table are each brought to mean 0 and standard deviation 1, entries of images and embeddings together to
    root mean square 1.
    """
    data = raw_rows(name, rows)
    x = data.x_train.astype(np.float64)
    if SETS[name].table:
        spread = x.std(axis=0)
        centre, scale = x.mean(axis=0), np.where(spread > 0, spread, 1.0)
    else:
        centre, scale = np.zeros(x.shape[1]), np.full(x.shape[1], np.sqrt((x**2).mean()))
    return replace(data, x_train=_scaled(data.x_train, centre, scale), x_test=_scaled(data.x_test, centre, scale))


def _scaled(x: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    return ((x - centre) / scale).astype(np.float32)


def site_parts(data: Dataset, spread: Spread, seed: int) -> Mapping[str, IntArray]:
    """Row numbers of each site, by name."""
    parts = spread.parts(data.y_train, seed)
    return {f"site {number:03d}": part for number, part in enumerate(parts)}
