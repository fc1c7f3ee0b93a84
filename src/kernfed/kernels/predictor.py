"""What models on the features of a problem have in common: labels, probabilities and accuracy from values."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, check_rows
from kernfed.answer import Answer, answer_of_scores
from kernfed.errors import InputError
from kernfed.files import Savable
from kernfed.kernels.problem import FeatureProblem
from kernfed.kernels.simplex import project_on_simplex


class ProblemModel(Savable, ABC):
    """Base of models of one problem: what scikit-learn calls columns and classes."""

    feature_names_in_: tuple[str, ...]

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

    def _rows(self, X: npt.ArrayLike) -> FloatArray:
        return check_rows(X, width=self.n_features_in_, columns=self.feature_names_in_)


class Predictor(ProblemModel):
    """Base of models that compute values (n, q) of rows: one column per class, LARGER is better, or one to regress."""

    @abstractmethod
    def _values(self, rows: FloatArray) -> FloatArray:
        """Values (n, q) of rows (n, p) that were checked."""

    def _probabilities(self, values: FloatArray) -> FloatArray:
        return project_on_simplex(values)

    def _check_classifies(self, what: str) -> None:
        if self._solved().task != "classify":
            raise InputError(f"{what} need a model made with task='classify', this one has 'regress'; use predict")

    def _labels(self, values: FloatArray) -> npt.NDArray[Any]:
        return values[:, 0] if self._solved().task == "regress" else np.asarray(self.classes_[values.argmax(axis=1)])

    def answer(self, X: npt.ArrayLike) -> Answer:
        """Labels, probabilities and scores, or values, from one computation."""
        values = self._values(self._rows(X))
        if self._solved().task == "regress":
            return Answer(self._labels(values))
        return answer_of_scores(self.classes_, -values, self._probabilities(values))

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Values (n, q), LARGER is better."""
        return self._values(self._rows(X))

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Negative decision values (n, C): SMALLER is better, as in every classifier here."""
        self._check_classifies("decision values")
        return -self.decision_function(X)

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Probabilities (n, C): the probability vectors nearest to the decision values, which are fitted to 0 and 1."""
        self._check_classifies("probabilities")
        return self._probabilities(self.decision_function(X))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Labels, or values, (n,)."""
        return self._labels(self._values(self._rows(X)))

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Accuracy to classify, coefficient of determination R^2 to regress."""
        from sklearn.metrics import accuracy_score, r2_score  # here, for nothing else needs scikit-learn

        measure = r2_score if self._solved().task == "regress" else accuracy_score
        return float(measure(np.asarray(y), self.predict(X)))
