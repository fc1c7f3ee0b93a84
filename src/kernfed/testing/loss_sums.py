"""What a tester adds up over its rows, with all sites of a model and without some of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, IntArray
from kernfed.errors import InputError

#: More rows than this are a lie; sums of them stay exact.
_MOST_ROWS = 2**40
#: No difference of two losses is larger.
LARGEST_GAIN = 2.0


@dataclass(frozen=True, eq=False)
class LossSums:
    """What one tester adds up over its rows, for a model as it is and without each of V sets of sites.

    rows (C,) : of each class. right (1 + V, C) : of these, labelled correctly. gain (V, C) : losses with all sites less
    those without the set; square (V, C) : squares of that. moved (V,) : rows whose label changes.
    """

    rows: IntArray
    right: IntArray
    gain: FloatArray
    square: FloatArray
    moved: IntArray

    @classmethod
    def of_labels(cls, numbers: npt.NDArray[np.intp], probabilities: FloatArray) -> "LossSums":
        """Sums of rows with class ``numbers`` (n,), C for labels that are none, and probabilities (1 + V, n, C)."""
        classes = probabilities.shape[2]
        known = numbers < classes
        truth, likely = numbers[known], probabilities[:, known]
        own = np.take_along_axis(likely, truth[None, :, None], axis=2)[:, :, 0]
        losses = (likely**2).sum(axis=2) - 2 * own + 1
        labels = likely.argmax(axis=2)
        member = np.zeros((len(truth), classes))
        member[np.arange(len(truth)), truth] = 1.0
        gains = losses[:1] - losses[1:]
        return cls(
            member.sum(axis=0).astype(np.int64),
            ((labels == truth) @ member).astype(np.int64),
            gains @ member,
            gains**2 @ member,
            (labels[1:] != labels[:1]).sum(axis=1).astype(np.int64),
        )

    @classmethod
    def of_values(cls, truth: FloatArray, predicted: FloatArray, scale: float) -> "LossSums":
        """Sums of rows with values ``truth`` (n,) and predicted ones (1 + V, n): squared errors in units of ``scale``.

        A difference is cut at ``LARGEST_GAIN``: no row decides alone. Nothing is right or wrong.
        """
        losses = (predicted - truth) ** 2 / scale
        gains = np.clip(losses[:1] - losses[1:], -LARGEST_GAIN, LARGEST_GAIN)
        none = np.zeros((len(predicted), 1), dtype=np.int64)
        return cls(
            np.array([len(truth)]),
            none,
            gains.sum(axis=1, keepdims=True),
            (gains**2).sum(axis=1, keepdims=True),
            none[1:, 0],
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays of a message."""
        return dict(vars(self))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], sets: int, classes: int) -> "LossSums":
        """Sums from ``to_arrays``, if some rows can have them."""
        shapes = {
            "rows": (classes,),
            "right": (sets + 1, classes),
            "gain": (sets, classes),
            "square": (sets, classes),
            "moved": (sets,),
        }
        for name, shape in shapes.items():
            kind = np.float64 if name in ("gain", "square") else np.int64
            array = arrays.get(name)
            if array is None or array.shape != shape or array.dtype != kind or not np.isfinite(array).all():
                raise InputError(f"{name} must be finite numbers of shape {shape}")
        sums = cls(**{name: arrays[name] for name in shapes})
        sums._check()
        return sums

    def _check(self) -> None:
        if (self.rows > _MOST_ROWS).any():  # before anything is added up, which could wrap
            raise InputError(f"a site tests on at most {_MOST_ROWS:,} rows of a class")
        slack = 1e-6 * (1 + self.rows)
        most = LARGEST_GAIN * self.rows + slack
        if (self.rows < 0).any() or (self.right < 0).any() or (self.moved < 0).any():
            raise InputError("counts must be at least 0")
        if (self.right > self.rows).any() or (self.moved > self.rows.sum()).any():
            raise InputError("no more rows can be right, or change their label, than there are")
        if (np.abs(self.gain) > most).any() or (self.square > LARGEST_GAIN * most + slack).any():
            raise InputError("no rows have such differences of losses")
        if (self.gain**2 > self.rows * self.square + slack * most).any():  # Cauchy-Schwarz
            raise InputError("differences of losses and their squares contradict each other")
