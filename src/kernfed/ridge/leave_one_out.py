"""Choice of the regularisation by exact leave-one-out of the pooled solution: nothing is fitted twice.

With the eigenvectors U and eigenvalues s of ``C``, the pooled second moments around the pooled means, and z a row of
features around them, the solution for lambda without row i predicts at that row (Allen's PRESS, with weights c_i)::

    y_i - (y_i - f(x_i)) / (1 - h_i),   h_i = c_i (1 + sum_k (U'z_i)_k^2 / (s_k + lambda)) / m

The 1 is the intercept's, and goes without one. It is the literal refit without the row where ``lambda m`` and the
weights of all other rows stay what they are. A site needs U, s and U'b for it, which are those of all sites' rows:
with two sites each learns the other's second moments.

Bandwidths of random features that are tried, and what columns are divided by.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kernels import Moments
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.solvers import rank_tolerance
from kernfed.ridge.sums import Means, centred_features, over_blocks

#: Bandwidths that are tried, in median distances. With 2,000 features on letter, satimage, pendigits, USPS and
#: 20 Newsgroups the best was among them; at an eighth of the median every set lost more than five points.
FACTORS = (0.25, 0.5, 1.0, 2.0)
#: Features of a trial. The order of bandwidths was that of 2,000 features, or within 0.4 points of it, on those sets.
TRIAL_COMPONENTS = 500


def trial_problems(
    problem: RidgeParameters, wanted: str | None, median: float, spreads: FloatArray | None
) -> dict[tuple[str, float], RidgeParameters]:
    """Small problems by scale and factor of the median distance; ``wanted`` is "auto", a scale, or None for one unit.

    ``spreads`` (p,) are those of the columns, None where they are not known.
    """
    scales = ("entries", "columns") if wanted == "auto" else (scale_of(wanted),)
    if spreads is None or _alike(spreads):
        scales = ("entries",)  # columns of one spread: both are the same
    small = replace(problem, n_components=min(TRIAL_COMPONENTS, problem.n_components), regularization=(1.0,))
    widths: dict[str, float | tuple[float, ...]] = {"entries": median}
    if spreads is not None:
        widths["columns"] = plain_bandwidth(column_units("columns", spreads) * math.sqrt(2 * len(spreads)))
    return {
        (scale, factor): replace(small, bandwidth=plain_bandwidth(np.asarray(widths[scale]) * factor))
        for scale in scales
        for factor in FACTORS
    }


def column_units(scale: str, spreads: FloatArray) -> FloatArray:
    """What each column is divided by: its spread, or for "entries" the root mean square of all; never 0."""
    moving = spreads[spreads > 0]
    common = float(np.sqrt((moving**2).mean())) if moving.size else 1.0
    return np.where(spreads > 0, spreads, common) if scale == "columns" else np.full(len(spreads), common)


def scale_of(wanted: str | None) -> str:
    """The scale that is meant by what was asked for."""
    return "columns" if wanted == "columns" else "entries"


def plain_bandwidth(bandwidth: npt.ArrayLike) -> float | tuple[float, ...]:
    """One number where all columns have the same, otherwise one for each."""
    array = np.asarray(bandwidth, dtype=np.float64)
    if array.ndim == 0 or (array == array.flat[0]).all():
        return float(array.flat[0])
    return tuple(array.tolist())


def _alike(spreads: FloatArray) -> bool:
    moving = spreads[spreads > 0]
    return not moving.size or bool(moving.max() <= 1.01 * moving.min())


#: Temperatures of ``softmax(values / T)`` that are tried beside every regularisation; values are fitted to 0 and 1.
TEMPERATURES = 2.0 ** (np.arange(-14, 2) / 2)
#: Rows of a site whose likelihood is looked at, about: every row of a site, or every second and so on.
_LIKELIHOOD_ROWS = 2000
#: A row that its own solution reproduces whatever its target: its prediction without it is not defined.
_FREE = 1e-10
#: Candidates per factor of ten, and how far they go from ``tr(C) / n_eff``, in steps: of a problem that is one of
#: several on trial, and of the one that is solved. The second range is so wide that the best candidate is inside it.
#: A site answers for all candidates at once: the eigenvectors travel once, and a further candidate costs it little.
_PER_DECADE = 2
TRIAL_STEPS, ALL_STEPS = (-10, 6), (-22, 18)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """``C = U diag(s) U'`` of a pooled problem and ``U'b``: basis (M, k), values (k,) > 0, linear (k, C), mass m.

    With a ``penalty`` D (M,) on the weights it is that of ``D^-1/2 C D^-1/2``, and the basis is ``D^-1/2 U``: only what
    rows are multiplied by changes.
    """

    mass: float
    basis: FloatArray
    values: FloatArray
    linear: FloatArray

    @classmethod
    def of(cls, moments: Moments, mass: float, penalty: FloatArray | None = None) -> "Spectrum":
        """Of moments around the pooled means, or around 0 without an intercept."""
        with single_blas_thread():
            second = moments.second / mass
            root = np.ones(len(second)) if penalty is None else 1 / np.sqrt(penalty)
            values, vectors = np.linalg.eigh(second if penalty is None else second * np.outer(root, root))
            kept = values > rank_tolerance(values)
            basis = np.ascontiguousarray(root[:, None] * vectors[:, kept])
            return cls(mass, basis, values[kept], basis.T @ (moments.cross / mass))

    @property
    def least(self) -> float:
        """Eigenvalues up to here are rounding errors, so smaller regularisations change nothing."""
        return rank_tolerance(self.values)

    def to_arrays(self) -> dict[str, FloatArray]:
        """Plain arrays for a message."""
        return {
            "basis": self.basis,
            "values": self.values,
            "linear": self.linear,
            "mass": np.array([self.mass]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], parameters: RidgeParameters) -> "Spectrum":
        """A spectrum from ``to_arrays``, checked."""
        k = len(arrays["values"])
        M, C = parameters.n_features, parameters.n_targets
        for name, shape in {"basis": (M, k), "values": (k,), "linear": (k, C), "mass": (1,)}.items():
            array = arrays[name]
            if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
                raise InputError(f"{name} must be finite float64 of shape {shape}, got {array.dtype} of {array.shape}")
        mass = float(arrays["mass"][0])
        if k > M or not mass > 0 or (arrays["values"] <= 0).any():
            raise InputError(f"a spectrum has at most {M} positive values and a positive mass, got {k} and {mass}")
        return cls(mass, arrays["basis"], arrays["values"], arrays["linear"])


def grid(middle: float, steps: tuple[int, int] = ALL_STEPS, *, least: float = 0.0) -> tuple[float, ...]:
    """Candidates ``middle * 10^(k/2)`` for steps k from the first to the last, in rising order, none below ``least``.

    ``least`` is the smallest that is worth trying: below the rounding errors of the spectrum all are alike.
    """
    path = (float(middle * 10.0 ** (step / _PER_DECADE)) for step in range(steps[0], steps[1] + 1))
    return tuple(value for value in path if value >= least)


def rule(trace: float, n_eff: float) -> float:
    """The regularisation that needs sums only: ``tr(C) / n_eff``; rows that are all the same have the smallest one."""
    return max(trace / n_eff, float(np.finfo(np.float64).tiny))


def column_penalty(moments: Moments, mass: float) -> FloatArray:
    """Diagonal (M,) of C, for weights of columns each in its own spread; a constant one has that of the others."""
    squares = np.diagonal(moments.second) / mass
    moving = squares > np.finfo(np.float64).eps * squares.max(initial=0.0)
    return np.where(moving, squares, squares[moving].mean() if moving.any() else 1.0)


def effective_rows(counts: tuple[int, ...], class_weights: tuple[float, ...] | None, rows: int) -> float:
    """``(sum_i c_i)^2 / sum_i c_i^2``: all rows without weights, ``C^2 / sum_c 1/n_c`` for balanced ones."""
    if class_weights is None:
        return float(rows)
    n, c = np.asarray(counts, dtype=np.float64), np.asarray(class_weights)
    return float((n @ c) ** 2 / (n @ c**2))


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Sums over rows, each predicted without itself, for L candidates.

    squares : (L,) weighted squared errors. wrong : (L,) weight of the rows given another label, 0 to regress. surprise
    : (L, T) weighted negative log-likelihood of some rows, all where they are few, under ``softmax(values / T)``, 0 to
    regress. some : weight of these rows.
    """

    squares: FloatArray
    wrong: FloatArray
    surprise: FloatArray
    some: float

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            self.squares + other.squares,
            self.wrong + other.wrong,
            self.surprise + other.surprise,
            self.some + other.some,
        )

    def to_array(self) -> FloatArray:
        """One array (L, 3 + T) for a message."""
        some = np.full(len(self.squares), self.some)
        return np.column_stack([self.squares, self.wrong, some, self.surprise])

    @classmethod
    def from_array(cls, array: npt.NDArray[Any], candidates: int, mass: float) -> "LeftOut":
        """Sums from ``to_array``, refused where rows of this mass have none such."""
        shape = (candidates, 3 + len(TEMPERATURES))
        if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
            raise InputError(f"sums must be finite float64 of shape {shape}, got {array.dtype} of {array.shape}")
        if (array < 0).any() or (array[:, 1:3] > mass * (1 + 1e-9)).any() or np.ptp(array[:, 2]) > 0:
            raise InputError(f"errors must be at least 0, and weigh at most {mass:.6g}, as all rows do")
        return cls(array[:, 0], array[:, 1], array[:, 3:], float(array[0, 2]))

    def losses(self, mass: float, classify: bool) -> FloatArray:
        """What candidates (L,) are chosen by: the surprise of a row at the best temperature; to regress, its square.

        On letter, satimage, pendigits, USPS and long-tailed CIFAR-10 this chose regularisations within 0.2 points of
        the best on test rows. Squared errors lost up to 1.9 (they pay for classes that are sure anyway), and counts of
        errors up to 0.5 where a few rare rows decide.
        """
        if not classify or not self.some > 0:
            return self.squares / mass
        return np.array([_lowest(curve)[0] for curve in self.surprise]) / self.some

    def temperature(self, place: int) -> float | None:
        """The temperature that makes the labels most likely under a candidate; None where nothing is known of it."""
        if not self.some > 0 or not self.surprise[place].any():
            return None
        step = float(np.log2(TEMPERATURES[1] / TEMPERATURES[0]))
        return float(TEMPERATURES[0] * 2.0 ** (step * _lowest(self.surprise[place])[1]))


