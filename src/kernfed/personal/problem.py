"""What all sites of a personalised problem do alike: features of rows, targets of labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, IntArray, check_choice, check_count, class_numbers
from kernfed.errors import InputError
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kernels import FourierFeatures, column_bandwidths

FEATURES = ("given", "fourier")
TASKS = ("classify", "regress")


@dataclass(frozen=True)
class Problem:
    """Columns, features, task and classes.

    features : "given", the columns of X, or "fourier", random Fourier features in pairs of cosine and sine, made from
    ``seed`` with ``n_components`` (even) and ``bandwidth``. classes : sorted labels to classify, () to regress.
    """

    width: int
    task: str = "regress"
    classes: tuple[Any, ...] = ()
    features: str = "given"
    n_components: int = 200
    bandwidth: float | tuple[float, ...] = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.width, "width")
        check_choice(self.task, "task", TASKS)
        check_choice(self.features, "features", FEATURES)
        if (self.task == "classify") != bool(self.classes) or sorted(set(self.classes)) != list(self.classes):
            raise InputError(f"classes must be sorted labels to classify and absent to regress, got {self.classes[:5]}")
        column_bandwidths(self.bandwidth, self.width)
        self.feature_map()  # checks the number of features and the seed

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.width if self.features == "given" else self.n_components

    @property
    def n_targets(self) -> int:
        """Target columns: one per class, or 1."""
        return len(self.classes) if self.task == "classify" else 1

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Labels (C,) in sorted order; empty to regress."""
        return np.array(self.classes)

    def feature_map(self) -> FourierFeatures | None:
        """Features of rows, each row of norm 1; None where the columns are the features."""
        if self.features == "given":
            return None
        return FourierFeatures(self.width, self.n_components, self.bandwidth, self.seed, kind="paired")

    def transform(self, X: FloatArray) -> FloatArray:
        """Features (n, M) of rows (n, p)."""
        features = self.feature_map()
        return X if features is None else features.transform(X)

    def numbers(self, y: npt.NDArray[Any]) -> IntArray:
        """Class numbers (n,) of labels."""
        return class_numbers(y, self.labels)

    def targets(self, y: npt.NDArray[Any]) -> FloatArray:
        """Targets (n, q): 1 in the column of the label and 0 elsewhere, or the values as one column."""
        if self.task == "regress":
            return np.asarray(y, dtype=np.float64)[:, None]
        return np.eye(self.n_targets)[self.numbers(y)]

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {
            "width": self.width,
            "task": self.task,
            "features": self.features,
            "n_components": self.n_components,
            "bandwidth": list(self.bandwidth) if isinstance(self.bandwidth, tuple) else self.bandwidth,
            "seed": self.seed,
            "classes": labels_to_values(self.labels) if self.classes else None,
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Problem":
        """Problem from ``to_values``, checked."""
        found = dict(values)
        labels = found.pop("classes")
        bandwidth = found.pop("bandwidth")
        classes = () if labels is None else tuple(labels_from_values(labels).tolist())
        return cls(classes=classes, bandwidth=tuple(bandwidth) if isinstance(bandwidth, list) else bandwidth, **found)
