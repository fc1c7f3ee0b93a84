"""What a fusion needs of its sites to change, whoever reaches them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kernfed.fusion.model import FusionModel


class Connection(Protocol):
    """What a model needs of a federation; ``kernfed.federation.fusion.connection`` provides it."""

    def forget(self, model: "FusionModel", site: str, rows: Sequence[int] | None, *, rechoose: bool) -> "FusionModel":
        """Model without a site, or without some of its rows."""

    def add_site(self, model: "FusionModel", site: str, data: Any) -> "FusionModel":
        """Model with another site."""

    def add_rows(self, model: "FusionModel", site: str, X: Any, y: Any, ids: Any) -> "FusionModel":
        """Model with further rows at a site."""
