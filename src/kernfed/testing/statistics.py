"""What is summed over rows kept aside to evaluate, to find a temperature, and to state a coverage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kernfed.abstain import BINS as ODDS_BINS
from kernfed.abstain import RATIO_BINS, count_scores, probability_bins, ratio_bins
from kernfed.abstain.bins import PLACES, odds_places, ratio_places
from kernfed.base.checks import FloatArray, IntArray
from kernfed.errors import InputError
from kernfed.kahm.left_out import temperature_losses
from kernfed.statistics.bounds import LARGEST_VALUE
from kernfed.testing.held_out import MOST_ROWS, Array, HeldOutStatistic, Sums
from kernfed.testing.outcomes import (
    BINS,
    MOST_RANKED,
    RANKS,
    ErrorSums,
    Outcome,
    count_numbers,
    error_sums,
)

Places = npt.NDArray[np.intp]
#: Temperatures that are tried, as factors of the sites' own: eight octaves each way, in eighths.
FACTORS = 2.0 ** (np.arange(-64, 65) / 8)


@dataclass(frozen=True)
class Outcomes(HeldOutStatistic):
    """Counts of an ``Outcome``, from probabilities (n, C)."""

    name = "outcomes"
    counted = "confusion"
    high = 1.0 + 1e-6

    classes: int

    @classmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:  # noqa: ARG003
        """The counts of so many classes."""
        if not classes:
            raise InputError(f"a {type(model).__name__} that regresses has no outcomes to count")
        return cls(classes)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Those of an ``Outcome``."""
        C = self.classes
        counted = {"confusion": Array((C + 1, C)), "calibration": Array((BINS, 3), whole=False)}
        return {**counted, "ranking": Array((C, 2, RANKS))} if C <= MOST_RANKED else counted

    @property
    def otherwise(self) -> FloatArray:
        """No class is more likely than another."""
        return np.full(self.classes, 1 / self.classes)

    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Probabilities (n, C)."""
        return np.asarray(model.predict_proba(X, **options))

    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The counts of an ``Outcome``."""
        return {name: array for name, array in vars(count_numbers(labels, scores)).items() if array is not None}

    def check_sums(self, sums: Sums) -> None:
        """Refuse counts by class, by confidence and by probability that are not of the same rows."""
        outcome = Outcome(**sums)
        rows, correct, confidence = outcome.calibration.T
        if (correct > rows).any():
            raise InputError("counts by confidence must be at least 0, and those correct no more than all")
        if (rows.sum(), correct.sum()) != (outcome.rows, outcome.correct):
            raise InputError(
                f"counts by confidence are of {rows.sum():,.0f} rows, {correct.sum():,.0f} correct, and those by class "
                f"of {outcome.rows:,} and {outcome.correct:,}"
            )
        edges = np.arange(BINS + 1) / BINS
        slack = 1e-6 * rows + 1e-9
        if (confidence < edges[:-1] * rows - slack).any() or (confidence > edges[1:] * rows + slack).any():
            raise InputError("confidences must add up to what their bins can hold")
        if outcome.ranking is not None:
            of_class = outcome.confusion[:-1].sum(axis=1)
            expected = np.column_stack([of_class, outcome.rows - of_class])
            if (outcome.ranking.astype(np.float64).sum(axis=2) != expected).any():
                raise InputError("counts by probability must be of the same rows as those by class")


