"""Small federations for tests of ridge regression."""

from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from kernfed.federation import Federation
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.ridge import RidgeModel

Data = dict[str, tuple[Any, Any]]
SMALL: dict[str, Any] = {"n_components": 30, "bandwidth": 3.0, "regularization": 1e-3, "fit_intercept": False}


def class_sites(sizes: tuple[int, ...] = (60, 20, 35), seed: int = 0) -> Data:
    """Sites with different rows of 3 classes; "s1" has fewer rows than ``SMALL`` has features, and lacks a class."""
    X, y = make_classification(sum(sizes), 6, n_informative=5, n_redundant=0, n_classes=3, random_state=seed)
    cuts = np.cumsum(sizes)[:-1]
    parts = {f"s{i}": (x, z) for i, (x, z) in enumerate(zip(np.split(X, cuts), np.split(y, cuts), strict=True))}
    x, z = parts["s1"]
    return {**parts, "s1": (x[z != 2], z[z != 2])}


def value_sites(sizes: tuple[int, ...] = (60, 20, 35), seed: int = 0) -> Data:
    """Sites with values to regress."""
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((n, 4)) for n in sizes]
    return {f"s{i}": (X, np.sin(X[:, 0]) + X[:, 1]) for i, X in enumerate(rows)}


def features_of(model: RidgeModel, data: Data) -> list[tuple[Any, Any]]:
    """Features and targets by site, as the oracles take them."""
    transform = model.parameters.feature_map()
    mapped = {name: X if transform is None else transform.transform(X) for name, (X, _) in data.items()}
    return [(mapped[name], model.parameters.targets(np.asarray(data[name][1]))) for name in sorted(data)]


def fit(method: str, data: Data, *, seed: int = 7, **options: Any) -> RidgeModel:
    """Model of a federation that is made for it."""
    with Federation.local(data, seed=seed) as federation:
        return RidgeLearner(method, **{**SMALL, **options}).fit(federation)
