"""After DP-KAHM Table 5: which part of the papers' rule it is that makes noisy rows better at epsilon 1."""

import numpy as np

from kernfed_papers.experiment import Experiment, Row
from kernfed_papers.experiments.dpkahm_rows import (
    ORACLE,
    SOUND,
    accuracy_of,
    class_bank,
    class_parts,
    fabricated_rows,
    noise_deviation,
    noise_source,
    noisy_rows,
)
from kernfed_papers.experiments.dpkahm_table_5 import MNIST, load_table
from kernfed_papers.published import published

_POINT, _EPSILON, _DIM = "(1, 20)", 1.0, 20
_STEPS = {None: "not fabricated", SOUND: "steps by the sound rule", ORACLE: "steps by the papers' rule"}
_PRIVATE, _NOT_PRIVATE = "private", "not private: it looks at the raw rows"


def run(seed: int, quick: bool) -> list[Row]:
    """Accuracy for both divisions, without fabrication and with the steps of either rule."""
    data, size = load_table(MNIST, seed, quick)
    labels, raw = data.y_train, data.x_train.astype(np.float64)
    noisy = noisy_rows(raw, _EPSILON, MNIST.bounds, noise_source(seed, "table", str(MNIST.number), _POINT))
    noise = noise_deviation(_EPSILON, MNIST.bounds)
    rows: list[Row] = []
    for divided, by in (("noisy", noisy), ("raw", raw)):
        parts = class_parts(by, labels, size.batch, seed)
        for steps in _STEPS:
            made = None
            if steps is not None:
                made = fabricated_rows(noisy, parts, noise, _DIM, clean=raw if steps == ORACLE else None)
            values = noisy if made is None else made.values
            scores = class_bank(values, labels, parts, _DIM).scores(data.x_test, "distance").values
            printed = published("DP-KAHM", 5, _POINT, "Def. 12" if made is None else "Def. 15")
            private = _PRIVATE if divided == "noisy" and steps != ORACLE else _NOT_PRIVATE
            rows.append(
                Row(
                    f"{divided} rows divided, {_STEPS[steps]}",
                    printed,
                    accuracy_of(scores, np.unique(labels), data.y_test),
                    "fraction",
                    private if made is None else f"{made.note}; {private}",
                )
            )
    return rows


EXPERIMENTS = (
    Experiment(
        id="dpkahm-division",
        title="MNIST at epsilon 1: k-means before or after the noise, and who chooses the steps",
        source="after DP-KAHM Table 5",
        datasets=("mnist",),
        protocol=(
            "The noisy rows of dpkahm-table-5 at (epsilon, n) = (1, 20), all 60,000 and 10,000. A class is divided by "
            "k-means on the noisy rows, which is private, or on the raw ones, as the papers do; machines are made of "
            "noisy rows (Definition 12) or of rows fabricated from them (Definition 15) with the number of smoothing "
            "steps by the coupled bootstrap (sound, 10 at most) or until the modelling error of the raw rows is "
            "reached (92). Published: the row of Table 5 for the same definition."
        ),
        run=run,
    ),
)