@dataclass(frozen=True)
class Errors(HeldOutStatistic):
    """``ErrorSums`` of predicted values (n,). Their spread is around their mean, so that no plain sum of sites is."""

    name = "errors"
    low, high = -LARGEST_VALUE, LARGEST_VALUE

    @classmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:  # noqa: ARG003
        """The errors of a regressor."""
        if classes:
            raise InputError(f"a {type(model).__name__} that classifies has no errors to add up")
        return cls()

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Those of ``ErrorSums``."""
        squares = Array((), 4 * LARGEST_VALUE**2 * MOST_ROWS, whole=False)
        sizes = Array((), 2 * LARGEST_VALUE * MOST_ROWS, whole=False)
        mean = Array((), LARGEST_VALUE, whole=False, signed=True)
        return {"rows": Array(()), "squared": squares, "absolute": sizes, "mean": mean, "spread": squares}

    @property
    def otherwise(self) -> FloatArray:
        """The value 0."""
        return np.zeros(())

    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Predicted values (n,)."""
        return np.asarray(model.predict(X, **options))

    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The sums of errors."""
        values = np.clip(labels.astype(np.float64), -LARGEST_VALUE, LARGEST_VALUE)
        return {name: np.asarray(value) for name, value in vars(error_sums(values, scores)).items()}

    def check_sums(self, sums: Sums) -> None:
        """Refuse sizes and squares of errors that contradict each other, by Cauchy-Schwarz."""
        told = self.error_sums(sums)
        if told.absolute**2 > told.rows * told.squared * (1 + 1e-9):
            raise InputError(f"no {told.rows:,} errors have squares of {told.squared:g} and sizes of {told.absolute:g}")

    @staticmethod
    def error_sums(sums: Sums) -> ErrorSums:
        """The sums of a site as numbers."""
        return ErrorSums(**{name: array.item() for name, array in sums.items()})


@dataclass(frozen=True, eq=False)
class Temperatures(HeldOutStatistic):
    """Losses of scores (n, C) at each of ``temperatures`` (129,); rows with unknown labels are left out."""

    name = "temperatures"
    low = -float(np.finfo(np.float64).max)  # absent classes score infinity

    classes: int
    temperatures: FloatArray

    @classmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:  # noqa: ARG003
        """Losses at the temperatures of a question, of machines that are in the model."""
        if model is not None and (not model.can_calibrate or model.hold != "machines"):
            raise InputError(f"a {type(model).__name__} has no temperature to find here")
        asked = arrays["temperatures"]
        if asked.shape != FACTORS.shape or not ((asked > 0) & np.isfinite(asked)).all():
            raise InputError(f"expected {len(FACTORS)} temperatures above 0, got {asked.shape}")
        return cls(classes, asked.astype(np.float64))

    def parameters(self, *, model: bool) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:  # noqa: ARG002
        """The temperatures."""
        return {}, {"temperatures": self.temperatures}

    @property
    def arrays(self) -> Mapping[str, Array]:
        """A loss for each temperature, and rows."""
        return {"losses": Array(FACTORS.shape, whole=False), "rows": Array(())}

    @property
    def otherwise(self) -> FloatArray:
        """No class is nearer than another."""
        return np.zeros(self.classes)

    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Scores (n, C), small for a likely class."""
        return np.asarray(model.scores(X, **options))

    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Losses (129,) and rows, over rows whose labels are known."""
        known = labels < self.classes
        losses = temperature_losses(scores[known], labels[known], self.temperatures)
        return {"losses": np.minimum(losses, float(MOST_ROWS)), "rows": np.asarray(int(known.sum()))}

    def check_sums(self, sums: Sums) -> None:
        """Refuse losses that are not convex in the inverse temperature."""
        losses, rates = sums["losses"], 1 / self.temperatures
        share = (rates[1:-1] - rates[2:]) / (rates[:-2] - rates[2:])
        chords = losses[2:] + share * (losses[:-2] - losses[2:])
        if (losses[1:-1] > chords + 1e-9 * (1 + np.maximum(losses[:-2], losses[2:]))).any():
            raise InputError("a loss must be convex in the inverse temperature")

    def check_sent(self, sums: Sums, scores: FloatArray) -> None:
        """Refuse losses of more rows than these, or larger than any labels of them have."""
        if self.rows(sums) > len(scores):
            raise InputError(f"the losses must be of the {len(scores):,} rows that were asked, got {self.rows(sums):,}")
        largest = np.where(np.isfinite(scores), scores, -np.inf)
        worst = np.argmax(largest, axis=1) if len(scores) else np.zeros(0, dtype=np.intp)
        limits = temperature_losses(scores, worst, self.temperatures)
        if (sums["losses"] > limits * (1 + 1e-9) + 1e-9).any():
            raise InputError("no labels of the rows that were asked have such losses")


@dataclass(frozen=True)
class Coverage(HeldOutStatistic):
    """Histograms by class, from probabilities and strangeness over its unit (n, C + 1).

    A row without scores is in no set of classes, and as strange as a row can be: the safe side of both. ``strangers``
    says whether the model has machines, and strangeness is counted.
    """

    name = "coverage"
    counted = "counts"

    classes: int
    strangers: bool = True

    @classmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:  # noqa: ARG003
        """Histograms of a classifier with a coverage, whole in the question; of scores, those of machines."""
        if model is None:
            return cls(classes)
        if not model.can_conform or model.hold != "machines":
            raise InputError(f"a {type(model).__name__} has no sets of classes here")
        return cls(classes, model.has_machines)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Counts, those of strangeness, the shares of the site's rows by bin, and 1 for a site that has rows."""
        C, share = self.classes, 1.0
        counts = {"counts": Array((C + 1, ODDS_BINS)), "nearest": Array((C, RATIO_BINS))}
        return {**counts, "shares": Array((ODDS_BINS,), share, whole=False), "sites": Array((), share, whole=False)}

    @property
    def otherwise(self) -> FloatArray:
        """Impossible for every class, and infinitely strange."""
        return np.append(np.zeros(self.classes), np.inf)

    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Probabilities and strangeness over its unit (n, C + 1), infinity without machines."""
        options.pop("min_replies", None)  # with fewer machines it is another model that is counted
        probabilities, strange = model.conforming(X, **options)
        ratios = np.full(len(X), np.inf) if strange is None else strange / model.distance_unit
        return np.column_stack([probabilities, ratios])

    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Histograms of the rows of every class, unknown labels in the last."""
        counts, nearest = count_scores(labels, scores[:, :-1], scores[:, -1] if self.strangers else None)
        some = np.asarray(float(counts.sum() > 0))
        return {"counts": counts, "nearest": nearest, "shares": bin_shares(counts), "sites": some}

    def places(self, scores: FloatArray, labels: npt.NDArray[Any]) -> tuple[Places, Places]:
        """Places (n,) of rows on the counting ladder, by the odds of their labels and by their strangeness.

        A row whose label is unknown, or that has no such score, is in none: ``PLACES``.
        """
        odds, strange = np.full((2, len(labels)), PLACES, dtype=np.intp)
        likely = np.append(scores[:, :-1], np.full((len(labels), 1), np.nan), axis=1)[np.arange(len(labels)), labels]
        known, near = np.isfinite(likely), scores[:, -1] >= 0
        odds[known] = odds_places(probability_bins(likely[known]))
        strange[near] = ratio_places(ratio_bins(scores[near, -1]))
        return odds, strange

    def check_sums(self, sums: Sums) -> None:
        """Refuse histograms that are not of the same rows."""
        counts, nearest = sums["counts"], sums["nearest"]
        if counts[-1, :-1].any():
            raise InputError("rows with unknown labels are in the last bin")
        if nearest.any() and (nearest.sum(axis=1) != counts[:-1].sum(axis=1)).any():
            raise InputError("both histograms must be of the same rows")


def bin_shares(counts: IntArray) -> FloatArray:
    """Shares (BINS,) of a site's rows by bin; rows that no set can have are in none."""
    return np.asarray(counts[:-1].sum(axis=0) / max(1, int(counts.sum())))
