"""Machines and a head together: ratios, losses and the choice of weight and temperature."""

import numpy as np
import pytest

from kernfed.fusion.combination import (
    TEMPERATURES,
    THRESHOLDS,
    WEIGHTS,
    FusionLosses,
    VisitCounts,
    fused_values,
    left_out_values,
    most_losses,
    probabilities,
    ratios,
)


def test_ratios_have_no_unit_and_know_absent_classes() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, np.inf, 3.0], [np.inf, np.inf, np.inf]])
    expected = [[0.5, 1.0, 1.5], [1.0, 1.0, 1.0], [0.5, 1.5, 1.5], [1.0, 1.0, 1.0]]
    np.testing.assert_allclose(ratios(scores), expected)
    np.testing.assert_allclose(ratios(1e6 * scores[:1]), ratios(scores[:1]))


def test_no_weight_is_the_head_alone(rng: np.random.Generator) -> None:
    values, scores = rng.standard_normal((5, 3)), rng.random((5, 3))
    np.testing.assert_array_equal(fused_values(values, scores, 0.0), values)
    np.testing.assert_array_equal(fused_values(values, scores, 1e9).argmax(axis=1), scores.argmin(axis=1))


@pytest.mark.parametrize("balanced", [False, True])
def test_left_out_values_are_those_of_a_fit_without_the_row(rng: np.random.Generator, balanced: bool) -> None:
    """Against weighted least squares solved anew without each row, the mean held."""
    X, numbers = rng.standard_normal((30, 4)), rng.integers(3, size=30)
    targets = np.eye(3)[numbers]
    c = np.array([1.0, 2.0, 0.5])[numbers] if balanced else np.ones(30)
    mass, strength = c.sum(), 0.3

    def solve(rows: np.ndarray) -> np.ndarray:
        H = (X[rows] * c[rows, None]).T @ X[rows] / mass + strength * np.eye(4)
        return np.linalg.solve(H, (X[rows] * c[rows, None]).T @ targets[rows] / mass)

    everything = np.arange(30)
    H = (X * c[:, None]).T @ X / mass + strength * np.eye(4)
    leverage = np.einsum("nm,mk,nk->n", X, np.linalg.inv(H), X) / mass
    told = left_out_values(X @ solve(everything), leverage, numbers, c)
    literal = np.stack([X[i] @ solve(np.delete(everything, i)) for i in everything])
    np.testing.assert_allclose(told, literal, atol=1e-10)


def test_losses_are_those_of_a_loop_and_add_up(rng: np.random.Generator) -> None:
    values, scores = rng.standard_normal((12, 3)), rng.random((12, 3))
    numbers, weights = rng.integers(3, size=12), rng.random(12) + 0.5
    losses = FusionLosses.of(values, scores, numbers, weights)
    for w, t in ((0, 0), (5, 20), (len(WEIGHTS) - 1, len(TEMPERATURES) - 1)):
        likely = probabilities(fused_values(values, scores, float(WEIGHTS[w])), float(TEMPERATURES[t]))
        expected = -(weights * np.log(likely[np.arange(12), numbers])).sum()
        assert losses.surprise[w, t] == pytest.approx(expected)
        assert losses.wrong[w] == pytest.approx(weights[likely.argmax(axis=1) != numbers].sum())
    halves = FusionLosses.of(values[:5], scores[:5], numbers[:5], weights[:5]) + FusionLosses.of(
        values[5:], scores[5:], numbers[5:], weights[5:]
    )
    np.testing.assert_allclose(halves.surprise, losses.surprise)
    assert (losses.surprise <= most_losses(values, np.zeros(12), scores, float(weights.max()))).all()


def test_whoever_knows_the_labels_gets_the_weight(rng: np.random.Generator) -> None:
    numbers = rng.integers(3, size=300)
    knows = np.where(np.eye(3)[numbers] > 0, 1.0, 0.0) + 0.3 * rng.standard_normal((300, 3))
    nothing = 0.3 * rng.standard_normal((300, 3))
    head, _ = FusionLosses.of(knows, np.abs(nothing) + 1, numbers, np.ones(300)).best(0.25)
    machines, _ = FusionLosses.of(nothing, np.exp(-knows), numbers, np.ones(300)).best(0.25)
    assert head <= 0.25
    assert machines >= 2


def test_rows_that_are_all_right_leave_weight_and_temperature_at_the_usual() -> None:
    numbers = np.array([0, 1, 2])
    losses = FusionLosses.of(5 * np.eye(3), 2 - np.eye(3), numbers, np.ones(3))
    weight, temperature = losses.best(0.25)
    assert weight == 1.0
    assert 0.1 < temperature <= 0.25


def test_a_threshold_gives_up_no_more_than_allowed() -> None:
    head = np.array([[0.99, 0.01], [0.9, 0.1], [0.55, 0.45], [0.2, 0.8]])
    fused = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9]])
    counts = VisitCounts.of(head, fused, np.array([0, 1, 1, 1]))
    threshold, travelled, given_up = counts.choose(0.0)
    assert 0.9 < threshold <= 0.99  # the second row is wrong by the head alone
    assert (travelled, given_up) == (0.75, 0.0)
    assert counts.choose(1.0)[0] == THRESHOLDS[0]
    nobody = VisitCounts.of(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, dtype=np.intp))
    assert nobody.choose(0.0) == (1.0, 1.0, 0.0)
