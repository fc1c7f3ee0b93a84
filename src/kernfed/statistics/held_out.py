"""What a private coverage sums over rows kept aside: rungs of the counting ladder (``kernfed.abstain.bins``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import BITS as LADDER_BITS
from kernfed.abstain.bins import PLACES, ladder_sums, longest, sensitivity
from kernfed.errors import InputError
from kernfed.statistics.bounds import Floats, saturate
from kernfed.statistics.statistic import Numbers, Part, Statistic


@dataclass(frozen=True)
class LadderHistogram(Statistic[dict[str, Floats]]):
    """Sums over the rungs of the counting ladder: X are places (n, 1) by odds, or (n, 2) by strangeness as well.

    Noise on them hurts counts beyond a threshold little (``kernfed.abstain.bins``). What is no place from 0 to
    ``PLACES`` is in the last one, beyond all.
    """

    name: ClassVar[str] = "ladder_histogram"
    rows_of: ClassVar[Literal["learning", "aside"]] = "aside"

    strangers: bool = False

    def __post_init__(self) -> None:
        _check_flag(self.strangers)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` (PLACES,) and perhaps ``nearest`` (PLACES,)."""
        steps = 2.0**LADDER_BITS
        part = Part((PLACES,), sensitivity() * (1 + 1e-12) / steps, longest() / steps, 1 / (1 + self.strangers))
        return dict.fromkeys(("counts", "nearest")[: 1 + self.strangers], part)

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> dict[str, Floats]:
        """The sums over rows as they are, by the name of their part."""
        return dict(sums)

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Places (n, 1) or (n, 2) as integers from 0 to ``PLACES``."""
        places = saturate(np.asarray(X).reshape(len(X), 1 + self.strangers))
        return (np.where((places >= 0) & (places <= PLACES), places, PLACES).astype(np.intp),)

    def integers(self, rows: Any) -> dict[str, npt.NDArray[np.int64]]:
        """Sums over rows in steps of the ladder's grid, exact."""
        (places,) = self.factors(rows.X, rows.y)
        return {name: ladder_sums(places[:, column]) for column, name in enumerate(self.parts)}

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Sums (PLACES,) over rows of each histogram, in units of 1."""
        steps = 2.0**LADDER_BITS
        return {name: ladder_sums(factors[0][:, column]) / steps for column, name in enumerate(self.parts)}


def _check_flag(value: Any) -> None:
    if type(value) is not bool:
        raise InputError(f"strangers must be True or False, got {value!r:.40}")
