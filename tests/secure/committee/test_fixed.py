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
            layout.check_bounds({"x": np.array(values)})


NUMBERS = st.one_of(st.floats(), st.sampled_from([1e308, -1e308, np.inf, -np.inf, np.nan, 5e-324]))


@given(
    st.lists(NUMBERS, min_size=1, max_size=5),
    st.one_of(st.floats(5e-324, 1e15), st.sampled_from([5e-324, 1e-12, 1.0, 1e15])),
    st.integers(1, 1000),
)
def test_every_entry_is_encoded_cut_to_its_bound(values, bound, sites):
    layout = fit_layout({"x": ((len(values),), bound)}, sites)
    given_values, step = np.array(values), 2.0 ** -layout.blocks["x"].exponent
    vector = layout.encode({"x": given_values})
    assert (vector.shape, vector.dtype) == ((len(values),), np.uint64)
    expected = np.clip(np.nan_to_num(given_values, nan=0.0, posinf=bound, neginf=-bound), -bound, bound)
    assert (np.abs(layout.decode(vector)["x"] - expected) <= step / 2).all()
    others = layout.encode({"x": np.full(len(values), bound)}) * np.uint64(sites - 1)
    total = layout.decode(vector + others)["x"]
    assert (np.abs(total - expected - (sites - 1) * bound) <= sites * step + 1e-12 * sites * bound).all()


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5), st.floats(0.5, 2.0**60))
def test_integers_are_cut_to_their_bound(values, bound):
    cut = Block((len(values),), bound).clipped(np.array(values))
    assert cut.dtype == np.int64
    assert cut.tolist() == [max(-int(bound), min(int(bound), value)) for value in values]


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
