"""Sites agree on what becomes of their columns, from sums of counts, before anything is learned.

``agree(federation)`` asks for statistics, chooses a preparation and lets every site use it; ``use`` does the last step
with one that was written before. Learners then see matrices, and their models carry the preparation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.site.protocol.task import Method

if TYPE_CHECKING:
    from kernfed.federation.preparing.agreement import Agreement, agree, agree_where_raw, gather, use

METHOD = Method(
    name="preparing",
    tasks={"kernfed.federation.preparing.agreement": ("column_statistics", "prepare")},
)
__all__ = ["METHOD", "Agreement", "agree", "agree_where_raw", "gather", "use"]


def __getattr__(name: str) -> Any:  # a site needs the tasks only
    if name in __all__:
        return getattr(import_module("kernfed.federation.preparing.agreement"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
