"""The circuit without encryption: the same code over numpy arrays modulo t, against the naive decision."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from kernfed.errors import ProtocolError
from kernfed.secure.arithmetic import PLAIN_MODULUS, Arithmetic, Cipher, Ring, Slots
from kernfed.secure.circuit import (
    NEVER,
    UNITS,
    Layout,
    attaining,
    scaled_minimum,
    score_factor,
    vanish_on_counts,
    zero_test_degree,
    zero_test_value,
)
from oracles.secure import attaining_sets, scores_with_ties

RING = Ring(degree=1024, prime_bits=60, levels=24, special_bits=60)  # noise is bounded, not simulated


class Field:
    """A backend whose ciphertexts are their slots, in two rows."""

    def __init__(self) -> None:
        self.products = 0

    def add(self, a: Slots, b: Slots) -> Slots:
        return (a + b) % PLAIN_MODULUS

    def subtract(self, a: Slots, b: Slots) -> Slots:
        return (a - b) % PLAIN_MODULUS

    def add_plain(self, a: Slots, values: Slots) -> Slots:
        return (a + values) % PLAIN_MODULUS

    def add_constant(self, a: Slots, constant: int) -> Slots:
        assert 0 <= constant < PLAIN_MODULUS
        return (a + constant) % PLAIN_MODULUS

    def scale(self, a: Slots, constant: int) -> Slots:
        assert 0 < constant < PLAIN_MODULUS
        return a * constant % PLAIN_MODULUS

    def multiply_plain(self, a: Slots, values: Slots) -> Slots:
        return a * values % PLAIN_MODULUS

    def inner(self, pairs: Sequence[tuple[Slots, Slots]]) -> Slots:
        self.products += len(pairs)
        return np.asarray(sum(a * b % PLAIN_MODULUS for a, b in pairs) % PLAIN_MODULUS)

    def rotate(self, a: Slots, steps: int) -> Slots:
        return np.roll(a.reshape(2, -1), -steps, axis=1).ravel()

    def switch(self, a: Slots, level: int) -> Slots:  # noqa: ARG002
        return a


@dataclass(frozen=True)
class Sent:
    """Inputs in clear, as sites would encrypt them; ``present`` sites answered."""

    ops: Arithmetic[Slots]
    layout: Layout
    integers: np.ndarray
    bits: int
    present: Sequence[int]

    def digits(self, q: int) -> list[np.ndarray]:
        smallest = self.integers[q].min(axis=1)
        return [smallest] if self.bits == 8 else [smallest // 256, smallest % 256]

    def first(self) -> Sequence[Cipher[Slots]]:
        return [self.ops.fresh(self.layout.thermometer(self.digits(q)[0]), 24) for q in self.present]

    def first_total(self) -> Cipher[Slots]:
        return self.ops.fresh(np.asarray(sum(c.data for c in self.first())), 24)

    def second(self, level: int) -> Sequence[Cipher[Slots]]:
        return [self.ops.fresh(self.layout.thermometer(self.digits(q)[1]), level) for q in self.present]

    def scores(self, level: int) -> Sequence[Cipher[Slots]]:
        factor = score_factor(self.layout.n_sites, self.bits)
        sums = []
        for sites in self.layout.groups:
            empty = [b for b in range(UNITS // self.layout.block) if b >= len(sites) or sites[b] not in self.present]
            total = self.layout.blocks(empty, NEVER * factor % PLAIN_MODULUS)
            for q in set(sites) & set(self.present):
                total = total + self.layout.scores(self.integers[q] * factor % PLAIN_MODULUS, q)
            sums.append(self.ops.fresh(total, level))
        return sums


def run(
    scores: np.ndarray, bits: int, rng: np.random.Generator, present: Sequence[int] | None = None, degree: int = 1024
) -> np.ndarray:
    """Sets (n, C) through the circuit, n up to the batch of the layout."""
    n_sites, n, n_classes = scores.shape
    layout, ops = Layout(degree, n_sites, n_classes), Arithmetic(RING, Field())
    integers = np.rint(scores * (2**bits - 1)).astype(np.int64)
    inputs = Sent(ops, layout, integers, bits, range(n_sites) if present is None else present)
    factors = layout.random_factors(rng.integers(0, 2**16, (n, n_classes)).astype(np.uint16))
    return layout.answer(attaining(ops, layout, inputs, bits, factors).data, n)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("n_sites", "n_classes"),
    [
        (1, 1),
        (1, 256),
        (2, 3),
        (3, 10),
        (4, 2),
        (5, 10),
        (6, 3),
        (7, 200),
        (8, 10),
        (9, 33),
        (12, 100),
        (16, 10),
        (17, 20),
        (20, 10),
        (33, 10),
        (100, 20),
        (256, 5),
    ],
)
def test_circuit_equals_the_naive_decision(n_sites: int, n_classes: int, bits: int, rng: np.random.Generator) -> None:
    degree = 16384
    scores = scores_with_ties(rng, n_sites, degree // UNITS, n_classes, bits)
    np.testing.assert_array_equal(run(scores, bits, rng, degree=degree), attaining_sets(scores, bits))


@pytest.mark.parametrize("bits", [8, 16])
def test_many_small_cases(bits: int, rng: np.random.Generator) -> None:
    degree = 1 << 20  # 4096 queries at once: nothing is encrypted
    scores = scores_with_ties(rng, 4, degree // UNITS, 3, bits)
    np.testing.assert_array_equal(run(scores, bits, rng, degree=degree), attaining_sets(scores, bits))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("present", [[0], [4], [1, 3], [5, 6], [0, 1, 2, 3, 4, 5]])
def test_missing_sites(present: list[int], bits: int, rng: np.random.Generator) -> None:
    scores = scores_with_ties(rng, 7, 4, 3, bits)
    np.testing.assert_array_equal(run(scores, bits, rng, present), attaining_sets(scores[present], bits))


@pytest.mark.parametrize("n_sites", [1, 2, 3, 4, 5, 8, 20, 100])
@pytest.mark.parametrize("unit", [1, 12345])
def test_zero_test_vanishes_on_counts_and_only_there(n_sites: int, unit: int) -> None:
    degree = zero_test_degree(n_sites)
    counts = np.arange(1024, dtype=np.int64)
    ops = Arithmetic(RING, Field())
    result = vanish_on_counts(ops, ops.fresh(counts * unit % PLAIN_MODULUS, 24), unit, degree).data
    assert result[0] == zero_test_value(unit, degree) != 0
    assert not result[1 : n_sites + 1].any()
    assert result[degree + 1 :].all()


@pytest.mark.parametrize(("n_sites", "products"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (20, 6), (100, 26)])
def test_zero_test_needs_few_products(n_sites: int, products: int) -> None:
    field = Field()
    ops = Arithmetic(RING, field)
    vanish_on_counts(ops, ops.fresh(np.arange(1024), 24), 1, zero_test_degree(n_sites))
    assert field.products == products


@pytest.mark.parametrize("bits", [8, 16])
def test_minimum_is_computed_up_to_the_factor(bits: int, rng: np.random.Generator) -> None:
    layout, ops = Layout(1024, 3, 2), Arithmetic(RING, Field())
    integers = rng.integers(0, 2**bits, (3, 4, 2))
    integers[:, 0] = 2**bits - 1  # the largest minimum
    inputs = Sent(ops, layout, integers, bits, range(3))
    slots = scaled_minimum(ops, layout, inputs, bits).data.reshape(2, UNITS, 2)
    expected = integers.min(axis=(0, 2)) * score_factor(3, bits) % PLAIN_MODULUS
    for unit in (0, 100, 255):
        np.testing.assert_array_equal(slots[:, unit].ravel(), expected)


def test_groups_hold_every_site_once_and_fit() -> None:
    for n_sites in range(1, 257):
        for n_classes in (1, 2, 10, 33, 256):
            layout = Layout(16384, n_sites, n_classes)
            assert [q for sites in layout.groups for q in sites] == list(range(n_sites))
            assert layout.group * layout.block <= UNITS
            assert layout.block >= n_classes
            assert layout.group & (layout.group - 1) == 0


def test_answer_with_something_elsewhere_is_refused() -> None:
    layout = Layout(1024, 2, 3)
    slots = np.zeros(1024, np.int64)
    assert layout.answer(slots, 2).all()
    for place in (layout.width * 3, 2 * layout.width * UNITS - 1):  # unit 3 of query 0; the last query
        wrong = slots.copy()
        wrong[place] = 5
        with pytest.raises(ProtocolError, match="does not decrypt"):
            layout.answer(wrong, 2)
