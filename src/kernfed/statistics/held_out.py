"""What tests of a model sum over rows that were kept aside: a row's values are the model's scores of it.

Scores of classes are probabilities; a row whose scores are no numbers counts as one of equal probabilities. Labels that
are no class of the model count beyond its classes, or not at all where there is no such place.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import (
    BINS,
    PLACES,
    RATIO_BINS,
    ladder_sums,
    longest,
    probability_bins,
    ratio_bins,
    sensitivity,
)
from kernfed.abstain.bins import BITS as LADDER_BITS
from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.errors import InputError
from kernfed.statistics.bounds import Floats, check_bound, check_scale, saturate
from kernfed.statistics.statistic import (
    Numbers,
    Part,
    Statistic,
    cell_counts,
    check_classes,
    class_sums,
    label_places,
)

#: Bins of confidence, bins of the logit of a probability from -REACH to REACH, and classes for which these are counted.
CONFIDENCES, RANKS, REACH, MOST_RANKED = 10, 128, 12.0, 100
#: Candidates that may be compared at a time.
MOST_CANDIDATES = 1 << 16
LOSSES = ("brier", "log")
_TWO = math.sqrt(2.0)

Sums = Mapping[str, Floats]


class _HeldOut(Statistic[dict[str, Floats]]):
    """A statistic of rows kept aside, read as the arrays of its sums."""

    rows_of: ClassVar[Literal["learning", "aside"]] = "aside"

    def read(self, sums: Sums, rows: int, deviation: Mapping[str, float]) -> dict[str, Floats]:
        """The sums over rows as they are, by the name of their part."""
        return dict(sums)


def _probabilities(X: npt.NDArray[Any], shape: tuple[int, ...]) -> Floats:
    """Scores X (n, ...) of this shape per row, from 0 to 1; equal ones where one of a row's scores is no number."""
    scores = np.asarray(X, dtype=np.float64).reshape(len(X), *shape)
    known = np.isfinite(scores).all(axis=-1, keepdims=True)
    return np.clip(np.where(known, scores, 1.0 / shape[-1]), 0.0, 1.0)


