"""Integer noise with exactly known laws: discrete Laplace, staircase and Gaussian, with the paper's atom.

Floating-point noise by inversion of a distribution function can be recognised in the last bits of its sum with the
data (Mironov 2012). Here data are integers on a grid and so is the noise: the set of possible outputs does not
depend on the data.

What is drawn is the stated law conditioned on a finite support, each mass exact to a relative 2^-80 or better. For
inputs that differ by at most ``reach`` steps this costs ``sampling_error`` per element in delta: outcomes that one
input can produce and the support of the other does not hold. No factor exp(epsilon) enters, since inside the
support a mass is never smaller than the stated law's. The relative error is covered by the nudge of the scale
(``mechanism.py``).

Discrete Gaussian noise has exact tables for small scales, and is a sum of two for large ones. Two facts, both from
Poisson summation, ``sum_k exp(-(k-c)^2/2s^2) = s sqrt(2 pi) (1 + 2 sum_j exp(-2 pi^2 s^2 j^2)
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
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernfed.privacy.generator import WORD, Coin, Ints, NoiseGenerator, Words, blocks, random_signs, uniform

Floats = npt.NDArray[np.float64]

#: The support leaves out a mass of exp(-TAIL), 1.6e-28.
TAIL = 64
#: Bits by which the precision of a probability exceeds its size.
_GUARD = 128


class Noise(Protocol):
    """What a mechanism needs of a law on the integers."""

    def pmf(self, k: npt.ArrayLike) -> Floats:
        """Exact mass at the integers ``k``, to float64 rounding."""
        ...

    def sample(self, shape: tuple[int, ...], generator: NoiseGenerator) -> Ints:
        """Independent draws."""
        ...

    @property
    def sampling_error(self) -> float:
        """What one element's draw adds to delta."""
        ...


@dataclass(frozen=True)
class DiscreteLaplace:
    """Mass ``tanh(rate/2) exp(-rate |k|)`` at k, mixed with an atom at 0 of weight ``atom``.

    The grid form of DP-KAHM (74). ``reach`` is the largest shift of the input, in steps.

    >>> DiscreteLaplace(Fraction(1)).pmf([0, 1, -1]).round(4).tolist()
    [0.4621, 0.17, 0.17]
    """

    rate: Fraction
    reach: int = 0
    atom: float = 0.0

    def pmf(self, k: npt.ArrayLike) -> Floats:
        """Mass at the integers ``k``."""
        rate, k = float(self.rate), np.asarray(k)
        return np.asarray((1.0 - self.atom) * math.tanh(rate / 2) * np.exp(-rate * np.abs(k)) + self.atom * (k == 0))

    @cached_property
    def _bits(self) -> tuple[Coin, ...]:
        return _geometric_bits(self.rate, self.reach)

    @cached_property
    def _zero(self) -> Coin:
        with localcontext() as context:
            context.prec = 100
            q = _exp(-self.rate)
            zero = (1 - q) / (1 + q)
            atom = Decimal(self.atom)  # exact: a float is a binary fraction
            return Coin.of(atom + (1 - atom) * zero, 4 * WORD)

    @property
    def sampling_error(self) -> float:
        """Bound on P(|v| > largest value - reach)."""
        return math.exp(-float(self.rate * (2 ** len(self._bits) - self.reach)))

    def sample(self, shape: tuple[int, ...], generator: NoiseGenerator) -> Ints:
        """Independent draws: 0, or else a sign times one plus a geometric variable."""
        values = np.empty(math.prod(shape), dtype=np.int64)
        for block in blocks(values.size):
            count = block.stop - block.start
            drawn = _geometric(self._bits, count, generator)
            drawn += 1
            drawn *= random_signs(generator, count)
            drawn[self._zero.toss(generator, count)] = 0
            values[block] = drawn
        return values.reshape(shape)


