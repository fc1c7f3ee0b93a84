"""Random words for noise, and the exact elementary draws made of them: coins and uniform integers.

A coin compares a 64-bit word with the first 64 bits of its probability. Only where they are equal, about once in
1e19 tosses, do further bits decide, so a probability of any precision costs no more than one of 64 bits.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kernfed.base.checks import check_count
from kernfed.errors import InputError

WORD = 64
BLOCK = 1 << 15  # elements drawn at a time: their words stay in the cache
_ZEROS = bytes(8 * BLOCK)

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def fresh_key() -> bytes:
    """A new key of 32 bytes, from the operating system."""
    return os.urandom(32)


class NoiseGenerator:
    """Uniform 64-bit words from AES-256 in counter mode, keyed by the operating system.

    A given ``seed`` makes the words repeatable, for tests: then ``private`` is False, every release made with it
    says so and no ledger takes it. Words are never used twice: a process that inherits a generator by forking
    gets a new key.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = None if seed is None else check_count(seed, "seed", at_least=0)
        self._rekey()

    @property
    def private(self) -> bool:
        """Whether nobody can know the words in advance."""
        return self._seed is None

    def _rekey(self) -> None:
        key = fresh_key() if self._seed is None else hashlib.sha256(f"kernfed noise {self._seed}".encode()).digest()
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._process = os.getpid()

    def words(self, count: int) -> Words:
        """The next ``count`` words, read-only; at most ``BLOCK`` at a time."""
        if count > BLOCK:
            raise InputError(f"count must be <= {BLOCK}, got {count}")
        if self.private and os.getpid() != self._process:
            self._rekey()
        return np.frombuffer(self._stream.update(_ZEROS[: 8 * count]), dtype="<u8")

    def integer(self, bits: int) -> int:
        """One uniform integer of that many bits."""
        count = -(-bits // WORD)
        return int.from_bytes(self.words(count).tobytes(), "little") >> (WORD * count - bits)


def check_generator(generator: Any) -> NoiseGenerator:
    """The given generator, or a new private one for None."""
    if generator is None:
        return NoiseGenerator()
    if not isinstance(generator, NoiseGenerator):
        raise InputError(
            f"generator must be a NoiseGenerator or None, got {type(generator).__name__}; "
            "NumPy's generators are not made for secrets, use NoiseGenerator(seed) in tests"
        )
    return generator


def blocks(count: int) -> Iterator[slice]:
    """Consecutive slices of at most ``BLOCK`` that cover ``range(count)``."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


@dataclass(frozen=True)
class Coin:
    """A probability as the integer ``numerator`` over 2^``precision``, rounded down."""

    numerator: int
    precision: int

    @classmethod
    def of(cls, probability: Decimal | Fraction, precision: int) -> "Coin":
        """Coin for a probability in [0, 1), to ``precision`` bits (a multiple of 64)."""
        return cls(int(Fraction(probability) * (1 << precision)), precision)

    def toss(self, generator: NoiseGenerator, count: int) -> Bools:
        """``count`` independent tosses, True with the probability."""
        rest = self.precision - WORD
        first = np.uint64(self.numerator >> rest)
        words = generator.words(count)
        heads: Bools = words < first
        for place in np.flatnonzero(words == first):
            heads[place] = generator.integer(rest) < self.numerator & ((1 << rest) - 1)
        return heads


def uniform(generator: NoiseGenerator, size: int, count: int) -> Ints:
    """``count`` independent integers, uniform on 0 .. size - 1, for ``size`` up to 2^62."""
    values = generator.words(count).copy()
    # Words above the largest multiple of ``size`` would favour small remainders: draw them again.
    limit = np.uint64((1 << WORD) - (1 << WORD) % size - 1)
    while (again := np.flatnonzero(values > limit)).size:
        values[again] = generator.words(again.size)
    return (values % np.uint64(size)).astype(np.int64)


def random_signs(generator: NoiseGenerator, count: int) -> Ints:
    """``count`` independent signs, +1 or -1."""
    bits = np.unpackbits(generator.words(-(-count // WORD)).view(np.uint8), count=count)
    return 1 - 2 * bits.astype(np.int64)
