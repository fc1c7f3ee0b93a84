"""The head of one site: the same choices and the same solution as a federation of one, without questions."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.kernels import Moments, median_bandwidth
from kernfed.kernels.features import MEDIAN_ROWS
from kernfed.kernels.rows import ColumnStatistics
from kernfed.ridge.leave_one_out import (
    ALL_STEPS,
    TRIAL_STEPS,
    LeftOut,
    Spectrum,
    effective_rows,
    grid,
    left_out,
    rule,
    trial_problems,
)
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeChoices, RidgeParameters
from kernfed.ridge.solvers import minimise
from kernfed.ridge.sums import Means, centred_features, centred_targets, row_means, weighted_moments


@dataclass(frozen=True, eq=False)
class SingleHead:
    """A head and the sums it was made of."""

    model: RidgeModel
    moments: Moments
    means: Means

    def leverage(self, X: FloatArray) -> FloatArray:
        """``h`` (n,) of training rows of weight 1: how much of its own target is in a row's value."""
        return leverage(self.model, self.moments, self.means, self.means.mass, X)


def leverage(
    head: RidgeModel,
    moments: Moments,
    means: Means | None,
    mass: float,
    X: FloatArray,
    penalty: FloatArray | None = None,
) -> FloatArray:
    """``h`` (n,) of rows of weight 1 in a squared head with these sums: ``(phi' (C + lambda D)^-1 phi + 1) / mass``."""
    features = centred_features(head.parameters, means)
    rows = X if features is None else features(X)
    H = moments.second / mass
    H[np.diag_indices_from(H)] += head.regularization_ * (1.0 if penalty is None else penalty)
    along = np.linalg.solve(H, rows.T)
    quadratic = np.einsum("nm,mn->n", rows, along)
    return np.asarray(np.maximum(quadratic + (means is not None), 0.0) / mass)


def fit_single(
    X: FloatArray,
    y: npt.NDArray[np.generic],
    *,
    class_weights: tuple[float, ...] | None = None,
    n_components: int = 2000,
    seed: int = 0,
    draws: np.random.Generator,
) -> SingleHead:
    """A head for rows X (n, p) with labels y (n,): bandwidth, scale and regularisation by leave-one-out."""
    labels, counts = np.unique(y, return_counts=True)
    problem = RidgeParameters(
        width=X.shape[1],
        n_components=n_components,
        seed=seed,
        classes=tuple(labels.tolist()),
        class_weights=class_weights,
        fit_intercept=True,
    )
    spreads = ColumnStatistics.of(X).deviation
    median = median_bandwidth(X, draws, MEDIAN_ROWS) or 1.0
    rows_that_count = effective_rows(tuple(counts.tolist()), class_weights, len(X))
    trials = trial_problems(problem, "auto", median, spreads)
    tried = {name: _Tried(trial, X, y, rows_that_count) for name, trial in trials.items()}
    best = min(tried, key=lambda name: tried[name].loss)
    full = _Tried(replace(problem, bandwidth=trials[best].bandwidth), X, y, rows_that_count, ALL_STEPS)
    solution = minimise(full.moments, full.mass, full.best)
    choices = RidgeChoices("left out", "left out", best[0], balanced=class_weights is not None)
    model = RidgeModel(
        replace(full.problem, regularization=(full.best,)),
        solution.weights,
        "exact",
        stopped_="converged",
        intercept_=full.means.intercept(solution.weights),
        temperature_=full.temperature,
        class_counts_=tuple(counts.tolist()),
        choices_=choices,
    )
    return SingleHead(model, full.moments, full.means)


class _Tried:
    """A problem's sums, and errors left out of candidates for its regularisation."""

    def __init__(
        self,
        problem: RidgeParameters,
        X: FloatArray,
        y: npt.NDArray[np.generic],
        rows: float,
        steps: tuple[int, int] = TRIAL_STEPS,
    ) -> None:
        self.problem = problem
        weights = problem.row_weights(y)
        transform = centred_features(problem, None)
        self.means = row_means(X, problem.targets(y), weights, transform)
        features, targets = centred_features(problem, self.means), centred_targets(problem, y, self.means)
        self.moments = weighted_moments(X, targets, weights, features)
        self.mass = self.means.mass
        spectrum = Spectrum.of(self.moments, self.mass)
        path = grid(rule(float(spectrum.values.sum()), rows), steps, least=spectrum.least)
        told: LeftOut = left_out(X, y, problem, spectrum, path, self.means)
        losses = told.losses(self.mass, problem.task == "classify")
        self.told = {value: (float(losses[place]), told.temperature(place)) for place, value in enumerate(path)}

    @property
    def best(self) -> float:
        """The candidate of the smallest loss."""
        return min(self.told, key=lambda value: self.told[value][0])

    @property
    def loss(self) -> float:
        """Of the best candidate."""
        return self.told[self.best][0]

    @property
    def temperature(self) -> float | None:
        """Of probabilities, at the best candidate."""
        return self.told[self.best][1]
