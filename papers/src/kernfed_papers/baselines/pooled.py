"""What the one-round classifier is compared with on the same features: alone, pooled, linear, averaged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from kernfed import KAHMClassifier
from kernfed.data import Dataset, holdout
from kernfed.federation import Federation, FoldingLearner, RidgeLearner
from kernfed.kernels import single_blas_thread
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.averaging import AveragingLearner
from kernfed_papers.baselines.averaging_model import AveragingModel
from kernfed_papers.baselines.logistic import adjusted_labels, fit_logistic, stopped
from kernfed_papers.baselines.tuning import Axis, Choice, Point, choose, folds
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Row
from kernfed_papers.rows import take_rows

#: Settings that a baseline may choose from, by rows that are held out of training. Penalties are of the sum over rows,
#: so that the best of few rows is that of many; they and the regularizations go on where the best is at an end.
NEIGHBOURS = (1, 5, 10, 20)
PENALTIES = (1.0, 10**0.5, 10.0, 10**1.5)
RATES = (0.03, 0.1, 0.3)
REGULARIZATIONS = (1e-4, 1e-3, 1e-2, 1e-1)
ROUNDS = (1, 10, 100)
# Rows that choose a setting; more would rarely choose another.
_MOST_FITTED, _MOST_ASIDE = 10_000, 2_000
_MOST_LOGISTIC, _MOST_RIDGE = 12_000, 15_000
_STEPS = 200  # of the logistic regression
_WEIGHING = ", classes weigh the same"

Parts = Sequence[npt.NDArray[np.integer[Any]]]
Sites = Mapping[str, tuple[FloatArray, IntArray]]


@dataclass(frozen=True, eq=False)
class Answers:
    """Labels (n,) that a method gives the test rows, the bytes of its training, and how it was set.

    ``rounds`` is None where nothing is exchanged.
    """

    method: str
    predicted: npt.NDArray[Any]
    bytes_up: int = 0
    bytes_down: int = 0
    rounds: int | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The method and its rounds."""
        rounds = "" if self.rounds is None else f", {self.rounds} round{'s' * (self.rounds > 1)}"
        return self.method + rounds

    @property
    def remark(self) -> str:
        """How it was set, and what travelled in training."""
        travelled = f"; {self.bytes_up / 1e6:,.1f} MB up, {self.bytes_down / 1e6:,.1f} MB down" if self.bytes_up else ""
        return self.note + travelled


@dataclass(frozen=True, eq=False)
class FoldingRun:
    """One round of folding: scores (Q, n, C) by site, who holds which class (Q, C), bytes of training and of answering.

    ``trained`` and ``answered`` are (up, down).
    """

    classes: npt.NDArray[Any]
    scores: FloatArray
    holds: npt.NDArray[np.bool_]
    trained: tuple[int, int]
    answered: tuple[int, int]

    @property
    def predicted(self) -> npt.NDArray[Any]:
        """Labels (n,) when every site answers: GIKM (56), SFM (122)."""
        return np.asarray(self.classes[self.scores.min(axis=0).argmin(axis=1)])

    def alone(self, labels: IntArray) -> float:
        """Mean over sites of the accuracy of each site's own machines on all test rows, in %."""
        return float(np.mean([accuracy(self.classes[own.argmin(axis=1)], labels) for own in self.scores]))

    def traffic(self, name: str) -> list[Row]:
        """Rows with the bytes of training and of answering all queries."""
        parts = {"training": self.trained, f"{self.scores.shape[1]:,} queries": self.answered}
        return [
            Row(f"{name}: {part}", None, count, unit)
            for part, counts in parts.items()
            for count, unit in zip(counts, ("bytes up", "bytes down"), strict=True)
        ]


def accuracy(predicted: npt.NDArray[Any], labels: IntArray, weights: FloatArray | None = None) -> float:
    """Share of right answers in %, of test rows that weigh ``weights`` (n,), summing to 1, or all the same."""
    right = predicted == labels
    return 100 * float(right.mean() if weights is None else weights @ right)


