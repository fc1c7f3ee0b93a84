"""Logistic regression under record-level privacy, by noisy gradients of all rows: what other methods are compared with.

The usual private baseline (Bassily, Smith and Thakurta 2014; Abadi et al. 2016) without minibatches: every round uses
every row, so nothing hangs on secret sampling and the rounds compose exactly, as Gaussians do. It needs as many rounds
between sites as it has steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from kernfed.base.checks import FloatArray, check_count, check_number, check_rows
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.privacy.accounting import GaussianEvent
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.moments import check_labels
from kernfed.privacy.noise import Floats
from kernfed.privacy.release import RecordMechanism, charge, only
from kernfed.privacy.sums import Budget, add_gaussian
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import (
    BITS,
    MOST_NUMBERS,
    SMALLEST_SCALE,
    check_scale,
    clip_rows,
    exact_product,
    saturate,
    unit_grid,
)

#: Rows a b' of two vectors in unit balls: replacing one moves their sum by at most this in L2.
GRADIENT_SENSITIVITY = 2.0
#: Residuals p - e_y are no longer than this, so a larger clip changes nothing but the noise.
_LONGEST_RESIDUAL = math.sqrt(2.0)


@dataclass(frozen=True, eq=False)
class LogisticRelease:
    """Noisy ``coefficients`` (p + 1, C), the last row for the constant, for rows in units of ``radius``.

    ``classes`` (C,) are sorted; ``element``, ``record``, ``private`` and ``events`` are as in ``Release``.
    """

    coefficients: Floats
    classes: npt.NDArray[Any]
    radius: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[GaussianEvent, ...]

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Logits of rows ``X`` (n, p): (n, C)."""
        rows = check_rows(X, width=len(self.coefficients) - 1)
        return np.asarray(_with_constant(rows, self.radius) @ self.coefficients)

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Class with the largest logit, (n,)."""
        return np.asarray(self.classes[self.decision_function(X).argmax(axis=1)])


@dataclass(frozen=True)
class RecordLogistic(RecordMechanism):
    """Multinomial logistic regression under (epsilon, delta) for a whole row and its label.

    Rows longer than the public ``radius`` are shortened to it, residuals longer than ``clip`` to that. Each of the
    ``rounds`` sends the sum of all rows' gradients with noise; replacing a row moves it by at most 2 clip, in units of
    a row's length. Steps of ``rate`` with ``momentum``; what is released is the mean of the last half of the iterates.
    """

    epsilon: float
    delta: float
    radius: float
    rounds: int = 100
    rate: float = 4.0
    clip: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_scale(self.radius, "radius")
        check_count(self.rounds, "rounds", at_most=MOST_NUMBERS)
        check_scale(self.rate, "rate")
        check_number(self.clip, "clip", above=0, at_least=SMALLEST_SCALE, at_most=_LONGEST_RESIDUAL)
        check_number(self.momentum, "momentum", at_least=0, below=1)

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row and its label replaced by any other"

    def release(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        classes: npt.ArrayLike,
        *,
        sites: npt.ArrayLike | None = None,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> LogisticRelease:
        """Train on rows ``X`` (n, p) with labels ``y`` (n,) among the public ``classes``; others count as the first.

        ``sites`` (n,) says at which site each row is: every site adds noise of its own before its sum leaves it, so no
        site needs to trust another. Without it there is one site.
        """
        source = check_generator(generator)
        rows = check_rows(X)
        names = np.unique(np.asarray(classes))
        # One that is not among the classes counts as the first: to refuse it would tell of one row with certainty.
        labels = np.where(np.isin(labels := check_labels(y, len(rows)), names), labels, names[0])
        home = np.zeros(len(rows)) if sites is None else np.asarray(sites)
        if home.shape != (len(rows),):
            raise InputError(f"sites must name the site of each of the {len(rows)} rows, got shape {home.shape}")
        event = Budget(self.epsilon, self.delta).event(self.rounds * len(names) * (rows.shape[1] + 1))
        note = f"RecordLogistic({self.epsilon:g}, {self.delta:g}), {self.rounds} rounds"
        pays = charge(ledger, (event,), rows, ids, source, note, together=True)
        rows, labels = saturate(only(rows, pays)), np.where(pays, labels, names[0])
        parts = [np.flatnonzero(home == site) for site in np.unique(home)]
        with single_blas_thread():
            coefficients = self._descend(rows, (labels[:, None] == names).astype(np.float64), parts, event.mu, source)
        element, record = self.guarantees(rows.shape[1])
        return LogisticRelease(coefficients, names, self.radius, element, record, source.private, (event,))

    def _descend(
        self,
        rows: FloatArray,
        targets: Floats,
        parts: Sequence[npt.NDArray[np.intp]],
        mu: float,
        source: NoiseGenerator,
    ) -> Floats:
        """Coefficients after all rounds; squared mu is shared out evenly among them."""
        grid = unit_grid(_with_constant(rows, self.radius), 1.0)
        inputs = grid / 2.0**BITS
        each = mu / math.sqrt(self.rounds) * (1 - 1e-15)
        weights = np.zeros((inputs.shape[1], targets.shape[1]))
        velocity, total = np.zeros_like(weights), np.zeros_like(weights)
        own = [grid[part] for part in parts]
        for step in range(self.rounds):
            residuals = unit_grid(softmax(inputs @ weights, axis=1) - targets, self.clip)
            gradient = sum(
                add_gaussian(exact_product(mine, residuals[part]), GRADIENT_SENSITIVITY, 4.0**BITS, each, source)
                for mine, part in zip(own, parts, strict=True)
            )
            velocity = self.momentum * velocity - self.rate * self.clip / len(rows) * gradient
            weights = weights + velocity
            if step >= self.rounds // 2:
                total += weights
        return np.asarray(total / (self.rounds - self.rounds // 2))


def _with_constant(rows: FloatArray, radius: float) -> Floats:
    """Rows (n, p) moved into the ball of ``radius``, in its units, with a constant: (n, p + 1), length 1 at most."""
    inside = clip_rows(rows, radius) / radius
    return np.asarray(np.column_stack([inside, np.ones(len(rows))]) * math.sqrt(0.5))
