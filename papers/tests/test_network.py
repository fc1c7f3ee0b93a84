"""The softmax classifier of federated averaging: gradient and descent."""

import numpy as np
import pytest

from kernfed_papers.baselines.network import initial_weights, layer_sizes, loss_and_gradient, train, weight_shapes

KINDS = ("linear", "mlp")


def make_rows(rng, count):
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7])
def test_gradient_agrees_with_finite_differences(rng, kind, rows):
    X, y = make_rows(rng, rows)
    sizes = layer_sizes(kind, 4, 5, 3)
    weights = tuple(rng.standard_normal(shape) for shape in weight_shapes(sizes))
    _, gradient = loss_and_gradient(weights, X, y)
    step = 1e-6
    for place, slope in enumerate(gradient):
        assert slope.shape == weights[place].shape
        for index in np.ndindex(slope.shape):
            values = []
            for sign in (1, -1):
                moved = [array.copy() for array in weights]
                moved[place][index] += sign * step
                values.append(loss_and_gradient(tuple(moved), X, y)[0])
            assert slope[index] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_large_outputs_keep_the_loss_finite(rng):
    X, y = make_rows(rng, 6)
    loss, gradient = loss_and_gradient((1e4 * rng.standard_normal((4, 3)), np.zeros(3)), X, y)
    assert np.isfinite(loss)
    assert all(np.isfinite(array).all() for array in gradient)


@pytest.mark.parametrize("kind", KINDS)
def test_training_takes_the_batches_in_the_drawn_order(rng, kind):
    X, y = make_rows(rng, 10)
    start = initial_weights(layer_sizes(kind, 4, 5, 3), "float64", np.random.default_rng(3))
    options = {"epochs": 2, "learning_rate": 0.1, "batch_size": 4, "proximal": 0.5}
    trained, loss = train(start, X, y, **options, draws=np.random.default_rng(4))
    draws, current, total = np.random.default_rng(4), start, 0.0
    for _ in range(2):
        order = draws.permutation(10)
        for chosen in (order[:4], order[4:8], order[8:]):
            value, gradient = loss_and_gradient(current, X[chosen], y[chosen])
            total += value * len(chosen) / 20
            current = tuple(w - 0.1 * (g + 0.5 * (w - s)) for w, g, s in zip(current, gradient, start, strict=True))
    assert loss == pytest.approx(total, rel=1e-12)
    for ours, theirs in zip(trained, current, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_training_leaves_its_arguments_alone(rng):
    X, y = make_rows(rng, 10)
    start = initial_weights((4, 5, 3), "float64", np.random.default_rng(3))
    before = [array.copy() for array in (*start, X)]
    train(start, X, y, epochs=1, learning_rate=0.1, batch_size=4, proximal=1.0, draws=np.random.default_rng(4))
    for now, then in zip((*start, X), before, strict=True):
        np.testing.assert_array_equal(now, then)
