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
from kernfed.errors import KernfedError, KernfedWarning
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.fusion.learner import FusionLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.privacy.moments import RecordMoments
from kernfed.testing.contenders import Maker, class_probabilities, classifiers, regressors, tuned
from kernfed.testing.outcomes import count_outcomes
from kernfed.testing.regression import error_sums

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
