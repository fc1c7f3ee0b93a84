"""Problems that are solved on features of rows, and the models of such problems."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.answer import Answer, answer_of_scores
from kernfed.base.checks import FloatArray, IntArray, check_rows
from kernfed.base.labels import ClassIndex
from kernfed.base.model import Model
from kernfed.base.prior import Prior, check_prior, log_ratio
from kernfed.data.preparation import Preparation, prepared_rows
from kernfed.errors import InputError
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.head import Head

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

    @abstractmethod
    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""

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


def project_on_simplex(rows: FloatArray) -> FloatArray:
    """The nearest points of the simplex to rows (n, C), in the Euclidean distance (Held, Wolfe and Crowder 1974).

    >>> project_on_simplex(np.array([[0.6, 0.2, 0.0], [3.0, 0.0, 0.0]])).round(3).tolist()
    [[0.667, 0.267, 0.067], [1.0, 0.0, 0.0]]
    """
    ordered = -np.sort(-rows, axis=1)
    excess = (ordered.cumsum(axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    support = (ordered > excess).sum(axis=1)
    shift = np.take_along_axis(excess, support[:, None] - 1, axis=1)
    return np.asarray(np.maximum(rows - shift, 0.0))


class ProblemModel(Model):
    """Base of models of one problem: what scikit-learn calls columns and classes."""

    feature_names_in_: tuple[str, ...]
    #: What becomes of raw columns, where the sites had a table of them; rows may then be such tables.
    preparation: Preparation | None

    @abstractmethod
    def _solved(self) -> FeatureProblem:
        """The problem that the model solves."""

    @property
    def n_features_in_(self) -> int:
        """Columns of X."""
        return self._solved().width

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels (C,) in the order of the columns; empty to regress."""
        return self._solved().labels

    @property
    def mapped_features(self) -> int:
        """Number of features M of the problem."""
        return self._solved().n_features

    def settings(self) -> Mapping[str, Any]:
        """The problem, as plain values."""
        return self._solved().to_values()

    def _rows(self, X: npt.ArrayLike) -> FloatArray:
        rows = prepared_rows(self.preparation, X)
        return check_rows(rows, width=self.n_features_in_, columns=self.feature_names_in_)


class Predictor(ProblemModel):
    """Base of models that compute values (n, q) of rows: one column per class, LARGER is better, or one to regress.

    ``prior`` (argument of what answers, and stored): the shares of classes where the model is used, "training",
    "uniform" or a share for every class. Values v with a temperature T become ``v + T log(pi'_c / pi_c)``, whose
    softmax over T is the probability; without one the nearest probabilities are multiplied by ``pi'_c / pi_c``. pi are
    the shares that the values are made for: those in training, weighed as the rows were.
    """

    prior: Prior

    @abstractmethod
    def _values(self, rows: FloatArray) -> FloatArray:
        """Values (n, q) of rows (n, p) that were checked."""

    @property
    def _temperature(self) -> float | None:
        """T that makes ``softmax(values / T)`` probabilities; None where there is none."""
        return None

    @property
    def _bounds(self) -> tuple[float, float] | None:
        """What values to regress are clipped to, (low, high); None where they are not clipped."""
        return None

    def _training_shares(self) -> FloatArray | None:
        """Shares (C,) of classes in training, None where they are not known."""
        return None

    def _made_for(self) -> FloatArray | None:
        """Shares (C,) of classes that the values are for; None where these are those in training."""
        return None

    def shift(self, prior: Prior) -> FloatArray | None:
        """``log(pi'_c / pi_c)`` (C,) from the shares that values are for to a checked ``prior``; None for no move."""
        training, made = self._training_shares(), self._made_for()
        return log_ratio(prior, self.classes_, made=training if made is None else made, training=training)

    def _probabilities(self, values: FloatArray) -> FloatArray:
        if self._temperature is None:
            return project_on_simplex(values)
        raised = np.exp((values - values.max(axis=1, keepdims=True)) / self._temperature)
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def _check_classifies(self, what: str) -> None:
        if self._solved().task != "classify":
            raise InputError(f"{what} need a model made with task='classify', this one has 'regress'; use predict")

    def _labels(self, values: FloatArray) -> npt.NDArray[Any]:
        """Labels (n,) of the largest values (n, C), or values (n,) to regress within their bounds."""
        if self._solved().task == "classify":
            return np.asarray(self.classes_[values.argmax(axis=1)])
        return values[:, 0] if self._bounds is None else np.asarray(np.clip(values[:, 0], *self._bounds))

    def _adjusted(self, values: FloatArray, prior: Prior) -> FloatArray:
        """Values for the shares of a ``prior``; without one, for those of the model."""
        if self._solved().task != "classify":
            if prior is not None:
                raise InputError(f"prior is for a model made with task='classify', got {prior!r}")
            return values
        asked = self.prior if prior is None else check_prior(prior, self.classes_)
        shift = self.shift(asked)
        if shift is None:
            return values
        if self._temperature is not None:
            return np.asarray(values + self._temperature * shift)
        likely = self._probabilities(values) * np.exp(shift - shift.max())
        total = likely.sum(axis=1, keepdims=True)
        return np.asarray(likely / np.where(total > 0, total, 1.0))

    def _head(self) -> Head:
        """The values as a linear map on features, for the prior of the model; refused where they are none."""
        raise InputError(f"a {type(self).__name__} has no linear head, which is what ONNX files are made of")

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write what the model computes of (prepared) rows as an ONNX file; see ``kernfed.kernels.head``.

        Needs the extra ``[onnx]``. Probabilities and labels are those for the model's own ``prior``.
        """
        columns = self.feature_names_in_ if self.preparation is None else self.preparation.columns
        self._head().to_onnx(path, columns)

    def _made_head(self, weights: FloatArray, offset: FloatArray, features: FourierFeatures | None) -> Head:
        """Head of values ``phi weights + offset``, with the labels and the prior of this model."""
        if self._solved().task != "classify":
            return Head(weights, offset, features, bounds=self._bounds)
        shift, T = self.shift(self.prior), self._temperature
        if T is not None and shift is not None:
            return Head(weights, offset + T * shift, features, None, self.classes_, T)
        factors = None if shift is None else np.exp(shift - shift.max())
        return Head(weights, offset, features, None, self.classes_, T, factors)

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None) -> Answer:
        """Labels, probabilities and scores, or values, from one computation."""
        values = self._adjusted(self._values(self._rows(X)), prior)
        if self._solved().task == "regress":
            return Answer(self._labels(values))
        return answer_of_scores(self.classes_, -values, self._probabilities(values))

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Values (n, q), LARGER is better, for the shares of classes that they are made for."""
        return self._values(self._rows(X))

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Negative decision values (n, C): SMALLER is better, as in every classifier here."""
        self._check_classifies("decision values")
        return -self.decision_function(X)

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None) -> FloatArray:
        """Probabilities (n, C): softmax of the values over the temperature, or the probability vectors nearest to them.

        Values are fitted to 0 and 1; see the class for ``prior``.
        """
        self._check_classifies("probabilities")
        return self.probabilities_of(self.decision_function(X), prior)

    def probabilities_of(self, values: FloatArray, prior: Prior = None) -> FloatArray:
        """Probabilities (n, C) of decision values (n, C), for the shares of a ``prior``; see the class."""
        return self._probabilities(self._adjusted(values, prior))

    def predict(self, X: npt.ArrayLike, *, prior: Prior = None) -> npt.NDArray[Any]:
        """Labels, or values, (n,); see the class for ``prior``."""
        return self._labels(self._adjusted(self._values(self._rows(X)), prior))
