"""Batches of rows: how many there are, and that every row is in one."""

import numpy as np
import pytest

from kernfed.kahm.choice import split_rows


@pytest.mark.parametrize("partition", ["order", "random", "kmeans"])
@pytest.mark.parametrize("distinct", [1, 2, 40])
def test_every_row_is_in_one_batch_also_where_rows_are_alike(partition, distinct):
    """Rows that noise made alike are fewer than the clusters asked for, of which k-means warns."""
    rows = np.repeat(np.arange(distinct, dtype=float)[:, None] * [1.0, -1.0], 40 // distinct, axis=0)
    parts = split_rows(rows, 10, partition, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))
    assert len(parts) == (min(4, distinct) if partition == "kmeans" else 4)


def test_zeros_of_either_sign_are_one_point():
    rows = np.array([[0.0], [-0.0]] * 10)
    assert len(split_rows(rows, 5, "kmeans", np.random.default_rng(0))) == 1
