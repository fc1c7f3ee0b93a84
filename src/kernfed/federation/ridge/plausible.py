"""What the answers of a site can be, before they are used: bounds of sums, and the range of values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.federation.survey import Survey, far_above
from kernfed.kernels import Moments
from kernfed.ridge.logistic import LogisticSums
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.sums import Means
from kernfed.site.protocol.message import Payload
from kernfed.site.site import Site

Range = tuple[float, float]
#: What rounding may do, relative to the size of what is compared.


def range_values(task: str) -> dict[str, Any]:
    """The part of a question that asks for the range; empty for classes, whose questions stay as they are."""
    return {"range": True} if task == "regress" else {}


def range_arrays(site: Site, payload: Payload, task: str) -> dict[str, FloatArray]:
    """The smallest and the largest of the site's values as ``range`` (2,), where the question asks for them.

    Each is the value of one row: a site whose policy has labels "targets", of which none is told, sends none.
    """
    if payload.values.get("range") is not True or task != "regress" or site.policy.labels == "targets":
        return {}
    y = site.some_rows().y
    return {"range": np.array([float(y.min()), float(y.max())])}


def read_range(
    sent: Mapping[str, npt.NDArray[Any]], rows: int, scatter: float, around: float, mean: float | None = None
) -> Range | None:
    """The range in the arrays of one site, None where it sent none; an error where its sums rule it out.

    ``scatter`` is the site's ``sum (y - around)^2``. No value is farther from ``around`` than its root, one is at
    least as far as ``sqrt(scatter / rows)``, and the ``mean``, where it is known, is inside.
    """
    if "range" not in sent:
        return None
    array = sent["range"]
    if array.shape != (2,) or array.dtype != np.float64 or not np.isfinite(array).all() or array[0] > array[1]:
        raise InputError(f"the range must be two finite float64 numbers, low <= high, got {array!r:.80}")
    low, high = map(float, array)
    # The sums are rounded relative to the values, not to their distance from the mean.
    slack = _ROUNDING * max(abs(low), abs(high), abs(around))
    reach, root = max(abs(low - around), abs(high - around)), math.sqrt(max(scatter, 0.0))
    if not root / math.sqrt(rows) * (1 - _ROUNDING) - slack <= reach <= root * (1 + _ROUNDING) + slack:
        raise InputError(f"values of mean square {scatter / rows:.6g} cannot have the range {low:.6g} to {high:.6g}")
    if mean is not None and not low - slack <= mean <= high + slack:
        raise InputError(f"values of mean {mean:.6g} cannot have the range {low:.6g} to {high:.6g}")
    return low, high


def common_range(ranges: Sequence[Range | None], aggregate: str) -> Range | None:
    """The range that holds those of all sites; None where a site sent none.

    Under "median" it ends one width beyond the median range at most, so that a minority of wrong sites cannot move it
    farther: the medians of the lower and of the upper ends are those of the median range.
    """
    known = [own for own in ranges if own is not None]
    if not known or len(known) < len(ranges):
        return None
    lows, highs = np.array(known).T
    low, high = float(lows.min()), float(highs.max())
    if aggregate == "median":
        middle_low, middle_high = float(np.median(lows)), float(np.median(highs))
        width = middle_high - middle_low
        low, high = max(low, middle_low - width), min(high, middle_high + width)
    return low, high


#: What rounding may do, relative to the size of what is compared.
_ROUNDING = 1e-6
#: Counts and shares of classes are exact but for the order of additions.
_EXACT = 1e-9


@dataclass(frozen=True, eq=False)
class SiteStart:
    """What a site says of its part: solutions (L, M, C), b (M, C), s, mass, trace of its C_j."""

    solutions: FloatArray
    linear: FloatArray
    constant: float
    mass: float
    trace: float


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known of a site's sums before it sends any.

    rows, mass : of its rows, the mass weighted by class. targets : weighted means of its targets (C,), None to regress.
    reach : the largest norm that features of a row have, infinite where they are given.
    """

    rows: int
    mass: float
    targets: FloatArray | None
    reach: float

    @classmethod
    def of(cls, survey: Survey, parameters: RidgeParameters) -> "Expected":
        """As the site's survey commits it."""
        reach = 1.0 if parameters.features == "fourier" else math.inf
        if parameters.task == "regress":
            return cls(survey.rows, float(survey.rows), None, reach)
        counts = dict(zip(survey.schema.classes, survey.schema.counts, strict=True))
        masses = np.array([counts.get(label, 0) for label in parameters.classes], dtype=np.float64)
        masses *= 1.0 if parameters.class_weights is None else np.asarray(parameters.class_weights)
        mass = float(masses.sum())
        return cls(survey.rows, mass, masses / mass, reach)

    def check_mass(self, mass: float) -> None:
        """Refuse another mass than that of the surveyed rows."""
        if not abs(mass - self.mass) <= _EXACT * self.mass:
            raise InputError(f"the rows surveyed have mass {self.mass:.12g}, got {mass:.12g}; did they change?")

    def check_rows(self, rows: int) -> None:
        """Refuse another number of rows than surveyed."""
        if rows != self.rows:
            raise InputError(f"expected sums of the {self.rows:,} rows surveyed, got {rows:,}")

    def check_means(self, means: Means) -> None:
        """Refuse means that the surveyed rows cannot have."""
        self.check_mass(means.mass)
        self._check_size(float(np.linalg.norm(means.features)), self.reach, "the mean of features")
        if self.targets is not None and np.abs(means.targets - self.targets).max() > _EXACT:
            raise InputError("the means of targets must be the shares of classes that were surveyed")

    def check_moments(self, moments: Moments, own: Means | None) -> None:
        """Refuse moments of one site, around its ``own`` means, that the surveyed rows cannot have.

        They are those of rows, so cross moments are bounded by the squares on the diagonal: (Cauchy-Schwarz).
        """
        self.check_rows(moments.n)
        self._check_size(float(np.trace(moments.second)) / self.mass, self.reach**2, "the trace of C_j")
        self._check_constant(float(np.trace(moments.y_second)) / self.mass, own)
        if self.targets is not None:
            self._check_classes(moments, own, self.targets)

    def _check_classes(self, moments: Moments, own: Means | None, shares: FloatArray) -> None:
        """Squares of targets are those of classes with these shares, and no class is farther away than its rows."""
        squares = np.diag(shares) - (0.0 if own is None else np.outer(own.targets, own.targets))
        if np.abs(moments.y_second / self.mass - squares).max() > _ROUNDING:
            raise InputError("products of targets must be those of the classes surveyed")
        held = shares > 0
        means = moments.cross[:, held] / (self.mass * shares[held])
        means += 0.0 if own is None else own.features[:, None]
        largest = float(np.linalg.norm(means, axis=0).max(initial=0.0))
        self._check_size(largest, self.reach, "the mean of features of a class")

    def check_slope(self, sums: LogisticSums) -> None:
        """Refuse gradients of a logistic loss that the surveyed rows cannot have.

        ``|p - y| <= sqrt(2)`` for probabilities p and a class y, features are at most twice their reach from any mean,
        and gradients add up to 0 over classes.
        """
        if sums.loss < 0:
            raise InputError(f"a loss is at least 0, got {sums.loss:.6g}")
        self._check_size(float(np.linalg.norm(sums.intercept)), math.sqrt(2) * self.mass, "the gradient of intercepts")
        size = float(np.linalg.norm(sums.weights))
        self._check_size(size, 2 * math.sqrt(2) * self.reach * self.mass, "the gradient")
        if np.abs(sums.weights.sum(axis=1)).max(initial=0.0) > _ROUNDING * (size + self.mass):
            raise InputError("gradients of a row must add up to 0 over classes")

    def check_start(self, start: SiteStart, around: Means | None, path: tuple[float, ...]) -> None:
        """Refuse sums around the means of all sites that the surveyed rows cannot have.

        ``|b_j|^2 <= trace s_j`` (Cauchy-Schwarz) and ``|W_j| <= sqrt(s_j / lambda) / 2``, the largest that
        ``x / (x^2 + lambda)`` gets.
        """
        self.check_mass(start.mass)
        if not (start.constant >= 0 and start.trace >= 0):
            raise InputError(f"no rows have constant {start.constant} and trace {start.trace}")
        middle = 0.0 if around is None else float(np.linalg.norm(around.features))
        self._check_size(start.trace, (self.reach + middle) ** 2, "the trace of C_j")
        self._check_constant(start.constant, around)
        self._check_size(float(np.linalg.norm(start.linear)), math.sqrt(start.trace * start.constant), "|b_j|")
        for value, solution in zip(path, start.solutions, strict=True):
            if value > 0:
                largest = math.sqrt(start.constant / value) / 2
                self._check_size(float(np.linalg.norm(solution)), largest, f"|W_j| for regularization {value:g}")

    def _check_constant(self, constant: float, around: Means | None) -> None:
        """To classify, the mean square of targets around given means follows from the shares of classes."""
        if self.targets is None:
            return
        middle = np.zeros(len(self.targets)) if around is None else around.targets
        expected = 1.0 - 2.0 * float(self.targets @ middle) + float(middle @ middle)
        if abs(constant - expected) > _ROUNDING:
            raise InputError(f"targets of the classes surveyed have mean square {expected:.6g}, got {constant:.6g}")

    @staticmethod
    def _check_size(size: float, largest: float, name: str) -> None:
        if not size <= largest * (1 + _ROUNDING) + _EXACT:
            raise InputError(f"{name} is at most {largest:.6g} for rows of this problem, got {size:.6g}")


