"""What all sites of a ridge regression do alike: features, targets, weights of classes, regularisation.

How a fit chose what it was not given, for whoever reads the model or fits it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.plain import MOST_COLUMNS
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.predictor import FEATURES, TASKS, FeatureProblem, fields_from_values

#: Fourier features of a head: at most twice the rows, within these bounds.
_FEWEST_COMPONENTS, _MOST_COMPONENTS = 250, 2000
#: Ways to put sites' sums together.
AGGREGATES = ("sum", "median")
#: By whom a number was chosen: who asked for the fit, exact leave-one-out over all rows, leave-one-out of the sites'
#: averages (methods in rounds), or from the sums alone, ``tr(C) / n_eff``.
REGULARIZED = ("given", "left out", "averages left out", "sums")
#: The bandwidth: given, the median distance of rows, or by leave-one-out on fewer features.
WIDTHS = ("given", "median", "left out")
#: What columns are divided by: nothing but one unit, or each its own spread.
SCALED = ("entries", "columns")


@dataclass(frozen=True)
class RidgeChoices:
    """How regularisation, bandwidth and scale were chosen.

    errors : of rows that are predicted without themselves, by candidate of the regularisation, the mean negative
    log-likelihood of their labels at the best temperature, which decides, and the share given another label; empty to
    regress, where the squared error decides. widths : of the bandwidths that were tried, as (scale, multiple of the
    median distance), with the loss that decides. balanced : whether weights of classes are "balanced", so that they
    follow their rows. exchanges : of the whole fit, the survey included. aggregate : how sites' sums were put together,
    and under "median" holders : how many sites hold every class.
    """

    regularization: str = "given"
    bandwidth: str = "given"
    scale: str = "entries"
    errors: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    widths: Mapping[tuple[str, float], float] = field(default_factory=dict)
    balanced: bool = False
    exchanges: int = 0
    aggregate: str = "sum"
    holders: tuple[int, ...] = ()

    def to_values(self) -> dict[str, Any]:
        """Plain values for files."""
        return {
            "regularization": self.regularization,
            "bandwidth": self.bandwidth,
            "scale": self.scale,
            "errors": [[candidate, *pair] for candidate, pair in self.errors.items()],
            "widths": [[scale, width, error] for (scale, width), error in self.widths.items()],
            "balanced": self.balanced,
            "exchanges": self.exchanges,
            # Only where it is not the sum: files of sums are what they were.
            **({} if self.aggregate == "sum" else {"aggregate": self.aggregate, "holders": list(self.holders)}),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RidgeChoices":
        """Choices from ``to_values``, checked."""
        if not isinstance(values["balanced"], bool):
            raise InputError(f"balanced must be True or False, got {values['balanced']!r:.60}")
        return cls(
            check_choice(values["regularization"], "regularization", REGULARIZED),
            check_choice(values["bandwidth"], "bandwidth", WIDTHS),
            check_choice(values["scale"], "scale", SCALED),
            {
                check_number(c, "candidate"): (check_number(loss, "loss"), check_number(wrong, "error"))
                for c, loss, wrong in values["errors"]
            },
            {
                (check_choice(scale, "scale", SCALED), check_number(width, "width")): check_number(error, "error")
                for scale, width, error in values["widths"]
            },
            values["balanced"],
            check_count(values["exchanges"], "exchanges", at_least=0),
            check_choice(values.get("aggregate", "sum"), "aggregate", AGGREGATES),
            tuple(check_count(count, "holders") for count in values.get("holders", ())),
        )


__all__ = ["FEATURES", "TASKS", "RidgeParameters", "balanced_weights", "check_flag", "check_path", "fourier_components"]


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


def fourier_components(rows: int) -> int:
    """Number of Fourier features for so many rows of all sites, where it is "auto"."""
    return min(_MOST_COMPONENTS, max(_FEWEST_COMPONENTS, 2 * rows))


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """Weight of a row by class (C,): every class has the same mass, and all rows a mean weight of 1."""
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


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
