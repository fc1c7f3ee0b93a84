"""What leaves a site, and the order of things: charge first, noise after."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from kernfed._validation import check_number
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
) -> None:
    """Charge a release of ``rows`` (n, ...) to the ledger if there is one. To be called before any noise is drawn."""
    if ids is not None and len(ids) != len(rows):
        raise InputError(f"ids must name each of the {len(rows)} rows, got {len(ids)}")
    if ledger is not None:
        if not isinstance(ledger, Ledger):
            raise InputError(f"ledger must be a Ledger, got {type(ledger).__name__}")
        note = f"{note}, {len(rows)} rows"
        ledger.charge(events, data=data_hash(rows), ids=ids, private=source.private, note=note)