@dataclass(frozen=True)
class Confusion(_HeldOut):
    """Counts of a classifier's answers: X are its probabilities (n, C).

    confusion (C + 1, C) : rows by true class, the last for labels that are none, and predicted class. calibration
    (CONFIDENCES, 3) : per bin of confidence the rows, those answered correctly, and confidence added up. ranking
    (C, 2, RANKS) : rows of each class, and others, by its probability; absent for more than ``MOST_RANKED`` classes.
    """

    name: ClassVar[str] = "confusion"

    classes: tuple[Any, ...]

    def __post_init__(self) -> None:
        check_classes(self.classes)

    @property
    def parts(self) -> Mapping[str, Part]:
        """As above; a row is in one cell of the first, one line of the second, and C cells of the third."""
        C = len(self.classes)
        ranked = C <= MOST_RANKED
        share = 1 / 3 if ranked else 1 / 2
        parts = {
            "confusion": Part((C + 1, C), _TWO, 1.0, share, 0),
            "calibration": Part((CONFIDENCES, 3), math.sqrt(6.0), math.sqrt(3.0), share),
        }
        if ranked:
            parts["ranking"] = Part((C, 2, RANKS), math.sqrt(2.0 * C), math.sqrt(C), share, 0)
        return parts

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """True and predicted places (n,), bins (n,) of confidence, what is added to them (n, 3), and ranks (n, C)."""
        likely, truth = _probabilities(X, (len(self.classes),)), label_places(y, self.classes)
        predicted, confidence = likely.argmax(axis=1), likely.max(axis=1, initial=0.0)
        bins = np.minimum((confidence * CONFIDENCES).astype(np.intp), CONFIDENCES - 1)
        lines = np.column_stack([np.ones(len(X)), truth == predicted, confidence])
        smallest = np.exp(-2 * REACH)
        logits = np.log(np.maximum(likely, smallest)) - np.log(np.maximum(1 - likely, smallest))
        ranks = np.clip(((logits + REACH) * (RANKS / (2 * REACH))).astype(np.intp), 0, RANKS - 1)
        return truth, predicted, bins, lines, ranks

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Counts of cells, and sums of lines by bin."""
        truth, predicted, bins, lines, ranks = factors
        C = len(self.classes)
        added: dict[str, Numbers] = {
            "confusion": cell_counts((C + 1, C), truth, predicted),
            "calibration": class_sums(lines, bins, CONFIDENCES),
        }
        if C <= MOST_RANKED:
            number = np.broadcast_to(np.arange(C), ranks.shape)
            other = (truth[:, None] != number).astype(np.intp)
            added["ranking"] = cell_counts((C, 2, RANKS), number.ravel(), other.ravel(), ranks.ravel())
        return added


@dataclass(frozen=True)
class Losses(_HeldOut):
    """Losses of several candidates by true class: X are their probabilities (n, candidates, C).

    loss : "brier", squared distance to the true answer, at most 2; or "log", minus the logarithm of the probability of
    the true class. largest : losses are cut to it. Rows whose label is no class do not count.
    """

    name: ClassVar[str] = "losses"

    classes: tuple[Any, ...]
    candidates: int
    loss: str = "brier"
    largest: float = 2.0

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_count(self.candidates, "candidates", at_most=MOST_CANDIDATES)
        check_choice(self.loss, "loss", LOSSES)
        check_scale(self.largest, "largest")

    @property
    def parts(self) -> Mapping[str, Part]:
        """``rows`` (C,), and ``losses``, ``squares``, ``right`` (C, candidates), losses in units of the largest."""
        return _loss_parts(len(self.classes), self.candidates, ("losses", "squares", "right"))

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """True places (n,), losses (n, candidates), their squares, and whether each answer is right."""
        C = len(self.classes)
        likely, places = _probabilities(X, (self.candidates, C)), label_places(y, self.classes)
        known = np.minimum(places, C - 1)
        true = np.take_along_axis(likely, known[:, None, None], axis=2)[:, :, 0]
        if self.loss == "brier":
            losses = np.square(likely).sum(axis=2) - 2 * true + 1
        else:
            losses = -np.log(np.maximum(true, np.exp(-self.largest)))
        units = np.clip(losses / self.largest, 0.0, 1.0)
        return places, units, units**2, (likely.argmax(axis=2) == known[:, None]).astype(np.int64)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Rows (C,) and sums (C, candidates) by true class."""
        return _loss_total(len(self.classes), ("losses", "squares", "right"), *factors)

    def read(self, sums: Sums, rows: int, deviation: Mapping[str, float]) -> dict[str, Floats]:
        """Rows (C,), losses and their squares (C, candidates) in their own units, and right answers."""
        scale = {"losses": self.largest, "squares": self.largest**2}
        return {name: array * scale.get(name, 1.0) for name, array in sums.items()}


