"""Rows of a site: features, labels and ids, checked once when the site gets them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, check_rows
from kernfed.errors import InputError


@dataclass(frozen=True)
class Rows:
    """Rows of a site: X (n, p), labels y (n,), ids (n,) that are never given to another row."""

    X: FloatArray
    y: npt.NDArray[Any]
    ids: npt.NDArray[np.int64]

    def take(self, chosen: npt.NDArray[Any]) -> "Rows":
        """The chosen rows, by mask or position."""
        return Rows(self.X[chosen], self.y[chosen], self.ids[chosen])

    @cached_property
    def digest(self) -> str:
        """Fingerprint of rows, labels and ids, in their order."""
        labels = "\n".join(map(repr, self.y.tolist())).encode()
        parts = (np.ascontiguousarray(self.X), np.ascontiguousarray(self.ids), np.frombuffer(labels, dtype=np.uint8))
        whole = hashlib.sha256()
        for part in parts:
            whole.update(str((part.dtype.str, part.shape)).encode())
            whole.update(part.tobytes())
        return whole.hexdigest()[:16]


def check_site_rows(X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None, name: str) -> Rows:
    """Rows of a site from hostile input; without ids they are numbered from 0."""
    rows = check_rows(X, f"X of site {name!r}")
    labels = np.asarray(y)
    if labels.shape != (len(rows),):
        raise InputError(
            f"y of site {name!r} must have one label per row, got shape {labels.shape} for {len(rows)} rows"
        )
    if labels.dtype.kind == "O":
        labels = _plain_labels(labels, name)
    if labels.dtype.kind not in "biufU":
        raise InputError(f"y of site {name!r} must be numbers, booleans or text, got dtype {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError(f"y of site {name!r} must be finite; drop rows without a label")
    numbers = np.arange(len(rows), dtype=np.int64) if ids is None else np.asarray(ids)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(rows),) or len(np.unique(numbers)) != len(rows):
        raise InputError(f"ids of site {name!r} must be {len(rows)} different integers")
    return Rows(rows, labels, numbers.astype(np.int64))


def _plain_labels(labels: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Labels out of an array of Python objects, as tables give them."""
    truths = sum(isinstance(label, (bool, np.bool_)) for label in labels)
    texts, numbers = (all(isinstance(label, kind) for label in labels) for kind in (str, (Real, np.bool_)))
    if not (texts or numbers) or truths not in (0, len(labels)):
        kinds = sorted({type(label).__name__ for label in labels})
        raise InputError(f"y of site {name!r} must be all text, all numbers or all booleans, got {', '.join(kinds)}")
    return np.array(labels.tolist())
