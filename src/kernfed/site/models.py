"""What a site keeps for models that others have: listed from its store, for whoever runs it."""

from dataclasses import dataclass

from kernfed.site.protocol.task import methods, resolve
from kernfed.site.store import SiteStore


@dataclass(frozen=True)
class KeptModel:
    """What a method keeps for one generation of a model: its ``handle``, ``made`` when, of how many ``rows``, for whom.

    ``name`` is the record in the folder of ``method``. ``rows`` is None, and ``made`` and ``asked_by`` are empty, where
    the record does not say.
    """

    method: str
    handle: str
    generation: int
    name: str
    rows: int | None
    private: bool
    made: str = ""
    asked_by: str = ""


def list_models(store: SiteStore) -> list[KeptModel]:
    """All that the store keeps, method by method, each with its newest first."""
    return [kept for method in methods() if method.keeps for kept in resolve(method.keeps)(store)]
