"""Bounds with their assumptions, status and source."""

from kernfed.guarantees.bound import STATUSES, Bound
from kernfed.guarantees.fednewton import federated_error, newton_contraction, newton_contraction_expected
from kernfed.guarantees.heldout import HeldOutBounds, clopper_pearson, heldout_bounds, hoeffding

__all__ = [
    "STATUSES",
    "Bound",
    "HeldOutBounds",
    "clopper_pearson",
    "federated_error",
    "heldout_bounds",
    "hoeffding",
    "newton_contraction",
    "newton_contraction_expected",
]
