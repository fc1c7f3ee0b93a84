"""The BFV parameters that a number of sites, classes and bits needs: derived from the circuit, never fitted.

The circuit is run on noise bounds alone. The smallest ring whose modulus, at 128-bit security, leaves room for the
noise of the circuit and for the flooding that hides it is taken; if there is none the setting is refused here,
before a key exists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil, log2

from kernfed.errors import InputError
from kernfed.secure.arithmetic import MOST_BITS, Arithmetic, Cipher, Ring, Slots
from kernfed.secure.circuit import UNITS, Layout, attaining

PRIVACY_BITS = 40
"""Two answers with equal sets differ, in statistical distance, by at most 2^-40 in their noise."""

MOST_SITES = 256
MOST_CLASSES = UNITS
LARGEST_PRIME = 60  # bits, a limit of SEAL
SMALLEST_PRIME = 20
MOST_LEVELS = {8192: 6, 16384: 12, 32768: 24}  # with more, smaller primes the next degree is faster
AMPLE = 24
FLOOD = Fraction(9, 20)  # of q/t; decryption bears 1/2
ROUNDING_ROOM = -6.0  # log2 of the noise allowed beside the flood when the answer is shortened
SLACK_BITS = 8.0


@dataclass(frozen=True)
class Parameters:
    """Ring and layout, the levels at which the later inputs are encrypted, and where the answer stands."""

    ring: Ring
    layout: Layout
    bits: int
    second_level: int
    scores_level: int
    answer_level: int
    answer_bound: float = field(repr=False)  # a float: its last digit may depend on the machine

    @property
    def privacy_bits(self) -> float:
        """``-log2`` of the statistical distance that flooding with uniform noise on +-F leaves, F = FLOOD q/t.

        Noise w shifts the flood by at most |w|_1 / 2F in distance, and |w|_1 <= sqrt(N) |w|_2 <= sqrt(N) times its
        canonical norm, which is at most 2^answer_bound q/t.
        """
        return 1 + log2(FLOOD) - self.answer_bound - log2(self.ring.degree) / 2

    @property
    def sent_level(self) -> int:
        """Primes of the answer that is sent: the fewest whose rounding fits beside the flooding."""
        levels = range(1, self.answer_level + 1)
        return next(level for level in levels if self.ring.rounding(level) <= ROUNDING_ROOM)


class _Nothing:
    """A backend that computes nothing: planning needs only the bounds."""

    def add(self, a: None, b: None) -> None: ...
    def subtract(self, a: None, b: None) -> None: ...
    def add_plain(self, a: None, values: Slots) -> None: ...
    def add_constant(self, a: None, constant: int) -> None: ...
    def scale(self, a: None, constant: int) -> None: ...
    def multiply_plain(self, a: None, values: Slots) -> None: ...
    def inner(self, pairs: Sequence[tuple[None, None]]) -> None: ...
    def rotate(self, a: None, steps: int) -> None: ...
    def switch(self, a: None, level: int) -> None: ...


@dataclass(frozen=True)
class _Bounds:
    """Inputs for planning: no ciphertexts, the bounds of all sites' inputs, and a note of the levels asked for."""

    ops: Arithmetic[None]
    layout: Layout
    levels: dict[str, int] = field(default_factory=dict)

    def first_total(self) -> Cipher[None]:
        return self.ops.fresh(None, self.ops.ring.levels, self.layout.n_sites)

    def first(self) -> Sequence[Cipher[None]]:
        return [self.ops.fresh(None, self.ops.ring.levels)] * self.layout.n_sites

    def second(self, level: int) -> Sequence[Cipher[None]]:
        self.levels["second"] = level
        return [self.ops.fresh(None, level)] * self.layout.n_sites

    def scores(self, level: int) -> Sequence[Cipher[None]]:
        self.levels["scores"] = level
        return [self.ops.fresh(None, level, len(sites)) for sites in self.layout.groups]


def plan(ring: Ring, n_sites: int, n_classes: int, bits: int) -> Parameters:
    """Levels and final noise bound of the circuit in ``ring``."""
    layout = Layout(ring.degree, n_sites, n_classes)
    ops: Arithmetic[None] = Arithmetic(ring, _Nothing())
    inputs = _Bounds(ops, layout)
    answer = attaining(ops, layout, inputs, bits, layout.last_unit(0))
    levels = inputs.levels
    return Parameters(ring, layout, bits, levels.get("second", 0), levels["scores"], answer.level, answer.bound)


def _rings(degree: int, needed: float) -> Iterator[Ring]:
    """Rings of at least ``needed`` bits: fewest primes first, then smallest primes.

    The special prime is as large as security and SEAL allow.
    """
    for levels in range(max(2, ceil(needed / LARGEST_PRIME)), MOST_LEVELS[degree] + 1):
        for prime in range(max(SMALLEST_PRIME, ceil(needed / levels)), LARGEST_PRIME + 1):
            special = min(LARGEST_PRIME, MOST_BITS[degree] - levels * prime)
            if special >= SMALLEST_PRIME:
                yield Ring(degree, prime, levels, special)


@lru_cache(maxsize=64)
def derive(n_sites: int, n_classes: int, bits: int) -> Parameters:
    """Smallest degree, then fewest and smallest primes, that hold the circuit; ValueError if none does."""
    if n_sites > MOST_SITES or n_classes > MOST_CLASSES:
        raise InputError(
            f"scheme 'bfv' holds at most {MOST_SITES} sites and {MOST_CLASSES} classes, "
            f"got {n_sites} sites and {n_classes} classes"
        )
    for degree in MOST_BITS:
        ample = Ring(degree, LARGEST_PRIME, AMPLE, LARGEST_PRIME)
        ideal = plan(ample, n_sites, n_classes, bits)
        # What an ample modulus leaves unused is not needed; how primes are dropped shifts it by a few bits.
        needed = ample.modulus(AMPLE) - (ideal.privacy_bits - PRIVACY_BITS)
        for ring in _rings(degree, needed - SLACK_BITS):
            candidate = plan(ring, n_sites, n_classes, bits)
            if candidate.privacy_bits >= PRIVACY_BITS:
                return candidate
    raise InputError(
        f"scheme 'bfv' cannot hold {n_sites} sites, {n_classes} classes and {bits} bits: it needs a modulus of "
        f"{needed:.0f} bits, and {MOST_BITS[degree]} with the keys' prime is the most at 128-bit security; "
        "use fewer sites or 8 bits"
    )
