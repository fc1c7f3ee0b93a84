"""What scheme tfhe computes, without Concrete."""

import subprocess
import sys

import numpy as np
import pytest

from kernfed.secure.tfhe import attaining, digits_of
from oracles.secure import attaining_sets, scores_with_ties


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("n_sites", "n_classes"), [(1, 1), (1, 5), (3, 2), (5, 10), (4, 7)])
def test_circuit_in_clear_equals_the_naive_decision(
    n_sites: int, n_classes: int, bits: int, rng: np.random.Generator
) -> None:
    """The same function on numpy arrays: tables are applied as they are."""

    class Clear:
        @staticmethod
        def univariate(table: object) -> object:
            return table

    scores = scores_with_ties(rng, n_sites, 60, n_classes, bits)
    digits = digits_of(np.rint(scores * (2**bits - 1)).astype(np.int64), bits)
    found = np.stack([attaining(Clear, list(digits[:, i])) for i in range(60)])
    np.testing.assert_array_equal(found == 1, attaining_sets(scores, bits))


def test_digits_are_the_number() -> None:
    values = np.arange(2**16)
    weights = 4 ** np.arange(8)[::-1]
    np.testing.assert_array_equal(digits_of(values, 16) @ weights, values)


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['concrete'] = None\n"
        "from kernfed.secure import KeyHolder\n"
        "try: KeyHolder(2, 3, scheme='tfhe')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("scheme 'tfhe' needs Concrete: pip install -e '.[tfhe]' in a clone of kernfed")
