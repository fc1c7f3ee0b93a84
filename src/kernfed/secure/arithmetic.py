"""Arithmetic on ciphertexts that carry their noise bound.

One circuit, several interpretations: with SEAL behind it the circuit is evaluated, with nothing behind it
only the bounds are, which tells the modulus it needs. Primes of the modulus are dropped as soon as the bound says
that dropping them costs nothing, so work shrinks as the computation goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kernfed.secure.noise import PLAIN_MODULUS, Ring, log_sum

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
        """Sum."""
        a, b = self._aligned(a, b)
        return Cipher(self.backend.add(a.data, b.data), log_sum(a.bound, b.bound), a.level)

    def subtract(self, a: Cipher[T], b: Cipher[T]) -> Cipher[T]:
        """Difference."""
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
        """Product."""
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
