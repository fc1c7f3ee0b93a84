"""GIKM Table 1: each class owned by one site, the accuracy of the global classifier, and the score E of GIKM 5.1."""

from dataclasses import dataclass

import numpy as np

from kernfed.data import Dataset, partition_one_class
from kernfed.federation import Federation, FoldingLearner
from kernfed.kahm import FoldingModel, membership_probability
from kernfed_papers.experiment import Experiment, Row, not_run
from kernfed_papers.published import published
from kernfed_papers.rows import load_rows, missing_data, slice_rows


@dataclass(frozen=True)
class _Column:
    """A column of the table and the data set that fills it."""

    name: str
    dataset: str


_COLUMNS = (
    _Column("MNIST", "mnist"),
    _Column("Freiburg Groceries", "freiburg_groceries_resnet50"),
    _Column("CIFAR-10", "cifar10_resnet50"),
    _Column("CIFAR-100", "cifar100_resnet50"),
)


def run(seed: int, quick: bool) -> list[Row]:
    """Rows of every column; a quick run takes a slice and smaller machines."""
    rows: list[Row] = []
    for column in _COLUMNS:
        reason = missing_data(column.dataset)
        printed = {row: published("GIKM", 1, row, column.name) for row in ("Accuracy", "E")}
        if reason:
            rows += [not_run(f"{column.name}: {row}", value, "fraction", reason) for row, value in printed.items()]
            continue
        data = load_rows(column.dataset, "tanh")
        data = slice_rows(data, 2000, 500, seed) if quick else data
        rows += _run_column(column.name, data, printed, seed, batch_size=100 if quick else 1000)
    return rows


def _run_column(name: str, data: Dataset, printed: dict[str, float | None], seed: int, batch_size: int) -> list[Row]:
    parts = partition_one_class(data.y_train)
    sites = {f"class {data.y_train[part[0]]:03d}": part for part in parts}
    learner = FoldingLearner(measure="distance", batch_size=batch_size, partition="kmeans", dtype="float32", scale=None)
    rows = {site: (data.x_train[part], data.y_train[part]) for site, part in sites.items()}
    with Federation.local(rows, seed=seed) as federation:
        model = learner.fit(federation)
        trained = federation.traffic.bytes_up, federation.traffic.bytes_down
        scores = model.scores(data.x_test)
        answered = federation.traffic.bytes_up - trained[0], federation.traffic.bytes_down - trained[1]
        score = max(assumption_score(model, site, data.x_train[part]) for site, part in sites.items())
    predicted, others = model.classes_[scores.argmin(axis=1)], model.classes_ != data.y_test[:, None]
    beside = float(np.median(1 - membership_probability(scores[others], model.n_features_in_)))
    return [
        Row(f"{name}: Accuracy", printed["Accuracy"], float((predicted == data.y_test).mean()), "fraction"),
        Row(f"{name}: E", printed["E"], score, "fraction"),
        Row(
            f"{name}: 1 - exp(-distance / p) to other classes",
            None,
            beside,
            "fraction",
            "median over test rows: a small E does not tell classes apart",
        ),
        Row(f"{name}: training", None, trained[0], "bytes up"),
        Row(f"{name}: training", None, trained[1], "bytes down"),
        Row(f"{name}: {len(predicted):,} queries", None, answered[0], "bytes up"),
        Row(f"{name}: {len(predicted):,} queries", None, answered[1], "bytes down"),
    ]


def assumption_score(model: FoldingModel, site: str, rows: np.ndarray) -> float:
    """Largest ``1 - exp(-distance / p)`` (GIKM 5.1) of rows (n, p) that a site owns, by its own machines."""
    distances = model.local(site).scores(rows).min(axis=1)  # the site has one class, the others are infinitely far
    return float(1 - membership_probability(distances, model.n_features_in_).min())


EXPERIMENTS = (
    Experiment(
        id="gikm-table-1",
        title="each class at one site: accuracy and score E",
        source="GIKM Table 1",
        datasets=tuple(column.dataset for column in _COLUMNS),
        protocol=(
            "Every class is owned by one site, so there are as many sites as classes. Features are tanh of pixels over "
            "255 (MNIST) or of ResNet-50 features. A site divides its rows by k-means into round(N / 1000) machines "
            "(GIKM Remark 11). Accuracy: global classifier (56) on the test rows. E: largest 1 - exp(-distance / p) of "
            "a training row to the machines of its own class. Scores are computed in float32."
        ),
        run=run,
    ),
)
