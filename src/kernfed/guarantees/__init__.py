"""Bounds with their assumptions, status and source."""

from kernfed.guarantees.bound import STATUSES, Bound
from kernfed.guarantees.catalog import CATALOG, Theorem
from kernfed.guarantees.conformal import conformal_miscoverage, conformal_sets, conformal_threshold
from kernfed.guarantees.dpkahm import (
    distance_ratio,
    fixed_point_error,
    image_norm,
    membership_loss,
    smoothing_error,
    smoothing_factor,
)
from kernfed.guarantees.fednewton import federated_error, newton_contraction, newton_contraction_expected
from kernfed.guarantees.fednewton_rates import SiteShape, excess_risk_rate, federated_error_rate
from kernfed.guarantees.gikm import (
    generalization_error,
    loss_rademacher,
    membership_gap,
    rademacher,
    sample_complexity,
    solution_gap,
)
from kernfed.guarantees.heldout import HeldOutBounds, clopper_pearson, heldout_bounds, hoeffding
from kernfed.guarantees.personal import aggregation_rate, excess_risk, feature_spread, ridge_radius, transfer_error
from kernfed.guarantees.sfm import generalized_risk, hypothesis_error, hypothesis_gap, rademacher_printed, sample_risk

__all__ = [
    "CATALOG",
    "STATUSES",
    "Bound",
    "HeldOutBounds",
    "SiteShape",
    "Theorem",
    "aggregation_rate",
    "clopper_pearson",
    "conformal_miscoverage",
    "conformal_sets",
    "conformal_threshold",
    "distance_ratio",
    "excess_risk",
    "excess_risk_rate",
    "feature_spread",
    "federated_error",
    "federated_error_rate",
    "fixed_point_error",
    "generalization_error",
    "generalized_risk",
    "heldout_bounds",
    "hoeffding",
    "hypothesis_error",
    "hypothesis_gap",
    "image_norm",
    "loss_rademacher",
    "membership_gap",
    "membership_loss",
    "newton_contraction",
    "newton_contraction_expected",
    "rademacher",
    "rademacher_printed",
    "ridge_radius",
    "sample_complexity",
    "sample_risk",
    "smoothing_error",
    "smoothing_factor",
    "solution_gap",
    "transfer_error",
]
