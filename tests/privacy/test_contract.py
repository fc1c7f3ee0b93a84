"""The contract of mechanisms, kept by every mechanism there is."""

import importlib
import math
import pkgutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernfed.privacy
from contracts.mechanisms import FAR, WIDTH, MechanismContract, N, Rows
from kernfed.abstain.bins import BITS, PLACES, sensitivity
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Mechanism,
    NoiseGenerator,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordHistogram,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.names import MECHANISMS, mechanism_class, mechanism_name

LABELS = np.arange(N) % 2


class TestElementLaplace(MechanismContract):
    name = "element-laplace"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return ElementLaplace(epsilon, 2.0, (-1.0, 1.0))

    def boundary(self) -> float:
        return 1.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """Every element moves by the width of the bounds at most."""
        return [(mechanism.release(X).values, 2.0)]

    @staticmethod
    def distance(one: Rows, other: Rows) -> float:
        return float(np.abs(one - other).max())

    def extremes(self) -> Any:
        kind = type(self.mechanism())
        ends = ((-1e30, 1e30, 2e26), (-1e-26, 1e-26, 2e-30), (0.0, 1e-30, 1e-30), (1e10, 1e10 + 4, 4.0))
        return (*super().extremes(), *(kind(0.1, d, (low, high)) for low, high, d in ends))


class TestElementStaircase(TestElementLaplace):
    name = "element-staircase"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return ElementStaircase(epsilon, 2.0, (-1.0, 1.0))


class TestRecordGaussian(MechanismContract):
    name = "record-gaussian"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordGaussian(epsilon, 1e-5, 2.0)

    def boundary(self) -> float:
        return 2.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """A row moves by twice the radius at most."""
        return [(mechanism.release(X).values, 4.0)]

    def extremes(self) -> Any:
        return (*super().extremes(), *(replace(self.mechanism(), radius=radius) for radius in (1e-30, 1e30)))


class TestProjectedGaussian(TestRecordGaussian):
    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordGaussian(epsilon, 1e-5, 2.0, projection=np.eye(WIDTH)[:, :2])


class TestRecordMoments(MechanismContract):
    name = "record-moments"
    method = "joint"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordMoments(epsilon, 1e-5, 2, 2.0, basis=np.eye(WIDTH)[:, :2], method=self.method)

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        return mechanism.release(X, LABELS, **options)

    def numbers(self, released: Any) -> Rows:
        parts = [(part.moments.mean, part.moments.scatter / N) for part in released.classes]
        return np.concatenate([array.ravel() for pair in parts for array in pair])

    def boundary(self) -> float:
        return 2.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """Sum and second moment of a class, in units of the radius, move by sqrt(4.5) together."""
        parts = [part.moments for part in mechanism.release(X, LABELS).classes]
        sums = [(m.n * m.mean / 2.0, (m.scatter + m.n * np.outer(m.mean, m.mean)) / 4.0) for m in parts]
        return [(np.concatenate([mean, second.ravel()]), math.sqrt(4.5)) for mean, second in sums]

    def extremes(self) -> Any:
        scales = [(1e-30, 1e-30), (1e30, 1e30), (1e30, 1e-30), (1e-30, 1e30)]
        ends = (replace(self.mechanism(), radius=radius, spread=spread) for radius, spread in scales)
        return (*super().extremes(), *ends)


class TestCentredMoments(TestRecordMoments):
    method = "centred"

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """The sum moves by 2 radius, the second moment around what was released before by sqrt(2) spread^2."""
        means = mechanism.release_means(X, LABELS).classes
        centres = [replace(part, moments=replace(part.moments, joint_mean=np.array([0.3, -0.2]))) for part in means]
        spreads = mechanism.release_spreads(X, LABELS, centres).classes
        return [
            *((part.moments.n * part.moments.mean, 4.0) for part in means),
            *((part.moments.scatter, math.sqrt(2.0) * 1.0**2) for part in spreads),
        ]


class TestRecordHistogram(MechanismContract):
    name = "record-histogram"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordHistogram(epsilon, 1e-5)

    def places(self, X: Rows) -> Any:
        """Of rows by their first column, in the upper half: there the distance of two places grows."""
        return np.rint(PLACES - 20 + 20 * np.clip(X[:, 0], -1.0, 1.0)).astype(np.intp)

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        return mechanism.release(self.places(X), **options)

    def numbers(self, released: Any) -> Rows:
        return np.asarray(released.counts / 2.0**BITS)

    def boundary(self) -> float:
        return 1.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """Two places are no further apart than the sensitivity."""
        return [(self.numbers(self.release(mechanism, X)), sensitivity() / 2.0**BITS)]


class TestStrangersHistogram(TestRecordHistogram):
    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordHistogram(epsilon, 1e-5, strangers=True)

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        return mechanism.release(self.places(X), self.places(X[:, ::-1]), **options)

    def numbers(self, released: Any) -> Rows:
        return np.concatenate([released.counts, released.nearest]) / 2.0**BITS

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """Of either histogram by itself: each has its share of the noise."""
        made = self.release(mechanism, X)
        return [(part / 2.0**BITS, sensitivity() / 2.0**BITS) for part in (made.counts, made.nearest)]


