"""What receipts say of machines and a head together: a site keeps the machines, as it does without a head."""

from dataclasses import replace
from typing import Any

from kernfed.federation.folding.receipting import trace as trace_machines
from kernfed.fusion.model import FusionModel
from kernfed.site.receipts import ReceiptBook, Trace


def trace(model: Any, site: str) -> Trace | None:
    """What the machines of the model refer to; its head is made of the rows, too."""
    machines = trace_machines(model.folding, site) if isinstance(model, FusionModel) else None
    return None if machines is None else replace(machines, head=model.ridge is not None)


BOOK = ReceiptBook(trace=trace, elsewhere=("weight of machines against a head",))
