"""KAHM classifier in scikit-learn's form.

>>> from sklearn.datasets import load_iris
>>> X, y = load_iris(return_X_y=True)
>>> model = KAHMClassifier().fit(X, y)
>>> round(model.score(X, y), 2)
0.99
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kernfed.base.answer import Answer, answer_of_scores
from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.base.model import Model
from kernfed.base.prior import Prior, adjusted_scores, check_prior, log_ratio, weighted_shares
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kahm.bank import Bank, BankScores, fit_machines
from kernfed.kahm.choice import AUTO, Candidate, Chosen, candidates, divide_classes, scaled
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.left_out import Machines, fit_temperature, left_out_scores, softmin, try_candidates
from kernfed.kahm.spectrum import DTYPES, check_subspace_dim
from kernfed.kernels.rows import ColumnStatistics, Scaling

#: Checks of scikit-learn's ``check_estimator`` that fail, with the reason. None does.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}


class KAHMClassifier(ClassifierMixin, Model, BaseEstimator):  # type: ignore[misc]
    """Each class modelled by (wide, deep) kernel affine hull machines; the class with the smallest measure wins.

    DP-KAHM Definition 7 with ``measure="distance"``, the space folding classifier SFM (118) with the others. There is
    nothing to tune: dimensions, kernel and regulariser follow from the data, and so do unit and batches.

    Parameters
    ----------
    measure : "distance", "rms", "product", "min", "max", "euclidean" or "cosine"
    batch_size : rows per machine, about, or "auto"
    partition : "auto", "kmeans", "order" or "random"; how a class is divided into machines
    layers : layers of each machine (DP-KAHM Definition 3), at most its dimension
    subspace_dim : "auto" (SFM Algorithm 1) or int
    dtype : "float64" or "float32", precision of storage and scoring
    n_jobs : threads; None takes as many as BLAS would. No result depends on it.
    random_state : int or None (as 0), seed of the division and of the rows chosen for calibration
    prior : shares of classes where the model is used, "training", "uniform" or a share for every class; also an
        argument of whatever predicts. Scores move by ``- temperature_ log(pi'_c / pi_c)``, pi the shares in training

    scale : "columns" (each to the same spread), "entries" (all by one constant), "auto" (the better of these), or None
        for rows as they are. Whatever is "auto", and the unit, is chosen by rows of a sample that machines did not see

    Attributes
    ----------
    scaling_ : how rows and queries are brought to one unit, or None
    chosen_ : what was chosen and by which counts, or None where nothing was to choose
    classes_ : (C,) labels in sorted order
    bank_ : the fitted machines; batches_ : numbers of the training rows of each, not in files
    temperature_ : temperature of ``predict_proba``, fitted on scores of left-out rows
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    classes_: npt.NDArray[Any]
    n_features_in_: int

    def __init__(
        self,
        measure: str = "distance",
        batch_size: int | str = AUTO,
        partition: str = AUTO,
        layers: int = 1,
        subspace_dim: int | str = "auto",
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: int | None = None,
        prior: Prior = "training",
        scale: str | None = AUTO,
    ) -> None:
        self.measure = measure
        self.batch_size = batch_size
        self.partition = partition
        self.layers = layers
        self.subspace_dim = subspace_dim
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.prior = prior
        self.scale = scale

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit on rows X (N, p) with labels y (N,) of any type."""
        check_choice(self.measure, "measure", MEASURES)
        tried = candidates(self.scale, self.batch_size, self.partition)
        rows, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must have at least 2 classes, got 1 class: {self.classes_[0]!r}")
        seed = 0 if self.random_state is None else self.random_state
        shape: dict[str, Any] = {
            "subspace_dim": check_subspace_dim(self.subspace_dim),
            "layers": check_count(self.layers, "layers"),
            "dtype": check_choice(self.dtype, "dtype", DTYPES),
        }
        taken = self._choose(rows, numbers, tried, Machines(self.measure, n_jobs=self.n_jobs, **shape), seed)
        rows = scaled(rows, self.scaling_)
        batches, groups = divide_classes(
            rows, numbers, taken.division, lambda number: generator(seed, "divide", str(number))
        )
        self.batches_ = batches
        machines = fit_machines([rows[part] for part in batches], n_jobs=self.n_jobs, **shape)
        self.bank_ = Bank.assemble(machines, groups, len(self.classes_))
        with single_blas_thread():
            left_out = left_out_scores(self.bank_, self.measure, generator(seed, "calibrate"), **shape)
        self.temperature_ = fit_temperature(*left_out)
        return self

    def _choose(
        self,
        rows: FloatArray,
        numbers: npt.NDArray[np.intp],
        tried: tuple[Candidate, ...],
        machines: Machines,
        seed: int,
    ) -> Candidate:
        """What rows are best scaled and divided by; how they are scaled follows from all of them."""
        self.chosen_: Chosen | None = None
        self.scaling_: Scaling | None = None
        if len(tried) == 1 and tried[0].scale is None:
            return tried[0]
        statistics = ColumnStatistics.of(rows)
        tally = try_candidates(rows, numbers, tried, machines, generator(seed, "choose"), statistics)
        self.chosen_ = Chosen.by(tried, tally)
        self.scaling_ = self.chosen_.candidate.scaling(statistics)
        return self.chosen_.candidate

    def _score(self, X: npt.ArrayLike) -> BankScores:
        check_is_fitted(self, "bank_")
        queries = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return self.bank_.scores(scaled(queries, self.scaling_), self.measure, self.n_jobs)

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None) -> Answer:
        """Labels, probabilities and scores from one scoring."""
        scores = self._moved(self.scores(X), prior)
        return answer_of_scores(self.classes_, scores, softmin(scores, self.temperature_))

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Measure of every class, (n, C) in the order of ``classes_``: SMALLER is better."""
        return self._score(X).values

    def predict(self, X: npt.ArrayLike, *, prior: Prior = None) -> npt.NDArray[Any]:
        """Label with the smallest measure, (n,); ties go to the first class."""
        winners = self._moved(self.scores(X), prior).argmin(axis=1)
        return np.asarray(self.classes_[winners])

    def _moved(self, scores: FloatArray, prior: Prior) -> FloatArray:
        """Scores for the shares of a ``prior``; without one, for those of the estimator."""
        asked = check_prior(self.prior if prior is None else prior, self.classes_)
        rows = np.array([machine.n_rows for machine in self.bank_.machines])
        shares = weighted_shares(np.bincount(self.bank_.groups, weights=rows, minlength=len(self.classes_)))
        return adjusted_scores(scores, self.temperature_, log_ratio(asked, self.classes_, made=shares, training=shares))

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None) -> FloatArray:
        """Calibrated probabilities (n, C): softmax of the negative scores over the fitted temperature."""
        scores = self._moved(self.scores(X), prior)
        return softmin(scores, self.temperature_)

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Negative scores (n, C); for two classes the difference in favour of the second, (n,)."""
        scores = self.scores(X)
        return scores[:, 0] - scores[:, 1] if len(self.classes_) == 2 else -scores

    def fallback_share(self, X: npt.ArrayLike) -> float:
        """Share of (query, machine) pairs whose memberships summed to nothing, so that kernel weights were used."""
        scored = self._score(X)
        return scored.fallbacks / (len(scored.values) * len(self.bank_.machines))
