"""What a test of a classifier counts, at one site and at all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray, IntArray
from kernfed.errors import InputError

#: Confidence bins of the calibration counts.
BINS = 10


@dataclass(frozen=True)
class Outcome:
    """Counts at one site.

    confusion : (C + 1, C), rows are true classes and the last one labels the model does not know; columns are
    predicted. calibration : (BINS, 3), per bin of confidence the predictions, the correct ones, confidence added up.
    """

    confusion: IntArray
    calibration: FloatArray

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

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.confusion + other.confusion, self.calibration + other.calibration)


@dataclass(frozen=True)
class Evaluation:
    """Outcome of every site, and of all together (``pooled``)."""

    classes_: npt.NDArray[Any]
    sites: Mapping[str, Outcome]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def pooled(self) -> Outcome:
        """Counts of all sites added up."""
        count = len(self.classes_)
        total = Outcome(np.zeros((count + 1, count), dtype=np.int64), np.zeros((BINS, 3)))
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
            }
            for name, o in every.items()
        }
        pooled = told.pop("")
        return {"classes": self.classes_.tolist(), "pooled": pooled, "sites": told, "missing": dict(self.missing)}

    def __str__(self) -> str:
        names = [*self.sites, "all sites"]
        width = max(len(name) for name in names)
        lines = [f"{'site':<{width}}     rows  accuracy  calibration error"]
        for name, outcome in [*self.sites.items(), ("all sites", self.pooled)]:
            error = outcome.calibration_error
            lines.append(f"{name:<{width}}  {outcome.rows:>7,}  {outcome.accuracy:>8.2%}  {error:>17.4f}")
        lines += [
            f"{site:<{width}}  {outcome.unknown:,} row(s) have labels that the model does not know"
            for site, outcome in self.sites.items()
            if outcome.unknown
        ]
        lines += [f"{site:<{width}}  missing: {reason}" for site, reason in self.missing.items()]
        return "\n".join(lines)


def count_outcomes(classes: npt.NDArray[Any], labels: npt.NDArray[Any], probabilities: FloatArray) -> Outcome:
    """Outcome of probabilities (n, C) for rows with true ``labels`` (n,)."""
    if not ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all():  # also refuses NaN, which weights of 1e300 make
        raise InputError("a model's probabilities must be between 0 and 1, and are not; its numbers are too large")
    position = {label: number for number, label in enumerate(classes.tolist())}
    truth = np.array([position.get(label, len(classes)) for label in labels.tolist()], dtype=np.intp)
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((len(classes) + 1, len(classes)), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    confidence = probabilities.max(axis=1) if len(probabilities) else np.zeros(0)
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    calibration = np.zeros((BINS, 3))
    np.add.at(calibration, bins, np.column_stack([np.ones(len(bins)), truth == predicted, confidence]))
    return Outcome(confusion, calibration)
