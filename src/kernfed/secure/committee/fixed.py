"""Vectors of fixed-point integers modulo 2^64: how many bits each number gets, and the way there and back.

An array with the exponent e holds multiples of 2^-e. Exponents follow from public bounds and from the number of sites,
before anything is sent, so that no sum wraps. A site cuts an entry beyond its bound to the bound and takes part all the
same: whoever asks chooses the bound, so that a refusal would tell on which side of it one site's entry lies.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count, check_number
from kernfed.errors import InputError

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Sums stay below 2^_ROOM in size: integers from -2^63 to 2^63 can be told apart, and a bit is left.
_ROOM = 62
#: The finest grid: float64 has no more digits to round to it.
_FINEST, _COARSEST = 52, -900
#: Numbers in a vector, at most.
_MOST = 1 << 31
#: Noise is taken to stay within so many of its standard deviations: a normal law exceeds 40 of them with probability
#: below 1e-347, over any number of coordinates that fits a vector.
_DEVIATIONS = 40.0


@dataclass(frozen=True)
class Block:
    """One array of a vector: its shape, its exponent, and the most that an entry of one site may be in size.

    ``deviation``: standard deviation of the noise on an entry of the whole sum, 0 without noise.
    """

    shape: tuple[int, ...]
    bound: float
    exponent: int = 0
    deviation: float = 0.0

    def __post_init__(self) -> None:
        for length in self.shape:
            check_count(length, "length", at_least=0, at_most=_MOST)
        check_number(self.bound, "bound", above=0)
        check_count(self.exponent, "exponent", at_least=_COARSEST, at_most=_FINEST)
        check_number(self.deviation, "deviation", at_least=0)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def clipped(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Entries cut to [-bound, bound], NaN as 0: whatever they are, float64, or int64 for integers of any type."""
        if values.dtype.kind in "iub":
            limit = math.floor(min(self.bound, 2.0**_ROOM))
            return np.clip(values.astype(np.int64), -limit, limit)
        numbers = values.astype(np.float64)
        return np.clip(np.where(np.isnan(numbers), 0.0, numbers), -self.bound, self.bound)

    def fits(self, sites: int) -> bool:
        """Whether the sum over so many sites, with its noise, cannot wrap."""
        steps = 2.0**self.exponent
        return sites * (self.bound * steps + 1.0) + _DEVIATIONS * self.deviation * steps < 2.0**_ROOM


@dataclass(frozen=True)
class Layout:
    """Arrays of a vector by name, in the order of their names."""

    blocks: Mapping[str, Block]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise InputError("a sum needs at least one array, got none")
        check_count(self.size, "numbers in a sum", at_most=_MOST)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in their order."""
        return tuple(sorted(self.blocks))

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return sum(block.size for block in self.blocks.values())

    def check_room(self, sites: int) -> None:
        """Refuse a sum over so many sites that could wrap."""
        for name in self.names:
            if not self.blocks[name].fits(sites):
                raise InputError(
                    f"the sum of {name!r} over {sites} sites could wrap modulo 2^64, with entries of up to "
                    f"{self.blocks[name].bound:g} in steps of 2^{-self.blocks[name].exponent}; use a smaller bound"
                )

    def encode(self, arrays: Mapping[str, npt.ArrayLike]) -> Words:
        """Arrays as one vector (size,): each entry, cut to its bound, to the nearest multiple of its step."""
        parts = []
        for name in self.names:
            block = self.blocks[name]
            numbers = block.clipped(self._checked(name, arrays)).astype(np.float64)
            parts.append(np.rint(np.ldexp(numbers, block.exponent)).astype(np.int64))
        return self.pack(dict(zip(self.names, parts, strict=True)))

    def check_bounds(self, arrays: Mapping[str, npt.ArrayLike]) -> None:
        """Refuse entries that ``encode`` would cut: for whoever sees them in the clear anyway."""
        for name in self.names:
            block, values = self.blocks[name], self._checked(name, arrays)
            if not np.isfinite(values).all() or (values.size and np.abs(values).max() > block.bound):
                raise InputError(
                    f"entries of {name!r} must be finite and at most {block.bound:g} in size, or their sum could wrap"
                )

    def pack(self, integers: Mapping[str, npt.NDArray[Any]]) -> Words:
        """Arrays of integers, in steps of their blocks, as one vector."""
        parts = [self._checked(name, integers).astype(np.int64, copy=False).ravel() for name in self.names]
        return np.concatenate(parts).view(np.uint64)

    def integers(self, vector: Words) -> dict[str, Ints]:
        """Arrays of integers, in steps of their blocks, of a vector or of a sum of some."""
        if vector.shape != (self.size,):
            raise InputError(f"a vector of {self.size} numbers was expected, got shape {vector.shape}")
        ends = np.cumsum([self.blocks[name].size for name in self.names])
        parts = np.split(vector.view(np.int64), ends[:-1])
        return {name: part.reshape(self.blocks[name].shape) for name, part in zip(self.names, parts, strict=True)}

    def decode(self, vector: Words) -> dict[str, Floats]:
        """Arrays of a vector, or of a sum of some."""
        return {
            name: np.ldexp(part.astype(np.float64), -self.blocks[name].exponent)
            for name, part in self.integers(vector).items()
        }

    def _checked(self, name: str, arrays: Mapping[str, Any]) -> npt.NDArray[Any]:
        if set(arrays) != set(self.blocks):
            raise InputError(f"expected the arrays {', '.join(self.names)}, got {', '.join(sorted(arrays))}")
        values = np.asarray(arrays[name])
        if values.shape != self.blocks[name].shape:
            raise InputError(f"{name!r} must have shape {self.blocks[name].shape}, got {values.shape}")
        return values

    def to_values(self) -> dict[str, Any]:
        """Plain values, for the terms of a run."""
        return {
            name: {"shape": list(b.shape), "bound": b.bound, "exponent": b.exponent, "deviation": b.deviation}
            for name, b in sorted(self.blocks.items())
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Layout":
        """Layout from ``to_values``, checked."""
        return cls(
            {
                str(name): Block(tuple(v["shape"]), float(v["bound"]), v["exponent"], float(v["deviation"]))
                for name, v in values.items()
            }
        )


def fit_layout(arrays: Mapping[str, tuple[tuple[int, ...], float]], sites: int) -> Layout:
    """Layout of arrays with their shapes and bounds that leaves as many digits as a sum over ``sites`` can have.

    >>> fit_layout({"counts": ((3,), 1000.0)}, 8).blocks["counts"].exponent
    48
    """
    check_count(sites, "sites")
    blocks = {}
    for name, (shape, bound) in arrays.items():
        check_number(bound, "bound", above=0)
        exponent = min(_FINEST, _ROOM - 1 - math.frexp(bound)[1] - math.ceil(math.log2(sites)))
        block = Block(tuple(shape), float(bound), exponent)
        blocks[name] = block if block.fits(sites) else Block(tuple(shape), float(bound), exponent - 1)
    layout = Layout(blocks)
    layout.check_room(sites)
    return layout
