"""Estimators in scikit-learn's form: each is a federation of one site in this process, so the two cannot differ.

>>> from sklearn.datasets import load_iris
>>> X, y = load_iris(return_X_y=True)
>>> FusionClassifier().fit(X, y).score(X, y) > 0.93
True
>>> round(KAHMClassifier().fit(X, y).score(X, y), 2)
0.99
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from joblib import parallel_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray, check_count
from kernfed.base.model import Model
from kernfed.base.prior import Prior, check_prior, prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.fusion.learner import FusionLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.fusion.model import FusionModel
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import AUTO, Chosen, scaled
from kernfed.kahm.model import FoldingModel
from kernfed.kernels.rows import Scaling
from kernfed.ridge.model import RidgeModel

#: Name of the one site.
SITE = "site"
#: Types of rows and queries that are taken as they are; others become the first.
_DTYPES = (np.float64, np.float32)


class OneSite(Model, BaseEstimator):  # type: ignore[misc]
    """An estimator whose ``model_`` is learned by a learner from one site that has all rows."""

    random_state: int | None
    n_jobs: int | None
    classes_: npt.NDArray[Any]
    n_features_in_: int
    model_: Any
    #: Whether labels are classes.
    _classifies: ClassVar[bool] = True

    def learner(self) -> Any:
        """The learner with the parameters of the estimator."""
        raise NotImplementedError

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from rows X (n, p) with labels or values y (n,)."""
        fewest = 1 if self._classifies else 2
        rows, labels = validate_data(
            self, X, y, dtype=_DTYPES, y_numeric=not self._classifies, ensure_min_samples=fewest
        )
        if self._classifies:
            check_classification_targets(labels)
            self.classes_ = np.unique(labels)
            labels = np.array(labels.tolist())  # labels of an object array get a type
            if len(self.classes_) < 2:
                raise InputError(f"y must have at least 2 classes, got 1 class: {self.classes_.tolist()[0]!r}")
        elif labels.dtype.kind not in "biuf":
            raise InputError(f"y must be numbers, got {labels.tolist()[0]!r:.60}; use FusionClassifier for labels")
        seed = 0 if self.random_state is None else check_count(self.random_state, "random_state", at_least=0)
        columns = [str(name) for name in getattr(self, "feature_names_in_", ())]
        with Federation.local({SITE: (rows, labels)}, seed=seed, columns=columns) as federation:
            self.model_ = self.learner().fit(federation)
        return self

    @contextmanager
    def _asked(self, X: npt.ArrayLike) -> Iterator[FloatArray]:
        """Queries (n, p), checked, while ``n_jobs`` threads may score them."""
        check_is_fitted(self, "model_")
        queries = validate_data(self, X, reset=False, dtype=_DTYPES)
        if self.n_jobs is None:
            yield queries
            return
        with parallel_config("threading", n_jobs=self.n_jobs):
            yield queries

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Labels or values (n,)."""
        with self._asked(X) as queries:
            return np.asarray(self.model_.predict(queries))


class _Classifier(ClassifierMixin, OneSite):  # type: ignore[misc]
    """What classifiers have beside: probabilities, scores, and a prior."""

    prior: Any
    can_explain = True

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from rows X (n, p) with labels y (n,) of any type."""
        super().fit(X, y)
        check_prior(self.prior, self.classes_)
        self.model_ = replace(self.model_, prior=self._usual_prior())
        return self

    def _usual_prior(self) -> Prior:
        """The prior of the model where none is asked for."""
        return prior_from_values(prior_to_values(self.prior, self.classes_), self.classes_)

    def predict(self, X: npt.ArrayLike, *, prior: Prior = None) -> npt.NDArray[Any]:
        """Labels (n,); ties go to the first class."""
        with self._asked(X) as queries:
            return self._typed(self.model_.predict(queries, prior=prior))

    def _typed(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Labels of the model in the type that those of the training rows had."""
        return np.asarray(self.classes_[np.searchsorted(self.model_.classes_, labels)])

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None) -> FloatArray:
        """Probabilities (n, C) in the order of ``classes_``, calibrated on rows that the model did not see."""
        with self._asked(X) as queries:
            return np.asarray(self.model_.predict_proba(queries, prior=prior))

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None) -> Answer:
        """Labels, probabilities and scores from one computation."""
        with self._asked(X) as queries:
            answer: Answer = self.model_.answer(queries, prior=prior)
            return replace(answer, labels=self._typed(answer.labels))

    def explain(self, X: npt.ArrayLike, **options: Any) -> Any:
        """Per query the label, and what decided it; ``options`` as in the model's ``explain``."""
        with self._asked(X) as queries:
            return self.model_.explain(queries, **options)

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Scores (n, C) in the order of ``classes_``: SMALLER is better."""
        with self._asked(X) as queries:
            return np.asarray(self.model_.scores(queries))

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Negative scores (n, C); for two classes the difference in favour of the second, (n,)."""
        scores = self.scores(X)
        return scores[:, 0] - scores[:, 1] if len(self.classes_) == 2 else -scores


class KAHMClassifier(_Classifier):
    """Each class modelled by (wide, deep) kernel affine hull machines; the class with the smallest measure wins.

    DP-KAHM Definition 7 with ``measure="distance"``, the space folding classifier SFM (118) with the others. There is
    nothing to tune: dimensions, kernel and regulariser follow from the data, and so do unit and batches. It is what
    ``FoldingLearner(hold="machines")`` learns from one site.

    Parameters
    ----------
    measure : "distance", "rms", "product", "min", "max", "euclidean" or "cosine"
    batch_size : rows per machine, about, or "auto"
    partition : "auto", "kmeans", "order" or "random"; how a class is divided into machines
    layers : layers of each machine (DP-KAHM Definition 3), at most its dimension
    subspace_dim : "auto" (SFM Algorithm 1) or int
    dtype : "float64" or "float32", precision of storage and scoring
    n_jobs : threads that score queries; None takes as many as BLAS would. No result depends on it.
    random_state : int or None (as 0), seed of the division and of the rows chosen for calibration
    prior : shares of classes where the model is used, "training", "uniform" or a share for every class; also an
        argument of whatever predicts. Scores move by ``- temperature_ log(pi'_c / pi_c)``, pi the shares in training
    scale : "columns" (each to the same spread), "entries" (all by one constant), "auto" (the better of these), or None
        for rows as they are. Whatever is "auto", and the unit, is chosen by rows of a sample that machines did not see

    Attributes
    ----------
    model_ : the ``FoldingModel``
    scaling_ : how rows and queries are brought to one unit, or None
    chosen_ : what was chosen and by which counts, or None where nothing was to choose
    classes_ : (C,) labels in sorted order
    bank_ : the fitted machines
    temperature_ : temperature of ``predict_proba``, fitted on scores of left-out rows
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    model_: FoldingModel

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

    def learner(self) -> FoldingLearner:
        """The learner with the parameters of the estimator."""
        names = ("batch_size", "partition", "scale", "layers", "subspace_dim", "dtype")
        return FoldingLearner(self.measure, hold="machines", **{name: getattr(self, name) for name in names})

    @property
    def folding(self) -> FoldingModel:
        """The machines as a model of one site."""
        return self.model_

    @property
    def bank_(self) -> Bank:
        """The fitted machines."""
        check_is_fitted(self, "model_")
        assert self.model_.banks_ is not None
        return self.model_.banks_[SITE]

    @property
    def scaling_(self) -> Scaling | None:
        """How rows and queries are brought to one unit."""
        return self.model_.parameters.scale

    @property
    def chosen_(self) -> Chosen | None:
        """What was chosen, and by which counts."""
        return self.model_.chosen

    @property
    def temperature_(self) -> float:
        """Temperature of ``predict_proba``."""
        return self.model_.temperature_

    def fallback_share(self, X: npt.ArrayLike) -> float:
        """Share of (query, machine) pairs whose memberships summed to nothing, so that kernel weights were used."""
        with self._asked(X) as queries:
            scored = self.bank_.scores(scaled(queries, self.scaling_), self.measure, self.n_jobs)
        return scored.fallbacks / (len(scored.values) * len(self.bank_.machines))


class FusionClassifier(_Classifier):
    """Kernel affine hull machines and a ridge head: what ``FusionLearner(hold="machines")`` learns from one site.

    Parameters
    ----------
    weight : "auto", by training rows that neither part saw, or the weight of the machines; 0 is the head alone
    class_weight : None, "balanced" for a head in which every class weighs the same, or a weight for every label
    n_components : Fourier features of the head, or "auto"
    prior : shares of classes where the model is used: "training" (as weighed by ``class_weight``), "uniform" or a share
        for every class
    n_jobs : threads that score queries; no result depends on it
    random_state : int or None (as 0)

    Attributes
    ----------
    model_ : the ``FusionModel``
    classes_ : (C,) labels in sorted order
    machines_ : its ``FoldingModel``; head_ : its ``RidgeModel``
    weight_, temperature_ : of ``kernfed.fusion.combination``
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    model_: FusionModel

    def __init__(
        self,
        weight: float | str = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        n_components: int | str = "auto",
        prior: Any = "training",
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.weight = weight
        self.class_weight = class_weight
        self.n_components = n_components
        self.prior = prior
        self.n_jobs = n_jobs
        self.random_state = random_state

    def learner(self) -> FusionLearner:
        """The learner with the parameters of the estimator."""
        head = RidgeLearner(class_weight=self.class_weight, n_components=self.n_components)
        return FusionLearner(ridge=head, weight=self.weight, hold="machines")

    def _usual_prior(self) -> Prior:
        """The prior given; with weights of classes the shares that these make stand for those in training."""
        return self.model_.prior if self.prior == "training" else super()._usual_prior()

    @property
    def folding(self) -> FoldingModel | None:
        """The machines as a model of one site."""
        return self.model_.folding

    machines_ = folding

    @property
    def head_(self) -> RidgeModel | None:
        """The head."""
        return self.model_.ridge

    @property
    def weight_(self) -> float:
        """Weight of the machines."""
        return self.model_.weight_

    @property
    def temperature_(self) -> float:
        """Temperature of ``predict_proba``."""
        return self.model_.temperature_


class FusionRegressor(RegressorMixin, OneSite):  # type: ignore[misc]
    """Kernel ridge regression with everything chosen by left-out rows: what ``FusionLearner(task="regress")`` learns.

    Parameters
    ----------
    n_components : Fourier features, or "auto"
    n_jobs : has no effect on results
    random_state : int or None (as 0)

    Attributes
    ----------
    model_ : the ``FusionModel``, a head alone; head_ : its ``RidgeModel``
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    model_: FusionModel
    classes_ = np.zeros(0)
    _classifies = False

    def __init__(
        self, n_components: int | str = "auto", n_jobs: int | None = None, random_state: int | None = None
    ) -> None:
        self.n_components = n_components
        self.n_jobs = n_jobs
        self.random_state = random_state

    def learner(self) -> FusionLearner:
        """The learner with the parameters of the estimator."""
        return FusionLearner(ridge=RidgeLearner(n_components=self.n_components), task="regress")

    @property
    def head_(self) -> RidgeModel | None:
        """The head."""
        return self.model_.ridge
