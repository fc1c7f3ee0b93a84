"""What a model whose machines are elsewhere needs of its sites, whoever reaches them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.kahm.members import SiteScores

if TYPE_CHECKING:
    from kernfed.kahm.model import FoldingModel


class Connection(Protocol):
    """What a model needs of a federation; ``kernfed.federation.folding.connection`` provides it."""

    def scores(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        explain: bool = False,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> SiteScores:
        """Scores of all members."""

    def saved(self, model: "FoldingModel", path: Any) -> None:
        """Hear that the model was saved; warn where the sites will not remember its machines."""

    def secure_predict(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        scheme: str,
        bits: int,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> npt.NDArray[Any]:
        """Labels by encrypted scores."""

    def forget(self, model: "FoldingModel", site: str, rows: Sequence[int] | None) -> "FoldingModel":
        """Model without a site, or without some of its rows."""

    def add_site(self, model: "FoldingModel", site: str, data: Any) -> "FoldingModel":
        """Model with another site."""

    def add_rows(self, model: "FoldingModel", site: str, X: Any, y: Any, ids: Any) -> "FoldingModel":
        """Model with further rows at a site."""
