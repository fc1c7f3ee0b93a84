"""The nearest point of the probability simplex: what weights and probabilities are made of."""

import numpy as np

from kernfed.base.checks import FloatArray


def project_on_simplex(rows: FloatArray) -> FloatArray:
    """The nearest points of the simplex to rows (n, C), in the Euclidean distance (Held, Wolfe and Crowder 1974).

    >>> project_on_simplex(np.array([[0.6, 0.2, 0.0], [3.0, 0.0, 0.0]])).round(3).tolist()
    [[0.667, 0.267, 0.067], [1.0, 0.0, 0.0]]
    """
    ordered = -np.sort(-rows, axis=1)
    excess = (ordered.cumsum(axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    support = (ordered > excess).sum(axis=1)
    shift = np.take_along_axis(excess, support[:, None] - 1, axis=1)
    return np.asarray(np.maximum(rows - shift, 0.0))
