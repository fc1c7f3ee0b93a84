"""How much noise a BFV ciphertext can hold: bounds that decide the modulus before anything is encrypted.

A ciphertext decrypts to its message while its *invariant noise* v has every coefficient below 1/2. Each function
here bounds ``log2`` of the canonical norm of v (the largest absolute value over the complex roots of x^N + 1),
which bounds every coefficient and multiplies over products. A polynomial whose N coefficients are independent with
variance V has canonical norm at most ``6 sqrt(N V)`` except with probability N exp(-36) (2^-37 at N = 32768): the
usual heuristic of homomorphic encryption (Gentry, Halevi, Smart 2012), which also underlies SEAL's own estimates.
"""

from dataclasses import dataclass
from math import log2, pi, sqrt

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