class TestRecordRidge(MechanismContract):
    name = "record-ridge"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordRidge(epsilon, 1e-5, 2.0, 1.0)

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        return mechanism.release(X, np.where(LABELS == 0, 1.0, -1.0), **options)

    def numbers(self, released: Any) -> Rows:
        return np.concatenate([released.moments.second.ravel(), released.moments.cross.ravel()])

    def boundary(self) -> float:
        return 2.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """X'X moves by sqrt(2) radius^2, X'y by 2 radius target_radius; here the target of the first row moves too."""
        y = np.where(LABELS == 0, 1.0, -1.0)
        y[0] = 1e300 * np.sign(X[0, 1])
        moments = mechanism.release(X, y).moments
        return [(moments.second, math.sqrt(2.0) * 4.0), (moments.cross, 4.0)]

    def extremes(self) -> Any:
        ends = [(1e-30, 1e-30), (1e30, 1e30), (1e30, 1e-30), (1e-30, 1e30)]
        return (*super().extremes(), *(RecordRidge(1.0, 1e-5, *pair) for pair in ends))

    def test_a_target_far_out_moves_the_release_no_more_than_one_on_the_boundary(self) -> None:
        mechanism, X = self.mechanism(), self.rows(1.0)
        first, second = (np.zeros(N) for _ in range(2))
        first[0], second[0] = 1.0, FAR
        one, other = (self.numbers(mechanism.release(X, y, generator=NoiseGenerator(1))) for y in (first, second))
        np.testing.assert_allclose(one, other, rtol=1e-6)


class TestRecordEmbedding(MechanismContract):
    name = "record-embedding"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordEmbedding(epsilon, 1e-5, FourierFeatures(WIDTH, 8, 1.0, kind="paired"))

    def numbers(self, released: Any) -> Rows:
        return np.asarray(released.vector)

    def boundary(self) -> float:
        return 1.0

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """The mean of features of norm 1 moves by 2/n."""
        return [(mechanism.release(X).vector, 2.0 / N)]

    def extremes(self) -> Any:
        scales = (1e-30, 1e30, (1e-30, 1.0, 1e30))
        ends = (RecordEmbedding(1.0, 1e-5, FourierFeatures(WIDTH, 8, scale, kind="paired")) for scale in scales)
        return (*super().extremes(), *ends)

    @pytest.mark.parametrize("bandwidth", [1e-300, 5e-324, 1e-31, 1e31, (1.0, 1e-300, 1.0)])
    def test_bandwidths_have_ends(self, bandwidth: Any) -> None:
        """A tiny one made the angle of a large row infinite, and of no other: a threshold on raw rows."""
        with pytest.raises(InputError, match="bandwidth must be"):
            RecordEmbedding(1.0, 1e-5, FourierFeatures(WIDTH, 8, bandwidth, kind="paired"))

    def test_a_row_far_out_moves_the_release_no_more_than_one_on_the_boundary(self) -> None:
        """Features have norm 1 wherever the row is: two of them are at most 2 apart, their mean 2/n."""
        assert self.change(1.0) > 0
        assert self.change(FAR) <= 2.0 / N * (1 + 1e-6)


class TestRandomizedLabels(MechanismContract):
    name = "randomized-labels"

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RandomizedLabels(epsilon, (0, 1, 2))

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        assert len(X) == N
        return mechanism.release(LABELS, **options)

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """One label is kept or replaced, also one that was never declared."""
        numbers = mechanism.numbers(np.where(X[:, 0] > 0, 2, 7))
        return [(numbers.astype(np.float64) / 2, 1.0)]

    def boundary(self) -> float:
        return 1.0

    def test_a_row_far_out_moves_the_release_no_more_than_one_on_the_boundary(self) -> None:
        """There is no nearest label: one that was not declared is the first one, and no error tells that it was not."""
        drawn = [
            self.mechanism().release(np.array(y), generator=NoiseGenerator(4)).values.tolist()
            for y in ([0, 1, 7], [0, 1, 0])
        ]
        assert drawn[0] == drawn[1]
        words = [RandomizedLabels(1.0, ("a", "b")).release(np.array(y)) for y in (["b", "zzz"], [1.5, 2.5])]
        assert all(set(word.values.tolist()) <= {"a", "b"} for word in words)


def test_every_mechanism_keeps_the_contract() -> None:
    """Those of the table of names, and whatever class in the package is a mechanism beside them."""
    tested = {kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, MechanismContract)}
    tested.remove(MechanismContract)
    assert {kind.name for kind in tested} - {None} == set(MECHANISMS)
    classes = {type(kind().mechanism()) for kind in tested}
    for module in pkgutil.iter_modules(kernfed.privacy.__path__, "kernfed.privacy."):
        for thing in vars(importlib.import_module(module.name)).values():
            if isinstance(thing, type) and issubclass(thing, Mechanism) and not thing.__abstractmethods__:
                assert thing in classes


@pytest.mark.parametrize("name", MECHANISMS)
def test_names_and_classes_belong_together(name: str) -> None:
    kind = mechanism_class(name)
    assert mechanism_name(kind.__new__(kind)) == name
    assert getattr(kernfed.privacy, kind.__name__) is kind


def test_other_names_and_things_are_refused() -> None:
    with pytest.raises(InputError, match="a mechanism must be one of element-laplace, "):
        mechanism_class("record-magic")
    with pytest.raises(InputError, match=r"a mechanism must be one of kernfed\.privacy: ElementLaplace"):
        mechanism_name("record-ridge")
