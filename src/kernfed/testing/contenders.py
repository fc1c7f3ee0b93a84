"""What a data scientist would try first on a pooled table: five methods of scikit-learn, each with a small grid.

Each is tuned by cross-validation over ``SETTINGS`` settings on at most ``TUNED`` rows and then fitted to all of them,
with defaults elsewhere. That is the effort that learners here make by themselves: they choose unit, batches, widths and
regularisation among a few by rows left out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator

#: Settings of each method, folds of the cross-validation, and rows that it sees at most.
SETTINGS, FOLDS, TUNED = 4, 3, 2000

Maker = Callable[[int], tuple[Any, dict[str, list[Any]]]]


def classifiers() -> dict[str, Maker]:
    """Classifiers by name: a function of the seed to an estimator and its grid."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    return {
        "random forest": lambda seed: (RandomForestClassifier(200, random_state=seed), _FOREST),
        "histogram boosting": lambda seed: (HistGradientBoostingClassifier(random_state=seed), _BOOSTING),
        "SVM, radial": lambda _: (_scaled(SVC()), _prefixed("svc", C=[1.0, 10.0], gamma=["scale", "auto"])),
        "logistic regression": lambda _: (
            _scaled(LogisticRegression(max_iter=500)),
            _prefixed("logisticregression", C=[0.01, 0.1, 1.0, 10.0]),
        ),
        "nearest neighbours": lambda _: (_scaled(KNeighborsClassifier()), _neighbours("kneighborsclassifier")),
    }


def regressors() -> dict[str, Maker]:
    """Regressors likewise."""
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.svm import SVR

    return {
        "random forest": lambda seed: (RandomForestRegressor(200, random_state=seed), _TREES),
        "histogram boosting": lambda seed: (HistGradientBoostingRegressor(random_state=seed), _BOOSTING),
        "SVM, radial": lambda _: (_standard(_scaled(SVR())), _prefixed("regressor__svr", C=[1.0, 3.0, 10.0, 30.0])),
        "linear ridge": lambda _: (_scaled(Ridge()), _prefixed("ridge", alpha=[0.1, 1.0, 10.0, 100.0])),
        "nearest neighbours": lambda _: (_scaled(KNeighborsRegressor()), _neighbours("kneighborsregressor")),
    }


_FOREST: dict[str, list[Any]] = {"max_features": ["sqrt", 0.5], "min_samples_leaf": [1, 5]}
_TREES: dict[str, list[Any]] = {"max_features": [1.0, 0.33], "min_samples_leaf": [1, 5]}
_BOOSTING: dict[str, list[Any]] = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [8, 31]}


def tuned(maker: Maker, X: FloatArray, y: npt.NDArray[Any], seed: int) -> tuple[Any, str]:
    """The estimator with the settings that cross-validation prefers, fitted to all rows; and what these are.

    Where a class has fewer rows than folds, defaults stand.
    """
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV

    estimator, grid = maker(seed)
    chosen = np.sort(generator(seed, "tuning").permutation(len(y))[:TUNED])
    settings: dict[str, Any] = {}
    if not is_classifier(estimator) or np.unique(y[chosen], return_counts=True)[1].min() >= FOLDS:
        settings = GridSearchCV(estimator, grid, cv=FOLDS, refit=False).fit(X[chosen], y[chosen]).best_params_
    fitted = clone(estimator).set_params(**settings).fit(X, y)
    return fitted, ", ".join(f"{name.rpartition('__')[2]}={value}" for name, value in settings.items()) or "defaults"


def class_probabilities(estimator: Any, classes: npt.NDArray[Any], X: FloatArray) -> FloatArray:
    """Probabilities (n, C) in the order of ``classes``; of an SVM, the softmax of its decision function."""
    if hasattr(estimator, "predict_proba"):
        own = estimator.predict_proba(X)
    else:
        values = estimator.decision_function(X)
        values = np.column_stack([-values, values]) if values.ndim == 1 else values
        own = np.exp(values - values.max(axis=1, keepdims=True))
        own /= own.sum(axis=1, keepdims=True)
    likely = np.zeros((len(X), len(classes)))
    likely[:, ClassIndex(classes).numbers(estimator.classes_)] = own
    return likely


def _scaled(estimator: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator)


def _standard(estimator: Any) -> Any:
    """A regressor of values brought to spread 1."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(estimator, transformer=StandardScaler())


def _prefixed(step: str, **grid: list[Any]) -> dict[str, list[Any]]:
    return {f"{step}__{name}": values for name, values in grid.items()}


def _neighbours(step: str) -> dict[str, list[Any]]:
    return _prefixed(step, n_neighbors=[5, 15], weights=["uniform", "distance"])
