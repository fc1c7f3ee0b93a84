"""Learners ask, sites answer: federations, their engines, and the learners that run on them.

Names are imported when they are first used: a site that only answers needs no learner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.federation.protocol.task import declare_methods, format_modules
from kernfed.files import formats_from, load, save

if TYPE_CHECKING:
    from kernfed.federation.asking import Federation, warn_missing
    from kernfed.federation.engines.engine import Engine
    from kernfed.federation.engines.local import Fault, LocalEngine
    from kernfed.federation.folding.learner import FoldingLearner
    from kernfed.federation.fusion.learner import FusionLearner
    from kernfed.federation.learner import Learner
    from kernfed.federation.personal.learner import PersonalLearner
    from kernfed.federation.protocol.message import Payload, Refusal
    from kernfed.federation.protocol.replies import Replies
    from kernfed.federation.protocol.schema import Schema, agree, check_classes
    from kernfed.federation.protocol.task import Method, task
    from kernfed.federation.protocol.traffic import Traffic
    from kernfed.federation.ridge.learner import RidgeLearner
    from kernfed.federation.site.policy import Policy
    from kernfed.federation.site.rows import Rows
    from kernfed.federation.site.site import Site
    from kernfed.federation.site.store import SiteStore
    from kernfed.federation.testing.calibrating import calibrate
    from kernfed.federation.testing.conforming import conform
    from kernfed.federation.testing.evaluation import evaluate
    from kernfed.federation.testing.outcomes import Evaluation

#: Every method of this package, by its folder. Each says itself what it brings.
METHODS = ("summing", "folding", "ridge", "personal", "fusion", "release", "testing", "preparing")

#: Where the public names live.
_HOMES = {
    "Engine": "engines.engine",
    "Evaluation": "testing.outcomes",
    "Fault": "engines.local",
    "Federation": "asking",
    "FoldingLearner": "folding.learner",
    "FusionLearner": "fusion.learner",
    "Learner": "learner",
    "LocalEngine": "engines.local",
    "Method": "protocol.task",
    "Payload": "protocol.message",
    "PersonalLearner": "personal.learner",
    "Policy": "site.policy",
    "Refusal": "protocol.message",
    "Replies": "protocol.replies",
    "RidgeLearner": "ridge.learner",
    "Rows": "site.rows",
    "Schema": "protocol.schema",
    "Site": "site.site",
    "SiteStore": "site.store",
    "Traffic": "protocol.traffic",
    "agree": "protocol.schema",
    "calibrate": "testing.calibrating",
    "check_classes": "protocol.schema",
    "conform": "testing.conforming",
    "evaluate": "testing.evaluation",
    "task": "protocol.task",
    "warn_missing": "asking",
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

declare_methods(f"kernfed.federation.{name}" for name in METHODS)
formats_from(format_modules)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"kernfed.federation.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernfed.federation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
