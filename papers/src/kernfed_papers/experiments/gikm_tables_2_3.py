"""GIKM Tables 2 and 3: 100 sites with a fifth or three tenths of the classes, asked in four ways."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kernfed import KAHMClassifier
from kernfed.data import Dataset, partition_label_skew
from kernfed.federation import FoldingLearner
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.pooled import (
    ROUNDS,
    Answers,
    FoldingRun,
    Sites,
    accuracy,
    averaging_answers,
    baseline_rows,
    mean_row,
    pooled_answers,
    repetition_seeds,
    ridge_answers,
    run_folding,
    site_rows,
)
from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.published import published
from kernfed_papers.rows import load_rows, missing_data, slice_rows

_REPETITIONS = 3
# What pooled rows allow does not depend on how they were spread, but for the weights of the test rows.
_TABLE_WITH_POOLED = 2
_GLOBAL, _LOCAL = "KAHM Global Classifier (56)", "KAHM Local Classifier (57)"


@dataclass(frozen=True)
class _Column:
    """A column of the tables, the features that may fill it, and the model for FedAvg that suits them."""

    name: str
    dataset: str
    model: str
    printed_as: str
    note: str = ""


_COLUMNS = (
    _Column("Fashion MNIST", "fashion_mnist", "mlp", "Fashion MNIST"),
    _Column("CIFAR-10", "cifar10_resnet50", "linear", "CIFAR-10"),
    _Column(
        "CIFAR-10 (EfficientNet-Lite0)",
        "cifar10_efflite0",
        "linear",
        "CIFAR-10",
        "the paper's features are of ResNet-50, ours of EfficientNet-Lite0",
    ),
    _Column("CIFAR-100", "cifar100_resnet50", "linear", "CIFAR-100"),
)


@dataclass(frozen=True)
class Accuracies:
    """Accuracy in %, averaged over sites, of four ways to ask (see ``EXPERIMENTS``)."""

    everyone: float
    owners: float
    own_classes: float
    local: float


def client_weights(labels: IntArray, holds: npt.NDArray[np.bool_], classes: npt.NDArray[np.integer]) -> FloatArray:
    """Weight (n,) of each test row in the mean over sites of a site's accuracy on the test rows of its classes."""
    asked = holds[:, np.searchsorted(classes, labels)]
    weights: FloatArray = (asked / asked.sum(axis=1, keepdims=True)).mean(axis=0)
    return weights


def client_accuracies(run: FoldingRun, labels: IntArray) -> Accuracies:
    """The four accuracies from all sites' scores (Q, n, C)."""
    true = np.searchsorted(run.classes, labels)
    weights = client_weights(labels, run.holds, run.classes)
    combined = run.scores.min(axis=0)
    by_owners = np.empty(len(labels), dtype=np.intp)
    for number in range(len(run.classes)):
        rows = np.flatnonzero(true == number)
        by_owners[rows] = run.scores[run.holds[:, number]][:, rows].min(axis=0).argmin(axis=1)
    among, alone = [], []
    for held, own in zip(run.holds, run.scores, strict=True):
        rows = np.flatnonzero(held[true])
        among.append(accuracy(np.where(held, combined[rows], np.inf).argmin(axis=1), true[rows]))
        alone.append(accuracy(own[rows].argmin(axis=1), true[rows]))
    return Accuracies(
        accuracy(combined.argmin(axis=1), true, weights),
        accuracy(by_owners, true, weights),
        float(np.mean(among)),
        float(np.mean(alone)),
    )


def run(table: int, share: float, seed: int, quick: bool) -> list[Row]:
    """Rows of every column; a quick run takes a slice of one of them, 20 sites and few rounds."""
    rows: list[Row] = []
    for column in _COLUMNS:
        reason = missing_data(column.dataset)
        if reason:
            rows += [
                not_run(f"{column.name}: {row}", published("GIKM", table, row, column.printed_as), "%", reason)
                for row in (_GLOBAL, _LOCAL)
            ]
            continue
        data = load_rows(column.dataset, "tanh")
        data = slice_rows(data, 1000, 200, seed) if quick else data
        rows += _run_column(table, column, data, share, seed, quick)
        if quick:
            break
    return rows


