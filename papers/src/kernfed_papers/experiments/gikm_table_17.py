"""GIKM Table 17: Freiburg Groceries, each class at one site, five given splits into training and test."""

from kernfed.data import partition_one_class
from kernfed.federation import FoldingLearner
from kernfed_papers.baselines.pooled import accuracy, run_folding, site_rows
from kernfed_papers.experiment import Experiment, Row, not_run
from kernfed_papers.published import TABLES, published
from kernfed_papers.rows import load_rows, missing_data, slice_rows

_METHOD = "KAHM Global Classifier (56)"
_SPLITS = {str(number): f"freiburg_groceries_resnet50_{number}" for number in range(1, 6)}


def run(seed: int, quick: bool) -> list[Row]:
    """One row per split; a quick run takes a slice of each."""
    others = [method for method in TABLES["GIKM", 17].rows if method != _METHOD]
    rows: list[Row] = []
    for split, dataset in _SPLITS.items():
        printed = published("GIKM", 17, _METHOD, split)
        label = f"split {split}: {_METHOD}"
        reason = missing_data(dataset)
        if reason:
            rows.append(not_run(label, printed, "%", reason))
            continue
        data = load_rows(dataset, "tanh")
        data = slice_rows(data, 500, 100, seed) if quick else data
        learner = FoldingLearner(measure="distance", batch_size=1000, partition="kmeans", dtype="float32", scale=None)
        folding = run_folding(learner, data, site_rows(data, partition_one_class(data.y_train)), seed)
        best = f"best other method in print: {others[0]} {published('GIKM', 17, others[0], split):g}"
        rows += [
            Row(label, printed, accuracy(folding.predicted, data.y_test), "%", best),
            *folding.traffic(f"split {split}"),
        ]
    return rows


EXPERIMENTS = (
    Experiment(
        id="gikm-table-17",
        title="Freiburg Groceries, each class at one site, five splits",
        source="GIKM Table 17",
        datasets=tuple(_SPLITS.values()),
        protocol=(
            "Every class is owned by one site; features are tanh of ResNet-50 features, one file per split of the data "
            "set's authors. Accuracy of the global classifier (56), in float32. Neither images nor features are at "
            "hand, so nothing is run unless they are brought."
        ),
        run=run,
    ),
)
