"""What a ``FoldingLearner`` and its models warn of beside missing sites, and what to do then."""

from typing import Any

from kernfed.base.warn import warn
from kernfed.errors import TemporaryStores, UnprotectedClasses
from kernfed.kahm.model import TRUST, FoldingModel

#: What to do so that a model whose machines are at the sites can be used later.
KEEP_MACHINES = "train with Federation.local(..., store=DIR) and name the same folder later, or with hold='machines'"


def warn_if_exposed(model: FoldingModel) -> None:
    """Warn where "kth" was asked for and does not protect all classes; called by ``fit``."""
    reason = model.exposure()
    if reason is not None:
        advice = "choose k=2 and more" if model.parameters.k == 1 else TRUST
        warn(f"{reason}: {advice}; model.unprotected_ lists them", UnprotectedClasses)


def warn_if_temporary(engine: Any, model: FoldingModel, path: Any) -> None:
    """Warn where a model was saved whose sites, in this process, remember nothing after it; called by ``save``."""
    lost = sorted(set(getattr(engine, "temporary_sites", ())) & set(model.sites))
    if lost:
        warn(
            f"{path} refers to machines in temporary stores of {len(lost)} site(s), such as {lost[0]!r}, and "
            f"no later process can use it: {KEEP_MACHINES}",
            TemporaryStores,
        )
