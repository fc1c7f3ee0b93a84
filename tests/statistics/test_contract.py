"""Every statistic keeps the contract."""

import numpy as np
import pytest

from contracts.statistics import StatisticContract
from kernfed.abstain.bins import PLACES
from kernfed.kernels import FourierFeatures
from kernfed.ridge.parameters import RidgeParameters
from kernfed.statistics import (
    CentredMoments,
    ClassCounts,
    ClassMeans,
    ColumnHistogram,
    ColumnMoments,
    JointMoments,
    LabelledRows,
    LadderHistogram,
    MeanFeatures,
    RidgeSums,
    statistic_names,
)

CLASSES = ("a", "b", "c")
WIDTH = 4


def points(rng: np.random.Generator, n: int, width: int = WIDTH) -> np.ndarray:
    """Rows inside the unit ball, on it, and far outside."""
    directions = rng.standard_normal((n, width))
    scales = rng.choice([0.1, 1.0, 1.0 + 1e-9, 5.0, 1e9], size=(n, 1))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True) * scales


def labels(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([*CLASSES, "none of them"], size=n, p=[0.3, 0.3, 0.3, 0.1])


def likely(rng: np.random.Generator, n: int, *shape: int) -> np.ndarray:
    """Probabilities of very different sureness."""
    scores = rng.standard_normal((n, *shape)) * rng.choice([0.1, 1.0, 30.0], size=(n, *([1] * len(shape))))
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


class OfPoints(StatisticContract):
    def rows(self, rng, n):
        return LabelledRows(points(rng, n), labels(rng, n))


class TestRidgeSums(OfPoints):
    name = "ridge_sums"

    def statistic(self):
        return RidgeSums(WIDTH, None, CLASSES, 1.0, 1.0)


class TestRidgeSumsOfFeatures(OfPoints):
    name = "ridge_sums"

    def statistic(self):
        problem = RidgeParameters(WIDTH, n_components=6, bandwidth=2.0, classes=CLASSES)
        return RidgeSums.of(problem, 1.0, 1.0, weights=(0.5, 1.0, 0.1), means=True)


class TestRidgeSumsOfValues(StatisticContract):
    name = "ridge_sums"

    def statistic(self):
        return RidgeSums(WIDTH, None, (), 2.0, 3.0, targets=2)

    def rows(self, rng, n):
        return LabelledRows(points(rng, n), 3 * points(rng, n, 2))


class TestMeanFeatures(OfPoints):
    name = "mean_features"

    def statistic(self):
        return MeanFeatures(FourierFeatures(WIDTH, 6, 0.5, kind="paired"))


class TestClassCounts(OfPoints):
    name = "class_counts"

    def statistic(self):
        return ClassCounts(CLASSES)


class TestClassMeans(OfPoints):
    name = "class_means"

    def statistic(self):
        return ClassMeans(CLASSES, WIDTH, 2, 1.0, seed=3)


class TestJointMoments(OfPoints):
    name = "class_moments"

    def statistic(self):
        return JointMoments(CLASSES, WIDTH, 3, 1.0, "dct", (2, 2))


class TestJointMomentsOfOneClass(OfPoints):
    name = "class_moments"

    def statistic(self):
        return JointMoments(("a",), WIDTH, 2, 1.0, counted=False, matrix=np.eye(WIDTH)[:, :2])


class TestCentredMoments(OfPoints):
    name = "class_spreads"

    def statistic(self):
        return CentredMoments(CLASSES, WIDTH, WIDTH, 0.5, "given", centres=np.full((3, WIDTH), 0.2))


class TestColumnMoments(OfPoints):
    name = "column_moments"

    def statistic(self):
        return ColumnMoments(WIDTH, 1.0)


class TestColumnHistogram(OfPoints):
    name = "column_histogram"

    def statistic(self):
        return ColumnHistogram(WIDTH)


class TestLadderHistogram(StatisticContract):
    name = "ladder_histogram"

    def statistic(self):
        return LadderHistogram(strangers=True)

    def rows(self, rng, n):
        return LabelledRows(rng.integers(0, PLACES + 1, (n, 2)), labels(rng, n))


def test_every_statistic_keeps_the_contract():
    tested = {thing.name for thing in globals().values() if isinstance(thing, type) and hasattr(thing, "name")}
    assert tested == set(statistic_names())


@pytest.mark.parametrize("bad", [(), ("a", "a"), ("a", 1), (float("nan"), 1.0), "ab", (None, "a"), ("x" * 2000,)])
def test_bad_classes(bad):
    with pytest.raises(ValueError, match="classes must be"):
        ClassCounts(bad)
