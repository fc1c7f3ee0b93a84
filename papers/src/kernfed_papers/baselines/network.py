"""A softmax classifier without or with a hidden layer, its gradient and its training, in plain numpy.

Weights are a tuple (W1, b1, W2, b2, ...) of matrices (inputs, outputs) and vectors (outputs,), with rectified linear
units between layers: one layer is the linear softmax, two are the multilayer perceptron with one hidden layer.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed_papers.arrays import FloatArray

Weights = tuple[FloatArray, ...]
Classes = npt.NDArray[np.intp]


def layer_sizes(kind: str, width: int, hidden: int, classes: int) -> tuple[int, ...]:
    """Units of each layer, inputs first, of a "linear" or an "mlp" classifier."""
    return (width, classes) if kind == "linear" else (width, hidden, classes)


def weight_shapes(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of W1, b1, W2, b2, ... for layers of these sizes."""
    return [shape for inputs, outputs in pairwise(sizes) for shape in ((inputs, outputs), (outputs,))]


def initial_weights(sizes: tuple[int, ...], dtype: str, draws: np.random.Generator) -> Weights:
    """Weights to start from: zero without a hidden layer, else normal of variance 2 / inputs (He et al. 2015).

    A linear softmax is convex, so any start will do and zero favours no class. Offsets are zero.
    """
    weights: list[FloatArray] = []
    for inputs, outputs in pairwise(sizes):
        spread = 0.0 if len(sizes) == 2 else np.sqrt(2.0 / inputs)
        weights += [(spread * draws.standard_normal((inputs, outputs))).astype(dtype), np.zeros(outputs, dtype)]
    return tuple(weights)


def logits(weights: Weights, X: FloatArray) -> FloatArray:
    """Outputs (n, C) before the softmax, of rows X (n, p)."""
    return _activations(weights, X)[-1]


def _activations(weights: Weights, X: FloatArray) -> list[FloatArray]:
    """Input of every layer, then the logits."""
    activations = [X]
    for place in range(0, len(weights), 2):
        outputs = activations[-1] @ weights[place] + weights[place + 1]
        activations.append(outputs if place == len(weights) - 2 else np.maximum(outputs, 0))
    return activations


def loss_and_gradient(weights: Weights, X: FloatArray, y: Classes) -> tuple[float, Weights]:
    """Mean cross-entropy of class numbers y (n,) for rows X (n, p), and its gradient."""
    *inputs, outputs = _activations(weights, X)
    rows = np.arange(len(y))
    logs = outputs - scipy.special.logsumexp(outputs, axis=1, keepdims=True)
    loss = -float(logs[rows, y].mean())
    slope = np.exp(logs)  # of the loss in the outputs: softmax minus one-hot, over n
    slope[rows, y] -= 1
    slope /= len(y)
    gradient: list[FloatArray] = []
    for layer in reversed(range(len(inputs))):
        gradient = [inputs[layer].T @ slope, slope.sum(axis=0), *gradient]
        if layer:
            slope = (slope @ weights[2 * layer].T) * (inputs[layer] > 0)
    return loss, tuple(gradient)


def train(
    weights: Weights,
    X: FloatArray,
    y: Classes,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    proximal: float,
    draws: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> tuple[Weights, float]:
    """Stochastic gradient descent from ``weights``; returns the weights after it and the mean loss on the way.

    With ``proximal`` > 0 the objective has FedProx's term ``proximal / 2 |w - weights|^2`` (Li et al. 2020). ``check``
    is called before every step, and may end it by raising.
    """
    start, current = weights, [array.copy() for array in weights]
    total = 0.0
    for chosen in _batches(len(y), epochs, batch_size, draws):
        check()
        loss, gradient = loss_and_gradient(tuple(current), X[chosen], y[chosen])
        total += loss * len(chosen)
        for array, slope, anchor in zip(current, gradient, start, strict=True):
            if proximal:
                slope += proximal * (array - anchor)
            slope *= learning_rate
            array -= slope
    return tuple(current), total / (epochs * len(y))


def _batches(rows: int, epochs: int, size: int, draws: np.random.Generator) -> Iterator[npt.NDArray[np.intp]]:
    """Row numbers of each step: every row once an epoch, in an order drawn anew."""
    for _ in range(epochs):
        order = draws.permutation(rows)
        for start in range(0, rows, size):
            yield order[start : start + size]
