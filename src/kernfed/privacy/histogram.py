"""Histograms of rows under differential privacy, for thresholds: sums over the rungs of the counting ladder.

A record is one row that was kept aside, with its label. It is in one place of the ladder by its odds and, where
strangers are counted too, in one by its strangeness. Sensitivities in L2 are those of the numbers that a row adds,
whole multiples of 2^-16 (``kernfed.abstain.ladder``):

=========================  ==========  ===========================================
one record                 of a sum    that is
=========================  ==========  ===========================================
replaced                   1.95        the largest distance of two places
added or removed           1.57        the largest length of a place
=========================  ==========  ===========================================

As with the other mechanisms a record is replaced, and the number of rows is public.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.ladder import PLACES, ladder_sums, sensitivity
from kernfed.errors import InputError
from kernfed.privacy.accounting import Event, GaussianEvent
from kernfed.privacy.gaussian import SMOOTHING, DiscreteGaussian
from kernfed.privacy.generator import Ints, NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.release import NUDGE, RecordMechanism, charge
from kernfed.privacy.sums import Budget
from kernfed.promise import Guarantee

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class HistogramRelease:
    """Noisy ``counts`` (PLACES,) and perhaps ``nearest`` (PLACES,) of ``rows``; their noise has this ``deviation``."""

    counts: Ints
    nearest: Ints | None
    rows: int
    deviation: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]


@dataclass(frozen=True)
class RecordHistogram(RecordMechanism):
    """Where the scores of rows lie, under (epsilon, delta) for a whole row and its label: for ``kernfed.conform``.

    ``strangers``: whether strangeness is counted beside the odds, which ``p_values`` needs; each then has half of the
    squared mu, and the noise of either is larger by sqrt(2).
    """

    epsilon: float
    delta: float
    strangers: bool = False

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if type(self.strangers) is not bool:
            raise InputError(f"strangers must be True or False, got {self.strangers!r:.40}")

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row and its label replaced by any other"

    @property
    def protects_labels(self) -> bool:
        """A label is told by the place of its row only, and as part of it."""
        return True

    @property
    def event(self) -> GaussianEvent:
        """What a record pays."""
        return Budget(self.epsilon, self.delta).event(PLACES * self.histograms)

    @property
    def histograms(self) -> int:
        """How many there are."""
        return 1 + self.strangers

    def law(self) -> DiscreteGaussian:
        """Noise of every number."""
        sigma = histogram_deviation(self.event.mu, self.histograms) * NUDGE
        return DiscreteGaussian(Fraction(sigma) ** 2 + SMOOTHING, math.ceil(sensitivity()))

    def release(
        self,
        places: npt.ArrayLike,
        strange: npt.ArrayLike | None = None,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> HistogramRelease:
        """Sums over rows in these ``places`` (n,), and by their strangeness in the places ``strange`` (n,).

        Rows of persons who cannot pay are counted beyond all places, in either histogram.
        """
        source, law = check_generator(generator), self.law()
        told = [check_places(places, "places")]
        if (strange is not None) != self.strangers:
            raise InputError(f"strangers={self.strangers} was asked for, and places by strangeness must fit that")
        if strange is not None:
            told.append(check_places(strange, "strange"))
            if len(told[1]) != len(told[0]):
                raise InputError(f"strange must have a place for each of {len(told[0])} rows, got {len(told[1])}")
        note = f"RecordHistogram({self.epsilon:g}, {self.delta:g}), {self.histograms} histogram(s)"
        pays = charge(ledger, (self.event,), np.column_stack(told), ids, source, note, together=True)
        counts, *more = (left_out(own, pays) for own in told)
        sums = [ladder_sums(own) + law.sample((PLACES,), source) for own in (counts, *more)]
        return HistogramRelease(
            sums[0],
            sums[1] if self.strangers else None,
            len(counts),
            math.sqrt(law.variance),
            *self.guarantees(1),
            source.private,
            (self.event,),
        )


def histogram_deviation(mu: float, histograms: int) -> float:
    """Sigma of the noise on every number, where so many ``histograms`` share mu."""
    return sensitivity() * math.sqrt(histograms) / mu * (1 + 1e-12)


def left_out(places: Places, pays: npt.NDArray[np.bool_]) -> Places:
    """Places (n,), beyond all of them for rows that nobody may look at: no set can have such a row."""
    return np.where(pays, places, PLACES)


def check_places(places: npt.ArrayLike, name: str) -> Places:
    """Places (n,) from 0 to PLACES, the last for a row that is in none."""
    values = np.asarray(places)
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise InputError(f"{name} must be a vector of places, got shape {values.shape} of {values.dtype}")
    if values.min() < 0 or values.max() > PLACES:
        raise InputError(f"{name} must be from 0 to {PLACES}, got {values.min()} to {values.max()}")
    return values.astype(np.intp)
