"""Scheme tfhe, in the environment that has Concrete; one query is seconds of work, so few are asked."""

from functools import lru_cache

import pytest

from contracts.schemes import SchemeContract
from kernfed.secure import KeyHolder
from kernfed.secure.tfhe import circuit

fhe = pytest.importorskip("concrete.fhe", reason="extra [tfhe] not installed")


@lru_cache
def keys(n_sites: int, n_classes: int, bits: int = 8) -> KeyHolder:
    return KeyHolder(n_sites, n_classes, bits=bits, scheme="tfhe")


class TestTfhe(SchemeContract):
    scheme = "tfhe"
    settings = ((1, 2, 8), (2, 3, 8), (2, 4, 16))
    queries = 4
    counts = (1, 2)

    def holder(self, n_sites: int, n_classes: int, bits: int) -> KeyHolder:
        return keys(n_sites, n_classes, bits)


def test_bootstraps_are_those_of_the_literal_circuit() -> None:
    """QC - 1 minima of 11 tables, C comparisons of 5; the stated error holds for the whole answer."""
    compiled = circuit(2, 3, 8)
    assert compiled.programmable_bootstrap_count == (2 * 3 - 1) * 11 + 3 * 5
    assert compiled.global_p_error <= 2.0**-40
