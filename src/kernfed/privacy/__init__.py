"""Differential privacy: noise on grids, mechanisms with guarantees in both units, accounting and a ledger.

Everything is imported when it is first used: who only needs the names of mechanisms (``kernfed.privacy.names``) does
not load what accounts for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernfed.errors import BudgetExceeded
    from kernfed.privacy.accounting import (
        Event,
        GaussianEvent,
        LaplaceEvent,
        PureEvent,
        StaircaseEvent,
        analytic_gaussian_mu,
        analytic_gaussian_sigma,
        delta_for,
        epsilon_for,
        gaussian_delta,
    )
    from kernfed.privacy.audit import AuditReport, audit_answers, audit_pair, audit_release, audit_training
    from kernfed.privacy.generator import NoiseGenerator
    from kernfed.privacy.ledger import Ledger, LedgerLine, data_hash
    from kernfed.privacy.mechanism import ElementLaplace, ElementStaircase, RandomizedLabels, RecordGaussian
    from kernfed.privacy.moments import (
        MomentsRelease,
        RecordMoments,
        discriminant_scores,
        fabricate_rows,
        pool_moments,
    )
    from kernfed.privacy.names import mechanism_class, mechanism_name
    from kernfed.privacy.noise import DiscreteGaussian, DiscreteLaplace, DiscreteStaircase
    from kernfed.privacy.noisy_sum import NoisySum
    from kernfed.privacy.record_sums import (
        EmbeddingRelease,
        HistogramRelease,
        RecordEmbedding,
        RecordHistogram,
        RecordRidge,
        RidgeRelease,
    )
    from kernfed.privacy.release import Mechanism, RecordMechanism, Release, charge
    from kernfed.privacy.roc import membership_score
    from kernfed.privacy.smoothing import Smoothed, fabricate, smooth
    from kernfed.privacy.values import describe_mechanism, mechanism_from_values, mechanism_to_values
    from kernfed.promise import Guarantee, Terms
    from kernfed.statistics.bounds import clip_rows, public_basis
    from kernfed.statistics.classes import ClassMoments

__all__ = [
    "AuditReport",
    "BudgetExceeded",
    "ClassMoments",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DiscreteStaircase",
    "ElementLaplace",
    "ElementStaircase",
    "EmbeddingRelease",
    "Event",
    "GaussianEvent",
    "Guarantee",
    "HistogramRelease",
    "LaplaceEvent",
    "Ledger",
    "LedgerLine",
    "Mechanism",
    "MomentsRelease",
    "NoiseGenerator",
    "NoisySum",
    "PureEvent",
    "RandomizedLabels",
    "RecordEmbedding",
    "RecordGaussian",
    "RecordHistogram",
    "RecordMechanism",
    "RecordMoments",
    "RecordRidge",
    "Release",
    "RidgeRelease",
    "Smoothed",
    "StaircaseEvent",
    "Terms",
    "analytic_gaussian_mu",
    "analytic_gaussian_sigma",
    "audit_answers",
    "audit_pair",
    "audit_release",
    "audit_training",
    "charge",
    "clip_rows",
    "data_hash",
    "delta_for",
    "describe_mechanism",
    "discriminant_scores",
    "epsilon_for",
    "fabricate",
    "fabricate_rows",
    "gaussian_delta",
    "mechanism_class",
    "mechanism_from_values",
    "mechanism_name",
    "mechanism_to_values",
    "membership_score",
    "pool_moments",
    "public_basis",
    "smooth",
]
#: The names of each module. Some are of modules beside this package, and stand here for what they are about.
_NAMES = {
    "kernfed.errors": "BudgetExceeded",
    "kernfed.privacy.accounting": (
        "Event GaussianEvent LaplaceEvent PureEvent StaircaseEvent analytic_gaussian_mu "
        "analytic_gaussian_sigma delta_for epsilon_for gaussian_delta"
    ),
    "kernfed.privacy.audit": "AuditReport audit_answers audit_pair audit_release audit_training",
    "kernfed.privacy.generator": "NoiseGenerator",
    "kernfed.privacy.ledger": "Ledger LedgerLine data_hash",
    "kernfed.privacy.mechanism": "ElementLaplace ElementStaircase RandomizedLabels RecordGaussian",
    "kernfed.privacy.moments": ("MomentsRelease RecordMoments discriminant_scores fabricate_rows pool_moments"),
    "kernfed.privacy.names": "mechanism_class mechanism_name",
    "kernfed.privacy.noisy_sum": "NoisySum",
    "kernfed.privacy.noise": "DiscreteGaussian DiscreteLaplace DiscreteStaircase",
    "kernfed.privacy.record_sums": (
        "EmbeddingRelease HistogramRelease RecordEmbedding RecordHistogram RecordRidge RidgeRelease"
    ),
    "kernfed.privacy.release": "Mechanism RecordMechanism Release charge",
    "kernfed.privacy.roc": "membership_score",
    "kernfed.privacy.smoothing": "Smoothed fabricate smooth",
    "kernfed.privacy.values": "describe_mechanism mechanism_from_values mechanism_to_values",
    "kernfed.promise": "Guarantee Terms",
    "kernfed.statistics.bounds": "clip_rows public_basis",
    "kernfed.statistics.classes": "ClassMoments",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kernfed.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
