"""Models of all targets at once by their gradients: minimise ``R_t(theta_t) = sum_k W[t, k] R_k(theta_t)``, KME (2).

A step is one question to all sites. It carries the parameters of every target that is not yet done, and each site
answers with its loss and gradient at all of them, so B sites that learn B models exchange as many messages as for one:

>>> sites = [lambda theta, c=c: (0.5 * ((theta - c) ** 2).sum(axis=1), theta - c) for c in (0.0, 4.0)]
>>> risks = weighted_risks([[1.0, 0.0], [0.5, 0.5]], lambda theta: [site(theta) for site in sites])
>>> minimise(risks, np.zeros((2, 1))).parameters.ravel().tolist()
[0.0, 2.0]

``minimise`` is for convex models: it searches along lines and stops on the norm of the gradient. ``descend`` is for
networks: a fixed number of steps, the last parameters returned. Neither looks at test rows, whereas KME Appendix B
reports the best test accuracy that was met during training.

``LogisticRisk`` is the risk of multinomial logistic regression on the rows of one site. A parameter vector has
P = (p + 1) C entries: the matrix (p, C) row by row, then the C offsets. Offsets are not regularised. Mean loss plus
``regularization / 2 |matrix|^2``: scikit-learn's objective for ``C = 1 / (n lambda)``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax

from kernfed.base.checks import FloatArray, IntArray, check_count, check_finite, check_number, check_rows
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError

Targets = npt.NDArray[np.intp]
#: Losses (A,) and gradients (A, P) at A parameter vectors.
Slopes = tuple[FloatArray, FloatArray]
#: Parameters (A, P) and the numbers (A,) of the targets they belong to, to weighted risks and their gradients.
Evaluate = Callable[[FloatArray, Targets], Slopes]

#: Pairs of steps and changes of the gradient that the search directions are made from.
_MEMORY = 10
#: Share of the predicted decrease that a step must bring (Armijo).
_DECREASE = 1e-4
#: Share of the length of the parameters below which a step no longer moves them.
_SHORTEST = 1e-14


@dataclass(frozen=True, eq=False)
class Descent:
    """Parameters (T, P) of all targets, weighted risks (T,), norms of the gradients (T,), and how they were found.

    steps : questions asked. converged : (T,) whether the norm is below the tolerance; False for ``descend``, which has
    none. history : mean risk over the targets at every question.
    """

    parameters: FloatArray
    risks: FloatArray
    norms: FloatArray
    steps: int
    converged: npt.NDArray[np.bool_]
    history: tuple[float, ...]


def weighted_risks(weights: npt.ArrayLike, ask: Callable[[FloatArray], Iterable[Slopes]]) -> Evaluate:
    """The risks of KME (2) from the answers of the sites.

    weights : (T, B), each row on the simplex. ask : parameters (A, P) -> each site's losses (A,) and gradients (A, P),
    in the order of the columns of ``weights``. The sum is taken in that order, so it does not depend on who is first.
    """
    W = check_simplex(weights)

    def evaluate(parameters: FloatArray, targets: Targets) -> Slopes:
        if targets[-1] >= len(W):
            raise InputError(f"start must have a row for each of {len(W)} rows of weights, got {targets[-1] + 1}")
        risks = np.zeros(len(targets))
        gradients = np.zeros(parameters.shape)
        for shares, (losses, slopes) in zip(W[targets].T, ask(parameters), strict=True):
            risks += shares * losses
            gradients += shares[:, None] * slopes
        return risks, gradients

    return evaluate


def check_simplex(weights: npt.ArrayLike) -> FloatArray:
    """Weights (T, B) in float64 that are at least 0 and sum to 1 in every row."""
    W = check_rows(weights, "weights").astype(np.float64)
    if W.min() < 0:
        raise InputError(f"weights must be >= 0, got {W.min()}")
    worst = int(np.abs(W.sum(axis=1) - 1).argmax())
    if abs(W[worst].sum() - 1) > 1e-6:
        raise InputError(f"weights must sum to 1 in every row, got {W[worst].sum():.8g} in row {worst}; divide by it")
    return W


def minimise(evaluate: Evaluate, start: npt.ArrayLike, *, tolerance: float = 1e-6, max_steps: int = 1000) -> Descent:
    """Minimise every target's risk from ``start`` (T, P) until the norm of its gradient is at most ``tolerance``.

    Limited-memory BFGS with backtracking, each target with its own directions and step lengths and all in one question
    per step; a target that is done is no longer asked about. A risk with L2 term ``a/2 |theta|^2`` is then within
    ``tolerance^2 / (2 a)`` of its minimum.
    """
    check_number(tolerance, "tolerance", above=0)
    check_count(max_steps, "max_steps")
    theta = _check_start(start).astype(np.float64)
    everyone = np.arange(len(theta))
    f, g = _checked(evaluate(theta, everyone), theta, 0)
    memory = _Memory(theta.shape)
    direction = -g
    length = 1 / np.maximum(np.linalg.norm(g, axis=1), 1.0)
    stuck, history = np.zeros(len(theta), dtype=bool), [float(f.mean())]
    while len(history) <= max_steps:
        todo = np.flatnonzero((np.linalg.norm(g, axis=1) > tolerance) & ~stuck)
        if todo.size == 0:
            break
        move = length[todo, None] * direction[todo]
        f_new, g_new = evaluate(theta[todo] + move, todo)
        slope = np.einsum("tp,tp->t", g[todo], direction[todo])
        taken = _enough(f[todo], f_new, slope, np.einsum("tp,tp->t", g_new, direction[todo]), length[todo])
        done, failed = todo[taken], todo[~taken]
        memory.add(done, move[taken], g_new[taken] - g[done])
        theta[done] += move[taken]
        f[done], g[done] = f_new[taken], g_new[taken]
        direction[done], length[done] = -memory.solve(done, g[done]), 1.0
        length[failed] *= _shorter(f[failed], f_new[~taken], slope[~taken], length[failed])
        reach = length[failed] * np.linalg.norm(direction[failed], axis=1)
        stuck[failed] = reach <= _SHORTEST * (1 + np.linalg.norm(theta[failed], axis=1))
        history.append(float(f.mean()))
    norms = np.linalg.norm(g, axis=1)
    return Descent(theta, f, norms, len(history), norms <= tolerance, tuple(history))


def descend(evaluate: Evaluate, start: npt.ArrayLike, *, steps: int = 2000, learning_rate: float = 1e-3) -> Descent:
    """A fixed number of steps of Adam (Kingma and Ba 2015) on the whole weighted risk of every target, from ``start``.

    The last parameters are the answer, in the precision of ``start``; risks and norms are taken there by one more
    question. Defaults: epochs and learning rate of KME Table 2; KME does not name its optimiser.
    """
    check_count(steps, "steps")
    rate = check_number(learning_rate, "learning_rate", above=0)
    theta = _check_start(start).copy()
    everyone = np.arange(len(theta))
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    history = []
    for step in range(1, steps + 1):
        f, g = _checked(evaluate(theta, everyone), theta, step - 1)
        history.append(float(f.mean()))
        mean += 0.1 * (g - mean)
        square += 0.001 * (g * g - square)
        bias = np.sqrt(1 - 0.999**step)
        theta -= rate * bias / (1 - 0.9**step) * mean / (np.sqrt(square) + 1e-8 * bias)
    f, g = _checked(evaluate(theta, everyone), theta, steps)
    norms = np.linalg.norm(g, axis=1)
    return Descent(theta, f, norms, steps + 1, np.zeros(len(theta), dtype=bool), (*history, float(f.mean())))


class _Memory:
    """The last steps and changes of the gradient of each target; solves by the matrix that they imply."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._steps = np.zeros((_MEMORY, *shape))
        self._changes = np.zeros((_MEMORY, *shape))
        self._curvature = np.zeros((_MEMORY, shape[0]))  # step' change; 0 where there is none
        self._next = np.zeros(shape[0], dtype=np.intp)

    def add(self, targets: Targets, steps: FloatArray, changes: FloatArray) -> None:
        """Keep pairs (A, P) of some targets; a pair without positive curvature says nothing and is left out."""
        curvature = np.einsum("tp,tp->t", steps, changes)
        sizes = np.linalg.norm(steps, axis=1) * np.linalg.norm(changes, axis=1)
        kept = curvature > 1e-12 * sizes
        chosen = targets[kept]
        place = self._next[chosen] % _MEMORY
        self._steps[place, chosen], self._changes[place, chosen] = steps[kept], changes[kept]
        self._curvature[place, chosen] = curvature[kept]
        self._next[chosen] += 1

    def solve(self, targets: Targets, gradients: FloatArray) -> FloatArray:
        """``H g`` (A, P) with H the limited-memory inverse (two-loop recursion, Nocedal 1980)."""
        q, factors = gradients.copy(), []
        for back in range(1, _MEMORY + 1):
            step, change, curvature = self._pair(targets, back)
            factor = np.divide(np.einsum("tp,tp->t", step, q), curvature, where=curvature > 0, out=np.zeros(len(q)))
            q -= factor[:, None] * change
            factors.append(factor)
        _, change, curvature = self._pair(targets, 1)
        squares = np.einsum("tp,tp->t", change, change)
        q *= np.divide(curvature, squares, where=squares > 0, out=np.ones(len(q)))[:, None]
        for back in range(_MEMORY, 0, -1):
            step, change, curvature = self._pair(targets, back)
            inner = np.einsum("tp,tp->t", change, q)
            factor = np.divide(inner, curvature, where=curvature > 0, out=np.zeros(len(q)))
            q += (factors[back - 1] - factor)[:, None] * step
        return q

    def _pair(self, targets: Targets, back: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        place = (self._next[targets] - back) % _MEMORY
        return self._steps[place, targets], self._changes[place, targets], self._curvature[place, targets]


def _enough(f: FloatArray, f_new: FloatArray, slope: FloatArray, slope_new: FloatArray, length: FloatArray) -> Any:
    """Whether steps bring enough: Armijo's decrease, or its form by slopes where the values differ by rounding only.

    The second is the approximate Wolfe condition of Hager and Zhang (2005): near the minimum a risk of size 1 shows
    gradients down to 1e-8 in its value, and smaller ones only in the slope.
    """
    decrease = f_new <= f + _DECREASE * length * slope
    flat = (f_new <= f + 1e-12 * np.abs(f)) & (slope_new <= (2 * _DECREASE - 1) * slope)
    return (decrease | flat) & np.isfinite(f_new)


def _shorter(f: FloatArray, f_new: FloatArray, slope: FloatArray, length: FloatArray) -> FloatArray:
    """Factor in [0.1, 0.5]: to the minimum of the parabola through both values and the slope, where there is one."""
    bend = np.nan_to_num(f_new - f, nan=np.inf, posinf=np.inf) - length * slope
    best = np.divide(-slope * length, 2 * bend, where=bend > 0, out=np.full(len(f), 0.5))
    return np.asarray(np.clip(best, 0.1, 0.5))


def _check_start(start: npt.ArrayLike) -> FloatArray:
    return check_rows(start, "start")


def _checked(slopes: Slopes, parameters: FloatArray, step: int) -> Slopes:
    risks, gradients = np.asarray(slopes[0], dtype=np.float64), np.asarray(slopes[1], dtype=parameters.dtype)
    if risks.shape != (len(parameters),) or gradients.shape != parameters.shape:
        raise InputError(
            f"risks and gradients must have shapes {(len(parameters),)} and {parameters.shape}, "
            f"got {risks.shape} and {gradients.shape}"
        )
    hint = "lower learning_rate" if step else "look at the rows or the start"
    if not np.isfinite(risks).all():
        raise InputError(f"risks must be finite, got {risks[~np.isfinite(risks)][0]} at step {step}; {hint}")
    check_finite(gradients, "gradients")
    return risks, gradients


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
