"""Randomised response: labels that a person can deny (Warner 1965)."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError
from kernfed.privacy.accounting import PureEvent
from kernfed.privacy.generator import WORD, Coin, NoiseGenerator, blocks, check_generator, uniform
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.release import RECORD_DELTA, Mechanism, Release, charge, check_epsilon, check_width
from kernfed.promise import Guarantee


@dataclass(frozen=True)
class RandomizedLabels(Mechanism):
    """Labels kept with probability ``e^epsilon / (e^epsilon + C - 1)``, else replaced by one of the C - 1 others.

    ``classes``: all C labels there can be, public and not read from the data. A label that is not among them becomes
    the first of them, without a word: to refuse it would tell of one row with certainty. Labels are public by
    themselves; this makes them private.
    """

    epsilon: float
    classes: tuple[Any, ...]

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        classes = tuple(np.asarray(self.classes).tolist()) if np.ndim(self.classes) == 1 else ()
        if len(classes) < 2 or len(set(classes)) != len(classes):
            raise InputError(f"classes must be two or more different labels, got {self.classes!r}")
        object.__setattr__(self, "classes", classes)

    @cached_property
    def _keep(self) -> Coin:
        with localcontext() as context:
            context.prec = 120
            others = (len(self.classes) - 1) * (-Decimal(self.epsilon)).exp()
            return Coin.of(1 / (1 + others), 4 * WORD)

    def guarantees(self, width: int = 1, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """The label is one element of the record and all of it that is released: one epsilon for both."""
        check_width(width, record_delta)
        element = Guarantee(self.epsilon, 0.0, "element", "one label replaced by any other")
        return element, Guarantee(self.epsilon, 0.0, "record", "the label of one row replaced by any other")

    def release(
        self,
        y: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> Release:
        """Random labels for ``y`` (n,)."""
        source = check_generator(generator)
        numbers = self._numbers(y)
        events = (PureEvent(self.epsilon),)
        pays = charge(ledger, events, numbers, ids, source, f"RandomizedLabels({self.epsilon:g})")
        numbers = np.where(pays, numbers, 0)
        count = len(self.classes)
        for block in blocks(len(numbers)):
            size = block.stop - block.start
            other = (numbers[block] + 1 + uniform(source, count - 1, size)) % count
            numbers[block] = np.where(self._keep.toss(source, size), numbers[block], other)
        element, record = self.guarantees()
        return Release(np.asarray(self.classes)[numbers], element, record, source.private, events)

    def _numbers(self, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        labels = np.asarray(y)
        if labels.ndim != 1 or not len(labels):
            raise InputError(f"y must be a vector of labels, got shape {labels.shape}")
        return self.numbers(labels)

    def numbers(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Place (n,) of each label among the declared classes, 0 where it is none of them."""
        return ClassIndex(self.classes).numbers(labels, "first").astype(np.int64)
