"""What all sites of a ridge regression do alike: features, targets, weights of classes, regularisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, check_choice, check_count, check_number, class_numbers
from kernfed.errors import InputError
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kernels.fourier import FourierFeatures

FEATURES = ("fourier", "given")
TASKS = ("classify", "regress")


@dataclass(frozen=True)
class RidgeParameters:
    """The problem, the same at every site.

    features : "fourier", random Fourier features made from ``seed`` (so no frequency travels), or "given", the columns
    classes : sorted labels for "classify", () for "regress"; class_weights : weight of a row by class, None for 1
    regularization : lambda, or several to choose from
    intercept : a constant that is not penalised
    """

    width: int
    features: str = "fourier"
    n_components: int = 2000
    bandwidth: float | tuple[float, ...] = 1.0
    seed: int = 0
    task: str = "classify"
    classes: tuple[Any, ...] = ()
    class_weights: tuple[float, ...] | None = None
    regularization: tuple[float, ...] = (1e-3,)
    intercept: bool = False

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
        """Features of rows, scaled by 1/sqrt(M) as FedNewton has them; None where the columns are the features."""
        if self.features == "given":
            return None
        return FourierFeatures(self.width, self.n_components, self.bandwidth, self.seed, scale="half")

    def targets(self, y: npt.NDArray[Any]) -> FloatArray:
        """Targets (n, C): 1 in the column of the label and 0 elsewhere, or the values themselves as one column.

        -1 in place of 0 moves all scores of a row alike, so predictions are the same.
        """
        if self.task == "regress":
            return np.asarray(y, dtype=np.float64)[:, None]
        hot = np.zeros((len(y), self.n_targets))
        hot[np.arange(len(y)), class_numbers(y, self.labels)] = 1.0
        return hot

    def row_weights(self, y: npt.NDArray[Any]) -> FloatArray | None:
        """Weight of every row (n,), or None if all are 1."""
        if self.class_weights is None:
            return None
        return np.asarray(self.class_weights)[class_numbers(y, self.labels)]

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {
            "width": self.width,
            "features": self.features,
            "n_components": self.n_components,
            "bandwidth": list(self.bandwidth) if isinstance(self.bandwidth, tuple) else self.bandwidth,
            "seed": self.seed,
            "task": self.task,
            "classes": labels_to_values(self.labels) if self.classes else None,
            "class_weights": None if self.class_weights is None else list(self.class_weights),
            "regularization": list(self.regularization),
            # Only where there is one: what sites and files keep of problems without has no such entry.
            **({"intercept": True} if self.intercept else {}),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RidgeParameters":
        """Parameters from ``to_values``, checked."""
        classes = () if values["classes"] is None else tuple(labels_from_values(values["classes"]).tolist())
        weights, bandwidth = values["class_weights"], values["bandwidth"]
        found = cls(
            width=check_count(values["width"], "width"),
            features=check_choice(values["features"], "features", FEATURES),
            n_components=check_count(values["n_components"], "n_components"),
            bandwidth=tuple(bandwidth) if isinstance(bandwidth, list) else check_number(bandwidth, "bandwidth"),
            seed=check_count(values["seed"], "seed", at_least=0),
            task=check_choice(values["task"], "task", TASKS),
            classes=classes,
            class_weights=None if weights is None else tuple(check_number(w, "weight", above=0) for w in weights),
            regularization=check_path(values["regularization"]),
            intercept=check_flag(values.get("intercept", False), "intercept"),
        )
        if (found.task == "classify") != bool(classes) or sorted(set(classes)) != list(classes):
            raise InputError(f"classes must be sorted labels to classify and absent to regress, got {classes[:5]}")
        if found.class_weights is not None and len(found.class_weights) != len(classes):
            raise InputError(f"class_weights must be one per class, got {len(found.class_weights)} for {len(classes)}")
        found.feature_map()  # checks the bandwidth
        return found


def check_flag(value: Any, name: str) -> bool:
    """True or False, and nothing that only counts as one."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_path(regularization: Any) -> tuple[float, ...]:
    """One regularisation or several different ones, each at least 0."""
    many = isinstance(regularization, (list, tuple, np.ndarray))
    path = tuple(
        check_number(value, "regularization", at_least=0) for value in (regularization if many else [regularization])
    )
    if not path or len(set(path)) != len(path):
        raise InputError(f"regularization must be a number or different numbers to choose from, got {regularization!r}")
    return path
