"""What a model promises, wherever it keeps it: guarantees for one element and for one record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.promise import Guarantee

#: How neighbours differ where a model does not say so.
_ADJACENCY = {"element": "one element changed", "record": "one row replaced by any other"}


@dataclass(frozen=True)
class Promise:
    """Both units, and whether they hold: ``private`` is False where an audited release says that they do not.

    spent : (epsilon, delta) that each site's ledger has come to, all its releases together. remarks : what is said
    beside, as of labels.
    """

    element: Guarantee
    record: Guarantee
    private: bool = True
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def stated_privacy(model: Any) -> Promise | None:
    """The promise of ``model.privacy`` (``kernfed.kahm.terms.Terms``), or None where a model makes none.

    It holds: a model has terms only for what a ledger was charged with, and no ledger accepts what is not private.
    """
    terms = getattr(model, "privacy", None)
    if terms is None:
        return None
    lines = tuple(map(str, getattr(terms, "promises", ())))
    element, record = (_guarantee(getattr(terms, unit), unit, lines) for unit in ("element", "record"))
    spent = {str(site): (float(pair[0]), float(pair[1])) for site, pair in dict(getattr(terms, "spent", {})).items()}
    remarks = tuple(line for line in lines if not line.startswith(("element:", "record:")))
    return Promise(element, record, True, spent, remarks)


def _guarantee(value: Any, unit: str, lines: tuple[str, ...]) -> Guarantee:
    """A guarantee from itself, or from (epsilon, delta) and the sentence that says for whom it is."""
    if isinstance(value, Guarantee):
        return value
    epsilon, delta = value
    said = next((line for line in lines if line.startswith(f"{unit}:") and " for " in line), "")
    return Guarantee(float(epsilon), float(delta), unit, said.partition(" for ")[2] or _ADJACENCY[unit])
