"""Multinomial logistic regression in numpy: loss and gradient of many parameter vectors on the rows of one site.

A parameter vector has P = (p + 1) C entries: the matrix (p, C) row by row, then the C offsets. Offsets are not
regularised. Mean loss plus ``regularization / 2 |matrix|^2``: scikit-learn's objective for ``C = 1 / (n lambda)``.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax

from kernfed.base.checks import FloatArray, IntArray, check_count, check_number, check_rows
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.personal.gradient import Slopes

#: Numbers that logits may hold at a time: rows are taken in blocks for many targets.
_BLOCK = 4_000_000


def n_parameters(width: int, n_classes: int) -> int:
    """P = (p + 1) C.

    >>> n_parameters(4, 3)
    15
    """
    return (check_count(width, "width") + 1) * check_count(n_classes, "n_classes", at_least=2)


@dataclass(frozen=True, eq=False)
class LogisticRisk:
    """Risk of one site: rows X (n, p), class numbers y (n,) in 0 .. n_classes - 1, L2 weight ``regularization``.

    Calling it with parameters (T, P) gives losses (T,) and gradients (T, P), by one matrix product for all targets.
    Sites that weigh ``sum_k W[t, k] = 1`` in total regularise a target exactly once.

    >>> risk = LogisticRisk([[0.0], [1.0]], [0, 1], n_classes=2)
    >>> losses, gradients = risk(np.zeros((3, 4)))
    >>> losses.round(4).tolist(), gradients.shape
    ([0.6931, 0.6931, 0.6931], (3, 4))
    """

    X: npt.ArrayLike
    y: npt.ArrayLike
    n_classes: int
    regularization: float = 0.0

    def __post_init__(self) -> None:
        rows = check_rows(self.X, "X").astype(np.float64, copy=False)
        check_count(self.n_classes, "n_classes", at_least=2)
        numbers = check_class_numbers(self.y, len(rows), self.n_classes)
        check_number(self.regularization, "regularization", at_least=0)
        object.__setattr__(self, "X", rows)
        object.__setattr__(self, "y", numbers)

    @property
    def width(self) -> int:
        """Number p of columns."""
        return int(np.shape(self.X)[1])

    def __call__(self, parameters: FloatArray) -> Slopes:
        """Losses (T,) and gradients (T, P) at parameters (T, P)."""
        X, y = np.asarray(self.X), np.asarray(self.y)
        matrices, offsets = split_parameters(parameters, self.width, self.n_classes)
        flat = matrices.transpose(1, 0, 2).reshape(self.width, -1)  # (p, T C): one product for all targets
        losses, slopes, tilts = np.zeros(len(matrices)), np.zeros(flat.shape), np.zeros(offsets.shape)
        step = max(1, _BLOCK // flat.shape[1])
        with single_blas_thread():
            for place in range(0, len(X), step):
                rows, labels = X[place : place + step], y[place : place + step]
                logits = (rows @ flat).reshape(len(rows), *offsets.shape) + offsets
                logs = logits - logsumexp(logits, axis=2, keepdims=True)
                losses -= logs[np.arange(len(rows)), :, labels].sum(axis=0)
                errors = np.exp(logs)
                errors[np.arange(len(rows)), :, labels] -= 1
                slopes += rows.T @ errors.reshape(len(rows), -1)
                tilts += errors.sum(axis=0)
        losses = losses / len(X) + 0.5 * self.regularization * (matrices**2).sum(axis=(1, 2))
        slopes = slopes.reshape(self.width, *offsets.shape).transpose(1, 0, 2) / len(X)
        slopes += self.regularization * matrices
        return losses, np.hstack([slopes.reshape(len(slopes), -1), tilts / len(X)])


def probabilities(parameters: npt.ArrayLike, X: npt.ArrayLike, n_classes: int) -> FloatArray:
    """Class probabilities (n, C) of rows X (n, p) by one parameter vector (P,)."""
    rows = check_rows(X, "X")
    matrices, offsets = split_parameters(np.reshape(parameters, (1, -1)), rows.shape[1], n_classes)
    shares: FloatArray = softmax(rows @ matrices[0] + offsets[0], axis=1)
    return shares


def split_parameters(parameters: npt.ArrayLike, width: int, n_classes: int) -> tuple[FloatArray, FloatArray]:
    """Matrices (T, p, C) and offsets (T, C) of parameters (T, P)."""
    theta = np.asarray(parameters, dtype=np.float64)
    expected = n_parameters(width, n_classes)
    if theta.ndim != 2 or theta.shape[1] != expected:
        raise InputError(
            f"parameters must have shape (targets, {expected}) for {width} columns and {n_classes} "
            f"classes, got {theta.shape}"
        )
    inner = width * n_classes
    return theta[:, :inner].reshape(-1, width, n_classes), theta[:, inner:]


def check_class_numbers(y: npt.ArrayLike, n: int, n_classes: int) -> IntArray:
    """Class numbers (n,), each in 0 .. n_classes - 1."""
    numbers = np.asarray(y)
    if numbers.shape != (n,) or numbers.dtype.kind not in "iu":
        raise InputError(f"y must be {n} class numbers, got {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= n_classes):
        raise InputError(f"y must be in 0 .. {n_classes - 1}, got {numbers.min()} .. {numbers.max()}")
    return numbers.astype(np.intp)
