import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernfed.privacy import Guarantee
from kernfed.promise import round_up


@given(st.floats(1e-60, 1e60))
def test_rounded_figures_are_never_less_than_the_truth(value):
    assert value <= round_up(value) <= value * 1.0011


def test_round_up_of_special_values():
    assert round_up(0.0) == 0.0
    assert round_up(math.inf) == math.inf
    assert round_up(1.0) == 1.0


def test_one_sentence():
    guarantee = Guarantee(382.3049, 1e-5, "record", "one row replaced", (0.0, 1.0), 1.0)
    expected = (
        "record: (382.4, 1e-05)-differential privacy for one row replaced, values clipped to the public bounds [0, 1]"
    )
    assert str(guarantee) == expected
    assert guarantee.to_dict()["bounds"] == [0.0, 1.0]


def test_no_guarantee_says_so():
    assert str(Guarantee(math.inf, 1e-5, "record", "one row replaced")).startswith(
        "record: no guarantee at delta 1e-05"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.0, "person", ""), "unit must be one of 'element', 'record', got 'person'"),
        ((1.0, 1.5, "record", ""), "delta must be <= 1"),
        ((-1.0, 0.0, "record", ""), "epsilon must be >= 0"),
        ((math.nan, 0.0, "record", ""), "epsilon must be >= 0"),
    ],
)
def test_bad_guarantees(arguments, message):
    with pytest.raises(ValueError, match=message):
        Guarantee(*arguments)
