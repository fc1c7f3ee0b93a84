"""Gaussian noise on the sums of a statistic, whole or in shares.

Sums in floating point depend on the order of rows, so replacing one row can move them by more than the row itself
(Casacuberta et al. 2022). The sums of ``Statistic.integers`` are exact, and the noise is an integer too.

*Shares.* A share is discrete Gaussian noise of variance ``(sigma^2 + 16)/t``, at least 16. By fact 1 of ``noise.py``
the sum of t such shares is discrete Gaussian of t times the variance, to a relative 1e-66 per share, and by fact 2 its
guarantee is that of continuous noise of standard deviation sigma. So a sum to which at least t honest sites add their
shares costs a record what one release in one place costs; more sites add more noise. A coalition of all sites but one
knows all shares but one, against which a record of the last site has sqrt(t) times the mu.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.errors import InputError
from kernfed.privacy.accounting import GaussianEvent, analytic_gaussian_mu, epsilon_for
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.noise import SAMPLING_ERROR, SMOOTHING, DiscreteGaussian
from kernfed.privacy.release import NUDGE, SMALLEST_DELTA, check_epsilon
from kernfed.statistics.bounds import Floats, Ints
from kernfed.statistics.statistic import Part, Rows, Statistic

Result = TypeVar("Result")
#: How neighbours differ, and in words.
WORDS = {
    "replace": "one row and its label replaced by any other",
    "add-or-remove": "one row and its label added or removed",
}
# Noise of scale 2^(2 BITS)/mu must fit int64 with its tail.
_SMALLEST_MU = 1e-5
#: Shares below this variance would not add up to a discrete Gaussian (fact 1 of ``noise.py``).
_SMALLEST_SHARE = 16


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for one record, in terms of Gaussian noise: squared mu are shared out and add up."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_number(self.delta, "delta", at_least=SMALLEST_DELTA, below=1)

    def event(self, numbers: int) -> GaussianEvent:
        """What one record pays for ``numbers`` released numbers, however mu is shared out among them."""
        slack = numbers * SAMPLING_ERROR
        mu = analytic_gaussian_mu(self.epsilon, self.delta - slack)
        if mu < _SMALLEST_MU:
            raise InputError(
                f"epsilon and delta must allow noise of less than {1 / _SMALLEST_MU:g} rows, got {self.epsilon!r} and "
                f"{self.delta!r}, which take {1 / mu:.3g}"
            )
        return GaussianEvent(mu, 1, slack)


def noise_law(sensitivity: float, scale: float, mu: float) -> DiscreteGaussian:
    """Noise in steps of ``1 / scale`` where one record moves a sum by at most ``sensitivity`` in L2.

    ``mu`` is the share of this release: noise of standard deviation sensitivity/mu.
    """
    sigma = sensitivity / mu * NUDGE
    return DiscreteGaussian(Fraction(sigma * scale) ** 2 + SMOOTHING, math.ceil(sensitivity * scale))


def share_law(deviation: float, honest: int) -> DiscreteGaussian:
    """Noise that each of ``honest`` sites adds, for noise of standard deviation ``deviation`` in their sum."""
    whole = Fraction(deviation * NUDGE) ** 2 + SMOOTHING
    return DiscreteGaussian(max(whole / check_count(honest, "honest"), Fraction(_SMALLEST_SHARE)))


def sum_deviation(deviation: float, honest: int, sites: int) -> float:
    """Standard deviation of the noise in a sum over so many sites, all of which add their share."""
    return math.sqrt(sites * float(share_law(deviation, honest).variance))


def above_diagonal(sensitivity: float) -> float:
    """Sensitivity of what is above the diagonal of a symmetric matrix, whose own is in the Frobenius norm.

    The norm counts an entry off the diagonal twice: as a vector the matrix is its diagonal and sqrt(2) times its upper
    triangle. So noise off the diagonal may have a standard deviation smaller by sqrt(2).
    """
    return sensitivity / math.sqrt(2) * (1 + 1e-15)


def add_noise(part: Part, total: Ints, mu: float, source: NoiseGenerator) -> Floats:
    """The noisy sum of a part, of its shape, where a replaced record may spend ``mu`` on it."""
    laws = [noise_law(part.replaced, part.unit, mu)]
    if part.symmetric:
        laws.append(noise_law(above_diagonal(part.replaced), part.unit, mu))
    return np.asarray(part.full(_with_noise(part, part.flat(total), laws, source)) / part.unit)


def _with_noise(part: Part, flat: Ints, laws: list[DiscreteGaussian], source: NoiseGenerator) -> Ints:
    """Flat sums with noise of ``laws``: of symmetric matrices the first on the diagonal, the second above it."""
    if not part.symmetric:
        return flat + laws[0].sample(flat.shape, source)
    size = part.shape[-1]
    noisy = flat.reshape(-1, size * (size + 1) // 2).copy()
    noisy[:, size:] += laws[1].sample(noisy[:, size:].shape, source)
    noisy[:, :size] += laws[0].sample(noisy[:, :size].shape, source)
    return noisy.reshape(-1)


@dataclass(frozen=True)
class NoisySum(Generic[Result]):
    """A statistic under (epsilon, delta) for a record, where at least ``honest`` sites add their shares of the noise.

    honest : 1 where one site adds all of it. adjacency : how neighbours differ, "replace" or "add-or-remove". portion :
    of the squared mu that this sum may spend, where several sums share one epsilon and delta; ``beside`` : how many
    numbers the others have.
    """

    statistic: Statistic[Result]
    epsilon: float
    delta: float
    honest: int = 1
    adjacency: str = "replace"
    portion: float = 1.0
    beside: int = 0

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_count(self.honest, "honest", at_most=10**6)
        check_choice(self.adjacency, "adjacency", tuple(WORDS))
        check_number(self.portion, "portion", above=0, at_most=1)
        check_count(self.beside, "beside", at_least=0)

    @cached_property
    def event(self) -> GaussianEvent:
        """What a record pays for this sum: a Gaussian event, with the error of all draws."""
        # Each share is drawn with the sampler's error, so that the sum has that of all of them.
        draws, numbers = 2 * self.honest if self.honest > 1 else 1, self.statistic.numbers
        whole = Budget(self.epsilon, self.delta).event(draws * (numbers + self.beside))
        mu = whole.mu if self.portion == 1.0 else whole.mu * math.sqrt(self.portion) * (1 - 1e-15)
        return replace(whole, mu=mu, slack=draws * numbers * SAMPLING_ERROR)

    @property
    def alone(self) -> float:
        """Epsilon of a record, at the same delta, against all other sites and the coordinator together."""
        return epsilon_for([replace(self.event, mu=self.event.mu * math.sqrt(self.honest))], self.delta)

    @property
    def words(self) -> str:
        """For whom the guarantee is, and on which condition."""
        words = WORDS[self.adjacency]
        if self.honest == 1:
            return words
        return (
            f"{words}, where at least {self.honest} honest sites add their shares of noise to the sum "
            f"(against all other sites together: epsilon {self.alone:.4g})"
        )

    def sensitivity(self, name: str) -> float:
        """How far one record moves a part in L2, a little more for rounding."""
        part = self.statistic.parts[name]
        return part.replaced if self.adjacency == "replace" else part.added * (1 + 1e-15)

    def mu(self, name: str) -> float:
        """The mu that the noise of one part may spend: the event's, by the part's share."""
        share = self.statistic.parts[name].share
        return self.event.mu if share == 1.0 else self.event.mu / math.sqrt(1 / share) * (1 - 1e-15)

    def deviation(self, name: str) -> float:
        """Standard deviation of the whole noise of a part, in grid steps; above a diagonal smaller by sqrt(2)."""
        return self.sensitivity(name) * self.statistic.parts[name].unit / self.mu(name)

    def laws(self, name: str) -> list[DiscreteGaussian]:
        """Noise that a site adds to a part, in grid steps: of a symmetric one on the diagonal and above it."""
        part, reach, mu = self.statistic.parts[name], self.sensitivity(name), self.mu(name)
        reaches = [reach, above_diagonal(reach)] if part.symmetric else [reach]
        if self.honest == 1:
            return [noise_law(reach, part.unit, mu) for reach in reaches]
        return [share_law(reach * part.unit / mu, self.honest) for reach in reaches]

    def share(self, integers: Mapping[str, Ints], source: NoiseGenerator) -> dict[str, Ints]:
        """A site's exact sums with its share of the noise, in grid steps and flat, as they travel."""
        parts = self.statistic.parts
        if set(parts) != set(integers):
            raise InputError(f"expected the arrays {', '.join(parts)}, got {', '.join(integers)}")
        return {
            name: _with_noise(part, part.flat(integers[name]), self.laws(name), source) for name, part in parts.items()
        }

    def release(self, rows: Rows, source: NoiseGenerator) -> dict[str, Ints]:
        """Noisy sums over rows, flat, in grid steps. What a record pays is to be charged before."""
        return self.share(self.statistic.integers(rows), source)

    def spread(self, name: str, sites: int = 1) -> float:
        """Standard deviation of the noise of a part, on a diagonal, in the sum over so many sites, in units of 1."""
        return math.sqrt(sites * self.laws(name)[0].variance) / self.statistic.parts[name].unit

    def read(self, total: Mapping[str, Ints], rows: int, sites: int = 1) -> Result:
        """What the sum of the flat shares of so many sites says of all their rows."""
        parts = self.statistic.parts
        sums = {name: part.full(total[name]) / part.unit for name, part in parts.items()}
        return self.statistic.read(sums, rows, {name: self.spread(name, sites) for name in parts})