@dataclass(frozen=True, eq=False)
class TemperatureLosses(_HeldOut):
    """Minus the log-likelihood of ``softmin(scores / T)`` at each of ``temperatures`` (G,): X are scores (n, C).

    An absent class scores infinity. Rows whose label is no class, or scores infinity or no number, do not count.
    largest : losses are cut to it.
    """

    name: ClassVar[str] = "temperature_losses"
    arrays: ClassVar[tuple[str, ...]] = ("temperatures",)

    classes: tuple[Any, ...]
    largest: float
    temperatures: FloatArray | None = None

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_scale(self.largest, "largest")
        values = self.temperatures
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind != "f":
            raise InputError(f"temperatures must be a vector of numbers, got {type(values).__name__}")
        check_count(len(values), "temperatures", at_most=MOST_CANDIDATES)
        for value in (values.min(), values.max()):
            check_scale(float(value), "a temperature")

    @property
    def _temperatures(self) -> Floats:
        return np.asarray(self.temperatures, dtype=np.float64)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``rows`` (C,) and ``losses`` (C, G), in units of the largest."""
        return _loss_parts(len(self.classes), len(self._temperatures), ("losses",))

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """True places (n,) and losses (n, G)."""
        C = len(self.classes)
        scores = np.asarray(X, dtype=np.float64).reshape(len(X), C)
        scores = np.where(np.isnan(scores) | (scores == np.inf), np.inf, saturate(scores))
        places = label_places(y, self.classes)
        true = np.append(scores, np.full((len(X), 1), np.inf), axis=1)[np.arange(len(X)), places]
        usable = np.isfinite(true)
        gaps = np.where(usable[:, None], scores - scores.min(axis=1, keepdims=True, initial=np.inf), 0.0)
        true_gaps = np.append(gaps, np.zeros((len(X), 1)), axis=1)[np.arange(len(X)), places]
        losses = [np.log(np.exp(-gaps / T).sum(axis=1)) + true_gaps / T for T in self._temperatures.tolist()]
        return np.where(usable, places, C), np.clip(np.stack(losses, axis=1) / self.largest, 0.0, 1.0)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Rows (C,) and sums (C, candidates) by true class."""
        return _loss_total(len(self.classes), ("losses",), *factors)

    def read(self, sums: Sums, rows: int, deviation: Mapping[str, float]) -> dict[str, Floats]:
        """Rows (C,) and losses (C, G) by true class, in units of 1."""
        return {"rows": sums["rows"], "losses": self.largest * sums["losses"]}


def _loss_parts(classes: int, candidates: int, names: tuple[str, ...]) -> dict[str, Part]:
    """Rows (C,) and sums (C, candidates) of numbers from 0 to 1: a row is in one class."""
    share, length = 1 / (1 + len(names)), math.sqrt(candidates)
    parts = {
        name: Part((classes, candidates), _TWO * length, length, share, 0 if name == "right" else 1) for name in names
    }
    return {"rows": Part((classes,), _TWO, 1.0, share, 0), **parts}


def _loss_total(classes: int, names: tuple[str, ...], places: Numbers, *values: Numbers) -> dict[str, Numbers]:
    added: dict[str, Numbers] = {"rows": cell_counts((classes + 1,), places)[:-1]}
    return added | {name: class_sums(array, places, classes) for name, array in zip(names, values, strict=True)}