def unlike_others(starts: Mapping[str, SiteStart]) -> dict[str, str]:
    """Sites whose squares of features or targets are far above those of the others, with the reason."""
    return far_above({site: start.trace for site, start in starts.items()}, "trace of C_j") | far_above(
        {site: start.constant for site, start in starts.items()}, "mean square of targets"
    )


def check_product(start: SiteStart, solution: FloatArray, regularization: float, V: FloatArray, HV: FloatArray) -> None:
    """Refuse ``HV`` (M, k) that is not ``H_j V`` for a Hessian of the site's trace and solution (M, C).

    ``lambda V'V <= V' H_j V <= (trace + lambda) V'V`` as matrices, symmetric, and ``W_j' H_j V = b_j' V``.
    """
    top = start.trace + regularization
    lengths = np.linalg.norm(V, axis=0)
    if (np.linalg.norm(HV, axis=0) > (top * lengths) * (1 + _ROUNDING) + np.finfo(float).tiny).any():
        raise InputError(f"|H_j v| is at most {top:.6g} |v| for a Hessian of this trace, got more")
    unit = np.where(lengths > 0, lengths, 1.0)
    inner, gram = (V / unit).T @ (HV / unit), (V / unit).T @ (V / unit)
    if np.abs(inner - inner.T).max(initial=0.0) > _ROUNDING * top:
        raise InputError("V' H_j V must be symmetric: these are not products with one Hessian")
    inner = (inner + inner.T) / 2
    slack = _ROUNDING * top * max(1, len(inner))
    for matrix in (inner - regularization * gram, top * gram - inner):
        if np.linalg.eigvalsh(matrix).min(initial=0.0) < -slack:
            raise InputError("v' H_j v must be between regularization |v|^2 and (trace + regularization) |v|^2")
    sizes = np.linalg.norm(solution) * top * lengths + np.linalg.norm(start.linear) * lengths
    if (np.abs(solution.T @ HV - start.linear.T @ V).max(axis=0, initial=0.0) > _ROUNDING * sizes).any():
        raise InputError("W_j' H_j V must be b_j' V: the products are not those of the Hessian that W_j solves")


