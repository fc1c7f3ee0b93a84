"""Every learner of the package passes the contract of learners."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import Ridge

import kernfed as kf
from contracts.learners import Answers, LearnerContract


class TestFolding(LearnerContract):
    wrong = ("partition", "alphabet")
    grid = ("batch_size", (5, 1000))

    def learner(self) -> Any:
        return kf.FoldingLearner(
            "distance", batch_size=1000, partition="order", scale=None
        )  # one machine a class: no division to keep

    def answers(self, model: Any, X: npt.NDArray[Any]) -> Answers:
        return np.asarray(model.scores(X))

    def pooled(self, X: npt.NDArray[Any], y: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Answers:
        return kf.KAHMClassifier("distance", batch_size=1000, partition="order", scale=None).fit(X, y).scores(queries)


class TestFoldingMachines(TestFolding):
    def learner(self) -> Any:
        return kf.FoldingLearner("distance", batch_size=1000, hold="machines", partition="order", scale=None)


class _Ridge(LearnerContract):
    wrong = ("class_weight", "heavy")
    grid = ("regularization", (1e-3, 1.0))
    tolerance = 1e-8

    def answers(self, model: Any, X: npt.NDArray[Any]) -> Answers:
        return np.asarray(model.decision_function(X))

    def pooled(self, X: npt.NDArray[Any], y: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Answers:
        targets = (y[:, None] == np.unique(y)).astype(float)
        return np.asarray(Ridge(alpha=0.01 * len(y)).fit(X, targets).predict(queries))


class TestRidgeExact(_Ridge):
    def learner(self) -> Any:
        return kf.RidgeLearner("exact", features="given", regularization=0.01)


class TestRidgeConjugate(_Ridge):
    def learner(self) -> Any:
        return kf.RidgeLearner("conjugate", rounds=40, features="given", regularization=0.01)


class TestPersonal(LearnerContract):
    wrong = ("features", "some")
    grid = ("max_groups", (1, 8))
    tolerance = 1e-8

    def learner(self) -> Any:
        return kf.PersonalLearner("local", regularization=0.01)

    def answers(self, model: Any, X: npt.NDArray[Any]) -> Answers:
        return np.stack([model.for_site(site).decision_function(X) for site in model.sites])

    def pooled(self, X: npt.NDArray[Any], y: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Answers:
        targets = (y[:, None] == np.unique(y)).astype(float)
        return np.asarray(Ridge(alpha=0.01 * len(y)).fit(X, targets).predict(queries))[None]


class TestFusion(LearnerContract):
    """Machines and a head with a given weight, so that nothing but the parts decides."""

    wrong = ("visit", "never")
    grid = ("weight", (0.5, 2.0))
    tolerance = 1e-8

    def learner(self) -> Any:
        head = kf.RidgeLearner("exact", features="given", regularization=0.01)
        return kf.FusionLearner(
            kf.FoldingLearner("distance", batch_size=1000, partition="order", scale=None), head, weight=1.0
        )

    def answers(self, model: Any, X: npt.NDArray[Any]) -> Answers:
        return np.asarray(model.scores(X))

    def pooled(self, X: npt.NDArray[Any], y: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Answers:
        targets = (y[:, None] == np.unique(y)).astype(float)
        values = np.asarray(Ridge(alpha=0.01 * len(y)).fit(X, targets).predict(queries))
        scores = kf.KAHMClassifier("distance", batch_size=1000, partition="order", scale=None).fit(X, y).scores(queries)
        return np.asarray(scores / scores.mean(axis=1, keepdims=True) - values)

    def test_only_the_first_parameter_is_positional(self) -> None:
        """The parts are, both."""
        kf.FusionLearner(
            kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None), kf.RidgeLearner()
        )
        with pytest.raises(TypeError, match="positional"):
            kf.FusionLearner(None, None, 1.0)  # type: ignore[misc]
