"""Numbers out of Arrow's buffers: those of Arrow's own conversion, without its imports."""

import numpy as np
import pyarrow as pa
import pytest

from kernfed.data.arrow import _to_numpy

KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "count"), [(0, 9), (3, 4), (9, 0)])
def test_numbers_are_those_of_arrow(kind: str, first: int, count: int) -> None:
    values = np.array([0, 1, 127, 3, 5, 8, 13, 21, 34]).astype(kind)
    array = pa.array(values).slice(first, count)
    found = _to_numpy(array)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values[first : first + count])
    np.testing.assert_array_equal(found, array.to_numpy(zero_copy_only=False))


def test_missing_numbers_are_not_read_from_the_buffer() -> None:
    assert np.isnan(_to_numpy(pa.array([1.0, None]))[1])
