"""KAHM regression (DP-KAHM (32)) in scikit-learn's form."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kernfed.base.checks import FloatArray
from kernfed.base.model import Model
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.choice import AUTO, FEWEST_ROWS, Candidate, candidates, scaled, split_rows, usual
from kernfed.kahm.left_out import sample
from kernfed.kahm.machine import FALLBACK_RATIO, Layer, Machine, hull_weights, layer_kernel
from kernfed.kahm.spectrum import check_subspace_dim, regularization
from kernfed.kernels.rows import ColumnStatistics


@dataclass(frozen=True)
class Branch:
    """Responses of one machine's rows: layer with the responses' lambda, [R Y, R 1, bound] (N, q + 2), Y (N, q)."""

    machine: Machine
    layer: Layer
    coefficients: FloatArray
    responses: FloatArray

    def predict(self, queries: FloatArray) -> FloatArray:
        """Affine combination of the responses, DP-KAHM (32): (n, q)."""
        dim = self.layer.exponent.shape[1] - 1
        coordinates = (queries - self.machine.mean) @ self.machine.directions[:dim].T
        powers = coordinates @ self.layer.exponent[:, 1:].T + self.layer.exponent[:, 0]
        product = np.exp(powers - powers.max(axis=1, keepdims=True)) @ self.coefficients
        doubt = product[:, -2] <= FALLBACK_RATIO * product[:, -1]
        predicted: FloatArray = product[:, :-2] / np.where(doubt, 1.0, product[:, -2])[:, None]
        if doubt.any():
            weights, _, _ = hull_weights(self.machine, self.layer, coordinates[doubt])
            predicted[doubt] = weights @ self.responses
        return predicted


class KAHMRegressor(MultiOutputMixin, RegressorMixin, Model, BaseEstimator):  # type: ignore[misc]
    """Responses combined with the weights of a kernel affine hull machine (DP-KAHM (32)).

    The regulariser is the fixed point (27)-(28) of the responses. Rows are divided into machines as in ``WideKAHM``,
    and the machine nearest to a query answers it.

    Parameters
    ----------
    batch_size, partition, scale : as in ``KAHMClassifier``; "auto" is chosen by the squared error of left-out rows
    subspace_dim, n_jobs, random_state : as in ``KAHMClassifier``
    standardize : whether responses are centred and scaled before (28), so that their unit does not matter;
        False is the formula as printed

    Attributes
    ----------
    bank_ : the fitted machines; branches_ : the responses of each machine's rows
    scaling_ : how rows and queries are brought to one unit, or None; chosen_ : how they are scaled and divided
    shift_, scale_ : (q,) what responses were centred and scaled by; flat_ : whether y had one dimension
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    def __init__(
        self,
        batch_size: int | str = AUTO,
        partition: str = AUTO,
        subspace_dim: int | str = "auto",
        standardize: bool = True,
        n_jobs: int | None = None,
        random_state: int | None = None,
        scale: str | None = AUTO,
    ) -> None:
        self.batch_size = batch_size
        self.partition = partition
        self.subspace_dim = subspace_dim
        self.standardize = standardize
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.scale = scale

    @property
    def classes_(self) -> npt.NDArray[np.generic]:
        """Empty: it predicts values."""
        return np.zeros(0)

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit on rows X (N, p) with responses y (N,) or (N, q)."""
        tried = candidates(self.scale, self.batch_size, self.partition)
        dim = check_subspace_dim(self.subspace_dim)
        rows, responses = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.flat_ = responses.ndim == 1
        table = responses.reshape(len(rows), -1).astype(np.float64)
        self.shift_ = table.mean(axis=0) if self.standardize else np.zeros(table.shape[1])
        spread = table.std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0) if self.standardize else np.ones(table.shape[1])
        table = (table - self.shift_) / self.scale_
        seed = 0 if self.random_state is None else self.random_state
        statistics = ColumnStatistics.of(rows)
        # The weights of a machine do not depend on the unit, so that one is as good as another.
        tried = tuple(one for one in tried if one.unit == tried[0].unit)
        self.chosen_ = _choose(rows, table, tried, statistics, generator(seed, "choose"), dim, self.n_jobs)
        self.scaling_ = self.chosen_.scaling(statistics)
        rows, draws = scaled(rows, self.scaling_), generator(seed, "divide")
        self.bank_, self.branches_ = _fit_branches(rows, table, self.chosen_, draws, dim, self.n_jobs)
        return self

    def predict(self, X: npt.ArrayLike) -> FloatArray:
        """Predicted responses, (n,) or (n, q)."""
        check_is_fitted(self, "bank_")
        queries = validate_data(self, X, reset=False, dtype=np.float64)
        predicted = _predict(self.bank_, self.branches_, scaled(queries, self.scaling_), self.n_jobs)
        predicted = predicted * self.scale_ + self.shift_
        return predicted[:, 0] if self.flat_ else predicted


def _choose(
    rows: FloatArray,
    responses: FloatArray,
    tried: tuple[Candidate, ...],
    statistics: ColumnStatistics,
    draws: np.random.Generator,
    dim: int | None,
    n_jobs: int | None,
) -> Candidate:
    """The candidate with the smallest squared error on left-out rows of a sample; the usual one if these are few."""
    learned, left = sample(np.zeros(len(rows), dtype=np.intp), draws)
    if len(tried) == 1 or len(left) < FEWEST_ROWS:
        return usual(tried)
    seed, errors = int(draws.integers(2**31)), []
    for one in tried:
        scaling = one.scaling(statistics)
        division = np.random.default_rng(seed)  # the same for all
        fitted = _fit_branches(scaled(rows[learned], scaling), responses[learned], one, division, dim, n_jobs)
        predicted = _predict(*fitted, scaled(rows[left], scaling), n_jobs)
        errors.append(float(np.square(predicted - responses[left]).sum()))
    return tried[int(np.argmin(errors))]


def _fit_branches(
    rows: FloatArray,
    responses: FloatArray,
    taken: Candidate,
    draws: np.random.Generator,
    dim: int | None,
    n_jobs: int | None,
) -> tuple[Bank, list[Branch]]:
    """Machines of rows that are scaled already, divided as was chosen, with their responses."""
    batches = split_rows(rows, *taken.division, draws)
    machines = fit_machines([rows[part] for part in batches], subspace_dim=dim, n_jobs=n_jobs)
    bank = Bank.assemble(machines, list(range(len(machines))), len(machines))
    with single_blas_thread():
        return bank, [_fit_branch(machine, responses[part]) for machine, part in zip(machines, batches, strict=True)]


def _predict(bank: Bank, branches: list[Branch], queries: FloatArray, n_jobs: int | None) -> FloatArray:
    """Responses (n, q) of the machine that is nearest to each query."""
    nearest = bank.scores(queries, "distance", n_jobs).values.argmin(axis=1)
    predicted = np.empty((len(queries), branches[0].responses.shape[1]))
    with single_blas_thread():
        for number in np.unique(nearest):
            predicted[nearest == number] = branches[number].predict(queries[nearest == number])
    return predicted


def _fit_branch(machine: Machine, responses: FloatArray) -> Branch:
    layer = machine.layers[0]
    count, outputs = responses.shape
    uniform = np.full(count, 1.0 / count)
    if machine.subspace_dim == 0:
        return Branch(machine, layer, np.column_stack([responses / count, uniform, uniform]), responses)
    spectrum, basis = np.linalg.eigh(layer_kernel(layer.exponent, machine.scores))
    turned, ones = basis.T @ responses, basis.sum(axis=0)
    energies = np.einsum("ij,ij->i", turned, turned)
    # Responses that are all zero have no fixed point above zero; any positive lambda predicts zero.
    level = regularization(spectrum, energies, outputs) if energies.any() else 1.0
    inverse = 1.0 / (np.maximum(spectrum, 0.0) + level)
    bounds = np.sqrt(count * (basis**2 @ inverse**2))
    coefficients = np.column_stack([basis @ (inverse[:, None] * turned), basis @ (inverse * ones), bounds])
    return Branch(machine, replace(layer, regularization=level), coefficients, responses)
