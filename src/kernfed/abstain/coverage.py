"""What a model says from rows that were kept aside, and what classifiers with a coverage have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import probability_bins
from kernfed.base.checks import FloatArray, IntArray, check_number
from kernfed.base.model import Model
from kernfed.base.prior import Prior
from kernfed.errors import InputError
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


_NOT_CONFORMED = (
    "this model states no coverage: use kernfed.conform(model, federation) with sites that keep rows aside, "
    "as in Federation.local(..., holdout=0.2)"
)


class Abstaining(Model):
    """What classifiers with a coverage have in common; ``kernfed.conform`` makes their ``conformal_``."""

    @property
    def can_conform(self) -> bool:
        """Whether it has classes: a coverage is that of sets of these."""
        return self.is_classifier

    @property
    def distance_unit(self) -> float:
        """In which distances are counted: of the size of their usual differences, where there are some."""
        return 1.0

    @abstractmethod
    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C) as they were counted, and the strangeness (n,) of rows, None without machines."""

    def predict_set(
        self,
        X: npt.ArrayLike,
        coverage: float = 0.9,
        *,
        conditional: str | None = None,
        site: str | None = None,
        prior: Prior = None,
        **options: Any,
    ) -> npt.NDArray[np.bool_]:
        """Which classes (n, C) are in the set of each query; it has the true one with probability ``coverage``.

        conditional : None for rows as those kept aside at all sites together, "class" for the rows of every class,
        "site" for rows of ``site``, "new site" for a site that is drawn as these were. prior : shares of classes where
        the sets are used, as in ``predict``. A set may be empty: then no class is likely enough.
        """
        limits = self._conformed().thresholds(self.classes_, coverage, conditional, site, prior)
        return np.asarray(probability_bins(self.conforming(X, **options)[0]) <= limits)

    def p_values(self, X: npt.ArrayLike, *, conditional: str | None = None, **options: Any) -> FloatArray:
        """P-values (n,) of "nothing like this was ever seen", by the distance of the nearest class among all.

        At most a share e of rows like those kept aside has a p-value of e or less; with ``conditional="class"`` at most
        that share of every class.
        """
        record, (_, strange) = self._conformed(), self.conforming(X, **options)
        if strange is None:
            raise InputError("a model without machines cannot tell what is unlike everything; use predict_set")
        return record.p_values(strange, conditional)

    def abstaining(
        self, X: npt.ArrayLike, abstain: float, prior: Prior = None, **options: Any
    ) -> "np.ma.MaskedArray[Any, Any]":
        """Labels (n,), masked where the set of coverage 1 - ``abstain`` has not one class, or nothing like it was seen.

        At most a share ``abstain`` of rows like those kept aside gets a wrong label, and as many are taken for
        strangers.
        """
        record = self._conformed()
        check_number(abstain, "abstain", above=0, below=1)
        return record.answers(self.classes_, *self.conforming(X, **options), abstain, prior)

    def _conformed(self) -> Coverage:
        if self.conformal_ is None:
            raise InputError(_NOT_CONFORMED)
        return self.conformal_
