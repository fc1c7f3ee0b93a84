"""What a model says from rows that were kept aside: one interface for exact and for noisy counts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import probability_bins
from kernfed.base.checks import FloatArray, IntArray, check_number
from kernfed.base.prior import Prior
from kernfed.promise import Terms

#: A rank that is whole but for rounding is whole.
ROUNDING = 1e-9
NO_MACHINES = "a model without machines cannot tell what is unlike everything; use predict_set"


class Coverage(ABC):
    """Counts of rows that were kept aside, exact (``Conformal``) or with noise (``NoisyConformal``)."""

    if TYPE_CHECKING:  # fields of some and properties of others

        @property
        def rows(self) -> int:
            """Rows that were kept aside and counted."""

        @property
        def unknown(self) -> int:
            """Rows with labels that the model does not know, as far as that is told."""

        @property
        def sites(self) -> int:
            """How many sites counted."""

        @property
        def nearest(self) -> IntArray | None:
            """Counts by strangeness; None where strangers are not told."""

        @property
        def prior(self) -> Prior:
            """For which shares of classes the probabilities are."""

        @property
        def missing(self) -> Mapping[str, str]:
            """Sites that did not take part, with reasons."""

        @property
        def privacy(self) -> Terms | None:
            """Under which terms the counts were released; None where they are exact."""

    def risk(self, coverage: float) -> float:  # noqa: ARG002  the exact counts of most have none
        """Probability that noise lets the threshold of a coverage be too low, which the coverage has room for."""
        return 0.0

    @abstractmethod
    def thresholds(
        self,
        classes: npt.NDArray[Any],
        coverage: float,
        conditional: str | None = None,
        site: str | None = None,
        prior: Prior = None,
    ) -> npt.NDArray[np.intp]:
        """The last bin (C,) in which each of ``classes`` (C,) is in the set of a coverage."""

    @abstractmethod
    def p_values(self, strange: FloatArray, conditional: str | None = None) -> FloatArray:
        """P-values (n,) of queries by their strangeness (n,)."""

    @abstractmethod
    def to_parts(self, classes: npt.NDArray[Any]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values for the file of the model that has these ``classes``."""

    def answers(
        self,
        classes: npt.NDArray[Any],
        probabilities: FloatArray,
        strange: FloatArray | None,
        abstain: float,
        prior: Prior = None,
    ) -> "np.ma.MaskedArray[Any, Any]":
        """Labels (n,) that are alone in their set of coverage 1 - ``abstain``, masked elsewhere and for strangers."""
        check_number(abstain, "abstain", above=0, below=1)
        sets = probability_bins(probabilities) <= self.thresholds(classes, 1 - abstain, prior=prior)
        unsure = sets.sum(axis=1) != 1
        if strange is not None and self.nearest is not None:
            unsure |= self.p_values(strange) <= abstain
        return np.ma.MaskedArray(classes[sets.argmax(axis=1)], mask=unsure)
