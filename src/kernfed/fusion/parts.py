"""What a fusion says of its two parts, and what it needs of its sites to change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.fusion.combination import USUAL_WEIGHT, FusionLosses
from kernfed.kahm.members import SiteScores

if TYPE_CHECKING:
    from kernfed.fusion.model import FusionModel


class Connection(Protocol):
    """What a model needs of a federation; ``kernfed.federation.fusion.learner`` provides it."""

    def forget(self, model: "FusionModel", site: str, rows: Sequence[int] | None, *, rechoose: bool) -> "FusionModel":
        """Model without a site, or without some of its rows."""

    def add_site(self, model: "FusionModel", site: str, data: Any) -> "FusionModel":
        """Model with another site."""

    def add_rows(self, model: "FusionModel", site: str, X: Any, y: Any, ids: Any) -> "FusionModel":
        """Model with further rows at a site."""


#: Left-out rows of all sites together, about, to which weight and temperature are fitted: they are two numbers.
SAMPLE_ROWS = 1000
#: When queries go to the sites: always, or only those of which the head is not sure.
VISITS = ("always", "unsure")
#: Which part a label comes from.
PARTS = ("both", "head", "machines", "together")


def weight_and_temperature(losses: FusionLosses | None, given: float | None, usual: float) -> tuple[float, float]:
    """Weight of the machines and temperature of both parts, by summed ``losses`` of left-out rows where there are some.

    ``given`` is a weight that is not to be chosen, ``usual`` the temperature of the head alone.
    """
    if losses is None:
        return USUAL_WEIGHT if given is None else given, usual
    return losses.best(usual) if given is None else (given, losses.temperature(given, usual))


@dataclass(frozen=True)
class FusionChoice:
    """How weight and temperature came about.

    how : "rows" (left-out rows of sites that let them travel), "default" (no site did) or "given". rows, sites : how
    many rows of which sites. errors : share of these rows given a wrong label, by weight, weighed as the head's rows.
    """

    how: str = "given"
    rows: int = 0
    sites: tuple[str, ...] = ()
    errors: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """Which queries go to the sites. threshold : probability from which on the head answers alone.

    travelled, given_up : share of left-out rows below it, and accuracy lost on the others; None where not measured.
    """

    when: str = "always"
    threshold: float = 1.0
    travelled: float | None = None
    given_up: float | None = None


@dataclass(frozen=True, eq=False)
class FusionExplanation:
    """Per query the label, which part it comes from, and what each would say alone.

    part : "both" agree, "head" or "machines" alone say so, or "together", where neither would. site : the one that came
    nearest in the label's class, "" where no machine was asked.
    """

    labels: npt.NDArray[Any]
    part: npt.NDArray[Any]
    head: npt.NDArray[Any]
    machines: npt.NDArray[Any]
    site: npt.NDArray[Any]


@dataclass(frozen=True)
class FusedParts:
    """What each part says of queries: head values, scores with by_site or None, and which queries went to sites."""

    values: FloatArray
    scores: FloatArray
    by_site: SiteScores | None
    travelled: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, values: FloatArray, scores: FloatArray) -> "FusedParts":
        """Values (n, C) and scores (n, C) of queries that all travel."""
        return cls(values, scores, None, np.ones(len(values), dtype=bool))

    def winners(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Classes (n,) that the head would say alone, and the machines, which say the same where nobody asked them."""
        head = self.values.argmax(axis=1)
        return head, np.where(self.travelled, self.scores.argmin(axis=1), head)

    def decided_by(self, winners: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Which part (n,) the classes ``winners`` (n,) come from: one of ``PARTS``."""
        head, machines = self.winners()
        agree = 2 * (head == winners).astype(int) + (machines == winners)
        part = np.array(["together", "machines", "head", "both"])[agree]
        return np.where(self.travelled, part, "head")
