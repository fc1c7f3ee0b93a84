"""What a test counts of a classifier, and adds up of a regressor: at one site, and at all of them together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, IntArray
from kernfed.errors import InputError
from kernfed.testing.harm import Influences

#: Confidence bins of the calibration counts.
BINS = 10
#: Bins of the probability of a class, evenly spaced in its logit from -REACH to REACH, for areas under ROC curves; and
#: the most classes for which they are counted.
RANKS, REACH, MOST_RANKED = 128, 12.0, 100
#: Confidence and accuracy that differ by more than this, and by more than chance explains, are worth an alarm.
ALARM = 0.05


@dataclass(frozen=True)
class Outcome:
    """Counts at one site.

    confusion : (C + 1, C), rows are true classes and the last one labels the model does not know; columns are
    predicted. calibration : (BINS, 3), per bin of confidence the predictions, the correct ones, confidence added up.
    ranking : (C, 2, RANKS), per class the rows that are of it, and those that are not, by bins of its probability; None
    where a site of an earlier version did not count them, or classes are too many.
    """

    confusion: IntArray
    calibration: FloatArray
    ranking: IntArray | None = None

    @property
    def rows(self) -> int:
        """Rows that were tested."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Rows whose predicted label was theirs."""
        return int(np.trace(self.confusion))

    @property
    def errors(self) -> int:
        """Rows whose predicted label was not theirs; ``kernfed.guarantees.heldout_bounds`` says what they promise."""
        return self.rows - self.correct

    @property
    def unknown(self) -> int:
        """Rows with labels that the model does not know: errors, whatever it predicts."""
        return int(self.confusion[-1].sum())

    @property
    def accuracy(self) -> float:
        """Share of rows predicted correctly; NaN where none was tested."""
        return self.correct / self.rows if self.rows else float("nan")

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy over the bins, weighted by rows."""
        if not self.rows:
            return float("nan")
        return float(np.abs(self.calibration[:, 2] - self.calibration[:, 1]).sum() / self.calibration[:, 0].sum())

    @property
    def recall(self) -> FloatArray:
        """Share (C,) of each class that was predicted as it; NaN where no row is of it."""
        return _shares(np.diagonal(self.confusion), self.confusion[:-1].sum(axis=1))

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that were met; NaN where none was."""
        return _mean(self.recall)

    @property
    def f1(self) -> FloatArray:
        """``2 right / (of the class + predicted as it)`` (C,); NaN for a class neither met nor predicted."""
        met = self.confusion[:-1].sum(axis=1) + self.confusion.sum(axis=0)
        return _shares(2 * np.diagonal(self.confusion), met)

    @property
    def auc(self) -> FloatArray:
        """Area (C,) under the ROC curve of each class against all others, ties within a bin counted half.

        NaN where all rows are of the class or none is.
        """
        classes = self.confusion.shape[1]
        if self.ranking is None:
            return np.full(classes, np.nan)
        own, others = self.ranking[:, 0].astype(np.float64), self.ranking[:, 1].astype(np.float64)
        below = np.cumsum(others, axis=1) - others
        pairs = own.sum(axis=1) * others.sum(axis=1)
        return _shares((own * (below + others / 2)).sum(axis=1), pairs)

    @property
    def mean_auc(self) -> float:
        """Mean area over the classes that were met; of two classes both have the same."""
        return _mean(self.auc)

    @property
    def mean_f1(self) -> float:
        """Mean F1 over the classes that were met or predicted."""
        return _mean(self.f1)

    @property
    def majority(self) -> tuple[int, float]:
        """The largest class, C for labels that the model does not know, and the share of rows that are of it."""
        counts = self.confusion.sum(axis=1)
        largest = int(counts.argmax())
        return largest, float(counts[largest] / counts.sum()) if counts.sum() else float("nan")

    @property
    def confidence(self) -> float:
        """Mean probability of the predicted labels: what the model thinks its accuracy is."""
        return float(self.calibration[:, 2].sum() / self.rows) if self.rows else float("nan")

    @property
    def alarm(self) -> str | None:
        """A sentence where confidence and accuracy disagree by more than ``ALARM`` and three standard errors."""
        if not self.rows:
            return None
        gap, accuracy = self.confidence - self.accuracy, self.accuracy
        chance = 3 * float(np.sqrt(max(accuracy * (1 - accuracy), 0.25 / self.rows) / self.rows))
        if abs(gap) <= max(ALARM, chance):
            return None
        word = "too sure" if gap > 0 else "not sure enough"
        return (
            f"The model is {word}: it gives its answers a probability of {self.confidence:.1%} on average, and "
            f"{accuracy:.1%} are right; do not rely on its probabilities before it is calibrated."
        )

    def __add__(self, other: "Outcome") -> "Outcome":
        ranking = None if self.ranking is None or other.ranking is None else self.ranking + other.ranking
        return Outcome(self.confusion + other.confusion, self.calibration + other.calibration, ranking)


