"""What all problems that are solved on features have in common: features of rows, targets of labels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, IntArray
from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kernels.fourier import FourierFeatures

FEATURES = ("fourier", "given")
TASKS = ("classify", "regress")


class FeatureProblem(ABC):
    """Base of dataclasses with these fields.

    width : columns p. features : "fourier", random Fourier features made from ``seed`` (so no frequency travels), or
    "given", the columns. classes : sorted labels for "classify", () for "regress".
    """

    width: int
    features: str
    n_components: int
    bandwidth: float | tuple[float, ...]
    seed: int
    task: str
    classes: tuple[Any, ...]

    @property
    def n_features(self) -> int:
        """Number of features M."""
        return self.width if self.features == "given" else self.n_components

    @property
    def n_targets(self) -> int:
        """Number of target columns: one per class, or 1."""
        return len(self.classes) if self.task == "classify" else 1

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Labels (C,) in sorted order; empty for "regress"."""
        return np.array(self.classes)

    def feature_map(self) -> FourierFeatures | None:
        """Features of rows; None where the columns are the features.

        The same object at every call, so that its frequencies (p, M) are drawn once per problem and stay in memory as
        long as the problem does.
        """
        return self._feature_map

    @cached_property
    def _feature_map(self) -> FourierFeatures | None:
        return None if self.features == "given" else self._fourier_features()

    @abstractmethod
    def _fourier_features(self) -> FourierFeatures:
        """The map of a problem with features "fourier"."""

    def numbers(self, y: npt.NDArray[Any]) -> IntArray:
        """Class numbers (n,) of labels."""
        return ClassIndex(self.classes).numbers(y)

    def targets(self, y: npt.NDArray[Any]) -> FloatArray:
        """Targets (n, C): 1 in the column of the label and 0 elsewhere, or the values themselves as one column.

        -1 in place of 0 moves all scores of a row alike, so predictions are the same.
        """
        if self.task == "regress":
            return np.asarray(y, dtype=np.float64)[:, None]
        hot = np.zeros((len(y), self.n_targets))
        hot[np.arange(len(y)), self.numbers(y)] = 1.0
        return hot

    def shared_values(self) -> dict[str, Any]:
        """The fields named above as plain values for messages and files."""
        return {
            "width": self.width,
            "features": self.features,
            "n_components": self.n_components,
            "bandwidth": list(self.bandwidth) if isinstance(self.bandwidth, tuple) else self.bandwidth,
            "seed": self.seed,
            "task": self.task,
            "classes": labels_to_values(self.labels) if self.classes else None,
        }

    def check_classes(self) -> None:
        """Refuse classes that do not belong to the task, and bandwidths and seeds that make no features."""
        if (self.task == "classify") != bool(self.classes) or sorted(set(self.classes)) != list(self.classes):
            raise InputError(f"classes must be sorted labels to classify and absent to regress, got {self.classes[:5]}")
        self.feature_map()  # checks the bandwidth, the number of features and the seed


def fields_from_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields from ``shared_values`` and whatever else is there: classes and bandwidths are tuples again."""
    labels, bandwidth = values["classes"], values["bandwidth"]
    return {
        **values,
        "classes": () if labels is None else tuple(labels_from_values(labels).tolist()),
        "bandwidth": tuple(bandwidth) if isinstance(bandwidth, list) else bandwidth,
    }
