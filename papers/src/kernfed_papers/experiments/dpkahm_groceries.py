"""DP-KAHM Tables 3 and 4: classes of groceries by machines, as accuracy and as area under the ROC curve.

Bring the features in ``freiburg_groceries_fc6_1.npz`` to ``..._5.npz``, one file for each split of the data set.
"""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import roc_auc_score

from kernfed.data import Dataset
from kernfed.kahm import matching_score
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.experiment import Experiment, Row, not_run
from kernfed_papers.experiments.dpkahm_rows import accuracy_of, class_bank, class_parts
from kernfed_papers.published import published
from kernfed_papers.rows import load_rows, missing_data, slice_rows

SPLITS = ("1", "2", "3", "4", "5")
_SUBSPACE, _BATCH = 20, 1000

Figure = Callable[[FloatArray, IntArray, IntArray], float]


def split_name(split: str) -> str:
    """Name of the file of a split."""
    return f"freiburg_groceries_fc6_{split}"


def ranking_quality(scores: FloatArray, classes: IntArray, answers: IntArray) -> float:
    """Area under the ROC curve of the class-matching score (63), averaged over classes with test rows of both kinds."""
    matching = matching_score(scores)
    areas = [
        roc_auc_score(answers == label, matching[:, column])
        for column, label in enumerate(classes)
        if 0 < (answers == label).sum() < len(answers)
    ]
    return float(np.mean(areas))


def _split_scores(data: Dataset, seed: int) -> FloatArray:
    parts = class_parts(data.x_train, data.y_train, _BATCH, seed)
    return class_bank(data.x_train, data.y_train, parts, _SUBSPACE).scores(data.x_test, "distance").values


def run_table(table: int, method: str, unit: str, figure: Figure, seed: int, quick: bool) -> list[Row]:
    """A number for every split, and their mean where the table has one and all splits are here."""
    rows: list[Row] = []
    for split in SPLITS:
        printed = published("DP-KAHM", table, method, split)
        reason = missing_data(split_name(split))
        if reason:
            rows.append(not_run(f"split {split}", printed, unit, reason))
            continue
        data = load_rows(split_name(split), "none")
        data = slice_rows(data, 250, 100, seed) if quick else data
        value = figure(_split_scores(data, seed), np.unique(data.y_train), data.y_test)
        rows.append(Row(f"split {split}", printed, value * (100 if unit == "%" else 1), unit))
    values = [row.ours for row in rows if row.ours is not None]
    if table == 3 and len(values) == len(SPLITS):
        rows.append(Row("mean", published("DP-KAHM", table, method, "mean"), float(np.mean(values)), unit))
    return rows


_WORDS = (
    "Activations of fc6 of AlexNet and VGG-16, 8192 columns, scaled to [-1, 1] column by column; one wide, "
    "conditionally deep machine per class (n = 20, L = 5, round(N / 1000) branches), scoring in float32. "
)

EXPERIMENTS = (
    Experiment(
        id="dpkahm-table-3",
        title="groceries: accuracy",
        source="DP-KAHM Table 3",
        datasets=tuple(split_name(split) for split in SPLITS),
        protocol=_WORDS + "Accuracy on the test images of each of the five splits.",
        run=lambda seed, quick: run_table(3, "KAHM Classifier (Definition 7)", "%", accuracy_of, seed, quick),
    ),
    Experiment(
        id="dpkahm-table-4",
        title="groceries: area under the ROC curve",
        source="DP-KAHM Table 4",
        datasets=tuple(split_name(split) for split in SPLITS),
        protocol=_WORDS + "Area under the ROC curve of the class-matching score (63), averaged over classes.",
        run=lambda seed, quick: run_table(4, "KAHM (Definition 8)", "fraction", ranking_quality, seed, quick),
    ),
)
