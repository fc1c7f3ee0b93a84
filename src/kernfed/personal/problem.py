"""What all sites of a personalised problem do alike: features of rows, targets of labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.base.plain import MOST_COLUMNS
from kernfed.kernels import FourierFeatures, column_bandwidths
from kernfed.kernels.problem import FEATURES, TASKS, FeatureProblem, fields_from_values

__all__ = ["FEATURES", "TASKS", "Problem"]


@dataclass(frozen=True)
class Problem(FeatureProblem):
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
        check_count(self.width, "width", at_most=MOST_COLUMNS)
        check_choice(self.task, "task", TASKS)
        check_choice(self.features, "features", FEATURES)
        column_bandwidths(self.bandwidth, self.width)  # features "given" need none, and the weights of sites do
        self.check_classes()

    def _fourier_features(self) -> FourierFeatures:
        """Features of rows, each row of norm 1."""
        return FourierFeatures(self.width, self.n_components, self.bandwidth, self.seed, kind="paired")

    def transform(self, X: FloatArray) -> FloatArray:
        """Features (n, M) of rows (n, p)."""
        features = self.feature_map()
        return X if features is None else features.transform(X)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return self.shared_values()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Problem":
        """Problem from ``to_values``, checked."""
        return cls(**fields_from_values(values))
