"""KAHM regression (DP-KAHM (32)) in scikit-learn's form."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kernfed._random import generator
from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray, check_choice, check_count
from kernfed.answer import Answer
from kernfed.files import Savable
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.batches import PARTITIONS, split_rows
from kernfed.kahm.machine import FALLBACK_RATIO, Layer, Machine, hull_weights, layer_kernel
from kernfed.kahm.spectrum import check_subspace_dim, regularization


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


class KAHMRegressor(Savable, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Responses combined with the weights of a kernel affine hull machine (DP-KAHM (32)).

    The regulariser is the fixed point (27)-(28) of the responses. Rows are divided into machines as in ``WideKAHM``,
    and the machine nearest to a query answers it.

    Parameters
    ----------
    batch_size, partition, subspace_dim, n_jobs, random_state : as in ``KAHMClassifier``
    standardize : whether responses are centred and scaled before (28), so that their unit does not matter;
        False is the formula as printed

    Attributes
    ----------
    bank_ : the fitted machines; branches_ : the responses of each machine's rows
    shift_, scale_ : (q,) what responses were centred and scaled by; flat_ : whether y had one dimension
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    def __init__(
        self,
        batch_size: int = 1000,
        partition: str = "kmeans",
        subspace_dim: int | str = "auto",
        standardize: bool = True,
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.partition = partition
        self.subspace_dim = subspace_dim
        self.standardize = standardize
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit on rows X (N, p) with responses y (N,) or (N, q)."""
        check_choice(self.partition, "partition", PARTITIONS)
        size = check_count(self.batch_size, "batch_size")
        dim = check_subspace_dim(self.subspace_dim)
        rows, responses = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.flat_ = responses.ndim == 1
        table = responses.reshape(len(rows), -1).astype(np.float64)
        self.shift_ = table.mean(axis=0) if self.standardize else np.zeros(table.shape[1])
        spread = table.std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0) if self.standardize else np.ones(table.shape[1])
        table = (table - self.shift_) / self.scale_
        seed = 0 if self.random_state is None else self.random_state
        batches = split_rows(rows, size, self.partition, generator(seed, "divide"))
        machines = fit_machines([rows[part] for part in batches], subspace_dim=dim, n_jobs=self.n_jobs)
        self.bank_ = Bank.assemble(machines, list(range(len(machines))), len(machines))
        with single_blas_thread():
            self.branches_ = [
                _fit_branch(machine, table[part]) for machine, part in zip(machines, batches, strict=True)
            ]
        return self

    def answer(self, X: npt.ArrayLike) -> Answer:
        """Predicted responses as an ``Answer``, which has no more than these."""
        return Answer(self.predict(X))

    def predict(self, X: npt.ArrayLike) -> FloatArray:
        """Predicted responses, (n,) or (n, q)."""
        check_is_fitted(self, "bank_")
        queries = validate_data(self, X, reset=False, dtype=np.float64)
        nearest = self.bank_.scores(queries, "distance", self.n_jobs).values.argmin(axis=1)
        predicted = np.empty((len(queries), len(self.shift_)))
        with single_blas_thread():
            for number in np.unique(nearest):
                predicted[nearest == number] = self.branches_[number].predict(queries[nearest == number])
        predicted = predicted * self.scale_ + self.shift_
        return predicted[:, 0] if self.flat_ else predicted


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
