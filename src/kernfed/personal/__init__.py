"""Personalised learning (KME): whom each site learns from, and its model of the weighted risk.

Names are imported when they are first used: clusters need scikit-learn, networks PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernfed.personal.gradient import (
        LogisticRisk,
        descend,
        minimise,
        n_parameters,
        probabilities,
        weighted_risks,
    )
    from kernfed.personal.groups import find_groups, group_coefficients, group_weights, mean_groups
    from kernfed.personal.model import PersonalModel
    from kernfed.personal.network import NetworkRisk, initial_parameters, outputs, relu_network, require_torch
    from kernfed.personal.prior import PENALTIES, effective_rows, weighted_moments, weighted_ridge
    from kernfed.personal.statistics import Coordinates, SiteStatistics
    from kernfed.personal.weights import (
        Comparison,
        Constants,
        EmbeddingKernel,
        aggregate,
        compare,
        linear_terms,
        penalty_constants,
    )

#: Where the public names live.
_HOMES = {
    "Comparison": "weights",
    "Constants": "weights",
    "Coordinates": "statistics",
    "EmbeddingKernel": "weights",
    "LogisticRisk": "gradient",
    "NetworkRisk": "network",
    "PENALTIES": "prior",
    "PersonalModel": "model",
    "SiteStatistics": "statistics",
    "aggregate": "weights",
    "compare": "weights",
    "descend": "gradient",
    "effective_rows": "prior",
    "find_groups": "groups",
    "group_coefficients": "groups",
    "group_weights": "groups",
    "initial_parameters": "network",
    "linear_terms": "weights",
    "mean_groups": "groups",
    "minimise": "gradient",
    "n_parameters": "gradient",
    "outputs": "network",
    "penalty_constants": "weights",
    "probabilities": "gradient",
    "relu_network": "network",
    "require_torch": "network",
    "weighted_moments": "prior",
    "weighted_ridge": "prior",
    "weighted_risks": "gradient",
}
__all__ = [
    "PENALTIES",
    "Comparison",
    "Constants",
    "Coordinates",
    "EmbeddingKernel",
    "LogisticRisk",
    "NetworkRisk",
    "PersonalModel",
    "SiteStatistics",
    "aggregate",
    "compare",
    "descend",
    "effective_rows",
    "find_groups",
    "group_coefficients",
    "group_weights",
    "initial_parameters",
    "linear_terms",
    "mean_groups",
    "minimise",
    "n_parameters",
    "outputs",
    "penalty_constants",
    "probabilities",
    "relu_network",
    "require_torch",
    "weighted_moments",
    "weighted_ridge",
    "weighted_risks",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"kernfed.personal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernfed.personal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
