"""What a data scientist would try first if all rows were in one place, each tuned by cross-validation."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.svm import SVC

from kernfed.data import Dataset
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.logistic import adjusted_labels, fit_logistic, stopped
from kernfed_papers.baselines.tuning import Axis, Choice, Point, choose, folds, mean_over_folds, share_right

#: Training rows on which settings are compared; the chosen ones are fitted on all.
TUNED_ON = 4000
#: Sets with more columns than this have fewer and coarser trees in boosting, and kernels computed once for all.
_WIDE = 64
_TREES, _TREES_TUNING = 300, 60
_STEPS = 500
_BLOCK = 1000

#: Fits on rows and labels with a list of points, and answers queries: labels (k, m).
Fit = Callable[[FloatArray, IntArray, FloatArray, Sequence[Point]], Iterable[IntArray]]


@dataclass(frozen=True, eq=False)
class Anchors:
    """Pooled classifiers of one data set, whose columns are already of one unit; labels are 0 .. C - 1.

    Every method returns labels (m,) of the test rows, and how it was set. What was chosen is kept, so that another
    seed of a random method costs one fit.
    """

    data: Dataset

    def neighbours(self) -> tuple[IntArray, str]:
        """The most frequent class of the k nearest rows, the smallest among equals."""
        choice = self._chosen_neighbours
        return next(iter(_vote(*self._all, [choice.point]))), str(choice)

    def logistic(self) -> tuple[IntArray, IntArray, str]:
        """Multinomial logistic regression; second, adjusted to classes as frequent."""
        choice = self._chosen_logistic
        model = fit_logistic(choice["C"], self.data.x_train, self.data.y_train, steps=_STEPS)
        adjusted = adjusted_labels(model, self.data.y_train, self.data.x_test)
        return model.predict(self.data.x_test), adjusted, f"{choice}{stopped(model, _STEPS)}"

    def support_vectors(self) -> tuple[IntArray, str]:
        """Support vector machine with a Gaussian kernel; gamma is in units of one over the mean squared distance."""
        choice = self._chosen_svm
        return next(iter(_support_vectors(*self._all, [choice.point]))), str(choice)

    def forest(self, seed: int) -> tuple[IntArray, str]:
        """Random forest; the number of columns that a split may choose from is tuned."""
        choice = self._chosen_forest
        model = _forest_model(choice["columns"], _TREES, seed).fit(self.data.x_train, self.data.y_train)
        return model.predict(self.data.x_test), f"{_TREES} trees; {choice}"

    def boosting(self) -> tuple[IntArray, str]:
        """Histogram gradient boosting; rate and number of trees are tuned."""
        choice = self._chosen_boosting
        return next(iter(_boosted(*self._all, [choice.point]))), str(choice)

    @property
    def _all(self) -> tuple[FloatArray, IntArray, FloatArray]:
        return self.data.x_train, self.data.y_train, self.data.x_test

    def _choose(self, axes: Sequence[Axis], fit: Fit, most: int = TUNED_ON) -> Choice:
        x, y = self.data.x_train, self.data.y_train

        def accuracies(points: Sequence[Point]) -> list[float]:
            by_fold = []
            for fitted, left in folds(y, self.data.name, most):
                answers = fit(x[fitted], y[fitted], x[left], points)
                by_fold.append([share_right(predicted, y[left]) for predicted in answers])
            return mean_over_folds(by_fold)

        return choose(axes, accuracies)

    @cached_property
    def _chosen_neighbours(self) -> Choice:
        axis = Axis("k", (1, 2, 4, 8, 16), step=2, lowest=1, whole=True)
        return self._choose([axis], _vote, most=3 * TUNED_ON)

    @cached_property
    def _chosen_logistic(self) -> Choice:
        axis = Axis("C", (0.01, 0.1, 1.0, 10.0), lowest=1e-6, highest=1e4)
        return self._choose([axis], _logistic_labels)

    @cached_property
    def _chosen_svm(self) -> Choice:
        axes = Axis("C", (1.0, 10.0, 100.0)), Axis("gamma", (0.5, 2.0, 8.0), step=4)
        return self._choose(axes, _support_vectors)

    @cached_property
    def _chosen_forest(self) -> Choice:
        width = self.data.x_train.shape[1]
        middle = round(math.sqrt(width))
        values = sorted({max(1, middle // 2), middle, min(width, 2 * middle)})
        axis = Axis("columns", tuple(map(float, values)), step=2, lowest=1, highest=width, whole=True)
        return self._choose([axis], _forest_labels)

    @cached_property
    def _chosen_boosting(self) -> Choice:
        wide = self.data.x_train.shape[1] > _WIDE
        trees = (25.0, 50.0, 100.0) if wide else (50.0, 100.0, 200.0)
        axes = (
            Axis("rate", (0.05, 0.1, 0.2), step=2, highest=1.0),
            Axis("trees", trees, step=2, lowest=25, highest=100 if wide else 400, whole=True),
        )
        return self._choose(axes, _boosted)


def _vote(x: FloatArray, y: IntArray, queries: FloatArray, points: Sequence[Point]) -> Iterable[IntArray]:
    most = min(int(max(point[0] for point in points)), len(x))
    search = NearestNeighbors(n_neighbors=most, algorithm="brute").fit(x)
    near = y[search.kneighbors(queries, return_distance=False)]
    for (k,) in points:
        votes = (near[:, : int(k), None] == np.arange(y.max() + 1)).sum(axis=1)
        yield votes.argmax(axis=1)


def _logistic_labels(x: FloatArray, y: IntArray, queries: FloatArray, points: Sequence[Point]) -> Iterable[IntArray]:
    for (strength,) in points:
        yield fit_logistic(strength, x, y, steps=_STEPS).predict(queries)


def _support_vectors(x: FloatArray, y: IntArray, queries: FloatArray, points: Sequence[Point]) -> Iterable[IntArray]:
    """One kernel for all penalties; where columns are few libsvm computes it as fast, and without the memory."""
    unit = 2 * float(x.astype(np.float64).var(axis=0).sum())  # mean squared distance of two rows
    if x.shape[1] <= _WIDE:
        for strength, gamma in points:
            yield SVC(C=strength, gamma=gamma / unit, cache_size=500).fit(x, y).predict(queries)
        return
    between = _squared_distances(x, x)
    for strength, gamma in points:
        model = SVC(C=strength, kernel="precomputed", cache_size=500).fit(np.exp(-gamma / unit * between), y)
        blocks = (queries[start : start + _BLOCK] for start in range(0, len(queries), _BLOCK))
        yield np.concatenate([model.predict(np.exp(-gamma / unit * _squared_distances(block, x))) for block in blocks])


def _squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """(n, m) from (n, p) and (m, p)."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    distances = a @ b.T
    distances *= -2
    distances += (a**2).sum(axis=1)[:, None]
    distances += (b**2).sum(axis=1)
    return np.maximum(distances, 0, out=distances)


def _forest_model(columns: float, trees: int, seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(trees, max_features=int(columns), random_state=seed)


def _forest_labels(x: FloatArray, y: IntArray, queries: FloatArray, points: Sequence[Point]) -> Iterable[IntArray]:
    for (columns,) in points:
        yield _forest_model(columns, _TREES_TUNING, 0).fit(x, y).predict(queries)


def _boosted(x: FloatArray, y: IntArray, queries: FloatArray, points: Sequence[Point]) -> Iterable[IntArray]:
    """One fit for each rate, looked at after each number of trees."""
    answers: dict[Point, IntArray] = {}
    for rate in dict.fromkeys(rate for rate, _ in points):
        wanted = {int(trees) for other, trees in points if other == rate}
        model = HistGradientBoostingClassifier(
            learning_rate=rate,
            max_iter=max(wanted),
            max_bins=63 if x.shape[1] > _WIDE else 255,
            early_stopping=False,
            random_state=0,
        ).fit(x, y)
        for number, predicted in enumerate(model.staged_predict(queries), 1):
            if number in wanted:
                answers[rate, float(number)] = predicted
    return [answers[point] for point in points]
