"""Federated learning in one round, without gradients.

Names are imported when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed._version import __version__

if TYPE_CHECKING:
    from kernfed import data, errors, guarantees, privacy, promise, report, secure
    from kernfed.federation import (
        Federation,
        FoldingLearner,
        FusionLearner,
        RidgeLearner,
        calibrate,
        conform,
        evaluate,
        load,
        save,
    )
    from kernfed.federation.estimators import FusionClassifier, FusionRegressor, KAHMClassifier
    from kernfed.federation.personal.learner import PersonalLearner
    from kernfed.fusion import FusionModel
    from kernfed.kahm import KAHM, DeepKAHM, KAHMRegressor, WideKAHM
    from kernfed.kahm.model import FoldingModel
    from kernfed.personal.model import PersonalModel
    from kernfed.ridge import RidgeModel

#: The packages that declare tasks, each with a ``METHOD`` that lists them; imported when a task is looked up.
METHODS = (
    "kernfed.federation.summing",
    "kernfed.federation.folding",
    "kernfed.federation.ridge",
    "kernfed.federation.personal",
    "kernfed.federation.fusion",
    "kernfed.site.release",
    "kernfed.testing",
    "kernfed.federation.preparing",
)

_HOMES = {
    "KAHM": "kernfed.kahm",
    "DeepKAHM": "kernfed.kahm",
    "Federation": "kernfed.federation",
    "FoldingLearner": "kernfed.federation",
    "FoldingModel": "kernfed.kahm.model",
    "FusionClassifier": "kernfed.federation.estimators",
    "FusionLearner": "kernfed.federation",
    "FusionRegressor": "kernfed.federation.estimators",
    "FusionModel": "kernfed.fusion",
    "KAHMClassifier": "kernfed.federation.estimators",
    "KAHMRegressor": "kernfed.kahm",
    "PersonalLearner": "kernfed.federation.personal.learner",
    "PersonalModel": "kernfed.personal.model",
    "RidgeLearner": "kernfed.federation",
    "RidgeModel": "kernfed.ridge",
    "WideKAHM": "kernfed.kahm",
    "calibrate": "kernfed.testing.calibration",
    "conform": "kernfed.testing.calibration",
    "evaluate": "kernfed.testing.evaluation",
    "load": "kernfed.federation",
    "save": "kernfed.federation",
}
_PACKAGES = ("data", "errors", "guarantees", "privacy", "promise", "report", "secure")

__all__ = [
    "KAHM",
    "DeepKAHM",
    "Federation",
    "FoldingLearner",
    "FoldingModel",
    "FusionClassifier",
    "FusionLearner",
    "FusionModel",
    "FusionRegressor",
    "KAHMClassifier",
    "KAHMRegressor",
    "PersonalLearner",
    "PersonalModel",
    "RidgeLearner",
    "RidgeModel",
    "WideKAHM",
    "__version__",
    "calibrate",
    "conform",
    "data",
    "errors",
    "evaluate",
    "guarantees",
    "load",
    "privacy",
    "promise",
    "report",
    "save",
    "secure",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"kernfed.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kernfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
