"""The contract of mechanisms, kept by every mechanism there is."""

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

import kernfed.privacy
from contracts.mechanisms import FAR, WIDTH, MechanismContract, N, Rows
from kernfed.errors import InputError
from kernfed.kernels.fourier import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Mechanism,
    NoiseGenerator,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordLogistic,
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


class TestCentredMoments(TestRecordMoments):
    method = "centred"


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


class TestRecordLogistic(MechanismContract):
    name = None

    def mechanism(self, epsilon: float = 1.0) -> Any:
        return RecordLogistic(epsilon, 1e-5, 2.0, rounds=3)

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        return mechanism.release(X, LABELS, (0, 1), **options)

    def numbers(self, released: Any) -> Rows:
        return np.asarray(released.coefficients).ravel()

    def boundary(self) -> float:
        return 2.0


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
        mechanism_name(RecordLogistic(1.0, 1e-5, 1.0))
