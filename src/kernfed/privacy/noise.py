"""Integer noise with exactly known laws: discrete Laplace, staircase and Gaussian, with the paper's atom.

Floating-point noise by inversion of a distribution function can be recognised in the last bits of its sum with the
data (Mironov 2012). Here data are integers on a grid and so is the noise: the set of possible outputs does not
depend on the data.

What is drawn is the stated law conditioned on a finite support, each mass exact to a relative 2^-80 or better. For
inputs that differ by at most ``reach`` steps this costs ``sampling_error`` per element in delta: outcomes that one
input can produce and the support of the other does not hold. No factor exp(epsilon) enters, since inside the
support a mass is never smaller than the stated law's. The relative error is covered by the nudge of the scale
(``mechanism.py``).
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernfed.privacy.generator import WORD, Coin, Ints, NoiseGenerator, blocks, random_signs, uniform

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
