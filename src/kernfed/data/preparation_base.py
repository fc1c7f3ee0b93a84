"""What all kinds of plan have in common: limits of their settings, and of what they make of a column.

``Plan.check`` and ``Plan.apply`` are final, so that no kind of plan can leave out a limit of ``preparation_limits``.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.data.columns import RawColumn
from kernfed.data.preparation_limits import check_text, saturated

#: Size of a flag: of one category among several, of a missing value, of half the way from false to true.
FLAG = 0.5


@dataclass(frozen=True)
class Plan(ABC):
    """How column ``name`` becomes columns of numbers; ``why`` is for people. A plan that exists was checked."""

    kind: ClassVar[str] = ""
    #: Largest size of a prepared value, whatever settings and cells are.
    bound: ClassVar[float] = FLAG

    name: str
    why: str = ""

    def __post_init__(self) -> None:
        self.check()

    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""

    @property
    def n_outputs(self) -> int:
        """Number of columns that it makes."""
        return len(self.outputs())

    @property
    def _called(self) -> str:
        """The column as messages name it."""
        return f"column {self.name!r:.60}"

    @final
    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k), as many columns as ``outputs``, finite and at most ``bound`` in size for all cells."""
        with np.errstate(all="ignore"):  # a warning would tell of a cell
            return saturated(self._numbers(column), self.bound)

    @final
    def check(self) -> None:
        """Refuse settings that are too long, too many or too large; it follows from the settings alone."""
        check_text(self.name, "the name of a column")
        check_text(self.why, f"why of column {self.name!r:.60}")
        self._check_settings()

    @abstractmethod
    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k) before they are cut to ``bound``."""

    @abstractmethod
    def _check_settings(self) -> None:
        """Refuse what this kind of plan cannot have."""

    def summary(self) -> str:
        """What is done, in a few words."""
        return self.kind

    def to_values(self) -> dict[str, Any]:
        """Plain values, the kind first."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"name": plain.pop("name"), "kind": self.kind, **plain}
