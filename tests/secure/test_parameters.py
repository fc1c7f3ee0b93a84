from itertools import pairwise

import pytest

from kernfed.secure.arithmetic import MOST_BITS, Arithmetic, Cipher, Ring, log_sum
from kernfed.secure.parameters import derive, plan


def test_log_sum() -> None:
    assert log_sum(-2000.0, -2000.0) == -1999.0  # far below what a float can hold as a number
    assert log_sum(0.0, -2000.0) == 0.0


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("n_sites", [1, 2, 3, 4, 5, 10, 20, 64])
def test_derived_parameters_hold_and_smaller_ones_do_not(n_sites: int, bits: int) -> None:
    found = derive(n_sites, 10, bits)
    ring = found.ring
    assert sum(ring.sizes) <= MOST_BITS[ring.degree]
    assert found.privacy_bits >= 40
    assert 1 <= found.sent_level <= found.answer_level <= found.scores_level <= ring.levels
    fewer = Ring(ring.degree, ring.prime_bits, ring.levels - 1, ring.special_bits)
    assert plan(fewer, n_sites, 10, bits).privacy_bits < 40


@pytest.mark.parametrize(
    ("n_sites", "bits", "degree"), [(2, 8, 8192), (3, 8, 16384), (20, 8, 16384), (256, 8, 32768), (64, 16, 32768)]
)
def test_how_far_each_degree_reaches(n_sites: int, bits: int, degree: int) -> None:
    assert derive(n_sites, 10, bits).ring.degree == degree


def test_modulus_grows_with_sites_and_bits() -> None:
    def needed(n_sites: int, bits: int) -> float:
        ample = Ring(32768, 60, 24, 60)
        return -plan(ample, n_sites, 10, bits).privacy_bits

    sizes = [needed(n, 8) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert sizes == sorted(sizes)
    # Doubling the sites adds a level to the zero test and one to the product over sites: about 2 x 33 bits.
    assert all(50 < b - a < 80 for a, b in pairwise(sizes[2:]))
    assert all(needed(n, 16) > needed(n, 8) for n in (1, 5, 20))


def test_primes_are_dropped_only_where_it_is_free() -> None:
    ring = Ring(16384, 50, 6, 60)

    class Silent:
        def switch(self, a: None, level: int) -> None: ...

    ops: Arithmetic[None] = Arithmetic(ring, Silent())  # type: ignore[arg-type]
    fresh = ops.fresh(None, 6)
    assert ops.lower(fresh) == fresh
    noisy = Cipher(None, ring.rounding(3) + 3.5, 6)
    for rotating in (False, True):
        lowered = ops.lower(noisy, rotating=rotating)
        assert lowered.level == (4 if rotating else 3)
        assert lowered.bound - noisy.bound < 0.2