@dataclass(frozen=True)
class DiscreteStaircase:
    """Steps of ``width`` integers, each exp(-epsilon) of the one before (Geng and Viswanath 2014).

    Mass ``c exp(-epsilon level(k))``, level 0 for ``|k| < inner``, then one more every ``width``. A shift by at most
    ``width`` changes a level by at most one. ``inner`` from 1 to ``width``; ``reach`` as in ``DiscreteLaplace``.
    """

    epsilon: Fraction
    width: int
    inner: int
    reach: int = 0

    @classmethod
    def optimal(cls, epsilon: Fraction, width: int, reach: int = 0) -> "DiscreteStaircase":
        """The split of least mean |v|: gamma = 1/(1 + exp(epsilon/2)) of a step's width is inner."""
        inner = round(width / (1.0 + math.exp(min(float(epsilon) / 2, 700.0))) + 0.5)
        return cls(epsilon, width, min(max(inner, 1), width), reach)

    def levels(self, k: npt.ArrayLike) -> Ints:
        """Step on which each integer lies."""
        size = np.abs(np.asarray(k, dtype=np.int64))
        return np.where(size < self.inner, 0, 1 + (size - self.inner) // self.width)

    def pmf(self, k: npt.ArrayLike) -> Floats:
        """Mass at the integers ``k``."""
        return np.asarray(float(self._masses[0]) * np.exp(-float(self.epsilon) * self.levels(k)))

    def variation(self, shift: int) -> float:
        """Total variation between the law and itself shifted, for shifts up to ``width``.

        The law is symmetric and falls away from 0, so this is ``P(-shift/2 <= v < shift/2)``.
        """
        q = math.exp(-float(self.epsilon))
        sides = (shift // 2, (shift - 1) // 2)  # points left and right of 0; they lie on levels 0 and 1
        points = sum(min(m, self.inner - 1) + max(0, m - self.inner + 1) * q for m in sides)
        return float(self._masses[0]) * (1 + points) if shift else 0.0

    @cached_property
    def _masses(self) -> tuple[Decimal, Decimal]:
        """Mass at 0, and the share of inner points in a period: 1 + G width + J with J < inner - 1 is on level G."""
        with localcontext() as context:
            context.prec = 100
            q = _exp(-self.epsilon)
            inner, outer = Decimal(self.inner - 1), (self.width - self.inner + 1) * q
            return 1 / (1 + 2 * (inner + outer) / (1 - q)), inner / (inner + outer)

    @cached_property
    def _bits(self) -> tuple[Coin, ...]:
        return _geometric_bits(self.epsilon, -(-self.reach // self.width))

    @cached_property
    def _coins(self) -> tuple[Coin, Coin]:
        zero, inner = self._masses
        return Coin.of(zero, 4 * WORD), Coin.of(inner, 4 * WORD)

    @property
    def sampling_error(self) -> float:
        """Bound on P(|v| > largest value - reach)."""
        return math.exp(-float(self.epsilon * (2 ** len(self._bits) - -(-self.reach // self.width))))

    def sample(self, shape: tuple[int, ...], generator: NoiseGenerator) -> Ints:
        """Independent draws: 0, or else a sign times a period and a place in it."""
        values = np.empty(math.prod(shape), dtype=np.int64)
        zero, inner = self._coins
        for block in blocks(values.size):
            count = block.stop - block.start
            drawn = _geometric(self._bits, count, generator) * self.width + 1
            place = self.inner - 1 + uniform(generator, self.width - self.inner + 1, count)
            if self.inner > 1:
                place = np.where(inner.toss(generator, count), uniform(generator, self.inner - 1, count), place)
            drawn += place
            drawn *= random_signs(generator, count)
            drawn[zero.toss(generator, count)] = 0
            values[block] = drawn
        return values.reshape(shape)


def _exp(x: Fraction) -> Decimal:
    """exp(x) to the precision of the decimal context."""
    return (Decimal(x.numerator) / Decimal(x.denominator)).exp()


@lru_cache(maxsize=32)
def _geometric_bits(rate: Fraction, reach: int) -> tuple[Coin, ...]:
    """Coins for the binary digits of a geometric variable, P(G = g) proportional to exp(-rate g).

    Digit i is 1 with probability 1/(1 + exp(2^i rate)), independently of the others. There are enough digits that
    P(G >= 2^digits - reach) <= exp(-TAIL).
    """
    digits = max(1, math.ceil(reach + TAIL / rate).bit_length())
    size = math.ceil(rate * 2 ** (digits - 1) / Fraction(math.log(2)))  # the rarest digit is 1 about once in 2^size
    precision = WORD * -(-(size + _GUARD) // WORD)
    with localcontext() as context:
        context.prec = precision // 3 + 10
        return tuple(Coin.of(1 / (1 + _exp(rate * 2**i)), precision) for i in range(digits))


def _geometric(bits: tuple[Coin, ...], count: int, generator: NoiseGenerator) -> Ints:
    values = np.zeros(count, dtype=np.int64)
    for i, coin in enumerate(bits):
        values += np.left_shift(coin.toss(generator, count), i, dtype=np.int64)
    return values


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
