"""Discrete Gaussian noise: exact tables for small scales, sums of two for large ones.

Two facts, both from Poisson summation, ``sum_k exp(-(k-c)^2/2s^2) = s sqrt(2 pi) (1 + 2 sum_j exp(-2 pi^2 s^2 j^2)
cos(2 pi j c))``, which for s >= 2.8 does not depend on c to a relative 1e-66:

1. *Sums* (Peikert 2010, Theorem 3.1; Micciancio and Walter 2017). With independent discrete Gaussians of variances a, b
   and an integer m, ``x + m y`` has mass proportional to ``exp(-k^2/2(a + m^2 b))`` times a sum over y of a Gaussian of
   scale ``s = (m^2/a + 1/b)^(-1/2)``: a discrete Gaussian of variance ``a + m^2 b`` if s >= 2.8.
2. *Privacy.* The discrete Gaussian of variance ``v + 16`` is what remains of a continuous one of variance v after a
   random rounding of scale 4 that commutes with integer shifts. By post-processing its guarantee for any vector of
   integer shifts is that of continuous noise of variance v: ``SMOOTHING`` is added to the variance, nothing else
   changes.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kernfed.privacy.generator import WORD, Ints, NoiseGenerator, Words, blocks, random_signs
from kernfed.privacy.noise import Floats

#: Added to a continuous variance, in squared grid steps, to have its guarantee on the grid (fact 2).
SMOOTHING = 16
# A variance from _LARGE on is drawn as x + 2^7 y with x of variance _FINE (fact 1): s = 3.4 or more.
_LARGE = 1 << 20
_FINE = 1 << 18
_SHIFT = 7
# Tables end at _TABLE + reach/sigma standard deviations. What is beyond _BODY + reach/sigma counts as an error.
_TABLE = 20
_BODY = 11.5
#: What one element's draw adds to delta: a bound on P(|v| > _BODY standard deviations).
SAMPLING_ERROR = 2 * math.exp(-(_BODY**2) / 2)


@dataclass(frozen=True)
class DiscreteGaussian:
    """Mass proportional to ``exp(-k^2 / (2 variance))`` at the integers; ``reach`` is the largest shift, in steps.

    >>> DiscreteGaussian(Fraction(1)).pmf([0, 1]).round(4).tolist()
    [0.3989, 0.242]
    """

    variance: Fraction
    reach: int = 0

    def pmf(self, k: npt.ArrayLike) -> Floats:
        """Mass at the integers ``k``."""
        v = float(self.variance)
        total = math.sqrt(2 * math.pi * v)
        if v < 8:
            total = sum(math.exp(-k * k / (2 * v)) for k in range(-120, 121))
        return np.asarray(np.exp(-np.square(np.asarray(k, dtype=np.float64)) / (2 * v)) / total)

    @property
    def _extra(self) -> int:
        """Standard deviations by which an input may be shifted, rounded up."""
        return math.ceil(self.reach / math.sqrt(self.variance))

    @property
    def sampling_error(self) -> float:
        """What one element's draw adds to delta."""
        return SAMPLING_ERROR

    def sample(self, shape: tuple[int, ...], generator: NoiseGenerator) -> Ints:
        """Independent draws."""
        values = np.empty(math.prod(shape), dtype=np.int64)
        for block in blocks(values.size):
            values[block] = _draw(self.variance, self._extra, block.stop - block.start, generator)
        return values.reshape(shape)


def _draw(variance: Fraction, extra: int, count: int, generator: NoiseGenerator) -> Ints:
    if variance >= _LARGE:
        coarse = _draw((variance - _FINE) / 4**_SHIFT, extra, count, generator)
        return _draw(Fraction(_FINE), extra, count, generator) + (coarse << _SHIFT)
    table = _table(variance, _TABLE + extra)
    return table.sizes(generator, count) * random_signs(generator, count)


@dataclass(frozen=True, eq=False)
class GaussianTable:
    """Distribution function of a variable on 0, 1, 2, ...: ``P(size <= k) = bounds[k] / 2^precision``.

    ``first`` holds the first 64 bits of each bound. The last bound, 1, is left out.
    """

    bounds: list[int]
    precision: int
    first: Words

    def sizes(self, generator: NoiseGenerator, count: int) -> Ints:
        """Independent draws: how many bounds a uniform number reaches."""
        words = generator.words(count)
        places = np.searchsorted(self.first, words, side="right").astype(np.int64)
        rest = self.precision - WORD
        # Where the first 64 bits equal those of a bound, the other bits decide.
        for i in np.flatnonzero(self.first[np.maximum(places, 1) - 1] == words):
            places[i] = bisect_right(self.bounds, int(words[i]) << rest | generator.integer(rest))
        return places


@lru_cache(maxsize=32)
def _table(variance: Fraction, deviations: int) -> GaussianTable:
    """Table of |k| for a discrete Gaussian, up to that many standard deviations.

    Masses come from ``exp(-(k+1)^2/2v) = exp(-k^2/2v) r_k``, ``r_{k+1} = r_k exp(-1/v)`` in integers, with 128 bits
    more than the smallest mass needs.
    """
    size = math.ceil(deviations**2 / (2 * math.log(2)))
    precision = WORD * -(-(size + 128 + WORD) // WORD)
    one = 1 << precision
    with localcontext() as context:
        context.prec = precision // 3 + 10
        root = (Decimal(-variance.denominator) / Decimal(2 * variance.numerator)).exp()
        ratio, factor = int(root * one), int(root * root * one)
    mass, totals = 2 * one, [one]
    for _ in range(math.ceil(deviations * math.sqrt(variance))):
        mass = mass * ratio >> precision
        ratio = ratio * factor >> precision
        totals.append(totals[-1] + mass)
    bounds = [(total << precision) // totals[-1] for total in totals[:-1]]
    first = np.array([bound >> (precision - WORD) for bound in bounds], dtype=np.uint64)
    return GaussianTable(bounds, precision, first)
