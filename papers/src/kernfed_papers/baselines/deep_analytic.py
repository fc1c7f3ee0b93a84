"""DeepAFL (Tang et al., arXiv 2603.00579): residual layers of random features, each solved by least squares of sums.

    F_0 = tanh(X A_0)                                        random A_0
    W_t = (F_t'F_t + lambda I)^-1 F_t'Y                      head of layer t
    H_t = gelu(F_t A_t),  R_t = Y - F_t W_t                  random A_t, what the head leaves
    O_t = argmin |R_t - H_t O W_t|^2 + gamma |O|^2           "sandwiched" least squares
    F_t+1 = F_t + H_t O_t

Every matrix is of sums over sites, two exchanges a layer: with twenty layers 41 exchanges, not one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used

from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.draws import generator

#: As published.
WIDTH, MOST_LAYERS = 1024, 20
#: gamma over lambda, as published (0.05 and 1).
_RATIO = 0.05


@dataclass(frozen=True, eq=False)
class _Random:
    """Random weights and offsets, uniform up to one over the root of the inputs, as in the authors' program."""

    weights: FloatArray
    offset: FloatArray

    @classmethod
    def draw(cls, inputs: int, outputs: int, draws: np.random.Generator) -> "_Random":
        bound = 1 / np.sqrt(inputs)
        weights = draws.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        return cls(weights, draws.uniform(-bound, bound, outputs).astype(np.float32))

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.asarray(x @ self.weights + self.offset)


def layer_answers(
    sites: Mapping[str, tuple[FloatArray, IntArray]],
    queries: FloatArray,
    n_classes: int,
    regularization: float,
    *,
    seed: int,
    width: int = WIDTH,
    layers: int = MOST_LAYERS,
) -> Iterator[IntArray]:
    """Class numbers (m,) of the queries by the head of each layer, layer 0 first.

    The features of the queries are carried along beside those of the sites, since a layer is made of sums alone.
    """
    draws = generator(seed, "deep analytic")
    targets = [np.eye(n_classes, dtype=np.float32)[y] for _, y in sites.values()]
    first = _Random.draw(queries.shape[1], width, draws)
    features = [np.tanh(first(x)) for x, _ in sites.values()]
    asked = np.tanh(first(queries))
    for layer in range(layers + 1):
        head = _ridge(_summed(features, features), _summed(features, targets), regularization)
        yield np.asarray((asked @ head).argmax(axis=1))
        if layer == layers:
            return
        drawn = _Random.draw(width, width, draws)
        hidden = [_gelu(drawn(own)) for own in features]
        left = [own_targets - own @ head for own, own_targets in zip(features, targets, strict=True)]
        step = sandwiched(_summed(hidden, hidden), _summed(hidden, left), head, regularization * _RATIO)
        features = [own + rows @ step for own, rows in zip(features, hidden, strict=True)]
        asked = asked + _gelu(drawn(asked)) @ step


def _summed(left: Sequence[FloatArray], right: Sequence[FloatArray]) -> FloatArray:
    """Sum over sites of their cross products, added up in float64."""
    total = np.zeros((left[0].shape[1], right[0].shape[1]))
    for a, b in zip(left, right, strict=True):
        total += a.T @ b
    return total


def _ridge(gram: FloatArray, cross: FloatArray, regularization: float) -> FloatArray:
    shifted = gram + regularization * np.eye(len(gram))
    return np.asarray(scipy.linalg.solve(shifted, cross, assume_a="pos")).astype(np.float32)


def sandwiched(gram: FloatArray, cross: FloatArray, head: FloatArray, strength: float) -> FloatArray:
    """O (h, d) that minimises |R - H O W|^2 + strength |O|^2, from H'H (h, h), H'R (h, C) and W (d, C).

    With H'H = V s V' and W W' = U t U' the solution is V [(V' H'R W' U) / (s t' + strength)] U'. Directions in which W
    vanishes give nothing, so the C left singular vectors of W are all of U that is needed.
    """
    values, vectors = scipy.linalg.eigh(gram)
    basis, singular, _ = np.linalg.svd(head.astype(np.float64), full_matrices=False)
    turned = vectors.T @ cross @ head.T @ basis
    turned /= np.maximum(values, 0)[:, None] * singular**2 + strength
    return np.asarray(vectors @ turned @ basis.T).astype(np.float32)


def _gelu(x: FloatArray) -> FloatArray:
    return np.asarray(x * scipy.special.ndtr(x))
