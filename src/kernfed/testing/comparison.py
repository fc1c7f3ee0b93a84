"""Sites alone, together and pooled, on one table that is here: what learning together is worth, and what it costs."""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.random import generator
from kernfed.errors import KernfedError, KernfedWarning
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.fusion.learner import FusionLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.privacy.moments import RecordMoments
from kernfed.testing.outcomes import count_outcomes, error_sums

#: Settings of each method, folds of the cross-validation, and rows that it sees at most.
SETTINGS, FOLDS, TUNED = 4, 3, 2000

Maker = Callable[[int], tuple[Any, dict[str, list[Any]]]]


def classifiers() -> dict[str, Maker]:
    """Classifiers by name: a function of the seed to an estimator and its grid."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    return {
        "random forest": lambda seed: (RandomForestClassifier(200, random_state=seed), _FOREST),
        "histogram boosting": lambda seed: (HistGradientBoostingClassifier(random_state=seed), _BOOSTING),
        "SVM, radial": lambda _: (_scaled(SVC()), _prefixed("svc", C=[1.0, 10.0], gamma=["scale", "auto"])),
        "logistic regression": lambda _: (
            _scaled(LogisticRegression(max_iter=500)),
            _prefixed("logisticregression", C=[0.01, 0.1, 1.0, 10.0]),
        ),
        "nearest neighbours": lambda _: (_scaled(KNeighborsClassifier()), _neighbours("kneighborsclassifier")),
    }


def regressors() -> dict[str, Maker]:
    """Regressors likewise."""
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.svm import SVR

    return {
        "random forest": lambda seed: (RandomForestRegressor(200, random_state=seed), _TREES),
        "histogram boosting": lambda seed: (HistGradientBoostingRegressor(random_state=seed), _BOOSTING),
        "SVM, radial": lambda _: (_standard(_scaled(SVR())), _prefixed("regressor__svr", C=[1.0, 3.0, 10.0, 30.0])),
        "linear ridge": lambda _: (_scaled(Ridge()), _prefixed("ridge", alpha=[0.1, 1.0, 10.0, 100.0])),
        "nearest neighbours": lambda _: (_scaled(KNeighborsRegressor()), _neighbours("kneighborsregressor")),
    }


_FOREST: dict[str, list[Any]] = {"max_features": ["sqrt", 0.5], "min_samples_leaf": [1, 5]}
_TREES: dict[str, list[Any]] = {"max_features": [1.0, 0.33], "min_samples_leaf": [1, 5]}
_BOOSTING: dict[str, list[Any]] = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [8, 31]}


def tuned(maker: Maker, X: FloatArray, y: npt.NDArray[Any], seed: int) -> tuple[Any, str]:
    """The estimator with the settings that cross-validation prefers, fitted to all rows; and what these are.

    Where a class has fewer rows than folds, defaults stand.
    """
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV

    estimator, grid = maker(seed)
    chosen = np.sort(generator(seed, "tuning").permutation(len(y))[:TUNED])
    settings: dict[str, Any] = {}
    if not is_classifier(estimator) or np.unique(y[chosen], return_counts=True)[1].min() >= FOLDS:
        settings = GridSearchCV(estimator, grid, cv=FOLDS, refit=False).fit(X[chosen], y[chosen]).best_params_
    fitted = clone(estimator).set_params(**settings).fit(X, y)
    return fitted, ", ".join(f"{name.rpartition('__')[2]}={value}" for name, value in settings.items()) or "defaults"


def class_probabilities(estimator: Any, classes: npt.NDArray[Any], X: FloatArray) -> FloatArray:
    """Probabilities (n, C) in the order of ``classes``; of an SVM, the softmax of its decision function."""
    if hasattr(estimator, "predict_proba"):
        own = estimator.predict_proba(X)
    else:
        values = estimator.decision_function(X)
        values = np.column_stack([-values, values]) if values.ndim == 1 else values
        own = np.exp(values - values.max(axis=1, keepdims=True))
        own /= own.sum(axis=1, keepdims=True)
    likely = np.zeros((len(X), len(classes)))
    likely[:, np.searchsorted(classes, estimator.classes_)] = own
    return likely


def _scaled(estimator: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator)


def _standard(estimator: Any) -> Any:
    """A regressor of values brought to spread 1."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(estimator, transformer=StandardScaler())


def _prefixed(step: str, **grid: list[Any]) -> dict[str, list[Any]]:
    return {f"{step}__{name}": values for name, values in grid.items()}


def _neighbours(step: str) -> dict[str, list[Any]]:
    return _prefixed(step, n_neighbors=[5, 15], weights=["uniform", "distance"])


Rows = tuple[FloatArray, npt.NDArray[Any]]
#: Sites that are tried alone, those of most rows.
ALONE = 8
#: Columns of what is released under privacy, at most, and its delta.
RELEASED, DELTA = 24, 1e-5


@dataclass(frozen=True)
class Contender:
    """How one of them did on the test rows of all sites.

    group : "alone", "together", "pooled" or "nothing". figures : by name, the first is what they are ordered by; empty
    where it could not be tried, and ``note`` says why. bytes_up : what would leave the sites; None where rows leave.
    """

    name: str
    group: str
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = math.nan
    bytes_up: int | None = 0
    note: str = ""

    @property
    def score(self) -> float:
        """The first of the figures."""
        return next(iter(self.figures.values()), math.nan)