@dataclass(frozen=True)
class RegressionErrors(_HeldOut):
    """Errors of several regressors: X are their predictions (n, candidates), y the values (n,).

    low, high : public bounds to which predictions and values are cut.
    """

    name: ClassVar[str] = "regression_errors"

    low: float
    high: float
    candidates: int = 1

    def __post_init__(self) -> None:
        check_bound(self.high, "high", above=check_bound(self.low, "low"))
        check_scale(self.high - self.low, "high - low")
        check_count(self.candidates, "candidates", at_most=MOST_CANDIDATES)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``rows`` (1,), ``values`` (2,), ``absolute`` and ``squares`` (candidates,), in units of high - low."""
        length = math.sqrt(self.candidates)
        errors = Part((self.candidates,), length, length, 0.25)
        return {
            "rows": Part((1,), 0.0, 1.0, 0.25, 0),
            "values": Part((2,), _TWO, _TWO, 0.25),
            "absolute": errors,
            "squares": errors,
        }

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Ones (n, 1), values and their squares (n, 2), errors (n, candidates) and their squares."""
        n, width = len(X), self.high - self.low
        values = saturate(y.reshape(n)) if y.dtype.kind in "fiub" else np.zeros(n)
        truth = (np.clip(values, self.low, self.high) - self.low) / width
        guess = (np.clip(saturate(X.reshape(n, self.candidates)), self.low, self.high) - self.low) / width
        errors = np.clip(np.abs(guess - truth[:, None]), 0.0, 1.0)
        return np.ones((n, 1), dtype=np.int64), np.column_stack([truth, truth**2]), errors, errors**2

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Sums over rows of each factor, in the order of the parts."""
        return {name: factor.sum(axis=0) for name, factor in zip(self.parts, factors, strict=True)}

    def read(self, sums: Sums, rows: int, deviation: Mapping[str, float]) -> dict[str, Floats]:
        """Rows (1,), values less ``low`` and their squares (2,), and absolute and squared errors (candidates,)."""
        width = self.high - self.low
        scale: dict[str, Any] = {"values": np.array([width, width**2]), "absolute": width, "squares": width**2}
        return {name: np.asarray(array * scale.get(name, 1.0)) for name, array in sums.items()}


@dataclass(frozen=True)
class ScoreHistogram(_HeldOut):
    """Where scores lie by true class, for coverage: X are probabilities (n, C), and strangeness in a last column.

    counts (C + 1, BINS) : rows by class and bin of their odds; a label that is no class is in the last bin of the last
    line. nearest (C, RATIO_BINS) : rows by class and bin of their strangeness, where ``strangers`` are counted.
    """

    name: ClassVar[str] = "score_histogram"

    classes: tuple[Any, ...]
    strangers: bool = False

    def __post_init__(self) -> None:
        check_classes(self.classes)
        _check_flag(self.strangers)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` and perhaps ``nearest``: a row is in one cell of each."""
        C, share = len(self.classes), 1 / (1 + self.strangers)
        counts = {"counts": Part((C + 1, BINS), _TWO, 1.0, share, 0)}
        nearest = {"nearest": Part((C, RATIO_BINS), _TWO, 1.0, share, 0)}
        return counts | nearest if self.strangers else counts

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Places (n,) of labels, and bins (n,) of odds and of strangeness."""
        C = len(self.classes)
        scores, truth = (
            np.asarray(X, dtype=np.float64).reshape(len(X), C + self.strangers),
            label_places(y, self.classes),
        )
        likely = np.append(scores[:, :C], np.zeros((len(X), 1)), axis=1)[np.arange(len(X)), truth]
        ratios = np.where(scores[:, -1] >= 0, scores[:, -1], np.inf)
        return truth, probability_bins(np.where(np.isfinite(likely), likely, 0.0)), ratio_bins(ratios)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Rows in each cell of class and bin."""
        truth, odds, ratios = factors
        added: dict[str, Numbers] = {"counts": cell_counts((len(self.classes) + 1, BINS), truth, odds)}
        if self.strangers:
            added["nearest"] = cell_counts((len(self.classes) + 1, RATIO_BINS), truth, ratios)[:-1]
        return added


@dataclass(frozen=True)
class LadderHistogram(_HeldOut):
    """Sums over the rungs of the counting ladder: X are places (n, 1) by odds, or (n, 2) by strangeness as well.

    Noise on them hurts counts beyond a threshold little (``kernfed.abstain.bins``). What is no place from 0 to
    ``PLACES`` is in the last one, beyond all.
    """

    name: ClassVar[str] = "ladder_histogram"

    strangers: bool = False

    def __post_init__(self) -> None:
        _check_flag(self.strangers)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` (PLACES,) and perhaps ``nearest`` (PLACES,)."""
        steps = 2.0**LADDER_BITS
        part = Part((PLACES,), sensitivity() * (1 + 1e-12) / steps, longest() / steps, 1 / (1 + self.strangers))
        return dict.fromkeys(("counts", "nearest")[: 1 + self.strangers], part)

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Places (n, 1) or (n, 2) as integers from 0 to ``PLACES``."""
        places = saturate(np.asarray(X).reshape(len(X), 1 + self.strangers))
        return (np.where((places >= 0) & (places <= PLACES), places, PLACES).astype(np.intp),)

    def integers(self, rows: Any) -> dict[str, npt.NDArray[np.int64]]:
        """Sums over rows in steps of the ladder's grid, exact."""
        (places,) = self.factors(rows.X, rows.y)
        return {name: ladder_sums(places[:, column]) for column, name in enumerate(self.parts)}

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Sums (PLACES,) over rows of each histogram, in units of 1."""
        steps = 2.0**LADDER_BITS
        return {name: ladder_sums(factors[0][:, column]) / steps for column, name in enumerate(self.parts)}


def _check_flag(value: Any) -> None:
    if type(value) is not bool:
        raise InputError(f"strangers must be True or False, got {value!r:.40}")
