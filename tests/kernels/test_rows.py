from math import fsum

import numpy as np
import pytest

from kernfed.kernels import row_blocks
from kernfed.kernels.rows import feature_rows, plain_scalar, stable_mean, working_vector


@pytest.mark.parametrize(("n", "block_rows"), [(0, 3), (1, 3), (3, 3), (7, 3), (7, 100)])
def test_blocks_cover_the_rows_in_order(n, block_rows):
    blocks = list(row_blocks(n, block_rows))
    assert [i for block in blocks for i in range(n)[block]] == list(range(n))
    assert max(block.stop - block.start for block in blocks) <= block_rows
    assert len(blocks) == max(1, -(-n // block_rows))


@pytest.mark.parametrize("block_rows", [0, -1, 2.0, None])
def test_bad_blocks_are_refused_at_once(block_rows):
    with pytest.raises(ValueError, match="block_rows must be"):
        row_blocks(3, block_rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.1, 1e6])
def test_mean_is_exact_to_the_last_digits(dtype, offset):
    rows = (np.random.default_rng(0).normal(size=(50_000, 1)) + offset).astype(dtype)
    expected = fsum(map(float, rows[:, 0])) / len(rows)
    assert stable_mean(rows)[0] == pytest.approx(expected, rel=3e-16)


def test_mean_of_identical_rows_is_the_row_and_of_none_zero():
    row = np.array([0.1, 1e6 + 0.1, -7e-300])
    assert np.array_equal(stable_mean(np.tile(row, (997, 1))), row)
    assert np.array_equal(stable_mean(np.zeros((0, 3))), np.zeros(3))


def test_features_must_keep_the_rows():
    rows = np.ones((4, 2))
    assert feature_rows(rows, None) is rows
    assert feature_rows(rows, lambda X: X[:, :1]).shape == (4, 1)
    with pytest.raises(ValueError, match="a row for each of the 4 given, got 1"):
        feature_rows(rows, lambda X: X[:1])
    with pytest.raises(ValueError, match=r"features\(X\) must be finite"):
        feature_rows(rows, lambda X: X * np.nan)


def test_vectors_and_scalars_of_messages():
    assert working_vector([], "v", length=0).shape == (0,)
    assert working_vector([1, 2], "v", length=2).dtype == np.float64
    with pytest.raises(ValueError, match=r"v must be a vector of length 2, got shape \(3,\)"):
        working_vector([1, 2, 3], "v", length=2)
    assert plain_scalar(np.asarray(3)) == 3
    assert isinstance(plain_scalar(np.asarray([3])), int)
    assert plain_scalar("x") == "x"