@dataclass(frozen=True)
class Evaluation:
    """Outcome of every site, and of all together (``pooled``); ``influence`` of each on the others, where asked for."""

    classes_: npt.NDArray[Any]
    sites: Mapping[str, Outcome]
    missing: Mapping[str, str] = field(default_factory=dict)
    influence: Influences | None = None

    @property
    def pooled(self) -> Outcome:
        """Counts of all sites added up."""
        count = len(self.classes_)
        total = count_outcomes(self.classes_, self.classes_[:0], np.zeros((0, count)))
        for outcome in self.sites.values():
            total = total + outcome
        return total

    @property
    def accuracy(self) -> float:
        """Accuracy over all sites' rows."""
        return self.pooled.accuracy

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        every = {**self.sites, "": self.pooled}
        told = {
            name: {
                "rows": o.rows,
                "correct": o.correct,
                "accuracy": o.accuracy if o.rows else None,
                "calibration_error": o.calibration_error if o.rows else None,
                "confusion": o.confusion.tolist(),
                **_figures(o),
            }
            for name, o in every.items()
        }
        pooled = told.pop("")
        told = {"classes": self.classes_.tolist(), "pooled": pooled, "sites": told, "missing": dict(self.missing)}
        return told if self.influence is None else {**told, "influence": self.influence.to_json()}

    def __str__(self) -> str:
        names = [*self.sites, "all sites"]
        width = max(len(name) for name in names)
        lines = [f"{'site':<{width}}     rows  accuracy  balanced     AUC  calibration error"]
        for name, outcome in [*self.sites.items(), ("all sites", self.pooled)]:
            figures = f"{outcome.balanced_accuracy:>8.2%}  {outcome.mean_auc:>6.4f}  {outcome.calibration_error:>17.4f}"
            lines.append(f"{name:<{width}}  {outcome.rows:>7,}  {outcome.accuracy:>8.2%}  {figures}")
        lines += [
            f"{site:<{width}}  {outcome.unknown:,} row(s) have labels that the model does not know"
            for site, outcome in self.sites.items()
            if outcome.unknown
        ]
        lines += [f"{site:<{width}}  missing: {reason}" for site, reason in self.missing.items()]
        lines += [] if self.influence is None else ["", str(self.influence)]
        return "\n".join(lines)


