"""What KME promises for a model of a weighted risk: from the distance of distributions to the risk at the target.

MMD is the distance of two distributions under a kernel, KME (5); ``kernfed.kernels.mmd_squared`` estimates its square.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number, check_rows
from kernfed.errors import InputError
from kernfed.guarantees.bound import Bound

_LOSS = "every loss is a constant plus a function of norm at most R in the space of the kernel (KME Assumption 4.1)"
_EXACT = "the model minimises the weighted risk exactly"


@dataclass(frozen=True)
class Spread:
    """Spread of features at a site: trace and largest eigenvalue of their covariance, and effective dimension (13)."""

    trace: float
    largest: float

    @property
    def dimension(self) -> float:
        """Effective dimension ``Tr(Sigma) / |Sigma|_op``, at least 1; 1 where nothing varies."""
        return self.trace / self.largest if self.largest > 0 else 1.0


def feature_spread(features: npt.ArrayLike) -> Spread:
    """Spread estimated from feature rows (n, D), n at least 2.

    >>> feature_spread([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).dimension
    2.0
    """
    rows = check_rows(features, "features", min_rows=2).astype(np.float64, copy=False)
    values = np.square(np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)) / (len(rows) - 1)
    return Spread(float(values.sum()), float(values[0]))


def ridge_radius(coefficient_norm: float, offset: float = 0.0) -> float:
    """R of squared loss ``(a'x + b - y)^2`` with |a| and |b| at most these, under the kernel ``(z'z' + 1)^2``.

    The loss is ``(u'(z, 1))^2`` with u = (a, -1, b), whose norm is |u|^2 (KME Example 4.2).
    """
    norm = check_number(coefficient_norm, "coefficient_norm", at_least=0)
    return norm**2 + check_number(offset, "offset") ** 2 + 1.0


def transfer_error(distance: float, radius: float) -> Bound:
    """Lemma 4.3, (10): the weighted risk is off the target's risk by at most ``R E[MMD]``, in expectation.

    distance : E[MMD] between the target's distribution and the weighted rows. radius : R.
    """
    value = check_number(distance, "distance", at_least=0) * check_number(radius, "radius", at_least=0)
    return Bound(value, 1.0, (_LOSS, "in expectation over the rows"), "proven", "KME Lemma 4.3")


def excess_risk(distance: float, radius: float) -> Bound:
    """Corollary 4.6, (16): the target's risk is above the best one by at most ``2 R E[MMD]``, in expectation."""
    value = 2 * check_number(distance, "distance", at_least=0) * check_number(radius, "radius", at_least=0)
    return Bound(value, 1.0, (_LOSS, _EXACT, "in expectation over the rows"), "proven", "KME Corollary 4.6")


def aggregation_rate(
    distances: npt.ArrayLike,
    counts: npt.ArrayLike,
    spread: Spread,
    *,
    target: int = 0,
    components: int | None = None,
    constant: float = 1.0,
) -> Bound:
    """Theorem 4.4, (14), from estimates: squared MMD between the aggregated rows and the target's distribution.

    distances : MMD (B,) of every site to the target, estimates below 0 as 0. counts : rows (B,). spread : of the target
    under a kernel bounded by 1. The smallest value over the sets V of sites nearest to the target, which are the best.
    components : number D of random Fourier features, for the further terms of Theorem 5.2. ``constant`` is C, which the
    paper does not give: with 1 the value says how the error behaves, not how large it is.
    """
    steps = np.maximum(np.asarray(distances, dtype=np.float64), 0.0)
    n = np.asarray(counts, dtype=np.float64)
    if steps.ndim != 1 or steps.shape != n.shape or not np.isfinite(steps).all() or not (n >= 1).all():
        raise InputError(f"distances and counts must be one per site, got shapes {steps.shape} and {n.shape}")
    own = check_count(target, "target", at_least=0, at_most=len(n) - 1)
    C = check_number(constant, "constant", above=0)
    steps[own] = -1.0  # the target itself comes first
    order = np.argsort(steps, kind="stable")
    reach, rows = np.maximum(steps[order], 0.0), np.cumsum(n[order])
    value = float((_bias(reach, rows, spread) + C * _price(rows, float(n[own]), spread, components)).min())
    source, extra = "KME Theorem 4.4", tuple[str, ...]()
    if components is not None:
        value += C * float(np.sqrt(np.log(len(n)) / components))
        source, extra = "KME Theorem 5.2", (f"features are {components} random ones",)
    assumptions = (
        "the kernel is bounded by 1",
        "C_Q and C_P are at least of the order 2 log(B n)",
        "distances and spread are as estimated",
        *extra,
    )
    return Bound(value, 1.0, assumptions, f"rate only: the constant C is taken as {C:g}", source)


def _bias(reach: FloatArray, rows: FloatArray, spread: Spread) -> FloatArray:
    """``Delta_V^2 + (Tr + 2 Delta_V) / n_V`` for every V."""
    return np.asarray(np.square(reach) + (spread.trace + 2 * reach) / rows)


def _price(rows: FloatArray, own: float, spread: Spread, components: int | None) -> FloatArray:
    """The price of not knowing the weights, for every V: the second term of (14)."""
    sites = np.arange(len(rows))
    if components is None:
        u = 2 * np.log(len(rows) * own)
        inner = max(spread.trace / np.sqrt(spread.dimension), u / np.sqrt(own))
    else:
        D = check_count(components, "components")
        u = np.log(len(rows) * own)
        inner = max(spread.trace / np.sqrt(spread.dimension), np.sqrt(spread.dimension / D), u / np.sqrt(own))
    return np.asarray(u / np.sqrt(own) * np.maximum(np.sqrt(sites / rows), 1 / np.sqrt(own)) * inner)
