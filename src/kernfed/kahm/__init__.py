"""Kernel affine hull machines: geometry, measures, and estimators built on them."""

from kernfed.kahm import packing as _formats  # registers the file formats
from kernfed.kahm.classifier import KAHMClassifier
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.regressor import KAHMRegressor

__all__ = ["KAHM", "MEASURES", "DeepKAHM", "KAHMClassifier", "KAHMRegressor", "WideKAHM"]
del _formats
