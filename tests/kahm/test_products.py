"""Products in pieces: of a size for which BLAS is fast, and the same bits however many rows are multiplied."""

import numpy as np
import pytest

from kernfed.kahm.products import TILE, Factor, in_tiles, multiply_rows

#: M N K up to which OpenBLAS multiplies by its kernel for small matrices.
SMALL = 1_000_000


def parts(factor):
    """The arrays of a factor."""
    return [part for piece in factor.pieces for part in (piece if isinstance(piece, tuple) else (piece,))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(1, 2049, 1024), (1, 1954, 64), (1, 3906, 65), (3, 9000, 70), (2, 20, 23), (1, 5, 0)]
)
def test_no_product_of_a_tile_is_too_large_for_the_fast_kernel(shape, dtype, rng):
    matrices = rng.standard_normal(shape).astype(dtype)
    factor = Factor.cut(matrices)
    assert all(TILE * part.shape[-2] * part.shape[-1] <= SMALL for part in parts(factor))
    assert (factor.columns, factor.size, factor.nbytes) == (shape[-1], matrices.size, matrices.nbytes)
    rows = in_tiles(rng.standard_normal((19, shape[1])).astype(dtype))
    expected = np.einsum("tqk,skc->stqc", rows.astype(float), matrices.astype(float))
    np.testing.assert_allclose(factor.after(rows[None]), expected, rtol=0, atol=4 * shape[1] * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_a_cut_product_do_not_depend_on_the_others(dtype, rng):
    rows, matrix = (rng.standard_normal(shape).astype(dtype) for shape in ((50, 4097), (4097, 100)))
    whole = multiply_rows(rows, matrix)
    for count in (1, 7, 8, 9, 33):
        np.testing.assert_array_equal(multiply_rows(rows[:count], matrix), whole[:count])
