"""Fixed-point vectors: exact to their step, never wrapping, and the same way back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernfed.errors import InputError
from kernfed.secure.committee.fixed import Block, Layout, fit_layout


@given(st.integers(1, 10_000), st.floats(1e-12, 1e12), st.integers(0, 10_000))
def test_the_largest_sum_does_not_wrap(sites, bound, seed):
    layout = fit_layout({"x": ((4,), bound)}, sites)
    layout.check_room(sites)
    worst = layout.encode({"x": np.full(4, bound)})
    total = layout.decode(worst * np.uint64(sites))["x"]
    step = 2.0 ** -layout.blocks["x"].exponent
    assert (np.abs(total - sites * bound) <= sites * step + 1e-12 * sites * bound).all()
    values = np.random.default_rng(seed).uniform(-bound, bound, 4)
    assert (np.abs(layout.decode(layout.encode({"x": values}))["x"] - values) <= step / 2 + 1e-15 * bound).all()


def test_bits_are_not_wasted():
    for sites, bound in [(1, 1.0), (100, 1e6), (1000, 3.7)]:
        block = fit_layout({"x": ((1,), bound)}, sites).blocks["x"]
        finer = Block(block.shape, bound, block.exponent + 2) if block.exponent < 51 else None
        assert finer is None or not finer.fits(sites)


def test_what_would_wrap_is_refused():
    with pytest.raises(InputError, match="could wrap"):
        Layout({"x": Block((2,), 2.0**40, 22)}).check_room(10)
    with pytest.raises(InputError, match="could wrap"):
        Layout({"x": Block((2,), 1.0, 22, deviation=2.0**36)}).check_room(10)
    layout = fit_layout({"x": ((2,), 5.0)}, 10)
    for values in [[5.1, 0.0], [np.nan, 0.0], [-np.inf, 0.0]]:
        with pytest.raises(InputError, match="finite and at most 5"):
            layout.encode({"x": np.array(values)})


def test_arrays_come_back_by_name():
    layout = fit_layout({"b": ((2, 3), 10.0), "a": ((), 10.0), "none": ((0,), 1.0)}, 4)
    arrays = {"a": np.array(1.5), "b": np.arange(6.0).reshape(2, 3), "none": np.zeros(0)}
    for name, values in layout.decode(layout.encode(arrays)).items():
        np.testing.assert_array_equal(values, arrays[name])
    assert Layout.from_values(layout.to_values()) == layout
    with pytest.raises(InputError, match="expected the arrays"):
        layout.encode({"a": arrays["a"]})
    with pytest.raises(InputError, match="shape"):
        layout.encode({**arrays, "b": np.zeros(6)})
