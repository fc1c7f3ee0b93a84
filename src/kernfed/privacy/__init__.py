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
    from kernfed.privacy.audit import audit_answers, audit_pair, audit_release, audit_training
    from kernfed.privacy.audit_report import AuditReport
    from kernfed.privacy.density import membership_score
    from kernfed.privacy.embedding import EmbeddingRelease, RecordEmbedding
    from kernfed.privacy.gaussian import DiscreteGaussian
    from kernfed.privacy.generator import NoiseGenerator
    from kernfed.privacy.gradient import LogisticRelease, RecordLogistic
    from kernfed.privacy.histogram import HistogramRelease, RecordHistogram
    from kernfed.privacy.labels import RandomizedLabels
    from kernfed.privacy.ledger import Ledger, LedgerLine, data_hash
    from kernfed.privacy.mechanism import ElementLaplace, ElementStaircase, RecordGaussian
    from kernfed.privacy.moments import (
        ClassMoments,
        MomentsRelease,
        RecordMoments,
        discriminant_scores,
        fabricate_rows,
        pool_moments,
    )
    from kernfed.privacy.names import mechanism_class, mechanism_name
    from kernfed.privacy.noise import DiscreteLaplace, DiscreteStaircase
    from kernfed.privacy.release import Mechanism, Release
    from kernfed.privacy.ridge import RecordRidge, RidgeRelease
    from kernfed.privacy.smoothing import Smoothed, fabricate, smooth
    from kernfed.privacy.values import describe_mechanism, mechanism_from_values, mechanism_to_values
    from kernfed.promise import Guarantee, Terms
    from kernfed.statistics.bounds import clip_rows, public_basis

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
    "LogisticRelease",
    "Mechanism",
    "MomentsRelease",
    "NoiseGenerator",
    "PureEvent",
    "RandomizedLabels",
    "RecordEmbedding",
    "RecordGaussian",
    "RecordHistogram",
    "RecordLogistic",
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
    "kernfed.privacy.audit": "audit_answers audit_pair audit_release audit_training",
    "kernfed.privacy.audit_report": "AuditReport",
    "kernfed.statistics.bounds": "clip_rows public_basis",
    "kernfed.privacy.density": "membership_score",
    "kernfed.privacy.embedding": "EmbeddingRelease RecordEmbedding",
    "kernfed.privacy.gaussian": "DiscreteGaussian",
    "kernfed.privacy.generator": "NoiseGenerator",
    "kernfed.privacy.gradient": "LogisticRelease RecordLogistic",
    "kernfed.privacy.histogram": "HistogramRelease RecordHistogram",
    "kernfed.privacy.labels": "RandomizedLabels",
    "kernfed.privacy.ledger": "Ledger LedgerLine data_hash",
    "kernfed.privacy.mechanism": "ElementLaplace ElementStaircase RecordGaussian",
    "kernfed.privacy.moments": (
        "ClassMoments MomentsRelease RecordMoments discriminant_scores fabricate_rows pool_moments"
    ),
    "kernfed.privacy.names": "mechanism_class mechanism_name",
    "kernfed.privacy.noise": "DiscreteLaplace DiscreteStaircase",
    "kernfed.privacy.release": "Mechanism Release",
    "kernfed.privacy.ridge": "RecordRidge RidgeRelease",
    "kernfed.privacy.smoothing": "Smoothed fabricate smooth",
    "kernfed.privacy.values": "describe_mechanism mechanism_from_values mechanism_to_values",
    "kernfed.promise": "Guarantee Terms",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kernfed.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
