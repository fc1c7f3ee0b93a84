"""Learners ask, sites answer: federations, their engines, and the learners that run on them.

Names are imported when they are first used: a site that only answers needs no learner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.files import load, save
from kernfed.site.protocol import task as _tasks  # noqa: F401  # with it come the formats of all methods

if TYPE_CHECKING:
    from kernfed.base.model import Model
    from kernfed.federation.asking import Federation, warn_missing
    from kernfed.federation.engines.local import Engine, Fault, LocalEngine
    from kernfed.federation.folding.learner import FoldingLearner
    from kernfed.federation.fusion.learner import FusionLearner
    from kernfed.federation.learner import Learner
    from kernfed.federation.personal.learner import PersonalLearner
    from kernfed.federation.ridge.learner import RidgeLearner
    from kernfed.site.policy import Policy
    from kernfed.site.protocol.message import Payload, Refusal
    from kernfed.site.protocol.schema import Schema, agree, check_classes
    from kernfed.site.protocol.task import Method, task
    from kernfed.site.protocol.traffic import Replies, Traffic
    from kernfed.site.rows import Rows
    from kernfed.site.site import Site
    from kernfed.site.store import SiteStore
    from kernfed.testing.calibration import calibrate, conform
    from kernfed.testing.evaluation import evaluate
    from kernfed.testing.outcomes import Evaluation

#: Where the public names live.
_HOMES = {
    "Engine": "kernfed.federation.engines.local",
    "Evaluation": "kernfed.testing.outcomes",
    "Fault": "kernfed.federation.engines.local",
    "Federation": "kernfed.federation.asking",
    "FoldingLearner": "kernfed.federation.folding.learner",
    "FusionLearner": "kernfed.federation.fusion.learner",
    "Learner": "kernfed.federation.learner",
    "Model": "kernfed.base.model",
    "LocalEngine": "kernfed.federation.engines.local",
    "Method": "kernfed.site.protocol.task",
    "Payload": "kernfed.site.protocol.message",
    "PersonalLearner": "kernfed.federation.personal.learner",
    "Policy": "kernfed.site.policy",
    "Refusal": "kernfed.site.protocol.message",
    "Replies": "kernfed.site.protocol.traffic",
    "RidgeLearner": "kernfed.federation.ridge.learner",
    "Rows": "kernfed.site.rows",
    "Schema": "kernfed.site.protocol.schema",
    "Site": "kernfed.site.site",
    "SiteStore": "kernfed.site.store",
    "Traffic": "kernfed.site.protocol.traffic",
    "agree": "kernfed.site.protocol.schema",
    "calibrate": "kernfed.testing.calibration",
    "check_classes": "kernfed.site.protocol.schema",
    "conform": "kernfed.testing.calibration",
    "evaluate": "kernfed.testing.evaluation",
    "task": "kernfed.site.protocol.task",
    "warn_missing": "kernfed.federation.asking",
}
__all__ = [
    "Engine",
    "Evaluation",
    "Fault",
    "Federation",
    "FoldingLearner",
    "FusionLearner",
    "Learner",
    "LocalEngine",
    "Method",
    "Model",
    "Payload",
    "PersonalLearner",
    "Policy",
    "Refusal",
    "Replies",
    "RidgeLearner",
    "Rows",
    "Schema",
    "Site",
    "SiteStore",
    "Traffic",
    "agree",
    "calibrate",
    "check_classes",
    "conform",
    "evaluate",
    "load",
    "save",
    "task",
    "warn_missing",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kernfed.federation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