def check_same_hessian(top: float, V: FloatArray, HV: FloatArray, earlier: tuple[FloatArray, FloatArray]) -> None:
    """Refuse products that are not with the Hessian of an earlier round: ``U' (H_j V) = (H_j U)' V``."""
    U, HU = earlier
    sizes = np.outer(np.linalg.norm(U, axis=0), np.linalg.norm(V, axis=0)) * top
    if (np.abs(U.T @ HV - HU.T @ V) > _ROUNDING * sizes + np.finfo(float).tiny).any():
        raise InputError("products of two rounds are not conjugate: they are not those of one Hessian")


def check_inverse(start: SiteStart, solution: FloatArray, regularization: float, R: FloatArray, Z: FloatArray) -> None:
    """Refuse ``Z`` (M, k) that is not ``H_j^-1 R``: ``|z| <= |r| / lambda``, ``r'z > 0``, ``b_j' Z = W_j' R``."""
    lengths, sizes = np.linalg.norm(R, axis=0), np.linalg.norm(Z, axis=0)
    blur = 0.0
    if regularization > 0:
        top = start.trace + regularization
        if (sizes > lengths / regularization * (1 + _ROUNDING) + np.finfo(float).tiny).any():
            raise InputError(f"|H_j^-1 r| is at most |r| / {regularization:g}, got more")
        if ((R * Z).sum(axis=0) < (1 / top - _ROUNDING / regularization) * lengths**2).any():
            raise InputError(f"r' H_j^-1 r is at least |r|^2 / {top:.6g}, got less")
        blur = _EXACT / regularization
    norm = float(np.linalg.norm(start.linear))
    limits = _ROUNDING * (norm * sizes + np.linalg.norm(solution) * lengths) + blur * norm * lengths
    if (np.abs(start.linear.T @ Z - solution.T @ R).max(axis=0, initial=0.0) > limits).any():
        raise InputError("b_j' H_j^-1 R must be W_j' R: the answers are not those of the Hessian that W_j solves")
