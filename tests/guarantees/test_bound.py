import math

import pytest

from kernfed.guarantees import STATUSES, Bound


def make(**changes):
    fields = {
        "value": 0.25,
        "confidence": 0.9,
        "assumptions": ("a is b", "c is d"),
        "status": "proven",
        "source": "X 1",
    }
    return Bound(**{**fields, **changes})


@pytest.mark.parametrize("status", STATUSES)
def test_a_bound_is_one_sentence_that_says_everything(status):
    text = str(make(status=status))
    assert text == f"at most 0.25 with probability 0.9, if a is b and c is d; {STATUSES[status]}, X 1"
    assert "\n" not in text


def test_a_status_may_have_a_remark():
    bound = make(status="proof gap: uses R <= S")
    assert bound.kind == "proof gap"
    assert not bound.reliable
    assert "published proof (uses R <= S), X 1" in str(bound)


def test_what_is_certain_or_unconditional_does_not_say_so():
    assert str(make(confidence=1, assumptions=())) == "at most 0.25; proven, X 1"
    assert str(make(value=math.inf)).startswith("at most inf")


def test_a_number_that_is_no_upper_bound_says_what_it_is():
    bound = make(words="7 rows suffice")
    assert str(bound).startswith("7 rows suffice with probability 0.9, if a is b")
    assert (bound.statement, make().statement) == ("7 rows suffice", "at most 0.25")


@pytest.mark.parametrize("status", STATUSES)
def test_only_a_proven_bound_is_reliable(status):
    assert make(status=status).reliable == (status == "proven")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "likely"}, "status must be one of"),
        ({"confidence": 0}, "confidence must be > 0"),
        ({"confidence": 1.1}, "confidence must be <= 1"),
        ({"value": math.nan}, "got nan"),
        ({"assumptions": "a is b"}, "tuple of sentences"),
    ],
)
def test_what_is_no_bound_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_plain_values_make_the_bound_again():
    values = make().to_dict()
    assert Bound(**{**values, "assumptions": tuple(values["assumptions"])}) == make()
