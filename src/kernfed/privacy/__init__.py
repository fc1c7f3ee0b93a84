"""Differential privacy: noise on grids, mechanisms with guarantees in both units, accounting and a ledger."""

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
from kernfed.privacy.basis import public_basis
from kernfed.privacy.density import membership_score
from kernfed.privacy.embedding import EmbeddingRelease, RecordEmbedding
from kernfed.privacy.gaussian import DiscreteGaussian
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.gradient import LogisticRelease, RecordLogistic
from kernfed.privacy.labels import RandomizedLabels
from kernfed.privacy.ledger import BudgetExceeded, Entry, Ledger, data_hash
from kernfed.privacy.mechanism import ElementLaplace, ElementStaircase, RecordGaussian
from kernfed.privacy.moments import (
    ClassMoments,
    MomentsRelease,
    RecordMoments,
    discriminant_scores,
    fabricate_rows,
    pool_moments,
)
from kernfed.privacy.noise import DiscreteLaplace, DiscreteStaircase
from kernfed.privacy.officer import officer_page
from kernfed.privacy.release import Release
from kernfed.privacy.ridge import RecordRidge, RidgeRelease
from kernfed.promise import Guarantee

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
    "Entry",
    "Event",
    "GaussianEvent",
    "Guarantee",
    "LaplaceEvent",
    "Ledger",
    "LogisticRelease",
    "MomentsRelease",
    "NoiseGenerator",
    "PureEvent",
    "RandomizedLabels",
    "RecordEmbedding",
    "RecordGaussian",
    "RecordLogistic",
    "RecordMoments",
    "RecordRidge",
    "Release",
    "RidgeRelease",
    "StaircaseEvent",
    "analytic_gaussian_mu",
    "analytic_gaussian_sigma",
    "audit_answers",
    "audit_pair",
    "audit_release",
    "audit_training",
    "data_hash",
    "delta_for",
    "discriminant_scores",
    "epsilon_for",
    "fabricate_rows",
    "gaussian_delta",
    "membership_score",
    "officer_page",
    "pool_moments",
    "public_basis",
]
