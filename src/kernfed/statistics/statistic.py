"""A statistic: a named sum over rows, with public parameters and a bound on what one row can do to it.

Every array that is made of rows and summed over sites is one ``Statistic``. It is *additive*: the sums of two sets of
rows are the sums of both together. It is *bounded*: a ``Part`` says how far its array moves in L2 where one row is
replaced, added or removed. It is *total*: rows are cut to a public range first, so that every row there can be gives
finite numbers within the bound, and nothing raises on a value. Parameters are chosen by whoever asks: they are checked
when the statistic is made, before any row is looked at.

How a sum travels (as it is, masked, with noise, with noise in shares) is not the statistic's business. ``sums`` are
floats, for sums that travel as they are; ``integers`` are the same sums of rows rounded to a grid, without any further
rounding, for masks and noise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.kernels.rows import row_blocks
from kernfed.statistics.bounds import BITS, MOST_NUMBERS, Floats, Ints, check_features, toward_zero

#: Numbers that the parts of a statistic may have together, and classes that one may name.
MOST_ENTRIES, MOST_CLASSES = 1 << 27, 1 << 16
#: Rows whose factors are in memory at a time.
BLOCK_ROWS = 4096
_LONGEST_LABEL = 1000

Result = TypeVar("Result", covariant=True)
#: Floats, or integers on the grid.
Numbers = npt.NDArray[Any]


class Rows(Protocol):
    """Rows ``X`` (n, ...) with labels or targets ``y`` (n,) or (n, q)."""

    @property
    def X(self) -> npt.NDArray[Any]:
        """Values of each row; for a statistic of a tested model its scores."""

    @property
    def y(self) -> npt.NDArray[Any]:
        """Labels (n,) of the rows, or targets (n,) or (n, q)."""


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Values ``X`` (n, ...) and labels or targets ``y`` (n,) of rows that are at hand."""

    X: npt.NDArray[Any]
    y: npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """One array of a statistic.

    shape : of the array. replaced, added : how far it moves in L2 where a row is replaced, and where one is added or
    removed. share : the part of the squared mu that its noise may spend. joint : a name that parts have in common whose
    bounds and share are those of all of them together, as of a sum and its second moments. degree : how many numbers
    of a row an entry is a product of, each a multiple of 2^-BITS; 0 for a count. symmetric : whether it is (..., k, k)
    and equal to its transpose: entries above the diagonal count twice in the norm, and travel once. most : the largest
    absolute value that one row adds to an entry.
    """

    shape: tuple[int, ...]
    replaced: float
    added: float
    share: float = 1.0
    degree: int = 1
    symmetric: bool = False
    most: float = 1.0
    joint: str | None = None

    @property
    def unit(self) -> float:
        """How many grid steps make 1: 2^(BITS degree)."""
        return 2.0 ** (BITS * self.degree)

    @property
    def numbers(self) -> int:
        """How many numbers travel: of a symmetric array each pair once."""
        if not self.symmetric:
            return math.prod(self.shape)
        return math.prod(self.shape[:-1]) * (self.shape[-1] + 1) // 2

    def flat(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers (numbers,) that travel: of symmetric matrices the diagonal, then what is above it."""
        return values.reshape(-1) if not self.symmetric else values[(..., *self._triangle)].reshape(-1)

    def full(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array whose ``flat`` numbers these are."""
        if not self.symmetric:
            return flat.reshape(self.shape)
        rows, columns = self._triangle
        whole = np.zeros(self.shape, dtype=flat.dtype)
        whole[..., rows, columns] = flat.reshape(*self.shape[:-2], -1)
        whole[..., columns, rows] = whole[..., rows, columns]
        return whole

    @property
    def _triangle(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        size, above = np.arange(self.shape[-1]), np.triu_indices(self.shape[-1], 1)
        return np.concatenate([size, above[0]]), np.concatenate([size, above[1]])


class Statistic(ABC, Generic[Result]):
    """Base of the frozen dataclasses of public parameters that are statistics; a class with a ``name`` is registered.

    A subclass says its ``parts``, the ``factors`` of rows, of which the array is a sum of products, how they are added
    up (``total``), and what the sums say (``read``). ``rows_of`` : whether it is over the rows that a site learns
    from, or over those that it keeps aside.
    """

    name: ClassVar[str]
    rows_of: ClassVar[Literal["learning", "aside"]] = "learning"
    #: Names of the parameters that travel as arrays.
    arrays: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            _STATISTICS[cls.name] = cls

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """The arrays that are summed, by name, in the order in which noise is drawn."""

    @abstractmethod
    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Of rows X (n, ...) and labels y (n,): floats (n, ...) from -1 to 1, and integers as they are."""

    @abstractmethod
    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Sums of products of ``factors``, floats or grid integers alike."""

    @abstractmethod
    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> Result:
        """What ``sums`` over so many ``rows`` say; ``deviation`` is that of the noise in each part, 0 without any."""

    @property
    def numbers(self) -> int:
        """How many numbers of all parts travel."""
        return sum(part.numbers for part in self.parts.values())

    def sums(self, rows: Rows) -> dict[str, Floats]:
        """Sums over rows in float64, added up in their order."""
        return self._added(rows, on_grid=False)

    def integers(self, rows: Rows) -> dict[str, Ints]:
        """Sums over rows on their grid, exact, whatever the order: about ``unit`` times ``sums``."""
        return cast(dict[str, Ints], self._added(rows, on_grid=True))

    def _added(self, rows: Rows, *, on_grid: bool) -> dict[str, Floats]:
        added: dict[str, Any] = {}
        with single_blas_thread(), np.errstate(all="ignore"):
            for block in (slice(0, 0), *row_blocks(len(rows.X), BLOCK_ROWS)):
                factors = self.factors(rows.X[block], rows.y[block])
                if on_grid:
                    factors = tuple(_gridded(factor) for factor in factors)
                for name, array in self.total(*factors).items():
                    added[name] = added[name] + array if name in added else array
        kind = np.int64 if on_grid else np.float64
        return {name: np.asarray(added[name], dtype=kind) for name in self.parts}

    def to_values(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Parameters as plain values and arrays, as a message has them; ``from_values`` makes the statistic again."""
        held = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        arrays = {name: held[name] for name in self.arrays if held[name] is not None}
        return {name: _plain(value) for name, value in held.items() if name not in self.arrays}, arrays

    @classmethod
    def from_values(cls, values: Any, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> Self:
        """The statistic of ``to_values``; anything that is none raises ``InputError`` before there are rows."""
        arrays = {} if arrays is None else arrays
        known = {field.name for field in fields(cast(Any, cls))} - set(cls.arrays)
        if not isinstance(values, Mapping) or set(values) != known or not set(arrays) <= set(cls.arrays):
            raise InputError(f"the statistic {cls.name!r} takes {', '.join(sorted(known))}, got {values!r:.200}")
        try:
            read = {name: _read_plain(name, value) for name, value in values.items()}
            made = cls(**read, **{name: arrays.get(name) for name in cls.arrays})
        except (TypeError, OverflowError, AttributeError) as error:
            raise InputError(f"the statistic {cls.name!r} cannot have these parameters: {error}") from None
        check_count(made.numbers, "numbers of the statistic", at_most=MOST_ENTRIES)
        return made


_STATISTICS: dict[str, type[Statistic[Any]]] = {}


def statistic_names() -> tuple[str, ...]:
    """Names of all statistics that are registered, sorted."""
    return tuple(sorted(_STATISTICS))


def statistic_class(name: Any) -> type[Statistic[Any]]:
    """The class of the statistic of this name."""
    if not isinstance(name, str) or name not in _STATISTICS:
        raise InputError(f"a statistic must be one of {', '.join(statistic_names())}, got {name!r:.80}")
    return _STATISTICS[name]


def statistic_of(name: Any, values: Any, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> Statistic[Any]:
    """The statistic of this name with the parameters that ``to_values`` gave."""
    return statistic_class(name).from_values(values, arrays)


def label_places(labels: npt.NDArray[Any], classes: Sequence[Any]) -> npt.NDArray[np.intp]:
    """Place (n,) of every label among ``classes`` (C,), and C for a label that is none of them."""
    known = {label: place for place, label in enumerate(classes)}
    strange = len(known)
    found = (
        known.get(label, strange) if isinstance(label, str | int | float) else strange for label in labels.tolist()
    )
    return np.fromiter(found, dtype=np.intp, count=len(labels))


def class_sums(values: Numbers, places: npt.NDArray[np.intp], classes: int) -> Numbers:
    """Sums (classes, k) of rows ``values`` (n, k) by class; rows of place ``classes`` are in none."""
    totals = np.zeros((classes, *values.shape[1:]), dtype=values.dtype)
    for place in np.unique(places[places < classes]):
        totals[place] = values[places == place].sum(axis=0)
    return totals


def cell_counts(shape: tuple[int, ...], *places: npt.NDArray[np.intp]) -> Ints:
    """How many rows are in each cell of an array of this shape, by their places (n,) along its axes."""
    cells = np.ravel_multi_index(places, shape) if len(places[0]) else np.zeros(0, dtype=np.intp)
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape).astype(np.int64)


def check_classes(classes: Any, *, at_least: int = 1) -> tuple[Any, ...]:
    """Labels as a tuple: different ones, all of them text or all of them finite numbers."""
    labels = tuple(classes) if isinstance(classes, tuple | list) else ()
    if not isinstance(classes, tuple | list) or not at_least <= len(labels) <= MOST_CLASSES:
        raise InputError(f"classes must be a list of {at_least} to {MOST_CLASSES:,} labels, got {classes!r:.80}")
    text = all(isinstance(label, str) and len(label) <= _LONGEST_LABEL for label in labels)
    number = all(isinstance(label, int | float) and math.isfinite(label) for label in labels)
    if not (text or number) or len(set(labels)) != len(labels):
        raise InputError(f"classes must be different labels, all text or all numbers, got {classes!r:.80}")
    return labels


def _gridded(factor: Numbers) -> Numbers:
    """Floats from -1 to 1 as integers of 2^-BITS, rounded towards zero; integers as they are."""
    return factor if factor.dtype.kind == "i" else toward_zero(factor, 2.0**-BITS)


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it."""
    if isinstance(value, FourierFeatures):
        return {name: _plain(entry) for name, entry in asdict(value).items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def _read_plain(name: str, value: Any) -> Any:
    """A parameter as the statistic takes it: lists as tuples, Fourier features by their description."""
    if name == "features" and value is not None:
        if not isinstance(value, Mapping):
            raise InputError(f"features must be those of FourierFeatures, got {value!r:.80}")
        for count in ("n_components", "width"):
            check_count(value.get(count), count, at_most=MOST_NUMBERS)
        return check_features(FourierFeatures(**value))
    return tuple(value) if isinstance(value, list) else value
