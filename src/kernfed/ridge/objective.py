"""The objective of ridge regression on features, and what a solver needs of a federation to minimise it.

Rows phi_i (M,) with targets y_i (C,) and weights c_i, mass m = sum c_i; weights of the model W (M, C)::

    F(W) = sum_i c_i |W' phi_i - y_i|^2 / m + lambda |W|^2  =  s - 2 <b, W> + <W, H W>

with ``H = sum_i c_i phi_i phi_i' / m + lambda I``, ``b = sum_i c_i phi_i y_i' / m``, ``s = sum_i c_i |y_i|^2 / m``:
twice FedNewton (1), whose gradient is ``g = H W - b``. The sites' objectives add up with the weights
``p_j = m_j / m`` (FedNewton Proposition 1), so a solver only needs H and the preconditioner
``P^-1 = sum_j p_j H_j^-1`` applied to matrices (M, C): each is one exchange.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernfed.base.checks import FloatArray

#: Weights beyond this have diverged; the next products could overflow.
LIMIT = 1e100


class System(Protocol):
    """``H W = b`` spread over sites."""

    @property
    def linear(self) -> FloatArray:
        """Linear term b (M, C)."""

    @property
    def constant(self) -> float:
        """Constant term s, the objective at W = 0."""

    def apply(self, V: FloatArray) -> FloatArray:
        """``H V = sum_j p_j H_j V`` for V (M, k): one exchange."""

    def solve(self, R: FloatArray) -> FloatArray:
        """``P^-1 R = sum_j p_j H_j^-1 R`` for R (M, k): one exchange."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """Weights W (M, C) with their gradient ``H W - b`` (M, C) and objective F(W)."""

    weights: FloatArray
    gradient: FloatArray
    objective: float

    @property
    def gradient_norm(self) -> float:
        """Frobenius norm of the gradient."""
        return float(np.linalg.norm(self.gradient))


def objective_value(system: System, weights: FloatArray, gradient: FloatArray) -> float:
    """F(W) from W and ``g = H W - b``: s + <W, g - b>."""
    return float(system.constant + np.vdot(weights, gradient - system.linear))


def first_iterate(system: System, weights: FloatArray) -> Iterate:
    """Iterate at ``weights``: one exchange."""
    gradient = system.apply(weights) - system.linear
    return Iterate(weights, gradient, objective_value(system, weights, gradient))


def diverged(weights: FloatArray) -> bool:
    """Whether weights have left the range in which anything can be computed from them."""
    return not bool((np.abs(weights) < LIMIT).all())


def average(parts: Mapping[str, FloatArray], masses: Mapping[str, float]) -> FloatArray:
    """``sum_j p_j A_j`` with p_j the share of site j in the mass, added in order of names."""
    names = sorted(parts)
    total = sum(masses[name] for name in names)
    result = np.zeros_like(parts[names[0]])
    for name in names:
        result += (masses[name] / total) * parts[name]
    return result
