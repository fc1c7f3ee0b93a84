"""What receipts say of machines and a head together: a site keeps the machines, as it does without a head."""

from typing import Any

from kernfed.federation.folding.receipting import trace as trace_machines
from kernfed.federation.site.receipts import ReceiptBook
from kernfed.fusion.model import FusionModel


def trace(model: Any, site: str) -> tuple[tuple[str, int], str] | None:
    """What the machines of the model refer to."""
    return trace_machines(model.folding, site) if isinstance(model, FusionModel) else None


BOOK = ReceiptBook(trace=trace, elsewhere=("weight of machines against a head",))
