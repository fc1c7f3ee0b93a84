"""What every mechanism says beforehand, what leaves a site, and the order of things: charge first, noise after."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.errors import InputError
from kernfed.privacy.accounting import Event
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.ledger import Ledger, data_hash
from kernfed.promise import Guarantee

# Above, epsilon protects nothing and the noise would not be exact to the stated precision; below, it would overflow.
_LARGEST_EPSILON, _SMALLEST_EPSILON = 100.0, 1e-6
#: The smallest delta of a Gaussian mechanism: below, the sampling error of the noise would matter.
SMALLEST_DELTA = 1e-20
#: Noise is larger than asked by this factor: covers the relative error of its masses (``noise.py``).
NUDGE = 1 + 2.0**-40
#: Delta at which the record guarantee of mechanisms without one of their own is stated.
RECORD_DELTA = 1e-5


class Mechanism(ABC):
    """A frozen description of a release: what it would promise, and in how many columns, before there is one.

    Every mechanism also has a ``release`` of its own, which takes what it releases and the options ``ledger``,
    ``generator`` and ``ids``.
    """

    @property
    def publishes_values(self) -> bool:
        """Whether a value may leave as it is, with some probability: an atom in the law of the noise."""
        return False

    @property
    def protects_labels(self) -> bool:
        """Whether labels are protected with their rows, so that they need not be public or randomised."""
        return False

    @abstractmethod
    def guarantees(self, width: int, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """Element and record guarantee of rows of ``width`` columns; no row is needed for it.

        The record's is stated at ``record_delta`` where the mechanism has no delta of its own.
        """

    def released_width(self, width: int) -> int:
        """Columns of what is released of rows of ``width`` columns."""
        return width

    def public_basis(self, width: int) -> FloatArray | None:
        """The public basis (width, k) that queries go through as the rows did, or None where there is none."""
        check_count(width, "width")
        return None


class RecordMechanism(Mechanism):
    """A mechanism that protects a whole record under its own (epsilon, delta), an element as part of it."""

    epsilon: float
    delta: float

    @property
    @abstractmethod
    def adjacency(self) -> str:
        """How neighbours differ in one record, in words that complete "for"."""

    def guarantees(self, width: int, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """Element and record guarantee, at the mechanism's own delta: an element is protected as part of its row."""
        check_width(width, record_delta)
        self.released_width(width)  # a projection has to fit
        record = Guarantee(self.epsilon, self.delta, "record", self.adjacency)
        return replace(record, unit="element", adjacency="one element changing by any amount"), record


@dataclass(frozen=True, eq=False)
class Release:
    """What leaves: ``values`` with the guarantee per ``element`` and per ``record``.

    ``private`` is False where the noise came from a seed. ``events`` are what one record pays, for a ledger.
    ``step`` is the grid step of the values, None for labels.
    """

    values: npt.NDArray[Any]
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]
    step: float | None = None


def check_width(width: int, record_delta: float) -> None:
    """What guarantees are asked for: a number of columns, and a delta for those who have none."""
    check_count(width, "width")
    check_number(record_delta, "record_delta", above=0, below=1)


def check_epsilon(epsilon: float) -> None:
    """An epsilon that a mechanism can keep."""
    check_number(epsilon, "epsilon", above=0, at_most=_LARGEST_EPSILON)
    check_number(epsilon, "epsilon", at_least=_SMALLEST_EPSILON)


def charge(
    ledger: Ledger | None,
    events: Sequence[Event],
    rows: npt.NDArray[Any],
    ids: Sequence[Any] | npt.NDArray[Any] | None,
    source: NoiseGenerator,
    note: str,
    *,
    together: bool = False,
) -> npt.NDArray[np.bool_]:
    """Charge a release of ``rows`` (n, ...) to the ledger if there is one. To be called before any noise is drawn.

    Returns which rows (n,) may be looked at: all, unless the ledger leaves out persons whose budget is spent. In place
    of their rows the mechanism takes a fixed public one, so that nothing else of the release differs. ``together`` says
    that all rows move the same noisy numbers, as in a sum.
    """
    if ids is not None and len(ids) != len(rows):
        raise InputError(f"ids must name each of the {len(rows)} rows, got {len(ids)}")
    pays = None
    if ledger is not None:
        if not isinstance(ledger, Ledger):
            raise InputError(f"ledger must be a Ledger, got {type(ledger).__name__}")
        note = f"{note}, {len(rows)} rows"
        pays = ledger.charge(
            events, data=data_hash(rows), ids=ids, private=source.private, note=note, together=together
        )
    return np.ones(len(rows), dtype=np.bool_) if pays is None else pays


def only(rows: FloatArray, pays: npt.NDArray[np.bool_]) -> FloatArray:
    """Rows (n, p) with zeros in the place of those that nobody may look at any more."""
    return rows if pays.all() else np.where(pays[:, None], rows, rows.dtype.type(0))
