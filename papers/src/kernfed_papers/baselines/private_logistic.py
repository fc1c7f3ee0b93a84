"""Logistic regression under record-level privacy, by noisy gradients of all rows: what other methods are compared with.

The usual private baseline (Bassily, Smith and Thakurta 2014; Abadi et al. 2016) without minibatches: every round uses
every row, so nothing hangs on secret sampling and the rounds compose exactly, as Gaussians do. It needs as many rounds
between sites as it has steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from kernfed.errors import InputError
from kernfed.privacy import (
    GaussianEvent,
    Guarantee,
    Ledger,
    NoiseGenerator,
    NoisySum,
    RecordMechanism,
    charge,
    clip_rows,
)
from kernfed.statistics import BITS, LabelledRows, Part, Statistic, check_scale, label_places, product, saturate
from kernfed_papers.checks import check_count, check_number

Floats = npt.NDArray[np.float64]
#: Rows a b' of two vectors in unit balls: replacing one moves their sum by at most this in L2.
GRADIENT_SENSITIVITY = 2.0
#: Residuals p - e_y are no longer than this, so a larger clip changes nothing but the noise.
_LONGEST_RESIDUAL = math.sqrt(2.0)


@dataclass(frozen=True, eq=False)
class GradientSums(Statistic[Floats]):
    """Sum of the gradients ``x (p - e_y)'`` of rows with a constant, at ``weights`` (p + 1, C).

    Rows are in units of ``radius``, residuals in units of ``clip``. A label that is no class counts as the first: it is
    protected with its row, and to refuse it would tell of one row with certainty.
    """

    arrays: ClassVar[tuple[str, ...]] = ("weights",)

    classes: tuple[Any, ...]
    radius: float
    clip: float
    weights: Floats

    @property
    def parts(self) -> Mapping[str, Part]:
        """``gradient`` (p + 1, C)."""
        return {"gradient": Part(self.weights.shape, GRADIENT_SENSITIVITY, 1.0, 1.0, 2)}

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """Rows (n, p + 1) and residuals (n, C) in unit balls; residuals are those of rows on the grid."""
        points = clip_rows(_with_constant(saturate(X), self.radius), 1.0)
        inputs = np.trunc(points * 2.0**BITS) / 2.0**BITS
        targets = np.eye(len(self.classes))[label_places(y, self.classes) % len(self.classes)]
        return points, clip_rows(softmax(inputs @ self.weights, axis=1) - targets, self.clip) / self.clip

    def total(self, *factors: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Their products."""
        return {"gradient": product(*factors)}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> Floats:  # noqa: ARG002
        """Mean gradient (p + 1, C)."""
        return np.asarray(self.clip / rows * sums["gradient"])


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
        return np.asarray(_with_constant(np.asarray(X), self.radius) @ self.coefficients)

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
        check_scale(self.radius, "radius")
        check_count(self.rounds, "rounds")
        check_scale(self.rate, "rate")
        if check_scale(self.clip, "clip") > _LONGEST_RESIDUAL:
            raise InputError(f"clip must be <= {_LONGEST_RESIDUAL:.4g}, got {self.clip!r}")
        if check_number(self.momentum, "momentum", zero=True) >= 1:
            raise InputError(f"momentum must be < 1, got {self.momentum!r}")
        self._noisy(GradientSums((0, 1), self.radius, self.clip, np.zeros((1, 2))), 1)  # refuses epsilon and delta

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row and its label replaced by any other"

    def _noisy(self, gradients: GradientSums, rounds: int) -> NoisySum[Floats]:
        """Noise of one of so many rounds: squared mu is shared out evenly among them."""
        return NoisySum(
            gradients, self.epsilon, self.delta, portion=1 / rounds, beside=(rounds - 1) * gradients.weights.size
        )

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
        source = NoiseGenerator() if generator is None else generator
        rows, labels, names = np.asarray(X, dtype=np.float64), np.asarray(y), np.unique(np.asarray(classes))
        home = np.zeros(len(rows)) if sites is None else np.asarray(sites)
        _check(rows, labels, home, source)
        start = GradientSums(tuple(names.tolist()), self.radius, self.clip, np.zeros((rows.shape[1] + 1, len(names))))
        one = self._noisy(start, self.rounds).event
        event = replace(one, mu=self._noisy(start, 1).event.mu, slack=self.rounds * one.slack)
        note = f"RecordLogistic({self.epsilon:g}, {self.delta:g}), {self.rounds} rounds"
        pays = charge(ledger, (event,), rows, ids, source, note, together=True)
        kept = LabelledRows(np.where(pays[:, None], rows, 0.0), np.where(pays, labels, names[0]))
        parts = [np.flatnonzero(home == site) for site in np.unique(home)]
        coefficients = self._descend(start, [LabelledRows(kept.X[part], kept.y[part]) for part in parts], source)
        element, record = self.guarantees(rows.shape[1])
        return LogisticRelease(coefficients, names, self.radius, element, record, source.private, (event,))

    def _descend(self, gradients: GradientSums, sites: Sequence[LabelledRows], source: NoiseGenerator) -> Floats:
        """Coefficients after all rounds."""
        rows = sum(len(site.X) for site in sites)
        velocity, total = np.zeros_like(gradients.weights), np.zeros_like(gradients.weights)
        for step in range(self.rounds):
            noisy = self._noisy(gradients, self.rounds)
            sent = [noisy.release(site, source)["gradient"] for site in sites]
            mean = noisy.read({"gradient": np.sum(sent, axis=0)}, rows, len(sites))
            velocity = self.momentum * velocity - self.rate * mean
            gradients = replace(gradients, weights=gradients.weights + velocity)
            if step >= self.rounds // 2:
                total += gradients.weights
        return np.asarray(total / (self.rounds - self.rounds // 2))


def _check(rows: Floats, labels: npt.NDArray[Any], home: npt.NDArray[Any], source: Any) -> None:
    """Refuse rows (n, p), labels (n,) and sites (n,) that do not belong together, and noise that is no secret."""
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"X must be finite rows (n, p), got shape {rows.shape}")
    if labels.shape != (len(rows),):
        raise InputError(f"y must have a label for each of the {len(rows)} rows of X, got shape {labels.shape}")
    if home.shape != (len(rows),):
        raise InputError(f"sites must name the site of each of the {len(rows)} rows, got shape {home.shape}")
    if not isinstance(source, NoiseGenerator):
        raise InputError(f"generator must be a NoiseGenerator or None, got {type(source).__name__}")


def _with_constant(rows: npt.NDArray[Any], radius: float) -> Floats:
    """Rows (n, p) moved into the ball of ``radius``, in its units, with a constant: (n, p + 1), length 1 at most."""
    inside = clip_rows(rows, radius) / radius
    return np.asarray(np.column_stack([inside, np.ones(len(rows))]) * math.sqrt(0.5))
