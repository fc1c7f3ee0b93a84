"""Histograms over the rows of all sites, with noise in shares: what ``RecordHistogram`` is for one site."""

from collections.abc import Mapping
from dataclasses import dataclass

from kernfed.abstain.ladder import BITS, PLACES, ladder_sums
from kernfed.privacy.generator import Ints
from kernfed.privacy.record_sums import Places, RecordHistogram, histogram_deviation
from kernfed.privacy.shares import NoisyArray, SharedSum


@dataclass(frozen=True)
class SharedHistogram(SharedSum):
    """Sums over the ladder's rungs under (epsilon, delta) for a whole row and its label.

    The number of rows is public, so that neighbours have as many.
    """

    mechanism: RecordHistogram = None  # type: ignore[assignment]

    @classmethod
    def of(cls, mechanism: RecordHistogram, honest: int) -> "SharedHistogram":
        """The shared sum that has the epsilon and delta of ``mechanism``."""
        return cls(mechanism.epsilon, mechanism.delta, honest, "replace", mechanism)

    @property
    def parts(self) -> Mapping[str, float]:
        """One sum."""
        return {"histogram": 1.0}

    @property
    def _numbers_at_most(self) -> int:
        return PLACES * self.mechanism.histograms

    def arrays(self, part: str) -> dict[str, NoisyArray]:
        """Counts by odds and, where strangers are told, by strangeness."""
        sigma = histogram_deviation(self.event(part).mu, self.mechanism.histograms)
        names = ("counts", "nearest")[: self.mechanism.histograms]
        return {name: NoisyArray((PLACES,), 2.0**BITS, sigma) for name in names}

    def integers(self, places: Places, strange: Places | None) -> dict[str, Ints]:
        """Exact sums over rows in these places (n,)."""
        counts = {"counts": ladder_sums(places)}
        return counts if strange is None else {**counts, "nearest": ladder_sums(strange)}
