"""The model a federated ridge regression makes: weights on features that a seed describes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import Abstaining, Coverage, read_coverage
from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.fields import from_values
from kernfed.base.model import SiteSet
from kernfed.base.plain import read_columns, read_reasons, read_text
from kernfed.base.prior import Prior, prior_from_values, prior_to_values, weighted_shares
from kernfed.base.threads import in_threads
from kernfed.data.preparation import Preparation, preparation_values, read_preparation
from kernfed.errors import InputError
from kernfed.files import Record, register, register_former
from kernfed.kernels import row_blocks
from kernfed.kernels.head import Head
from kernfed.kernels.predictor import Predictor
from kernfed.promise import Terms, read_terms_of_0_1
from kernfed.ridge.heterogeneity import Heterogeneity, SiteHeterogeneity
from kernfed.ridge.parameters import RidgeChoices, RidgeParameters
from kernfed.ridge.robust import FEWEST_SITES

METHODS = ("conjugate", "newton", "exact", "dkrr")
#: Methods of other packages and of earlier versions, whose models are read.
_FORMER_METHODS = ("fedavg", "fedprox")
HEADS = ("squared", "logistic")
#: Rows per block of a prediction: the features of a block are held, not those of all rows.
_BLOCK = 1024


@dataclass(frozen=True)
class RidgeRound:
    """One round of training. Round 0 is everything up to the first common weights.

    objective : mean squared loss + regularization |W|^2 over all sites; gradient_norm : ``|H W - b|``. Both are None
    where a method does not learn them. bytes_up : sent by all sites; bytes_down : sent to them.
    """

    round: int
    objective: float | None
    gradient_norm: float | None
    bytes_up: int
    bytes_down: int
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class RidgeModel(Predictor, Abstaining):
    """Kernel ridge regression of all sites' rows: ``f(x) = W' phi(x) + a``, W (M, C).

    One-vs-rest for "classify" (the class with the largest value), C = 1 for "regress".

    history_ : a ``RidgeRound`` per round. stopped_ : why training ended: "rounds", "tolerance", "converged", "diverged"
    or "sites lost". heterogeneity_ : what was learned of the sites' differences. path_ : leave-one-out mean squared
    error of every candidate regularisation, empty if there was one. missing_ : sites that took no part, with reasons.
    feature_names_in_ : of the columns of X, where the sites' tables had them. intercept_ : a (C,), or None for none.
    privacy : under which terms the sums it is made of were released, None where they were taken as they are. head :
    "squared", or "logistic" for values that are log-odds. temperature_ : of probabilities, None where none was fitted.
    class_counts_ : rows of every class in training, () where that is not known. prior : shares of classes where the
    model is used, see ``Predictor``; a model with weights of classes is for the shares that these make, a balanced one
    for "uniform". choices_ : how it chose what it was not given, and its exchanges. conformal_ : what
    ``kernfed.conform`` counted on rows kept aside. range_ : (low, high) of the values in training, to which predictions
    are clipped; None to classify, and where it is not known.
    """

    parameters: RidgeParameters
    weights_: FloatArray
    method: str
    history_: tuple[RidgeRound, ...] = ()
    stopped_: str = "rounds"
    heterogeneity_: Heterogeneity = field(default_factory=Heterogeneity)
    path_: Mapping[float, float] = field(default_factory=dict)
    missing_: Mapping[str, str] = field(default_factory=dict)
    feature_names_in_: tuple[str, ...] = ()
    intercept_: FloatArray | None = None
    privacy: Terms | None = None
    head: str = "squared"
    temperature_: float | None = None
    class_counts_: tuple[int, ...] = ()
    prior: Prior = "training"
    choices_: RidgeChoices = field(default_factory=RidgeChoices)
    preparation: Preparation | None = None
    conformal_: Coverage | None = None
    range_: tuple[float, float] | None = None

    can_leave_out_sites = True

    def __str__(self) -> str:
        what = f"{len(self.classes_)} classes" if self.parameters.task == "classify" else "values"
        last = self.history_[-1] if self.history_ else None
        rounds = "" if last is None else f", {last.round} round(s)"
        intercept = " and an intercept" if self.intercept_ is not None else ""
        privacy = "" if self.privacy is None else f"\nprivacy: {self.privacy.line()}"
        chosen = f", {self.choices_.exchanges} exchange(s)" if self.choices_.exchanges else ""
        median = " of most sites" if self.choices_.aggregate == "median" else ""
        exposed = self.exposure()
        privacy += "" if exposed is None else f"\n{exposed}"
        return (
            f"RidgeModel of {what} from {self.n_features_in_} columns by {self.method!r}{median}{rounds}, "
            f"stopped: {self.stopped_}; {len(self.weights_)} features{intercept}, "
            f"regularization {self.regularization_:.3g} ({self.choices_.regularization}){chosen}{privacy}"
        )

    __repr__ = __str__

    def _solved(self) -> RidgeParameters:
        return self.parameters

    @property
    def ridge(self) -> "RidgeModel":
        """The model itself."""
        return self

    def chosen_by(self) -> Mapping[str, str]:
        """By whom regularisation and bandwidth were chosen, where nobody gave them."""
        found = {"regularization": self.choices_.regularization, "bandwidth": self.choices_.bandwidth}
        return {name: how for name, how in found.items() if how != "given"}

    @property
    def _temperature(self) -> float | None:
        return self.temperature_

    @property
    def _bounds(self) -> tuple[float, float] | None:
        return self.range_

    def _training_shares(self) -> FloatArray | None:
        return weighted_shares(self.class_counts_)

    def _made_for(self) -> FloatArray | None:
        weights = self.parameters.class_weights
        return None if weights is None else weighted_shares(self.class_counts_, weights)

    @property
    def regularization_(self) -> float:
        """The regularisation in use."""
        return self.parameters.regularization[0]

    @property
    def unprotected_(self) -> npt.NDArray[Any]:
        """Labels that one wrong site can decide: under "median" those of fewer than three sites, under "sum" all."""
        if self.choices_.aggregate == "sum":
            return self.classes_
        few = [count < FEWEST_SITES for count in self.choices_.holders]
        return self.classes_[few] if few else self.classes_[:0]

    def exposure(self) -> str | None:
        """What "median" does not protect from a wrong site, in words; None if that is nothing, and of "sum"."""
        names = [] if self.choices_.aggregate == "sum" else self.unprotected_.tolist()
        if not names:
            return None
        shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return (
            f"{len(names)} of {len(self.classes_)} classes can be decided by a wrong site: {shown}; "
            f"fewer than {FEWEST_SITES} site(s) hold them"
        )

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Values (n, C) of f, LARGER is better; to classify only."""
        self._check_classifies("decision values")
        return super().decision_function(X)

    def predict(self, X: npt.ArrayLike, *, prior: Prior = None, abstain: float | None = None) -> npt.NDArray[Any]:
        """Labels, or values, (n,); see ``Predictor`` for ``prior``.

        With ``abstain`` labels are masked where the model does not know, see ``abstaining``.
        """
        return super().predict(X, prior=prior) if abstain is None else self.abstaining(X, abstain, prior)

    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C), and nothing of strangers."""
        prior = self.prior if self.conformal_ is None else self.conformal_.prior
        return replace(self, prior=prior).predict_proba(X, **options), None

    def _head(self) -> Head:
        offset = np.zeros(self.weights_.shape[1]) if self.intercept_ is None else self.intercept_
        return self._made_head(self.weights_, offset, self.parameters.feature_map())

    def probabilities_without(
        self, X: npt.ArrayLike, sets: Sequence[SiteSet], heads: "Sequence[RidgeModel]" = (), **_: Any
    ) -> FloatArray:
        """Probabilities (1 + V, n, C) by this head and by ``heads`` on its features, which are computed once."""
        likely = [self.probabilities_of(values) for values in self.values_by([self, *heads], X)]
        return np.stack([*likely, *[likely[0]] * (len(sets) - len(heads))])

    def history_table(self) -> dict[str, list[Any]]:
        """The history by column, as plotting libraries and data frames take it."""
        names = RidgeRound.__dataclass_fields__
        return {name: [getattr(entry, name) for entry in self.history_] for name in names}

    def _values(self, rows: FloatArray) -> FloatArray:
        return self._values_by([self], rows)[0]

    def values_by(self, heads: "Sequence[RidgeModel]", X: npt.ArrayLike) -> list[FloatArray]:
        """Values (n, C) of every one of ``heads`` on the features of this model, which are computed once.

        No bit of a head's values depends on the other heads.
        """
        return self._values_by(heads, self._rows(X))

    def _values_by(self, heads: "Sequence[RidgeModel]", rows: FloatArray) -> list[FloatArray]:
        features = self.parameters.feature_map()

        def block_values(block: slice) -> list[FloatArray]:
            mapped = rows[block] if features is None else features.transform(rows[block])
            products = [mapped @ head.weights_ for head in heads]
            offsets = [head.intercept_ for head in heads]
            return [v if a is None else v + a for v, a in zip(products, offsets, strict=True)]

        blocks = in_threads(block_values, list(row_blocks(len(rows), _BLOCK)))
        return [np.concatenate(own) for own in zip(*blocks, strict=True)]


def _dump(model: RidgeModel) -> Record:
    values: dict[str, Any] = {
        "parameters": model.parameters.to_values(),
        "method": model.method,
        "stopped": model.stopped_,
        "history": [asdict(entry) for entry in model.history_],
        "heterogeneity": asdict(model.heterogeneity_),
        "path": [[candidate, loss] for candidate, loss in model.path_.items()],
        "missing": dict(model.missing_),
        "columns": list(model.feature_names_in_),
    }
    if model.privacy is not None:
        values["privacy"] = model.privacy.to_values()
    values |= {
        "head": model.head,
        "temperature": model.temperature_,
        "counts": list(model.class_counts_),
        "prior": prior_to_values(model.prior, model.classes_),
        "choices": model.choices_.to_values(),
    }
    values |= preparation_values(model.preparation)
    if model.range_ is not None:  # files without one are what they were
        values["range"] = list(model.range_)
    arrays = {"weights": model.weights_} | ({} if model.intercept_ is None else {"intercept": model.intercept_})
    if model.conformal_ is not None:
        counted, values["conformal"] = model.conformal_.to_parts(model.classes_)
        arrays |= counted
    return Record(arrays, values)


def _load(record: Record) -> RidgeModel:
    values, weights = record.values, record.arrays["weights"]
    parameters = RidgeParameters.from_values(values["parameters"])
    expected = (parameters.n_features, parameters.n_targets)
    if weights.shape != expected or weights.dtype != np.float64 or len(parameters.regularization) != 1:
        raise InputError(f"weights must be float64 of shape {expected}, got {weights.dtype} of {weights.shape}")
    intercept = record.arrays["intercept"] if parameters.fit_intercept else None
    if intercept is not None and (intercept.shape != expected[1:] or intercept.dtype != np.float64):
        raise InputError(
            f"intercept must be float64 of shape {expected[1:]}, got {intercept.dtype} of {intercept.shape}"
        )
    measured = dict(values["heterogeneity"])
    sites = measured.pop("sites")
    heterogeneity = replace(
        from_values(Heterogeneity, measured),
        sites=None if sites is None else {name: from_values(SiteHeterogeneity, e) for name, e in sites.items()},
    )
    model = RidgeModel(
        parameters,
        weights,
        check_choice(values["method"], "method", (*METHODS, *_FORMER_METHODS)),
        tuple(from_values(RidgeRound, entry) for entry in values["history"]),
        read_text(values["stopped"], "stopped"),
        heterogeneity,
        {check_number(c, "regularization"): check_number(loss, "loss") for c, loss in values["path"]},
        read_reasons(values["missing"]),
        read_columns(values.get("columns", []), parameters.width),
        intercept,
        Terms.from_values(values["privacy"]) if "privacy" in values else None,
        *_load_use(values, parameters),
    )
    return replace(
        model,
        preparation=read_preparation(values, parameters.width),
        conformal_=read_coverage(record.arrays, values.get("conformal"), parameters.labels),
        range_=_read_range(values, parameters.task),
    )


def _read_range(values: Mapping[str, Any], task: str) -> tuple[float, float] | None:
    """The range of values in training, checked; files of classes and of earlier versions have none."""
    if "range" not in values:
        return None
    if task != "regress" or not isinstance(values["range"], list) or len(values["range"]) != 2:
        raise InputError(f"range must be two numbers, and is for task='regress', got {values['range']!r:.60}")
    low, high = (check_number(end, "range") for end in values["range"])
    if low > high:
        raise InputError(f"range must be low <= high, got {low:g} and {high:g}")
    return low, high


def _load_use(values: Mapping[str, Any], parameters: RidgeParameters) -> tuple[Any, ...]:
    """Head, temperature, counts, prior and choices; files of version 0.1 have none of them.

    Their scores are for the shares in training, or for those that weights of classes made: either way as they are.
    """
    if "head" not in values:
        return "squared", None, (), "training" if parameters.class_weights is None else None, RidgeChoices()
    counts = tuple(check_count(count, "counts", at_least=0) for count in values["counts"])
    if counts and len(counts) != len(parameters.classes):
        raise InputError(f"counts must be one for each of {len(parameters.classes)} classes, got {len(counts)}")
    temperature = values["temperature"]
    return (
        check_choice(values["head"], "head", HEADS),
        None if temperature is None else check_number(temperature, "temperature", above=0),
        counts,
        prior_from_values(values["prior"], parameters.labels),
        RidgeChoices.from_values(values["choices"]),
    )


def _load_private_of_0_1(record: Record) -> RidgeModel:
    """Version 0.1 kept a private model as a record of its own around that of a ``RidgeModel``."""
    plain = _load(Record(record.arrays, record.values["model"]["values"]))
    terms = read_terms_of_0_1(record.values["privacy"])
    return replace(plain, privacy=Terms.from_values(terms.to_values()))  # checked as those of this version


register("RidgeModel", 1, RidgeModel, _dump, _load)
register_former("PrivateRidgeModel", 1, RidgeModel, _load_private_of_0_1)
