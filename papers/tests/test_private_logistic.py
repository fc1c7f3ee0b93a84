"""Logistic regression by noisy gradients: it is plain descent under the noise that its budget asks for."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from contracts.mechanisms import MechanismContract, N, Rows
from kernfed.errors import BudgetExceeded
from kernfed.privacy import DiscreteGaussian, Ledger, NoiseGenerator, NoisySum, epsilon_for
from kernfed.statistics import LabelledRows
from kernfed_papers.baselines.private_logistic import GRADIENT_SENSITIVITY, GradientSums, RecordLogistic

LABELS = np.arange(N) % 2


def digits_like(rng, n=600, classes=3, width=5):
    centres = 3 * rng.standard_normal((classes, width))
    y = rng.integers(classes, size=n)
    return centres[y] + rng.standard_normal((n, width)), y


def naive_descent(X, y, classes, settings):
    """Gradient descent without noise or rounding, one row at a time."""
    rows = [np.append(x * min(1, settings.radius / np.linalg.norm(x)) / settings.radius, 1) / math.sqrt(2) for x in X]
    weights = np.zeros((X.shape[1] + 1, len(classes)))
    velocity, kept = np.zeros_like(weights), []
    for _ in range(settings.rounds):
        gradient = np.zeros_like(weights)
        for x, label in zip(rows, y, strict=True):
            residual = softmax(x @ weights) - (np.asarray(classes) == label)
            residual *= min(1, settings.clip / np.linalg.norm(residual))
            gradient += np.outer(x, residual)
        velocity = settings.momentum * velocity - settings.rate * gradient / len(rows)
        weights = weights + velocity
        kept.append(weights)
    return np.mean(kept[settings.rounds // 2 :], axis=0)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.3}, {"momentum": 0.0, "rounds": 7}, {"rounds": 1}])
def test_without_noise_it_is_plain_gradient_descent(rng, monkeypatch, settings):
    X, y = digits_like(rng, n=60)
    monkeypatch.setattr(DiscreteGaussian, "sample", lambda _law, shape, _source: np.zeros(shape, dtype=np.int64))
    learner = RecordLogistic(1.0, 1e-5, radius=3.0, **{"rounds": 12, **settings})
    found = learner.release(X, y, [0, 1, 2], sites=np.arange(60) % 4, generator=NoiseGenerator(0))
    np.testing.assert_allclose(found.coefficients, naive_descent(X, y, [0, 1, 2], learner), atol=2e-3)


def test_noise_has_the_scale_that_the_budget_asks_for(rng, monkeypatch):
    """All rounds together spend the budget: squared mu of a round times their number."""
    drawn = []

    def spy(noisy, rows, source):
        drawn.append((noisy.sensitivity("gradient"), noisy.mu("gradient")))
        return original(noisy, rows, source)

    original = NoisySum.release
    monkeypatch.setattr(NoisySum, "release", spy)
    X, y = digits_like(rng, n=50)
    learner = RecordLogistic(2.0, 1e-5, radius=1.0, rounds=9)
    found = learner.release(X, y, [0, 1, 2], sites=np.arange(50) % 2, generator=NoiseGenerator(0))
    assert len(drawn) == 9 * 2  # each of the two sites, in each round
    assert all(sensitivity == 2.0 for sensitivity, _ in drawn)
    total = math.sqrt(sum(mu**2 for _, mu in drawn) / 2)  # a row is at one site
    assert total <= found.events[0].mu
    assert total == pytest.approx(found.events[0].mu, rel=1e-9)
    assert epsilon_for(found.events, 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert epsilon_for(found.events, 1e-5) <= 2.0


@pytest.mark.parametrize("clip", [0.2, 1.0, math.sqrt(2)])
def test_replacing_a_row_moves_the_sum_within_the_sensitivity(rng, clip):
    for scale in (1e-3, 1.0, 1e9):
        rows, labels = scale * rng.standard_normal((40, 4)), rng.integers(3, size=40)
        sums = GradientSums((0, 1, 2), 2.0, clip, 5 * rng.standard_normal((5, 3)))
        each = [sums.integers(LabelledRows(rows[[i]], labels[[i]]))["gradient"] / 4.0**16 for i in range(40)]
        moved = [np.linalg.norm(one - other) for one in each for other in each]
        assert 0.1 < max(moved) <= GRADIENT_SENSITIVITY


def test_it_learns_and_more_budget_helps(rng):
    X, y = digits_like(rng, n=3000)
    score = {}
    for epsilon in (0.01, 8.0):
        found = RecordLogistic(epsilon, 1e-5, radius=10.0, rate=20.0).release(
            X, y, range(3), generator=NoiseGenerator(1)
        )
        assert not found.private
        score[epsilon] = (found.predict(X) == y).mean()
    assert score[8.0] > 0.9
    assert score[8.0] > score[0.01]


def test_names_of_classes_and_guarantees(rng):
    X, y = digits_like(rng, n=40)
    found = RecordLogistic(1.0, 1e-5, radius=5.0, rounds=2).release(
        X, np.array(["a", "b", "c"])[y], ["c", "b", "a", "d"]
    )
    assert found.private
    assert found.classes.tolist() == ["a", "b", "c", "d"]
    assert set(found.predict(X)) <= set("abcd")
    assert found.coefficients.shape == (6, 4)
    assert (found.record.epsilon, found.record.delta, found.record.unit) == (1.0, 1e-5, "record")
    assert found.element.unit == "element"


def test_the_ledger_is_charged_and_takes_no_seeded_noise(rng, tmp_path):
    X, y = digits_like(rng, n=30)
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=1.6, delta=1e-6)
    learner = RecordLogistic(1.5, 1e-6, radius=5.0, rounds=2)
    with pytest.raises(ValueError, match="seed"):
        learner.release(X, y, range(3), ledger=ledger, generator=NoiseGenerator(0))
    learner.release(X, y, range(3), ledger=ledger)
    with pytest.raises(BudgetExceeded):
        learner.release(X, y, range(3), ledger=ledger)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"delta": 1.0}, "delta must be < 1"),
        ({"radius": -1.0}, "radius must be > 0"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"rate": 0.0}, "rate must be > 0"),
        ({"clip": 2.0}, "clip must be <= 1.414"),
        ({"momentum": 1.0}, "momentum must be < 1"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RecordLogistic(**{"epsilon": 1.0, "delta": 1e-5, "radius": 1.0, **changes})


@pytest.mark.parametrize(
    ("X", "y", "sites", "message"),
    [
        (np.full((3, 2), np.nan), [0, 1, 1], None, "finite"),
        (np.ones((3, 2)), [0, 1], None, "label for each of the 3 rows"),
        (np.ones((3, 2)), [0, 1, 1], [0, 1], "site of each of the 3 rows"),
    ],
)
def test_bad_rows_are_refused(X, y, sites, message):
    with pytest.raises(ValueError, match=message):
        RecordLogistic(1.0, 1e-5, radius=1.0).release(X, y, [0, 1], sites=sites)


def test_a_label_that_is_no_class_counts_as_the_first_one():
    """It is protected with its row, so an error would tell of one row with certainty."""
    X = np.random.default_rng(1).standard_normal((6, 2))
    one, other = (
        RecordLogistic(1.0, 1e-5, radius=1.0, rounds=3).release(X, y, [0, 1], generator=NoiseGenerator(2)).coefficients
        for y in ([0, 1, 7, 1, 0, -3], [0, 1, 0, 1, 0, 0])
    )
    np.testing.assert_array_equal(one, other)


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

    def statistic(self, mechanism: Any, X: Rows) -> Any:
        """The gradient of one round moves by 2 clip, in units of a row's length."""
        one = replace(mechanism, rounds=1)
        y = LABELS.copy()
        y[0] = X[0, 1] > 0
        return [(one.release(X, y, (0, 1)).coefficients, 4.0 * 2.0 / N)]

    def extremes(self) -> Any:
        scales = {"radius": 1e-30}, {"radius": 1e30}, {"rate": 1e30}, {"clip": 1e-30}
        return (*super().extremes(), *(replace(self.mechanism(), **scale) for scale in scales))
