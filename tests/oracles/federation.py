"""Naive twins of what a federation computes, data for its tests, and the search for a row in files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.kahm.choice import split_rows
from kernfed.kahm.compose import KAHM
from kernfed.kahm.folding import ABSENT

#: The settings of SFM, which were the default once.
SFM: dict[str, Any] = {"measure": "rms", "batch_size": 100, "partition": "order", "scale": None}


Array = npt.NDArray[Any]
Data = dict[str, tuple[Array, Array]]


def sites_data(
    rng: np.random.Generator,
    names: Iterable[str] = "abc",
    *,
    rows: int = 40,
    width: int = 5,
    labels: Iterable[Any] = (0, 1, 2),
) -> Data:
    """Overlapping Gaussian classes at every site; each site has every class."""
    kinds = np.array(list(labels))
    centres = 2.0 * np.random.default_rng(5).standard_normal((len(kinds), width))
    data = {}
    for name in names:
        y = np.resize(np.arange(len(kinds)), rows)
        rng.shuffle(y)
        data[name] = (centres[y] + rng.standard_normal((rows, width)), kinds[y])
    return data


def combined(scores: Array, holds: Array, aggregate: str, k: int, absent: float) -> Array:
    """Loop over queries and classes: the smallest, or the k-th smallest, among the sites that hold the class."""
    sites, queries, classes = scores.shape
    result = np.full((queries, classes), absent)
    for query in range(queries):
        for column in range(classes):
            found = sorted(float(scores[site, query, column]) for site in range(sites) if holds[site, column])
            if found:
                place = 0 if aggregate == "min" else min(k, len(found)) - 1
                result[query, column] = found[place]
    return result


def scores_by_hand(data: Mapping[str, tuple[Array, Array]], queries: Array, measure: str, batch_size: int) -> Array:
    """Scores (n, C): the smallest measure over KAHMs fitted one by one on every batch of every site, in order."""
    classes = sorted({label for _, y in data.values() for label in y.tolist()})
    result = np.full((len(queries), len(classes)), ABSENT[measure])
    for X, y in data.values():
        for column, label in enumerate(classes):
            own = X[y == label]
            if not len(own):
                continue
            for part in split_rows(own, batch_size, "order", np.random.default_rng(0)):
                found = KAHM(scale=None).fit(own[part]).folding(queries, measure)
                result[:, column] = np.minimum(result[:, column], found)
    return result


def files_with_row(folder: Path, row: Array) -> list[Path]:
    """Files under ``folder`` (or the file itself) that hold a number of the row, or all of it in single precision."""
    numbers = [np.float64(value).tobytes() for value in row]
    single = np.asarray(row, dtype=np.float32).tobytes()
    places = [folder] if folder.is_file() else sorted(place for place in folder.rglob("*") if place.is_file())
    found = []
    for place in places:
        content = place.read_bytes()
        if single in content or any(number in content for number in numbers):
            found.append(place)
    return found
