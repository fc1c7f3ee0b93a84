"""Machines and a head together: one logit per class from a head's values and the machines' scores.

With head values R (n, C), LARGER is better, and scores D (n, C), SMALLER is better, of the same queries::

    logits = (R - c * D / mean_over_classes(D)) / T

The ratio has no unit, so that a weight c means the same whatever the rows are measured in. c and T are those that make
the labels of left-out rows most likely; c = 0 is the head alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray

#: Weights c that are tried: none, then halves of octaves around 1.
WEIGHTS = np.array([0.0, *2.0 ** (np.arange(-8, 11) / 2)])
#: Temperatures T that are tried beside every weight.
TEMPERATURES = 2.0 ** (np.arange(-28, 9) / 4)
#: The weight where nobody can say which is best. With random features 1 to 2 was near the best on all sets tried.
USUAL_WEIGHT = 1.0
#: The temperature where a head was given its regularisation, so that none was fitted.
USUAL_TEMPERATURE = 0.25
#: A row that a solution reproduces whatever its target has no prediction without itself.
_FREE = 1e-10


def ratios(scores: FloatArray) -> FloatArray:
    """``D_c / mean_c(D)`` (n, C) of scores; a class without a score is as far as the farthest that has one.

    Where all scores of a row are 0 the ratios are 1: nothing tells its classes apart.
    """
    known = np.isfinite(scores)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    mean = np.where(known, scores, 0.0).sum(axis=1, keepdims=True) / count
    shares = np.where(known, scores, 0.0) / np.where(mean > 0, mean, 1.0)
    shares = np.where((mean > 0) & known, shares, np.where(mean > 0, -np.inf, 1.0))
    farthest = np.where(np.isfinite(shares), shares, 1.0).max(axis=1, keepdims=True, initial=0.0)
    return np.where(np.isfinite(shares), shares, np.where(known.any(axis=1, keepdims=True), farthest, 1.0))


def fused_values(values: FloatArray, scores: FloatArray, weight: float) -> FloatArray:
    """Values (n, C), LARGER is better, of a head and of scores with this weight."""
    return values if weight == 0 else np.asarray(values - weight * ratios(scores))


def probabilities(values: FloatArray, temperature: float) -> FloatArray:
    """Softmax (n, C) of values over a temperature."""
    raised = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def left_out_values(
    values: FloatArray, leverage: FloatArray, numbers: npt.NDArray[np.intp], weights: FloatArray
) -> FloatArray:
    """Values (n, C) of a squared head as if it had not seen each row: ``y - (y - f) / (1 - c h)``.

    ``leverage`` (n,) is h of a row of weight 1, ``numbers`` (n,) the classes, ``weights`` (n,) c of the rows.
    """
    targets = np.zeros_like(values)
    targets[np.arange(len(numbers)), numbers] = 1.0
    rest = np.maximum(1 - weights * leverage, _FREE)
    return np.asarray(targets - (targets - values) / rest[:, None])


@dataclass(frozen=True, eq=False)
class FusionLosses:
    """Sums over left-out rows. surprise (W, T): weighted negative log-likelihood; wrong (W,): weight of wrong labels.

    ``total`` is the weight of all rows.
    """

    surprise: FloatArray
    wrong: FloatArray
    total: float

    @classmethod
    def of(
        cls, values: FloatArray, scores: FloatArray, numbers: npt.NDArray[np.intp], weights: FloatArray
    ) -> "FusionLosses":
        """Of head values (n, C), scores (n, C), class numbers (n,) and weights (n,) of rows."""
        far = ratios(scores)
        surprise, wrong = np.zeros((len(WEIGHTS), len(TEMPERATURES))), np.zeros(len(WEIGHTS))
        every = np.arange(len(numbers))
        for place, weight in enumerate(WEIGHTS.tolist()):
            fused = values - weight * far
            gaps = fused - fused.max(axis=1, keepdims=True, initial=-np.inf)
            wrong[place] = weights @ (fused.argmax(axis=1) != numbers) if len(numbers) else 0.0
            for column, T in enumerate(TEMPERATURES.tolist()):
                unlikely = np.log(np.exp(gaps / T).sum(axis=1)) - gaps[every, numbers] / T
                surprise[place, column] = float(weights @ unlikely)
        return cls(surprise, wrong, float(weights.sum()))

    def __add__(self, other: "FusionLosses") -> "FusionLosses":
        return FusionLosses(self.surprise + other.surprise, self.wrong + other.wrong, self.total + other.total)

    def best(self, usual: float) -> tuple[float, float]:
        """Weight and temperature of the smallest surprise, around the ``usual`` temperature and ``USUAL_WEIGHT``.

        Log-normal priors of deviation 1, and of two octaves for the weight, decide where rows are few or all right.
        """
        octaves = np.log2(np.maximum(WEIGHTS, WEIGHTS[1] / 2) / USUAL_WEIGHT)
        doubt = self.surprise + _temperature_doubt(usual) + (octaves / 2)[:, None] ** 2 / 2
        place, column = np.unravel_index(int(doubt.argmin()), doubt.shape)
        return float(WEIGHTS[place]), float(TEMPERATURES[column])

    def temperature(self, weight: float, usual: float) -> float:
        """The best temperature for the tried weight that is nearest to a given one."""
        place = int(np.abs(WEIGHTS - weight).argmin())
        return float(TEMPERATURES[int((self.surprise[place] + _temperature_doubt(usual)).argmin())])


def _temperature_doubt(usual: float) -> FloatArray:
    return np.asarray(np.log(TEMPERATURES / usual) ** 2 / 2)


def most_losses(values: FloatArray, leverage: FloatArray, scores: FloatArray, heaviest: float) -> FloatArray:
    """What the surprise (W, T) of rows cannot exceed, whatever their labels, each of a weight up to ``heaviest``.

    Values without a row differ by at most ``2 (1 + max |f|) / (1 - c h)`` between classes, ratios by their largest.
    """
    spread = 2 * (1 + np.abs(values).max(axis=1, initial=0.0)) / np.maximum(1 - heaviest * leverage, _FREE)
    gaps = spread[:, None] + WEIGHTS * ratios(scores).max(axis=1, initial=0.0)[:, None]
    by_weight = gaps.sum(axis=0)[:, None] / TEMPERATURES + len(values) * np.log(max(values.shape[1], 1))
    return np.asarray(heaviest * by_weight)


#: Probabilities of the head above which a query may stay.
THRESHOLDS = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999])


@dataclass(frozen=True, eq=False)
class VisitCounts:
    """Rows of left-out ones that the head answers alone at every threshold, and how many each way gets right.

    stay, alone, together : (G,) rows that stay, of these right by the head alone and right by both. rows : of all.
    """

    stay: FloatArray
    alone: FloatArray
    together: FloatArray
    rows: int

    @classmethod
    def of(cls, head: FloatArray, fused: FloatArray, numbers: npt.NDArray[np.intp]) -> "VisitCounts":
        """Of the head's probabilities (n, C), those of both together, and class numbers (n,)."""
        sure = head.max(axis=1, initial=0.0)[:, None] >= THRESHOLDS
        alone = (head.argmax(axis=1) == numbers)[:, None] & sure
        together = (fused.argmax(axis=1) == numbers)[:, None] & sure
        stay, right, fused_right = (counts.sum(axis=0).astype(np.float64) for counts in (sure, alone, together))
        return cls(stay, right, fused_right, len(numbers))

    def __add__(self, other: "VisitCounts") -> "VisitCounts":
        return VisitCounts(
            self.stay + other.stay, self.alone + other.alone, self.together + other.together, self.rows + other.rows
        )

    def choose(self, give_up: float) -> tuple[float, float, float]:
        """Threshold, share of queries that travel and accuracy given up, with the last at most ``give_up``.

        The smallest threshold from which on all stay below it; 1, where every query travels, if there is none.
        """
        if not self.rows:
            return 1.0, 1.0, 0.0
        lost = (self.together - self.alone) / self.rows
        fine = [place for place in range(len(THRESHOLDS)) if (lost[place:] <= give_up).all()]
        if not fine:
            return 1.0, 1.0, 0.0
        place = fine[0]
        return float(THRESHOLDS[place]), float(1 - self.stay[place] / self.rows), float(lost[place])
