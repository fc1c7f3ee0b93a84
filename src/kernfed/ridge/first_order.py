"""FedAvg and FedProx on the ridge objective: the first-order methods FedNewton compares itself with."""

from collections.abc import Callable

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.ridge.local import LocalRidge


def descend(
    local: LocalRidge,
    weights: FloatArray,
    *,
    steps: int,
    rate: float,
    proximal: float,
    regularization: float,
    before_step: Callable[[], None] = lambda: None,
) -> FloatArray:
    """Weights (M, C) after gradient steps on one site's objective, FedNewton (1), from the common ``weights``.

    ``V <- V - rate (H_j V - b_j + proximal (V - W))``: FedProx; proximal = 0 is FedAvg. In FedNewton's experiments
    ``steps`` is 2 and the first common weights are the average of the local solutions. ``before_step`` may end it.
    """
    current = weights
    for _ in range(steps):
        before_step()
        gradient = local.apply(current, regularization) - local.linear
        current = current - rate * (gradient + proximal * (current - weights))
    return current


def proximal_minimiser(local: LocalRidge, weights: FloatArray, *, proximal: float, regularization: float) -> FloatArray:
    """Minimiser (M, C) of one site's objective + proximal |V - W|^2: ``(H_j + proximal I)^-1 (b_j + proximal W)``.

    FedProx with exact local solutions, as in FedNewton's experiments (note to its Table 1).
    """
    with single_blas_thread():
        factor = local.factor.shifted(proximal)
        return factor.solve(local.linear + proximal * weights, regularization + proximal)


def site_objective(local: LocalRidge, weights: FloatArray, regularization: float) -> float:
    """Objective of one site at ``weights`` (M, C): s_j - 2 <b_j, W> + <W, H_j W>, never below 0 by rounding."""
    image = local.apply(weights, regularization)
    return max(0.0, float(local.constant + ((image - 2 * local.linear) * weights).sum()))
