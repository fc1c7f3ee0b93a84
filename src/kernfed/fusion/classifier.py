"""Machines and a head in scikit-learn's form: what a federation of one site would learn.

>>> from sklearn.datasets import load_iris
>>> X, y = load_iris(return_X_y=True)
>>> model = FusionClassifier().fit(X, y)
>>> model.score(X, y) > 0.93
True
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kernfed.base.answer import Answer, answer_of_scores
from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.model import Model
from kernfed.base.plain import check_classes_sorted, read_columns
from kernfed.base.prior import Prior, check_prior, log_ratio, prior_from_values, prior_to_values, weighted_shares
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.fusion.combination import (
    USUAL_TEMPERATURE,
    FusionLosses,
    fused_values,
    left_out_values,
    probabilities,
)
from kernfed.fusion.model_file import nested, unnested
from kernfed.fusion.parts import SAMPLE_ROWS, weight_and_temperature
from kernfed.kahm.classifier import KAHMClassifier
from kernfed.kahm.left_out import LeftOutRows
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import balanced_weights, fourier_components
from kernfed.ridge.single import SingleHead, fit_single


class FusionClassifier(ClassifierMixin, Model, BaseEstimator):  # type: ignore[misc]
    """Kernel affine hull machines and a ridge head together; the twin of ``FusionLearner`` for rows in one place.

    Parameters
    ----------
    weight : "auto", by training rows that neither part saw, or the weight of the machines; 0 is the head alone
    class_weight : None, "balanced" for a head in which every class weighs the same, or a weight for every label
    n_components : Fourier features of the head; "auto" is at most twice the rows
    prior : shares of classes where the model is used: "training" (as weighed by ``class_weight``), "uniform" or a share
        for every class
    n_jobs : threads; no result depends on it
    random_state : int or None (as 0)

    Attributes
    ----------
    classes_ : (C,) labels in sorted order
    machines_ : the ``KAHMClassifier``; head_ : the ``RidgeModel``
    weight_, temperature_ : of ``kernfed.fusion.combination``
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    """

    classes_: npt.NDArray[Any]
    n_features_in_: int

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

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit on rows X (N, p) with labels y (N,) of any type."""
        if self.weight != "auto":
            check_number(self.weight, "weight", at_least=0)
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must have at least 2 classes, got 1 class: {self.classes_[0]!r}")
        check_prior(self.prior, self.classes_)
        self.machines_ = KAHMClassifier(n_jobs=self.n_jobs, random_state=self.random_state).fit(rows, numbers)
        weights = self._class_weights(np.bincount(numbers))
        head = fit_single(
            rows,
            numbers,
            class_weights=weights,
            n_components=self._components(len(rows)),
            seed=self._seed,
            draws=generator(self._seed, "median"),
        )
        self.head_ = head.model
        self.weight_, self.temperature_ = self._weigh(rows, numbers, head, weights)
        return self

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    def _class_weights(self, counts: npt.NDArray[np.intp]) -> tuple[float, ...] | None:
        """Weight of a row by class, None for 1."""
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, Mapping):
            unknown = set(self.class_weight) - set(self.classes_.tolist())
            if unknown:
                raise InputError(f"class_weight has {unknown.pop()!r}, which is no class; there are {self.classes_}")
            given = [self.class_weight.get(label, 1.0) for label in self.classes_.tolist()]
            return tuple(check_number(weight, "class_weight", above=0) for weight in given)
        check_choice(self.class_weight, "class_weight", ("balanced",))
        return balanced_weights(counts.tolist())

    def _components(self, rows: int) -> int:
        if self.n_components == "auto":
            return fourier_components(rows)
        return check_count(self.n_components, "n_components")

    def _weigh(
        self, X: FloatArray, numbers: npt.NDArray[np.intp], head: SingleHead, weights: tuple[float, ...] | None
    ) -> tuple[float, float]:
        """Weight and temperature by rows that neither part saw."""
        bank = self.machines_.bank_
        batches = self.machines_.batches_
        left = LeftOutRows.draw([len(own) for own in batches], generator(self._seed, "fusion"), SAMPLE_ROWS)
        usual = head.model.temperature_ or USUAL_TEMPERATURE
        if not len(left):
            return weight_and_temperature(None, None if self.weight == "auto" else float(self.weight), usual)
        picked = np.concatenate(
            [batches[number][own] for number, own in zip(left.machines, left.positions, strict=True)]
        )
        with single_blas_thread():
            scores = left.scores(bank, self.machines_.measure)
            leverage = head.leverage(X[picked])
        values = head.model.decision_function(X[picked])
        own = np.ones(len(picked)) if weights is None else np.asarray(weights)[numbers[picked]]
        values = left_out_values(values, leverage, numbers[picked], own)
        losses = FusionLosses.of(values, scores, numbers[picked], own)
        return weight_and_temperature(losses, None if self.weight == "auto" else float(self.weight), usual)

    def _fused(self, X: npt.ArrayLike, prior: Prior) -> FloatArray:
        """Values (n, C), LARGER is better, for the prior asked for."""
        check_is_fitted(self, "head_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        scores = self.machines_.scores(rows) if self.weight_ else np.zeros((len(rows), len(self.classes_)))
        fused = fused_values(self.head_.decision_function(rows), scores, self.weight_)
        asked = check_prior(self._usual_prior() if prior is None else prior, self.classes_)
        training = weighted_shares(self.head_.class_counts_)
        weights = self.head_.parameters.class_weights
        made = training if weights is None else weighted_shares(self.head_.class_counts_, weights)
        shift = log_ratio(asked, self.classes_, made=made, training=training)
        return fused if shift is None else np.asarray(fused + self.temperature_ * shift)

    def _usual_prior(self) -> Any:
        """The prior given; with weights of classes the shares that these make stand for those in training."""
        return None if self.prior == "training" and self.class_weight is not None else self.prior

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None) -> Answer:
        """Labels, probabilities and scores from one computation."""
        fused = self._fused(X, prior)
        return answer_of_scores(self.classes_, -fused, probabilities(fused, self.temperature_))

    def scores(self, X: npt.ArrayLike, *, prior: Prior = None) -> FloatArray:
        """Scores (n, C) in the order of ``classes_``: SMALLER is better."""
        return -self._fused(X, prior)

    def predict(self, X: npt.ArrayLike, *, prior: Prior = None) -> npt.NDArray[Any]:
        """Labels (n,); ties go to the first class."""
        fused = self._fused(X, prior)
        return np.asarray(self.classes_[fused.argmax(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None) -> FloatArray:
        """Probabilities (n, C), fitted to rows that neither part saw."""
        fused = self._fused(X, prior)
        return probabilities(fused, self.temperature_)

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Logits times the temperature (n, C); for two classes the difference in favour of the second, (n,)."""
        fused = self._fused(X, None)
        return fused[:, 1] - fused[:, 0] if len(self.classes_) == 2 else fused


def _dump_classifier(model: FusionClassifier) -> Record:
    check_is_fitted(model, "head_")
    parts = nested({"machines": model.machines_, "head": model.head_})
    settings = {name: value for name, value in model.get_params().items() if name != "prior"}
    if isinstance(model.class_weight, Mapping):
        settings["class_weight"] = [[label, weight] for label, weight in model.class_weight.items()]
    values = {
        **parts.values,
        "settings": settings,
        "prior": prior_to_values(model.prior, model.classes_),
        "classes": labels_to_values(model.classes_),
        "columns": list(model.column_names),
        "weight": model.weight_,
        "temperature": model.temperature_,
    }
    return Record(parts.arrays, values)


def _load_classifier(record: Record) -> FusionClassifier:
    values = record.values
    machines, head = unnested(record, "machines", KAHMClassifier), unnested(record, "head", RidgeModel)
    classes = check_classes_sorted(labels_from_values(values["classes"]))
    if machines is None or head is None or {len(head.classes_), len(machines.classes_)} != {len(classes)}:
        raise InputError(f"machines and head must have {len(classes)} classes")
    if head.n_features_in_ != machines.n_features_in_:
        raise InputError("machines and head must have the same columns")
    settings = dict(values["settings"])
    if isinstance(settings.get("class_weight"), list):
        settings["class_weight"] = dict(settings["class_weight"])
    model = FusionClassifier(**settings, prior=prior_from_values(values["prior"], classes))
    model.machines_, model.head_, model.classes_ = machines, head, classes
    model.n_features_in_ = head.n_features_in_
    columns = read_columns(values["columns"], model.n_features_in_)
    if columns:
        model.feature_names_in_ = np.array(columns, dtype=object)
    model.weight_ = check_number(values["weight"], "weight", at_least=0)
    model.temperature_ = check_number(values["temperature"], "temperature", above=0)
    return model


register("FusionClassifier", 1, FusionClassifier, _dump_classifier, _load_classifier)