@dataclass(frozen=True)
class Setting:
    """What is compared: rows of sites to learn from, test rows of all of them, what labels are for, the seed."""

    sites: Mapping[str, Rows]
    test: Rows
    regress: bool
    seed: int

    @property
    def pooled(self) -> Rows:
        """All rows to learn from."""
        X, y = zip(*self.sites.values(), strict=True)
        return np.concatenate(X), np.concatenate(y)

    def figures(self, answer: Callable[[FloatArray], Any], classes: npt.NDArray[Any]) -> dict[str, float]:
        """R2 and mean absolute error of values, or accuracy, balanced accuracy and AUC of probabilities."""
        X, y = self.test
        if self.regress:
            sums = error_sums(y, answer(X))
            return {"R2": sums.r2, "mean absolute error": sums.mean_absolute_error}
        outcome = count_outcomes(classes, y, answer(X))
        return {"accuracy": outcome.accuracy, "balanced": outcome.balanced_accuracy, "AUC": outcome.mean_auc}


@dataclass(frozen=True)
class Trial:
    """One thing to try: its name, its group, and how."""

    name: str
    group: str
    run: Callable[[], Contender]


def trials(setting: Setting, *, epsilon: float) -> list[Trial]:
    """Everything that is tried, in the order of the table."""
    planned = [Trial("always the same", "nothing", lambda: _constant(setting))]
    largest = sorted(setting.sites, key=lambda name: (-len(setting.sites[name][1]), name))[:ALONE]
    methods: Mapping[str, Maker] = regressors() if setting.regress else classifiers()
    forest = methods["random forest"]
    for site in sorted(largest):
        name = f"{site} alone, random forest"
        planned.append(Trial(name, "alone", _fitting(setting, name, "alone", forest, setting.sites[site])))
    for name, learner in _learners(setting, epsilon).items():
        planned.append(Trial(name, "together", _learning(setting, name, learner, setting.sites)))
    planned.append(Trial("fusion, pooled", "pooled", _learning(setting, "fusion, pooled", _fusion(setting), None)))
    for name, maker in methods.items():
        whole = f"{name}, pooled"
        planned.append(Trial(whole, "pooled", _fitting(setting, whole, "pooled", maker, setting.pooled)))
    return planned


def run_trial(trial: Trial) -> Contender:
    """What came of it; what cannot be tried is told, not raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence, and of classes that one site alone has
        try:
            return trial.run()
        except (KernfedError, ValueError) as error:
            return Contender(trial.name, trial.group, note=f"not tried: {error}"[:200])


def _fusion(setting: Setting, privacy: Any = None) -> FusionLearner:
    return FusionLearner(task="regress" if setting.regress else "classify", privacy=privacy)


def _learners(setting: Setting, epsilon: float) -> dict[str, Any]:
    """Learners of this package by name."""
    if setting.regress:
        return {"ridge": RidgeLearner(task="regress")}
    width = setting.test[0].shape[1]
    radius = float(np.sqrt(width))  # of columns of spread 1, the usual length of a row
    mechanism = RecordMoments(epsilon, DELTA, min(width, RELEASED), radius)
    return {
        "folding": FoldingLearner(),
        "ridge": RidgeLearner(),
        "fusion": _fusion(setting),
        f"fusion, epsilon {epsilon:g} per record": _fusion(setting, mechanism),
    }


def _constant(setting: Setting) -> Contender:
    y = setting.pooled[1]
    if setting.regress:
        mean = float(y.mean())
        return Contender("the mean", "nothing", setting.figures(lambda X: np.full(len(X), mean), y[:0]))
    classes, counts = np.unique(y, return_counts=True)
    likely = np.eye(len(classes))[counts.argmax()]
    figures = setting.figures(lambda X: np.tile(likely, (len(X), 1)), classes)
    return Contender(f"always {classes.tolist()[counts.argmax()]!r}", "nothing", figures)


def _fitting(setting: Setting, name: str, group: str, maker: Maker, rows: Rows) -> Callable[[], Contender]:
    """A method of scikit-learn on rows that are in one place."""

    def run() -> Contender:
        started = time.perf_counter()
        estimator, chosen = tuned(maker, *rows, setting.seed)
        seconds = time.perf_counter() - started
        classes = np.array([]) if setting.regress else np.unique(setting.pooled[1])
        answer = estimator.predict if setting.regress else lambda X: class_probabilities(estimator, classes, X)
        left = None if group == "pooled" else 0
        return Contender(name, group, setting.figures(answer, classes), seconds, left, chosen)

    return run


def _learning(setting: Setting, name: str, learner: Any, sites: Mapping[str, Rows] | None) -> Callable[[], Contender]:
    """A learner of this package on sites, or on all rows as one site."""

    def run() -> Contender:
        private = getattr(learner, "privacy", None) is not None
        parts = {"all": setting.pooled} if sites is None else dict(sites)
        mean, spread = _moments(setting.pooled[0]) if private else (0.0, 1.0)
        moved = {site: ((X - mean) / spread, y) for site, (X, y) in parts.items()}
        with Federation.local(moved, seed=setting.seed) as federation, warnings.catch_warnings():
            warnings.simplefilter("ignore", KernfedWarning)
            started = time.perf_counter()
            model = learner.fit(federation)
            seconds, sent = time.perf_counter() - started, federation.traffic.bytes_up
            answer = model.predict if setting.regress else model.predict_proba
            figures = setting.figures(lambda X: answer((X - mean) / spread), model.classes_)
        note = "as if ranges of columns were publicly known" if private else "chooses its settings by rows left out"
        return Contender(
            name, "pooled" if sites is None else "together", figures, seconds, sent if sites else None, note
        )

    return run


def _moments(X: FloatArray) -> tuple[FloatArray, FloatArray]:
    spread = X.std(axis=0)
    return X.mean(axis=0), np.where(spread > 0, spread, 1.0)
