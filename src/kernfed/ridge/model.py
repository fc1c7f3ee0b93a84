"""The model a federated ridge regression makes: weights on features that a seed describes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._threads import resolve_jobs, single_blas_thread
from kernfed._validation import FloatArray, check_choice, check_rows
from kernfed.errors import InputError
from kernfed.files import Record, Savable, register
from kernfed.kernels import row_blocks
from kernfed.kernels.simplex import project_on_simplex
from kernfed.ridge.heterogeneity import Heterogeneity, SiteHeterogeneity
from kernfed.ridge.parameters import RidgeParameters

METHODS = ("conjugate", "newton", "exact", "dkrr", "fedavg", "fedprox")
#: Rows per block of a prediction: the features of a block are held, not those of all rows.
_BLOCK = 1024


@dataclass(frozen=True)
class Round:
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
class RidgeModel(Savable):
    """Kernel ridge regression of all sites' rows: ``f(x) = W' phi(x) + a``, W (M, C).

    One-vs-rest for "classify" (the class with the largest value), C = 1 for "regress".

    history_ : a ``Round`` per round. stopped_ : why training ended: "rounds", "tolerance", "converged", "diverged" or
    "sites lost". heterogeneity_ : what was learned of the sites' differences. path_ : leave-one-out mean squared error
    of every candidate regularisation, empty if there was one. missing : sites that did not take part, with reasons.
    columns : names of the columns of X, where the sites' tables had them. intercept : a (C,), or None for none.
    """

    parameters: RidgeParameters
    weights_: FloatArray
    method: str
    history_: tuple[Round, ...] = ()
    stopped_: str = "rounds"
    heterogeneity_: Heterogeneity = field(default_factory=Heterogeneity)
    path_: Mapping[float, float] = field(default_factory=dict)
    missing_: Mapping[str, str] = field(default_factory=dict)
    feature_names_in_: tuple[str, ...] = ()
    intercept_: FloatArray | None = None

    def __str__(self) -> str:
        what = f"{len(self.classes_)} classes" if self.parameters.task == "classify" else "values"
        last = self.history_[-1] if self.history_ else None
        rounds = "" if last is None else f", {last.round} round(s)"
        return (
            f"RidgeModel of {what} from {self.n_features_in_} columns by {self.method!r}{rounds}, stopped: {self.stopped_}; "
            f"{len(self.weights_)} features{' and an intercept' * (self.intercept_ is not None)}, "
            f"regularization {self.regularization_:.3g}"
        )

    __repr__ = __str__

    @property
    def n_features_in_(self) -> int:
        """Columns of X."""
        return self.parameters.width

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels (C,) in the order of the columns; empty for "regress"."""
        return self.parameters.labels

    @property
    def regularization_(self) -> float:
        """The regularisation in use."""
        return self.parameters.regularization[0]

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Values (n, C) of f, LARGER is better; to classify only."""
        self._check_task("classify", "decision values", "predict")
        return self._values(check_rows(X, width=self.n_features_in_, columns=self.feature_names_in_))

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Negative decision values (n, C): SMALLER is better, as in every classifier here."""
        return -self.decision_function(X)

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Probabilities (n, C): the probability vectors nearest to the decision values, which are fitted to 0 and 1."""
        return project_on_simplex(self.decision_function(X))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Labels, or values, (n,)."""
        values = self._values(check_rows(X, width=self.n_features_in_, columns=self.feature_names_in_))
        return values[:, 0] if self.parameters.task == "regress" else np.asarray(self.classes_[values.argmax(axis=1)])

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Accuracy to classify, coefficient of determination R^2 to regress."""
        from sklearn.metrics import accuracy_score, r2_score  # here, for nothing else needs scikit-learn

        measure = r2_score if self.parameters.task == "regress" else accuracy_score
        return float(measure(np.asarray(y), self.predict(X)))

    def history_table(self) -> dict[str, list[Any]]:
        """The history by column, as plotting libraries and data frames take it."""
        names = Round.__dataclass_fields__
        return {name: [getattr(entry, name) for entry in self.history_] for name in names}

    def _values(self, rows: FloatArray) -> FloatArray:
        features = self.parameters.feature_map()

        def block_values(block: slice) -> FloatArray:
            mapped = rows[block] if features is None else features.transform(rows[block])
            found = mapped @ self.weights_
            return np.asarray(found if self.intercept_ is None else found + self.intercept_)

        from joblib import Parallel, delayed  # here, so that knowing the model does not need it

        blocks = list(row_blocks(len(rows), _BLOCK))
        jobs = resolve_jobs(None) if len(blocks) > 1 else 1
        with single_blas_thread():
            work = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem")
            return np.concatenate(work(delayed(block_values)(block) for block in blocks))

    def _check_task(self, task: str, what: str, instead: str) -> None:
        if self.parameters.task != task:
            raise InputError(
                f"{what} need a model made with task={task!r}, this one has {self.parameters.task!r}; use {instead}"
            )


def _dump(model: RidgeModel) -> Record:
    values = {
        "parameters": model.parameters.to_values(),
        "method": model.method,
        "stopped": model.stopped_,
        "history": [asdict(entry) for entry in model.history_],
        "heterogeneity": asdict(model.heterogeneity_),
        "path": [[candidate, loss] for candidate, loss in model.path_.items()],
        "missing": dict(model.missing_),
        "columns": list(model.feature_names_in_),
    }
    intercept = {} if model.intercept is None else {"intercept": model.intercept}
    return Record({"weights": model.weights, **intercept}, values)


def _load(record: Record) -> RidgeModel:
    values, weights = record.values, record.arrays["weights"]
    parameters = RidgeParameters.from_values(values["parameters"])
    expected = (parameters.n_features, parameters.n_targets)
    if weights.shape != expected or weights.dtype != np.float64 or len(parameters.regularization) != 1:
        raise InputError(f"weights must be float64 of shape {expected}, got {weights.dtype} of {weights.shape}")
    intercept = record.arrays["intercept"] if parameters.intercept else None
    if intercept is not None and (intercept.shape != expected[1:] or intercept.dtype != np.float64):
        raise InputError(
            f"intercept must be float64 of shape {expected[1:]}, got {intercept.dtype} of {intercept.shape}"
        )
    found = dict(values["heterogeneity"])
    sites = found.pop("sites")
    heterogeneity = Heterogeneity(
        **found, sites=None if sites is None else {name: SiteHeterogeneity(**entry) for name, entry in sites.items()}
    )
    return RidgeModel(
        parameters,
        weights,
        check_choice(values["method"], "method", METHODS),
        tuple(Round(**entry) for entry in values["history"]),
        str(values["stopped"]),
        heterogeneity,
        {float(candidate): float(loss) for candidate, loss in values["path"]},
        dict(values["missing"]),
        tuple(map(str, values.get("columns", ()))),
        intercept,
    )


register("RidgeModel", 1, RidgeModel, _dump, _load)
