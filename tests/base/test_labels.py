"""Labels become class numbers by one rule, whatever their type."""

import numpy as np
import pytest

from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError

KINDS = {
    "words": (["a", "b"], ["b", "a", "b"], "c"),
    "integers": ([1, 5], [5, 1, 5], 2),
    "floats": ([0.5, 2.0], [2.0, 0.5, 2.0], 1.0),
    "flags": ([False, True], [True, False, True], 2),
    "words of other lengths": (["a", "long"], ["long", "a", "long"], "lon"),
}


@pytest.mark.parametrize("as_array", [True, False], ids=["array", "list"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_label(kind, as_array):
    classes, labels, strange = KINDS[kind]
    make = np.array if as_array else list
    index = ClassIndex(make(classes))
    assert index.numbers(make(labels)).tolist() == [1, 0, 1]
    assert index.numbers(make([*labels, strange]), "minus-one").tolist() == [1, 0, 1, -1]
    assert index.numbers(make([*labels, strange]), "first").tolist() == [1, 0, 1, 0]
    with pytest.raises(InputError, match=f"^label {strange!r} is not among the 2 classes of this problem$"):
        index.numbers(make([*labels, strange]))


def test_numbers_are_equal_by_value_and_words_are_no_numbers():
    index = ClassIndex(np.array([0, 1]))
    assert index.numbers(np.array([1.0, 0.0])).tolist() == [1, 0]
    assert index.numbers(np.array([True, False])).tolist() == [1, 0]
    assert index.numbers(np.array(["1", "0"]), "minus-one").tolist() == [-1, -1]
    assert index.numbers(np.array([np.nan]), "minus-one").tolist() == [-1]


def test_classes_may_be_in_any_order_and_labels_may_be_none():
    assert ClassIndex(("b", "a")).numbers(np.array(["a", "b"])).tolist() == [1, 0]
    assert ClassIndex(["a"]).numbers([]).dtype == np.intp
    assert ClassIndex(np.array(["a", "b"], dtype=object)).numbers(np.array(["b"])).tolist() == [1]
