"""Federated learning in one round, without gradients."""

from kernfed import data
from kernfed._version import __version__
from kernfed.federation import Federation, FoldingLearner, evaluate
from kernfed.files import load, save
from kernfed.kahm import KAHM, DeepKAHM, KAHMClassifier, KAHMRegressor, WideKAHM
from kernfed.kahm.model import FoldingModel

__all__ = [
    "KAHM",
    "DeepKAHM",
    "Federation",
    "FoldingLearner",
    "FoldingModel",
    "KAHMClassifier",
    "KAHMRegressor",
    "WideKAHM",
    "__version__",
    "data",
    "evaluate",
    "load",
    "save",
]