def _lowest(curve: FloatArray) -> tuple[float, float]:
    """Least value of a curve (T,) at even steps and where it is, in steps: of the parabola through the three lowest."""
    place = int(curve.argmin())
    if place in (0, len(curve) - 1):
        return float(curve[place]), float(place)
    before, here, after = (float(value) for value in curve[place - 1 : place + 2])
    bend = before - 2 * here + after
    if not bend > 0:
        return here, float(place)
    slope = (after - before) / 2
    return max(0.0, here - slope**2 / (2 * bend)), place - slope / bend


def left_out(
    X: FloatArray,
    y: npt.NDArray[np.generic],
    parameters: RidgeParameters,
    spectrum: Spectrum,
    path: tuple[float, ...],
    means: Means | None = None,
) -> LeftOut:
    """Sums of a site's rows (n, p), each predicted by the pooled solutions for ``path`` without that row."""
    targets, weights = parameters.targets(y), parameters.row_weights(y)
    features = centred_features(parameters, means)
    offsets = np.zeros(parameters.n_targets) if means is None else means.targets
    inverses = 1 / (spectrum.values[:, None] + np.asarray(path))  # (k, L)
    solutions = (inverses[:, :, None] * spectrum.linear[:, None, :]).reshape(len(inverses), -1)  # (k, L C)
    every = max(1, -(-len(X) // _LIKELIHOOD_ROWS))

    def part(block: slice) -> LeftOut:
        rows = (X[block] if features is None else features(X[block])).astype(np.float64, copy=False)
        c = np.ones(len(rows)) if weights is None else weights[block]
        along = rows @ spectrum.basis
        leverage = (along**2 @ inverses + (means is not None)) * (c / spectrum.mass)[:, None]  # (b, L)
        fitted = (along @ solutions).reshape(len(rows), len(path), -1) + offsets
        error = (targets[block][:, None, :] - fitted) / np.maximum(1 - leverage, _FREE)[:, :, None]
        squares = c @ (error**2).sum(axis=2)
        if parameters.task == "regress":
            nothing = np.zeros(len(path))
            return LeftOut(squares, nothing, np.zeros((len(path), len(TEMPERATURES))), 0.0)
        values = targets[block][:, None, :] - error
        numbers = targets[block].argmax(axis=1)
        some = np.flatnonzero((np.arange(len(rows)) + (block.start or 0)) % every == 0)
        return LeftOut(
            squares,
            c @ (values.argmax(axis=2) != numbers[:, None]),
            _surprise(values[some], numbers[some], c[some]),
            float(c[some].sum()),
        )

    with single_blas_thread():
        return over_blocks(len(X), part)


def _surprise(values: FloatArray, numbers: npt.NDArray[np.intp], weights: FloatArray) -> FloatArray:
    """Weighted negative log-likelihood (L, T) of classes ``numbers`` (b,) under softmax of values (b, L, C) over T."""
    gaps = values - values.max(axis=2, keepdims=True, initial=-np.inf)
    own = gaps[np.arange(len(numbers)), :, numbers]  # (b, L)
    by_temperature = [
        weights @ (np.log(np.exp(gaps / T).sum(axis=2)) - own / T) if len(numbers) else np.zeros(values.shape[1])
        for T in TEMPERATURES.tolist()
    ]
    return np.asarray(np.maximum(np.stack(by_temperature, axis=1), 0.0))