def mean_row(
    label: str,
    published: float | None,
    values: Sequence[float],
    note: str = "",
    *,
    series: str = "",
    x: float | None = None,
) -> Row:
    """Mean in % of repetitions with their standard deviation; one repetition has none."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Row(label, published, float(np.mean(values)), "%", note, deviation, series, x)


def repetition_seeds(seed: int, count: int) -> range:
    """Seeds of repeated runs, different for every seed."""
    return range(seed * count, (seed + 1) * count)


def site_rows(data: Dataset, parts: Parts) -> dict[str, tuple[FloatArray, IntArray]]:
    """Training rows and labels of each site."""
    return {f"site {number:04d}": (data.x_train[part], data.y_train[part]) for number, part in enumerate(parts)}


def run_folding(learner: FoldingLearner, data: Dataset, sites: Sites, seed: int) -> FoldingRun:
    """Train and answer all test rows, by site."""
    with Federation.local(sites, seed=seed) as federation:
        model = learner.fit(federation)
        trained = federation.traffic.bytes_up, federation.traffic.bytes_down
        scores = model.scores_by_site(data.x_test)
        answered = federation.traffic.bytes_up - trained[0], federation.traffic.bytes_down - trained[1]
    return FoldingRun(model.classes_, scores, model.holds, trained, answered)


# Pooled rows ------------------------------------------------------------------------------------------------------


def pooled_answers(data: Dataset, seed: int, *, machines: KAHMClassifier, balanced: bool = False) -> list[Answers]:
    """Classifiers on all training rows together: machines, nearest neighbours, logistic regression.

    The last two choose their one setting on training rows set aside. ``balanced`` adjusts the logistic regression to
    uses in which all classes are as frequent, see ``adjusted_labels``.
    """
    with single_blas_thread():
        return [
            Answers(
                "pooled rows, KAHM",
                machines.fit(data.x_train, data.y_train).predict(data.x_test),
                note=f"machines of about {machines.batch_size} rows",
            ),
            _neighbours(data, seed),
            _logistic(data, balanced),
        ]


def _neighbours(data: Dataset, seed: int) -> Answers:
    fitted, aside = tuning_rows(data, seed)
    near = _nearest_labels(data.x_train[fitted], data.y_train[fitted], data.x_train[aside])
    best = max(NEIGHBOURS, key=lambda k: _balanced_accuracy(_vote(near, k), data.y_train[aside]))
    predicted = _vote(_nearest_labels(data.x_train, data.y_train, data.x_test), best)
    return Answers("pooled rows, nearest neighbours", predicted, note=f"k = {best}")


def _nearest_labels(x: FloatArray, y: IntArray, queries: FloatArray) -> IntArray:
    """Labels (n, K) of the nearest rows, nearest first, for the largest number of neighbours."""
    search = NearestNeighbors(n_neighbors=min(max(NEIGHBOURS), len(x)), algorithm="brute").fit(x)
    return np.asarray(y[search.kneighbors(queries, return_distance=False)])


def _vote(labels: IntArray, k: int) -> IntArray:
    """The most frequent of the first k labels of each row (n, K); the smallest among equals."""
    classes = np.unique(labels)
    votes = (labels[:, :k, None] == classes).sum(axis=1)
    return np.asarray(classes[votes.argmax(axis=1)])


def _logistic(data: Dataset, adjusted: bool) -> Answers:
    """The penalty whose answers do best by class on left-out rows, and the answers of all rows with it."""

    def fit(penalty: float, trial: Dataset) -> LogisticRegression:
        return fit_logistic(1 / penalty, trial.x_train, trial.y_train, steps=_STEPS)

    def answer(model: LogisticRegression, trial: Dataset) -> npt.NDArray[Any]:
        return adjusted_labels(model, trial.y_train, trial.x_test) if adjusted else model.predict(trial.x_test)

    axis = Axis("penalty", PENALTIES, step=10**0.5)
    choice = _chosen(data, axis, lambda penalty, trial: answer(fit(penalty, trial), trial), _MOST_LOGISTIC)
    model = fit(choice["penalty"], data)
    method = f"pooled rows, {'logit-adjusted ' * adjusted}logistic regression"
    return Answers(method, answer(model, data), note=f"penalty {choice['penalty']:.3g}{stopped(model, _STEPS)}")


def _chosen(data: Dataset, axis: Axis, answer: Callable[[float, Dataset], npt.NDArray[Any]], most: int) -> Choice:
    """The value of a setting whose answers are best by class, on average over folds of at most ``most`` rows."""
    trials = [
        take_rows(replace(data, x_test=data.x_train[left], y_test=data.y_train[left]), fitted)
        for fitted, left in folds(data.y_train, data.name, most)
    ]

    def accuracies(points: Sequence[Point]) -> list[float]:
        return [
            100 * float(np.mean([_balanced_accuracy(answer(value, trial), trial.y_test) for trial in trials]))
            for (value,) in points
        ]

    return choose([axis], accuracies)


def tuning_rows(data: Dataset, seed: int) -> tuple[IntArray, IntArray]:
    """Training rows to fit candidates on, and others, a tenth, to compare them by; not more than are needed."""
    fitted, aside = holdout(data.y_train, 0.1, seed, site="baselines")
    draws = generator(seed, "tuning rows", data.name)
    return draws.permutation(fitted)[:_MOST_FITTED], draws.permutation(aside)[:_MOST_ASIDE]


def _balanced_accuracy(predicted: npt.NDArray[Any], labels: IntArray) -> float:
    """Mean of the accuracies by class: test rows have as many of each class, also where training rows do not."""
    right = predicted == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


# Federations ------------------------------------------------------------------------------------------------------


def ridge_answers(data: Dataset, sites: Sites, seed: int, *, balanced: bool = False) -> Answers:
    """``exact_ridge`` with the regularisation chosen on left-out training rows, as in ``pooled_answers``."""

    def answer(regularization: float, trial: Dataset) -> npt.NDArray[Any]:
        pooled = {"all": (trial.x_train, trial.y_train)}
        return exact_ridge(trial, pooled, seed, regularization, balanced=balanced).predicted

    choice = _chosen(data, Axis("regularization", REGULARIZATIONS), answer, _MOST_RIDGE)
    return exact_ridge(data, sites, seed, choice["regularization"], balanced=balanced)


def exact_ridge(data: Dataset, sites: Sites, seed: int, regularization: float, *, balanced: bool = False) -> Answers:
    """Ridge regression on one-hot labels, exact in one exchange of M^2 numbers; a constant column is the intercept."""
    learner = RidgeLearner(
        "exact",
        features="given",
        scale=None,
        regularization=regularization,
        class_weight="balanced" if balanced else None,
        fit_intercept=False,
    )
    with Federation.local({name: (_with_constant(x), y) for name, (x, y) in sites.items()}, seed=seed) as federation:
        model = learner.fit(federation)
        up, down = federation.traffic.bytes_up, federation.traffic.bytes_down
    note = f"regularization {regularization:g}{_WEIGHING * balanced}"
    return Answers("exact ridge", model.predict(_with_constant(data.x_test)), up, down, 1, note)


def _with_constant(x: FloatArray) -> FloatArray:
    return np.hstack([x, np.ones((len(x), 1), x.dtype)])


def averaging_answers(
    data: Dataset, sites: Sites, seed: int, kind: str, rounds: Sequence[int] = ROUNDS
) -> list[Answers]:
    """FedAvg of a ``kind`` of model after each of ``rounds``; the learning rate is the best on training rows.

    The rate is chosen after a twentieth of the rounds on pooled training rows, which no federation could do: it
    favours FedAvg.
    """
    with Federation.local(sites, seed=seed) as federation:
        rate = _best_rate(data, federation, kind, max(1, max(rounds) // 20), seed)
    answers: list[Answers] = []

    def look(number: int, model: AveragingModel) -> None:
        if number in rounds:
            done = model.history_[-1]
            answers.append(
                Answers(
                    f"FedAvg, {kind}",
                    model.predict(data.x_test),
                    done.bytes_up,
                    done.bytes_down,
                    number,
                    f"learning rate {rate:g}",
                )
            )

    with Federation.local(sites, seed=seed) as federation:
        AveragingLearner(kind, rounds=max(rounds), learning_rate=rate).fit(federation, callback=look)
    return answers


def _best_rate(data: Dataset, federation: Federation, kind: str, rounds: int, seed: int) -> float:
    draws = generator(seed, "learning rate", data.name)
    chosen = draws.choice(len(data.y_train), min(5000, len(data.y_train)), replace=False)

    def right(rate: float) -> float:
        model = AveragingLearner(kind, rounds=rounds, learning_rate=rate).fit(federation)
        return _balanced_accuracy(model.predict(data.x_train[chosen]), data.y_train[chosen])

    return max(RATES, key=right)


def baseline_rows(
    name: str, answers: Iterable[Answers], labels: IntArray, weights: FloatArray | None = None, *, series: str = ""
) -> list[Row]:
    """Accuracy of each method; those with rounds are points of its curve for ``series``, if one is named."""
    rows = []
    for answer in answers:
        on_curve = bool(series) and answer.rounds is not None
        rows.append(
            Row(
                f"{name}: {answer.label}",
                None,
                accuracy(answer.predicted, labels, weights),
                "%",
                answer.remark,
                series=f"{answer.method}, {series}" if on_curve else "",
                x=answer.rounds if on_curve else None,
            )
        )
    return rows
