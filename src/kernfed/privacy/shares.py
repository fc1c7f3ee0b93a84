"""Noise in shares: every site adds a part of the noise that one release of the sum over all sites needs.

A share is discrete Gaussian noise of variance ``(sigma^2 + 16)/t``, at least 16. By fact 1 of ``noise.py`` the sum
of t such shares is discrete Gaussian of t times the variance, to a relative 1e-66 per share, and by fact 2 its
guarantee is that of continuous noise of standard deviation sigma. So a sum to which at least t honest sites add their
shares costs a record what one release in one place costs; more sites add more noise. A coalition of all sites but one
knows all shares but one, against which a record of the last site has sqrt(t) times the mu.

Sums are those of integers that ``sums.py`` makes of rows. Labels need not be public: what tells of them, the counts of
classes, is summed and noisy as well. Sensitivities in L2 for rows of the unit ball, on their grid:

===============  =======================  =============================
array            a record replaced        a record added or removed
===============  =======================  =============================
counts           sqrt(2)                  1
sums of rows     2                        1
second moments   sqrt(2)                  1
sums and second  sqrt(4.5)                sqrt(2)
===============  =======================  =============================

A record that is replaced by one of another class moves two classes, by 1 each in every array: no further than two of
one class can be apart.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.errors import InputError
from kernfed.privacy.accounting import GaussianEvent, epsilon_for
from kernfed.privacy.generator import Ints, NoiseGenerator
from kernfed.privacy.noise import SMOOTHING, DiscreteGaussian
from kernfed.privacy.release import NUDGE
from kernfed.privacy.sums import Budget
from kernfed.statistics.bounds import BITS

ADJACENCY = ("replace", "add-or-remove")
#: Shares below this variance would not add up to a discrete Gaussian (fact 1 of ``noise.py``).
_SMALLEST = 16
#: How neighbours differ, in words.
WORDS = {
    "replace": "one row and its label replaced by any other",
    "add-or-remove": "one row and its label added or removed",
}


@dataclass(frozen=True)
class NoisyArray:
    """An array of integers in a shared sum: its shape, what a site's entries may be, and sigma of the whole noise.

    ``per_row``: the most that one row adds to an entry, in size.
    """

    shape: tuple[int, ...]
    per_row: float
    deviation: float


def share_law(deviation: float, honest: int) -> DiscreteGaussian:
    """Noise that each of ``honest`` sites adds, for noise of standard deviation ``deviation`` in their sum."""
    whole = Fraction(deviation * NUDGE) ** 2 + SMOOTHING
    return DiscreteGaussian(max(whole / check_count(honest, "honest"), Fraction(_SMALLEST)))


def sum_deviation(deviation: float, honest: int, sites: int) -> float:
    """Standard deviation of the noise in a sum over so many sites, all of which add their share."""
    return math.sqrt(sites * float(share_law(deviation, honest).variance))


@dataclass(frozen=True)
class SharedSum(ABC):
    """Sums of integers over the rows of all sites, with noise in shares.

    epsilon, delta : of a record, where at least ``honest`` sites add their shares. adjacency : how neighbours differ.
    """

    epsilon: float
    delta: float
    honest: int
    adjacency: str = "replace"

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_count(self.honest, "honest", at_most=10**6)
        check_choice(self.adjacency, "adjacency", ADJACENCY)

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, float]:
        """Names of the sums that are asked for one after the other, and the share of the squared mu each costs."""

    @abstractmethod
    def arrays(self, part: str) -> dict[str, NoisyArray]:
        """What a part is made of."""

    @property
    def numbers(self) -> int:
        """Noisy numbers of all parts."""
        return sum(math.prod(array.shape) for part in self.parts for array in self.arrays(part).values())

    @property
    def mu(self) -> float:
        """Mu of the whole release."""
        return self._event.mu

    @property
    def _event(self) -> GaussianEvent:
        # Each share is drawn with the sampler's error, so that the sum has that of all of them.
        return Budget(self.epsilon, self.delta).event(2 * self.honest * self._numbers_at_most)

    @property
    @abstractmethod
    def _numbers_at_most(self) -> int:
        """How many noisy numbers there are, known without ``mu``."""

    def event(self, part: str) -> GaussianEvent:
        """What a record pays for one part."""
        whole = self._event
        mu = whole.mu * math.sqrt(self.parts[part]) * (1 - 1e-15)
        return replace(whole, mu=mu, slack=whole.slack / len(self.parts))

    @property
    def alone(self) -> float:
        """Epsilon of a record, at the same delta, against all other sites and the coordinator together."""
        events = [self.event(part) for part in self.parts]
        return epsilon_for([replace(event, mu=event.mu * math.sqrt(self.honest)) for event in events], self.delta)

    @property
    def words(self) -> str:
        """For whom the guarantee is, and on which condition."""
        return (
            f"{WORDS[self.adjacency]}, where at least {self.honest} honest sites add their shares of noise to the sum "
            f"(against all other sites together: epsilon {self.alone:.4g})"
        )

    def share(self, part: str, integers: Mapping[str, Ints], generator: NoiseGenerator) -> dict[str, Ints]:
        """A site's integers with its share of the noise."""
        known = self.arrays(part)
        if set(known) != set(integers):
            raise InputError(f"expected the arrays {', '.join(known)}, got {', '.join(integers)}")
        return {
            name: integers[name] + share_law(array.deviation, self.honest).sample(array.shape, generator)
            for name, array in known.items()
        }

    def sensitivity(self, replaced: float, added: float) -> float:
        """The L2 sensitivity of the adjacency, of rows on their grid; a little more for rounding."""
        return (replaced if self.adjacency == "replace" else added) * (1 + 1e-15)


def grid_sums(rows: FloatArray, places: npt.NDArray[np.intp], classes: int) -> Ints:
    """Sums (classes, k) of integer rows (n, k) by class; exact, as integers of 2^BITS are far below 2^53."""
    totals = np.zeros((classes, rows.shape[1]), dtype=np.int64)
    for place in np.unique(places):
        totals[place] = rows[places == place].sum(axis=0).astype(np.int64)
    return totals


def upper_parts(matrices: Ints) -> tuple[Ints, Ints]:
    """Diagonals (C, k) and what is above them (C, k(k-1)/2), of symmetric matrices (C, k, k)."""
    above = np.triu_indices(matrices.shape[-1], 1)
    return np.diagonal(matrices, axis1=1, axis2=2).copy(), matrices[:, above[0], above[1]]


def from_upper_parts(diagonal: npt.NDArray[Any], upper: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Symmetric matrices (C, k, k) from ``upper_parts``."""
    count, size = diagonal.shape
    above = np.triu_indices(size, 1)
    matrices = np.zeros((count, size, size))
    matrices[:, above[0], above[1]] = upper
    matrices += matrices.transpose(0, 2, 1)
    matrices[:, np.arange(size), np.arange(size)] = diagonal
    return matrices


def second_arrays(count: int, size: int, sensitivity: float, mu: float) -> dict[str, NoisyArray]:
    """Symmetric sums (count, size, size) as their diagonals and upper parts.

    The Frobenius norm counts an entry above the diagonal twice, so that its noise may be smaller by sqrt(2).
    """
    sigma = sensitivity * 4.0**BITS / mu
    return {
        "diagonal": NoisyArray((count, size), 4.0**BITS, sigma),
        "upper": NoisyArray((count, size * (size - 1) // 2), 4.0**BITS, sigma / math.sqrt(2) * (1 + 1e-15)),
    }