def class_numbers(classes: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Numbers (n,) of labels among ``classes`` (C,), and C of those that are none of them."""
    place = {label: number for number, label in enumerate(classes.tolist())}
    return np.array([place.get(label, len(classes)) for label in labels.tolist()], dtype=np.intp)


def count_outcomes(classes: npt.NDArray[Any], labels: npt.NDArray[Any], probabilities: FloatArray) -> Outcome:
    """Outcome of probabilities (n, C) for rows with true ``labels`` (n,)."""
    if not ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all():  # also refuses NaN, which weights of 1e300 make
        raise InputError("a model's probabilities must be between 0 and 1, and are not; its numbers are too large")
    return count_numbers(class_numbers(classes, labels), probabilities)


def count_numbers(truth: npt.NDArray[np.intp], probabilities: FloatArray) -> Outcome:
    """Outcome of probabilities (n, C) for rows with class numbers ``truth`` (n,), C for labels that are unknown."""
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((classes + 1, classes), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    confidence = probabilities.max(axis=1) if len(probabilities) else np.zeros(0)
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    calibration = np.zeros((BINS, 3))
    np.add.at(calibration, bins, np.column_stack([np.ones(len(bins)), truth == predicted, confidence]))
    return Outcome(confusion, calibration, _count_ranks(truth, probabilities))


def _count_ranks(truth: npt.NDArray[np.intp], probabilities: FloatArray) -> IntArray | None:
    """Rows of each class and others (C, 2, RANKS) by the logit of its probability; None for too many classes."""
    classes = probabilities.shape[1]
    if classes > MOST_RANKED:
        return None
    smallest = np.exp(-2 * REACH)
    logits = np.log(np.maximum(probabilities, smallest)) - np.log(np.maximum(1 - probabilities, smallest))
    places = np.clip(((logits + REACH) * (RANKS / (2 * REACH))).astype(np.intp), 0, RANKS - 1)
    number = np.arange(classes)
    other = (truth[:, None] != number).astype(np.intp)
    cells = (number * 2 + other) * RANKS + places
    return np.bincount(cells.ravel(), minlength=classes * 2 * RANKS).reshape(classes, 2, RANKS).astype(np.int64)


def _shares(parts: npt.NDArray[Any], wholes: npt.NDArray[Any]) -> FloatArray:
    """``parts / wholes`` elementwise, NaN where there is no whole."""
    return np.asarray(np.divide(parts, wholes, out=np.full(len(wholes), np.nan), where=wholes > 0))


def _mean(values: FloatArray) -> float:
    """Mean of what is known; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _figures(outcome: Outcome) -> dict[str, Any]:
    """Figures beside accuracy as plain values, per class in the order of classes; what is not defined is null."""
    single = {"balanced_accuracy": outcome.balanced_accuracy, "auc": outcome.mean_auc, "f1": outcome.mean_f1}
    by_class = {"recall": outcome.recall, "f1_per_class": outcome.f1, "auc_per_class": outcome.auc}
    told: dict[str, Any] = {name: _plain(value) for name, value in single.items()}
    told |= {name: [_plain(value) for value in values.tolist()] for name, values in by_class.items()}
    return told


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the tested rows of one site.

    squared : of squared errors; absolute : of absolute errors; mean : of the true values; spread : their squared
    deviations from it, added up (not a difference of large sums, which would lose the digits).
    """

    rows: int = 0
    squared: float = 0.0
    absolute: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    @property
    def mean_squared_error(self) -> float:
        """Mean squared error; NaN where no row was tested."""
        return self.squared / self.rows if self.rows else math.nan

    @property
    def mean_absolute_error(self) -> float:
        """Mean absolute error; NaN where no row was tested."""
        return self.absolute / self.rows if self.rows else math.nan

    @property
    def r2(self) -> float:
        """Coefficient of determination ``1 - squared / spread``; NaN where the true values do not differ."""
        return 1.0 - self.squared / self.spread if self.spread > 0 else math.nan

    def __add__(self, other: "ErrorSums") -> "ErrorSums":
        rows = self.rows + other.rows
        if not rows:
            return self
        gap, share = other.mean - self.mean, other.rows / rows
        spread = self.spread + other.spread + gap**2 * self.rows * share
        return ErrorSums(
            rows, self.squared + other.squared, self.absolute + other.absolute, self.mean + gap * share, spread
        )


@dataclass(frozen=True)
class RegressionEvaluation:
    """Sums of errors of every site, and of all together (``pooled``); ``influence`` of each, where asked for."""

    sites: Mapping[str, ErrorSums]
    missing: Mapping[str, str] = field(default_factory=dict)
    influence: Influences | None = None

    @property
    def pooled(self) -> ErrorSums:
        """The sums of all sites, as if their rows were one table."""
        return sum(self.sites.values(), ErrorSums())

    @property
    def r2(self) -> float:
        """Coefficient of determination over all sites' rows."""
        return self.pooled.r2

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; what is not defined is null."""
        told = {
            "pooled": _error_figures(self.pooled),
            "sites": {site: _error_figures(sums) for site, sums in self.sites.items()},
            "missing": dict(self.missing),
        }
        return told if self.influence is None else {**told, "influence": self.influence.to_json()}

    def __str__(self) -> str:
        width = max(len(name) for name in [*self.sites, "all sites"])
        lines = [f"{'site':<{width}}     rows  mean squared error  mean absolute error       R2"]
        for name, sums in [*self.sites.items(), ("all sites", self.pooled)]:
            lines.append(
                f"{name:<{width}}  {sums.rows:>7,}  {sums.mean_squared_error:>18.6g}  "
                f"{sums.mean_absolute_error:>19.6g}  {sums.r2:>7.4f}"
            )
        lines += [f"{site:<{width}}  missing: {reason}" for site, reason in self.missing.items()]
        lines += [] if self.influence is None else ["", str(self.influence)]
        return "\n".join(lines)


def error_sums(truth: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> ErrorSums:
    """Sums of errors of predictions (n,) for true values (n,)."""
    if not len(truth):
        return ErrorSums()
    values = truth.astype(np.float64)
    errors = predicted - values
    mean = float(values.mean())
    return ErrorSums(
        len(values), float((errors**2).sum()), float(np.abs(errors).sum()), mean, float(((values - mean) ** 2).sum())
    )


def _error_figures(sums: ErrorSums) -> dict[str, float | int | None]:
    values = {
        "mean_squared_error": sums.mean_squared_error,
        "mean_absolute_error": sums.mean_absolute_error,
        "r2": sums.r2,
    }
    return {"rows": sums.rows, **{name: None if math.isnan(value) else value for name, value in values.items()}}