def _run_column(table: int, column: _Column, data: Dataset, share: float, seed: int, quick: bool) -> list[Row]:
    printed = {row: published("GIKM", table, row, column.printed_as) for row in (_GLOBAL, _LOCAL)}
    learner = FoldingLearner(measure="distance", batch_size=1000, partition="kmeans", dtype="float32", scale=None)
    accuracies: list[Accuracies] = []
    traffic: list[Row] = []
    baselines: list[Row] = []
    for run_seed in repetition_seeds(seed, 1 if quick else _REPETITIONS):
        sites = site_rows(data, partition_label_skew(data.y_train, 20 if quick else 100, share, run_seed))
        folding = run_folding(learner, data, sites, run_seed)
        accuracies.append(client_accuracies(folding, data.y_test))
        if not traffic:
            traffic = folding.traffic(f"{column.name}: global (56)")
            weights = client_weights(data.y_test, folding.holds, folding.classes)
            baselines = _baselines(table, column, data, sites, weights, run_seed, quick)
    note = f"; {column.note}" if column.note else ""
    name = column.name
    return [
        mean_row(
            f"{name}: global (56), all sites answer",
            printed[_GLOBAL],
            [one.everyone for one in accuracies],
            f"the open protocol: any class may win{note}",
            series=f"global (56), {name}",
            x=1,
        ),
        mean_row(
            f"{name}: global (56), published protocol",
            printed[_GLOBAL],
            [one.owners for one in accuracies],
            f"only sites that own the true class answer, which nobody can know in use{note}",
        ),
        mean_row(
            f"{name}: global (56), among the asking site's classes",
            None,
            [one.own_classes for one in accuracies],
            "all sites answer, for these classes",
        ),
        mean_row(
            f"{name}: local (57)",
            printed[_LOCAL],
            [one.local for one in accuracies],
            f"a site alone, for its own classes{note}",
        ),
        *baselines,
        *traffic,
    ]


def _baselines(
    table: int, column: _Column, data: Dataset, sites: Sites, weights: FloatArray, seed: int, quick: bool
) -> list[Row]:
    answers = [ridge_answers(data, sites, seed)]
    answers += averaging_answers(data, sites, seed, column.model, (1, 3) if quick else ROUNDS)
    pooled: list[Answers] = []
    if table == _TABLE_WITH_POOLED:
        machines = KAHMClassifier(
            "distance", batch_size=1000, partition="kmeans", dtype="float32", random_state=seed, scale=None
        )
        pooled = pooled_answers(data, seed, machines=machines)
    return baseline_rows(column.name, [*answers, *pooled], data.y_test, weights, series=column.name)


def _experiment(table: int, share: float) -> Experiment:
    pooled = "" if table == _TABLE_WITH_POOLED else f", in Table {_TABLE_WITH_POOLED},"
    return Experiment(
        id=f"gikm-table-{table}",
        title=f"100 sites with {share:.0%} of the classes each",
        source=f"GIKM Table {table}",
        datasets=tuple(column.dataset for column in _COLUMNS),
        protocol=(
            f"Each of 100 sites owns {share:.0%} of the classes, drawn without replacement (the authors' program draws "
            "with replacement); a class is divided equally among its owners. Features: tanh of pixels over 255, or of "
            "an encoder. A site is tested on all test rows of its classes, and accuracies are averaged over sites. "
            "Four ways to ask. Open: all sites answer for all classes. Published: as in the authors' program, for a "
            "test row only the sites that own its true class answer. Among the asking site's classes: all sites "
            "answer, and the site takes the best of its own classes. Local (57): a site asks itself. Means of "
            f"{_REPETITIONS} draws; baselines on the first draw and the same features, all for all classes: ridge "
            "exact in one exchange, FedAvg of a network with 128 hidden units for pixels and of a softmax for encoded "
            f"images, and{pooled} classifiers on pooled rows. Their settings are chosen on training rows. Scores are "
            "computed in float32."
        ),
        run=partial(run, table, share),
        axes=Axes("rounds", "accuracy (%)", log_x=True),
    )


EXPERIMENTS = (_experiment(2, 0.2), _experiment(3, 0.3))
