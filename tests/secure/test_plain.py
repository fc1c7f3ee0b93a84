import numpy as np
import pytest

from contracts.schemes import SchemeContract
from kernfed.errors import ProtocolError
from kernfed.secure import KeyHolder, classify
from kernfed.secure.plain import attaining_minimum
from oracles.secure import attaining_sets, scores_with_ties


class TestPlain(SchemeContract):
    scheme = "plain"
    settings = ((1, 1, 8), (1, 3, 8), (2, 3, 8), (2, 4, 16), (7, 10, 8), (100, 20, 16))

    def holder(self, n_sites: int, n_classes: int, bits: int) -> KeyHolder:
        return KeyHolder(n_sites, n_classes, bits=bits, scheme="plain")


def test_an_answer_without_a_class_is_refused() -> None:
    holder = KeyHolder(2, 3, scheme="plain")
    sets = np.array([[1, 0, 1], [0, 0, 0]], dtype="u1")
    with pytest.raises(ProtocolError, match="no class attains the minimum of query 1"):
        holder.attaining(holder.setting.message("answer", holder.key, [sets.tobytes()], queries=2))


@pytest.mark.parametrize("bits", [8, 16])
def test_reference_equals_the_oracle(rng: np.random.Generator, bits: int) -> None:
    scores = scores_with_ties(rng, 6, 300, 5, bits)
    integers = np.rint(scores * (2**bits - 1)).astype(np.int64)
    np.testing.assert_array_equal(attaining_minimum(integers), attaining_sets(scores, bits))


@pytest.mark.parametrize("shape", [(3, 4), (0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_classify_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(sites|must be >= 1"):
        classify(np.zeros(shape))
