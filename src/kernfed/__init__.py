"""Federated learning in one round, without gradients."""

from kernfed._version import __version__
from kernfed.files import load, save
from kernfed.kahm import KAHM, DeepKAHM, KAHMClassifier, KAHMRegressor, WideKAHM

__all__ = ["KAHM", "DeepKAHM", "KAHMClassifier", "KAHMRegressor", "WideKAHM", "__version__", "load", "save"]
