"""Kernel ridge regression on features: objectives that add up over sites, and the ways to minimise their sum."""

from kernfed.ridge.heterogeneity import Heterogeneity, SiteHeterogeneity
from kernfed.ridge.model import METHODS, RidgeModel, RidgeRound
from kernfed.ridge.parameters import FEATURES, TASKS, RidgeParameters

__all__ = [
    "FEATURES",
    "METHODS",
    "TASKS",
    "Heterogeneity",
    "RidgeModel",
    "RidgeParameters",
    "RidgeRound",
    "SiteHeterogeneity",
]
