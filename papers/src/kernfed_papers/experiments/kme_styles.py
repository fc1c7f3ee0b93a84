"""Federations of real rows in which every site has its style: of writing, or of a domain."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.data import holdout, load_dataset, load_domains
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.draws import generator
from kernfed_papers.rows import load_groups, load_rows

Rows = tuple[FloatArray, IntArray]


@dataclass(frozen=True, eq=False)
class Styles:
    """Training and test rows by site, and each site's true style (B,), where it is known."""

    sites: tuple[Rows, ...]
    tests: tuple[Rows, ...]
    n_classes: int
    styles: npt.NDArray[np.intp] | None


def digits_by_origin(seed: int, repetition: int, n_sites: int = 50, n_test: int = 80) -> Styles:
    """USPS at half of the sites and MNIST at the others, 20 to 60 training rows each, all of 16 x 16 pixels."""
    usps, mnist = (load_dataset(name, scaling="unit") for name in ("usps", "mnist"))
    draws = generator(seed, "kme digits by origin", str(repetition))
    half = n_sites // 2
    sites: list[Rows] = []
    tests: list[Rows] = []
    for data, reduced in ((usps, False), (mnist, True)):
        sizes = draws.integers(20, 61, size=half)
        train = np.split(draws.permutation(len(data.y_train))[: sizes.sum()], np.cumsum(sizes)[:-1])
        test = draws.permutation(len(data.y_test))[: half * n_test].reshape(half, n_test)
        for rows, held in zip(train, test, strict=True):
            x, x_test = data.x_train[rows], data.x_test[held]
            sites.append((reduce_pixels(x) if reduced else x, data.y_train[rows]))
            tests.append((reduce_pixels(x_test) if reduced else x_test, data.y_test[held]))
    return Styles(tuple(sites), tuple(tests), 10, np.repeat([0, 1], half))


def reduce_pixels(images: FloatArray, side: int = 28, new: int = 16) -> FloatArray:
    """Images (n, side^2) as (n, new^2): each new pixel is the mean over the area it covers."""
    edges = np.arange(new + 1) * side / new
    old = np.arange(side)
    cover = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    share = np.maximum(cover, 0) * new / side
    squares = images.reshape(-1, side, side)
    return np.asarray((share @ squares @ share.T).reshape(len(images), new * new), dtype=np.float32)


#: Sites of each domain of Office-Caltech-10, so that a site with 20 training rows has test rows of its own.
_DOMAIN_SITES = {"amazon": 12, "caltech10": 12, "webcam": 6, "dslr": 3}


def domains_by_site(seed: int, repetition: int, scale: int = 1, n_train: int = 20) -> Styles:
    """Office-Caltech-10 domains (tanh of EfficientNet-Lite0 features) over 33 sites, or fewer by a ``scale``."""
    domains = load_domains(scaling="tanh").domains
    draws = generator(seed, "kme domains", str(repetition))
    sites: list[Rows] = []
    tests: list[Rows] = []
    styles: list[int] = []
    for style, (domain, wanted) in enumerate(_DOMAIN_SITES.items()):
        x, y = domains[domain]
        count = wanted // scale
        order = draws.permutation(len(y))
        train, held = order[: count * n_train].reshape(count, n_train), np.array_split(order[count * n_train :], count)
        sites += [(x[rows], y[rows]) for rows in train]
        tests += [(x[rows], y[rows]) for rows in held]
        styles += [style] * count
    return Styles(tuple(sites), tuple(tests), 10, np.array(styles))


def writers(name: str, seed: int, repetition: int, n_sites: int = 192) -> Styles:
    """The first writers of a data set with ``group_train``; a fifth of each one's rows are kept for testing."""
    data, groups = load_rows(name, "none"), load_groups(name)
    parts = [np.flatnonzero(groups == writer) for writer in np.unique(groups)[:n_sites]]
    splits = [
        holdout(data.y_train, 0.2, seed + repetition, indices=rows, site=str(number))
        for number, rows in enumerate(parts)
    ]
    sites, tests = (_taken(data.x_train, data.y_train, [split[part] for split in splits]) for part in (0, 1))
    return Styles(sites, tests, int(data.y_train.max()) + 1, None)


def _taken(x: FloatArray, y: IntArray, parts: Sequence[IntArray]) -> tuple[Rows, ...]:
    return tuple((x[rows], y[rows]) for rows in parts)
