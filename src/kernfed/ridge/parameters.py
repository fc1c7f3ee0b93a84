"""What all sites of a ridge regression do alike: features, targets, weights of classes, regularisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.plain import MOST_COLUMNS
from kernfed.errors import InputError
from kernfed.kernels.fourier import FourierFeatures
from kernfed.kernels.problem import FEATURES, TASKS, FeatureProblem, fields_from_values

__all__ = ["FEATURES", "TASKS", "RidgeParameters", "check_flag", "check_path"]


@dataclass(frozen=True)
class RidgeParameters(FeatureProblem):
    """The problem, the same at every site.

    features : "fourier", random Fourier features made from ``seed`` (so no frequency travels), or "given", the columns
    classes : sorted labels for "classify", () for "regress"; class_weights : weight of a row by class, None for 1
    regularization : lambda, or several to choose from
    fit_intercept : a constant that is not penalised
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
    fit_intercept: bool = False

    def _fourier_features(self) -> FourierFeatures:
        """Features of rows, scaled by 1/sqrt(M) as FedNewton has them."""
        return FourierFeatures(self.width, self.n_components, self.bandwidth, self.seed, scale="half")

    def row_weights(self, y: npt.NDArray[Any]) -> FloatArray | None:
        """Weight of every row (n,), or None if all are 1."""
        if self.class_weights is None:
            return None
        return np.asarray(self.class_weights)[self.numbers(y)]

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {
            **self.shared_values(),
            "class_weights": None if self.class_weights is None else list(self.class_weights),
            "regularization": list(self.regularization),
            # Only where there is one: what sites and files keep of problems without has no such entry.
            **({"fit_intercept": True} if self.fit_intercept else {}),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RidgeParameters":
        """Parameters from ``to_values``, checked. Files of version 0.1 have ``intercept`` for ``fit_intercept``."""
        fields = fields_from_values(values)
        weights, bandwidth = fields["class_weights"], fields["bandwidth"]
        intercept = values.get("fit_intercept", values.get("intercept", False))
        parameters = cls(
            width=check_count(fields["width"], "width", at_most=MOST_COLUMNS),
            features=check_choice(fields["features"], "features", FEATURES),
            n_components=check_count(fields["n_components"], "n_components"),
            bandwidth=bandwidth if isinstance(bandwidth, tuple) else check_number(bandwidth, "bandwidth"),
            seed=check_count(fields["seed"], "seed", at_least=0),
            task=check_choice(fields["task"], "task", TASKS),
            classes=fields["classes"],
            class_weights=None if weights is None else tuple(check_number(w, "weight", above=0) for w in weights),
            regularization=check_path(fields["regularization"]),
            fit_intercept=check_flag(intercept, "fit_intercept"),
        )
        parameters.check_classes()
        if weights is not None and len(weights) != len(parameters.classes):
            raise InputError(f"class_weights must be one per class, got {len(weights)} for {len(parameters.classes)}")
        return parameters


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
