"""Labels as class numbers, by one rule everywhere.

Numbers are equal by value whatever their type (1, 1.0 and True are one label), words are equal letter by letter, and a
word is never a number: "1" is not 1. What becomes of a label that is none of the classes is said where it is asked.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError

#: What an unknown label is: refused; -1; or the first class, where to tell it from others would tell of its row.
Unknown = Literal["refuse", "minus-one", "first"]


class ClassIndex:
    """Places of labels among ``classes`` (C,), which are in any order, each once.

    >>> index = ClassIndex(["cat", "dog"])
    >>> index.numbers(["dog", "cat", "dog"]).tolist()
    [1, 0, 1]
    >>> index.numbers(["dog", "cow"], "minus-one").tolist()
    [1, -1]
    """

    def __init__(self, classes: npt.NDArray[Any] | Sequence[Any]) -> None:
        self._places = {label: place for place, label in enumerate(_plain(classes))}

    def numbers(self, labels: npt.NDArray[Any] | Sequence[Any], unknown: Unknown = "refuse") -> npt.NDArray[np.intp]:
        """Class number (n,) of each label (n,)."""
        listed = _plain(labels)
        if unknown != "refuse":
            none = -1 if unknown == "minus-one" else 0
            return np.array([self._places.get(label, none) for label in listed], dtype=np.intp)
        try:
            return np.array([self._places[label] for label in listed], dtype=np.intp)
        except KeyError as error:
            raise InputError(
                f"label {error.args[0]!r} is not among the {len(self._places)} classes of this problem"
            ) from None


def _plain(labels: npt.NDArray[Any] | Sequence[Any]) -> list[Any]:
    """Labels as Python has them, which knows when a word is no number."""
    return list(labels.tolist() if isinstance(labels, np.ndarray) else labels)
