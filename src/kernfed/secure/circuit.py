"""The classes that attain the smallest score, computed on ciphertexts.

Every site q sends two things for a query: the *thermometer* ``y_q[u] = [m_q <= u]`` of its own smallest score m_q,
and its scores v_qc, one slot each. Over the field of the plain modulus t = 65537 the server computes

1. ``T[u] = sum_q y_q[u]``, the number of sites with a score of at most u, between 0 and Q;
2. ``Z[u] = w [T[u] = 0] = w [M > u]``, by the polynomial of degree about Q that vanishes at 1, 2, ..., Q;
3. ``w M = sum_u Z[u]``, the smallest score over sites and classes;
4. ``r_c prod_q w (v_qc - M)``, zero exactly if a site has v_qc = M; r_c is a fresh random non-zero factor.

The constant ``w = prod_k (-k)`` is not divided out, which would cost noise; the sites multiply their scores by it.
16 bits are two digits of 8: after the first digit the sites whose first digit is the smallest stay *alive*,
``alive_q = y_q[M]``, and the second digit counts only their thermometers. 16-bit scores still fit the field.

Where things stand in a ciphertext: the slots of the BFV circuit.

A ciphertext of degree N has two rows of N/2 slots. A row is 256 *units* of N/512 slots, one slot per query; the two
rows hold different queries, so N/256 queries share a ciphertext. A thermometer uses unit u for the value 255 - u.
Scores use one unit per (site, class): sites have their own blocks of units, so adding the sites' ciphertexts puts
all of them side by side. Every function returns the vector of all slots, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kernfed.errors import ProtocolError
from kernfed.secure.arithmetic import PLAIN_MODULUS, Arithmetic, Cipher, Slots

UNITS = 256  # as many as a digit has values
DIGIT_BITS = 8


@dataclass(frozen=True)
class Layout:
    """Positions for ``n_sites`` sites and ``n_classes`` classes in ciphertexts of degree ``degree``."""

    degree: int
    n_sites: int
    n_classes: int

    @property
    def width(self) -> int:
        """Slots of a unit: queries per row."""
        return self.degree // (2 * UNITS)

    @property
    def batch(self) -> int:
        """Queries per ciphertext."""
        return 2 * self.width

    @property
    def block(self) -> int:
        """Units of a site's block: the classes, rounded up to a power of two so rotations are shared."""
        return 1 << (self.n_classes - 1).bit_length()

    @property
    def group(self) -> int:
        """Sites whose blocks share a ciphertext: a power of two.

        Half of the smallest that holds all sites, if the second group is then at most half full: it finishes early
        and takes the random factors at no cost in noise.
        """
        all_sites = 1 << (self.n_sites - 1).bit_length()
        fitting = all_sites // 2 if 4 * self.n_sites <= 3 * all_sites else all_sites
        return min(fitting, UNITS // self.block)

    @property
    def groups(self) -> list[range]:
        """The sites of each group."""
        every = range(self.n_sites)
        return [every[start : start + self.group] for start in every[:: self.group]]

    def _slots(self, units: npt.NDArray[np.int64]) -> Slots:
        """Units (n, 256) of n queries, zero for the queries that are not there."""
        full = np.zeros((self.batch, UNITS), dtype=np.int64)
        full[: len(units)] = units
        return full.reshape(2, self.width, UNITS).swapaxes(1, 2).ravel()

    def thermometer(self, digits: npt.NDArray[np.int64]) -> Slots:
        """``[digit <= 255 - u]`` at unit u, for digits (n,) in 0..255."""
        return self._slots((digits[:, None] <= UNITS - 1 - np.arange(UNITS)).astype(np.int64))

    def scores(self, scores: npt.NDArray[np.int64], site: int) -> Slots:
        """Scores (n, C) in the block of ``site``."""
        units = np.zeros((len(scores), UNITS), dtype=np.int64)
        start = self.block * (site % self.group)
        units[:, start : start + self.n_classes] = scores
        return self._slots(units)

    def blocks(self, absent: list[int], value: int) -> Slots:
        """``value`` throughout the blocks at these positions of a group."""
        units = np.zeros((self.batch, UNITS // self.block, self.block), dtype=np.int64)
        units[:, absent] = value
        return self._slots(units.reshape(self.batch, UNITS))

    def last_unit(self, value: int) -> Slots:
        """``value`` at unit 255, where a thermometer holds the digit 0."""
        units = np.zeros((self.batch, UNITS), dtype=np.int64)
        units[:, -1] = value
        return self._slots(units)

    def random_factors(self, random: npt.NDArray[np.uint16]) -> Slots:
        """1 + ``random`` (n, C), uniform over the non-zero elements of the field, and 0 outside the answer."""
        return self.scores(1 + random.astype(np.int64), site=0)

    def answer(self, slots: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.bool_]:
        """The set (n, C) of a decrypted answer: zero says that the class attains the minimum.

        Slots that are no answer are zero if all went well.
        """
        queries = slots.reshape(2, UNITS, self.width).swapaxes(1, 2).reshape(self.batch, UNITS)
        if queries[n:].any() or queries[:, self.n_classes :].any():
            raise ProtocolError("the answer does not decrypt: other keys, or noise beyond what the protocol allows")
        return np.asarray(queries[:n, : self.n_classes] == 0)


T = TypeVar("T")

NEVER = PLAIN_MODULUS - 1
"""A score that no minimum equals: it stands where a block has no site."""


class Inputs(Protocol[T]):
    """What the sites sent. Later inputs are encrypted at the level at which the circuit wants them."""

    def first_total(self) -> Cipher[T]:
        """Sum of the thermometers of the first digit."""

    def first(self) -> Sequence[Cipher[T]]:
        """The thermometers of the first digit, site by site; asked for 16 bits only."""

    def second(self, level: int) -> Sequence[Cipher[T]]:
        """The thermometers of the second digit, site by site; asked for 16 bits only."""

    def scores(self, level: int) -> Sequence[Cipher[T]]:
        """One ciphertext per group of sites: their scores times :func:`score_factor`, NEVER in empty blocks."""


def zero_test_degree(n_sites: int) -> int:
    """Degree of the polynomial that is zero at 1..Q: 1, 2 or the next multiple of 4 (its factors come in fours).

    >>> [zero_test_degree(n) for n in (1, 2, 3, 5, 20)]
    [1, 2, 4, 8, 20]
    """
    return n_sites if n_sites <= 2 else 4 * ((n_sites + 3) // 4)


def zero_test_value(unit: int, degree: int) -> int:
    """``prod_k (-k unit)``: what :func:`vanish_on_counts` gives at zero."""
    value = 1
    for k in range(1, degree + 1):
        value = value * -k * unit % PLAIN_MODULUS
    return value


def score_factor(n_sites: int, bits: int) -> int:
    """The constant w by which sites multiply their scores."""
    degree = zero_test_degree(n_sites)
    factor = 1
    for _ in range(bits // DIGIT_BITS):
        factor = zero_test_value(factor, degree)
    return factor


def vanish_on_counts(ops: Arithmetic[T], x: Cipher[T], unit: int, degree: int) -> Cipher[T]:
    """``prod_{k=1}^{degree} (x - k unit)`` in depth ``ceil(log2 degree)``.

    With ``U = x^2 - (degree + 1) unit x`` the factors k and degree + 1 - k multiply to U + a_k, and two of those
    to ``U^2 + (a + b) U + a b``: the constants meet U, which has far less noise than U^2, so they cost nothing.
    """
    if degree == 1:
        return ops.add_constant(x, -unit)
    u = ops.subtract(ops.multiply(x, x), ops.scale(x, (degree + 1) * unit))
    pairs = [k * (degree + 1 - k) * unit * unit for k in range(1, degree // 2 + 1)]
    if degree == 2:
        return ops.add_constant(u, pairs[0])
    u = ops.lower(u)
    square = ops.multiply(u, u)
    u = ops.to_level(u, square.level)
    factors = [
        ops.add_constant(ops.add(square, ops.scale(u, a + b)), a * b)
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return ops.product(factors)


def sum_units(ops: Arithmetic[T], layout: Layout, x: Cipher[T]) -> Cipher[T]:
    """The sum over the units of each row, in every unit."""
    x = ops.lower(x, rotating=True)
    step = layout.width
    while step < layout.width * UNITS:
        x = ops.add(x, ops.rotate(x, step))
        step *= 2
    return ops.lower(x)


def scaled_minimum(ops: Arithmetic[T], layout: Layout, inputs: Inputs[T], bits: int) -> Cipher[T]:
    """``w M`` in every unit, with w = :func:`score_factor`."""
    degree = zero_test_degree(layout.n_sites)
    unit = zero_test_value(1, degree)
    zero = vanish_on_counts(ops, inputs.first_total(), 1, degree)
    minimum = sum_units(ops, layout, zero)
    if bits == DIGIT_BITS:
        return minimum
    zero = ops.lower(zero, rotating=True)
    # Z[u-1] - Z[u] is one-hot at the minimum; before u = 0 stands the value of a test that always succeeds.
    one_hot = ops.subtract(ops.rotate(zero, layout.width), zero)
    one_hot = ops.add_plain(one_hot, layout.last_unit(unit))
    alive = [sum_units(ops, layout, ops.multiply(y, one_hot)) for y in inputs.first()]
    low = inputs.second(min(a.level for a in alive))
    total = ops.inner(list(zip(alive, low, strict=True)), addends=layout.n_sites)
    second = sum_units(ops, layout, vanish_on_counts(ops, total, unit, degree))
    factor = zero_test_value(unit, degree)
    return ops.add(ops.scale(minimum, UNITS * factor * pow(unit, -1, PLAIN_MODULUS)), second)


def product_over_blocks(ops: Arithmetic[T], layout: Layout, x: Cipher[T], blocks: int) -> Cipher[T]:
    """In block 0, the product of the first ``blocks`` blocks, rounded up to a power of two."""
    for doubling in range((blocks - 1).bit_length()):
        x = ops.lower(x, rotating=True)
        x = ops.multiply(x, ops.rotate(x, layout.block * layout.width << doubling))
    return x


def attaining(ops: Arithmetic[T], layout: Layout, inputs: Inputs[T], bits: int, random_factors: Slots) -> Cipher[T]:
    """The answer: zero at unit c of a query exactly if class c attains the minimum, random elsewhere.

    Random and non-zero in the other classes; ``random_factors`` is zero outside the first C units, so every
    intermediate value that stands there is wiped out.
    """
    minimum = ops.lower(scaled_minimum(ops, layout, inputs, bits))
    differences = [ops.subtract(score, minimum) for score in inputs.scores(minimum.level)]
    *others, last = layout.groups
    # The random factors cost most of a level: a short last group takes them if that adds no level to the product.
    if others and 2 * len(last) <= layout.group and len(others) & (len(others) - 1) == 0:
        full = product_over_blocks(ops, layout, ops.product(differences[:-1]), layout.group)
        short = product_over_blocks(ops, layout, differences[-1], len(last))
        return ops.lower(ops.multiply(full, ops.multiply_plain(short, random_factors)))
    full = product_over_blocks(ops, layout, ops.product(differences), max(map(len, layout.groups)))
    return ops.lower(ops.multiply_plain(full, random_factors))
