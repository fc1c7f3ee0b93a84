"""Learners ask, sites answer: federations, their engines, and the learners that run on them.

Names are imported when they are first used: a site that only answers needs no learner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.files import load, register_later, save

if TYPE_CHECKING:
    from kernfed.federation.averaging import AveragingLearner
    from kernfed.federation.averaging_model import AveragingModel
    from kernfed.federation.calibrating import calibrate
    from kernfed.federation.engine import Engine, Federation, Replies, TooFewReplies
    from kernfed.federation.evaluation import Evaluation, evaluate
    from kernfed.federation.folding import FoldingLearner
    from kernfed.federation.folding_warnings import TemporaryStores, UnprotectedClasses
    from kernfed.federation.local import Fault, LocalEngine
    from kernfed.federation.message import Payload, Refusal
    from kernfed.federation.missing import MissingSites
    from kernfed.federation.policy import Policy
    from kernfed.federation.releases import LedgerNotKept
    from kernfed.federation.ridge import DivergenceWarning, RidgeLearner
    from kernfed.federation.schema import ManyClasses, Schema, SchemaMismatch
    from kernfed.federation.site import Site
    from kernfed.federation.store import SiteStore

_HOMES = {
    "averaging": ("AveragingLearner",),
    "averaging_model": ("AveragingModel",),
    "calibrating": ("calibrate",),
    "engine": ("Engine", "Federation", "Replies", "TooFewReplies"),
    "evaluation": ("Evaluation", "evaluate"),
    "folding": ("FoldingLearner",),
    "folding_warnings": ("TemporaryStores", "UnprotectedClasses"),
    "local": ("Fault", "LocalEngine"),
    "message": ("Payload", "Refusal"),
    "missing": ("MissingSites",),
    "policy": ("Policy",),
    "releases": ("LedgerNotKept",),
    "ridge": ("DivergenceWarning", "RidgeLearner"),
    "schema": ("ManyClasses", "Schema", "SchemaMismatch"),
    "site": ("Site",),
    "store": ("SiteStore",),
}
__all__ = [
    "AveragingLearner",
    "AveragingModel",
    "DivergenceWarning",
    "Engine",
    "Evaluation",
    "Fault",
    "Federation",
    "FoldingLearner",
    "LedgerNotKept",
    "LocalEngine",
    "ManyClasses",
    "MissingSites",
    "Payload",
    "Policy",
    "Refusal",
    "Replies",
    "RidgeLearner",
    "Schema",
    "SchemaMismatch",
    "Site",
    "SiteStore",
    "TemporaryStores",
    "TooFewReplies",
    "UnprotectedClasses",
    "calibrate",
    "evaluate",
    "load",
    "save",
]

# Every model that a file or a message may hold.
_MODELS = ("kahm.model", "ridge.model", "personal.model", "federation.averaging_model", "federation.ridge_private")
for _module in _MODELS:
    register_later(f"kernfed.{_module}")


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"kernfed.federation.{home}"), name)
    raise AttributeError(f"module 'kernfed.federation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
