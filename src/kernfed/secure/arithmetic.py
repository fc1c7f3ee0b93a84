"""Arithmetic on ciphertexts that carry their noise bound.

One circuit, several interpretations: with SEAL behind it the circuit is evaluated, with nothing behind it
only the bounds are, which tells the modulus it needs. Primes of the modulus are dropped as soon as the bound says
that dropping them costs nothing, so work shrinks as the computation goes on.

How much noise a BFV ciphertext can hold: bounds that decide the modulus before anything is encrypted.

A ciphertext decrypts to its message while its *invariant noise* v has every coefficient below 1/2. Each function
here bounds ``log2`` of the canonical norm of v (the largest absolute value over the complex roots of x^N + 1),
which bounds every coefficient and multiplies over products. A polynomial whose N coefficients are independent with
variance V has canonical norm at most ``6 sqrt(N V)`` except with probability N exp(-36) (2^-37 at N = 32768): the
usual heuristic of homomorphic encryption (Gentry, Halevi, Smart 2012), which also underlies SEAL's own estimates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, pi, sqrt
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

PLAIN_MODULUS = 65537
"""Prime, 1 modulo 2N for every N up to 32768, so all slots are usable; the smallest one for N = 16384 and 32768."""

MOST_BITS = {8192: 218, 16384: 438, 32768: 881}
"""Largest modulus at 128-bit security per degree (HomomorphicEncryption.org standard, ternary secrets)."""

DEVIATION = 3.2  # of the error distribution
TERNARY = 2 / 3  # variance of a coefficient of the secret and of the encryption randomness
TAIL = 6.0  # standard deviations taken as the bound


def log_sum(*terms: float) -> float:
    """``log2`` of the sum of ``2 ** term``.

    >>> log_sum(3.0, 3.0)
    4.0
    """
    top = max(terms)
    return top + log2(sum(2.0 ** (term - top) for term in terms))


@dataclass(frozen=True)
class Ring:
    """Degree N, ``levels`` primes of ``prime_bits`` bits for ciphertexts, one of ``special_bits`` for keys."""

    degree: int
    prime_bits: int
    levels: int
    special_bits: int

    @property
    def sizes(self) -> list[int]:
        """Bits of every prime, the special one last."""
        return [self.prime_bits] * self.levels + [self.special_bits]

    def modulus(self, level: int) -> float:
        """``log2 q`` at a level; the primes lie just below a power of two."""
        return level * (self.prime_bits - 0.01)

    def _scaled(self, magnitude: float, level: int) -> float:
        """Noise of canonical norm ``magnitude`` in the ciphertext itself: v = t/q times it."""
        return log2(PLAIN_MODULUS * magnitude) - self.modulus(level)

    def fresh(self, level: int) -> float:
        """Public-key encryption: e u + e1 + e2 s, products of two polynomials bounded with 16 for 6 x 6."""
        n = self.degree
        return self._scaled(DEVIATION * (sqrt(2) * 16 * n * sqrt(TERNARY) + TAIL * sqrt(n)), level)

    def rounding(self, level: int) -> float:
        """Dividing a ciphertext by a prime rounds both parts: d0 + d1 s, coefficients of variance 1/12."""
        return self._scaled(TAIL * sqrt(self.degree / 12 * (1 + TERNARY * self.degree)), level)

    def key_switch(self, level: int) -> float:
        """Relinearisation or rotation: the sum over primes of digit times key error, over the special prime.

        The digits lie in [0, prime): their mean, half a prime, has canonical norm at most N/pi primes.
        """
        n = self.degree
        digit = n / pi + TAIL * sqrt(n / 12)
        errors = digit * TAIL * DEVIATION * sqrt(n) * sqrt(level) * 2.0 ** (self.prime_bits - self.special_bits)
        return log_sum(self._scaled(errors, level), self.rounding(level))

    def product(self, a: float, b: float, level: int) -> float:
        """v1 X2 + v2 X1 + v1 v2 and rounding, where X = t/q (c0 + c1 s) has canonical norm t sqrt(3N + 2N^2).

        The base extension of SEAL rounds by up to one unit per prime in each of the three parts.
        """
        n = self.degree
        size = log2(PLAIN_MODULUS) + log2(3 * n + 2 * n * n) / 2
        secret = TAIL * sqrt(TERNARY * n)
        rounding = level * TAIL * sqrt(n / 12) * (1 + secret + secret * secret)
        return log_sum(a + size, b + size, a + b, self._scaled(rounding, level))

    def plain(self, a: float) -> float:
        """Times a plaintext polynomial with uniform coefficients."""
        return a + log2(PLAIN_MODULUS * TAIL * sqrt(self.degree / 12))


Slots = npt.NDArray[np.int64]
T = TypeVar("T")

SPARE = 3.0  # bits by which a rounding must stay below the noise to count as free


class Backend(Protocol[T]):
    """What a ciphertext library must do; plaintexts are slot vectors or constants modulo the plain modulus."""

    def add(self, a: T, b: T) -> T:
        """Slotwise sum."""

    def subtract(self, a: T, b: T) -> T:
        """Slotwise difference."""

    def add_plain(self, a: T, values: Slots) -> T:
        """Sum with a plain vector."""

    def add_constant(self, a: T, constant: int) -> T:
        """Sum with a constant in every slot."""

    def scale(self, a: T, constant: int) -> T:
        """Product with a non-zero constant."""

    def multiply_plain(self, a: T, values: Slots) -> T:
        """Slotwise product with a plain vector."""

    def inner(self, pairs: Sequence[tuple[T, T]]) -> T:
        """Sum of slotwise products, relinearised once."""

    def rotate(self, a: T, steps: int) -> T:
        """Both rows rotated left."""

    def switch(self, a: T, level: int) -> T:
        """The same message with fewer primes."""


@dataclass(frozen=True)
class Cipher(Generic[T]):
    """A ciphertext, ``log2`` of the bound on its noise, and the number of primes it still has."""

    data: T
    bound: float
    level: int


@dataclass(frozen=True)
class Arithmetic(Generic[T]):
    """The operations of a circuit: each computes with ``backend`` and bounds the noise in ``ring``."""

    ring: Ring
    backend: Backend[T]

    def fresh(self, data: T, level: int, addends: int = 1) -> Cipher[T]:
        """A received ciphertext, or the sum of ``addends`` independent ones."""
        return Cipher(data, self.ring.fresh(level) + log2(addends) / 2, level)

    def to_level(self, a: Cipher[T], level: int) -> Cipher[T]:
        """Drop primes down to ``level``."""
        if level == a.level:
            return a
        return Cipher(self.backend.switch(a.data, level), log_sum(a.bound, self.ring.rounding(level)), level)

    def lower(self, a: Cipher[T], *, rotating: bool = False) -> Cipher[T]:
        """Drop every prime whose loss stays below the noise that is there already.

        The loss is the rounding, and before a rotation also the noise of switching keys, which is larger the fewer
        primes are left. Before a product it does not matter: the product adds far more.
        """
        loss = self.ring.key_switch if rotating else self.ring.rounding
        level = a.level
        while level > 1 and loss(level - 1) <= a.bound - SPARE:
            level -= 1
        return self.to_level(a, level)

    def _aligned(self, a: Cipher[T], b: Cipher[T]) -> tuple[Cipher[T], Cipher[T]]:
        level = min(a.level, b.level)
        return self.to_level(a, level), self.to_level(b, level)

    def add(self, a: Cipher[T], b: Cipher[T]) -> Cipher[T]:
        """Sum of two ciphertexts, at the lower of their levels."""
        a, b = self._aligned(a, b)
        return Cipher(self.backend.add(a.data, b.data), log_sum(a.bound, b.bound), a.level)

    def subtract(self, a: Cipher[T], b: Cipher[T]) -> Cipher[T]:
        """Difference of two ciphertexts, at the lower of their levels."""
        a, b = self._aligned(a, b)
        return Cipher(self.backend.subtract(a.data, b.data), log_sum(a.bound, b.bound), a.level)

    def add_plain(self, a: Cipher[T], values: Slots) -> Cipher[T]:
        """Sum with a plain vector: it rounds, which is far below any noise."""
        return Cipher(self.backend.add_plain(a.data, values), a.bound, a.level)

    def add_constant(self, a: Cipher[T], constant: int) -> Cipher[T]:
        """Sum with a constant."""
        return Cipher(self.backend.add_constant(a.data, constant % PLAIN_MODULUS), a.bound, a.level)

    def scale(self, a: Cipher[T], constant: int) -> Cipher[T]:
        """Product with a constant, whose representative nearest zero scales the noise."""
        constant %= PLAIN_MODULUS
        size = min(constant, PLAIN_MODULUS - constant)
        return Cipher(self.backend.scale(a.data, constant), a.bound + log2(size), a.level)

    def multiply_plain(self, a: Cipher[T], values: Slots) -> Cipher[T]:
        """Product with a plain vector."""
        return Cipher(self.backend.multiply_plain(a.data, values), self.ring.plain(a.bound), a.level)

    def inner(self, pairs: Sequence[tuple[Cipher[T], Cipher[T]]], addends: int = 1) -> Cipher[T]:
        """Sum of products; all factors are first brought to the level of the noisiest.

        The bound is that of at least ``addends`` products, so that it does not depend on how many there happen to be.
        """
        lowered = {id(c): self.lower(c) for pair in pairs for c in pair}
        level = min(c.level for c in lowered.values())
        at_level = {key: self.to_level(c, level) for key, c in lowered.items()}
        ready = [(at_level[id(a)], at_level[id(b)]) for a, b in pairs]
        bounds = [self.ring.product(a.bound, b.bound, level) for a, b in ready]
        bounds += [max(bounds)] * (addends - len(bounds))
        data = self.backend.inner([(a.data, b.data) for a, b in ready])
        return Cipher(data, log_sum(*bounds, self.ring.key_switch(level)), level)

    def multiply(self, a: Cipher[T], b: Cipher[T]) -> Cipher[T]:
        """Product of two ciphertexts, at the level that is left."""
        return self.inner([(a, b)])

    def rotate(self, a: Cipher[T], steps: int) -> Cipher[T]:
        """Both rows rotated left."""
        bound = log_sum(a.bound, self.ring.key_switch(a.level))
        return Cipher(self.backend.rotate(a.data, steps), bound, a.level)

    def product(self, factors: Sequence[Cipher[T]]) -> Cipher[T]:
        """Product of all, always of the two least noisy: a factor computed in few steps enters early."""
        waiting = sorted(factors, key=lambda c: c.bound)
        while len(waiting) > 1:
            first, second, *rest = waiting
            waiting = sorted([self.multiply(first, second), *rest], key=lambda c: c.bound)
        return waiting[0]
