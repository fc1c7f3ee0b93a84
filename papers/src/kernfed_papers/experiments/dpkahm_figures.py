"""DP-KAHM Figures 6, 9, 13 and 15: layers of abstraction, fabricated digits, and how distances show membership."""

import numpy as np

from kernfed.kahm import KAHM
from kernfed.privacy import fabricate
from kernfed_papers.arrays import FloatArray
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.experiments.dpkahm_rows import PIXELS, accuracy_of, noise_deviation, noise_source, noisy_rows
from kernfed_papers.experiments.dpkahm_table_5 import (
    FREIBURG,
    MNIST,
    PrivateTable,
    load_table,
    membership_distances,
    membership_row,
    private_banks,
)
from kernfed_papers.rows import load_rows, missing_data

_DIGIT, _SIDE, _SUBSPACE = 8, 28, 20
_LAYERS = 20
_SHOWN_LAYERS = (1, 5, 10, 15, 20)
_SHOWN_ROWS = 5
_POINTS = ((32.0, 20), (32.0, 10), (32.0, 5), (8.0, 20), (4.0, 20), (1.0, 20))
_BINS = 25


def _eights(seed: int, count: int) -> FloatArray:
    """Random rows (count, 784) of the digit 8."""
    data = load_rows("mnist", "unit")
    own = np.flatnonzero(data.y_train == _DIGIT)
    chosen = np.sort(generator(seed, "eights").choice(own, count, replace=False))
    return np.asarray(data.x_train[chosen], dtype=np.float64)


def _picture(rows: FloatArray) -> tuple[tuple[float, ...], ...]:
    """Digits (k, 784) side by side, with two decimals: enough for a screen."""
    beside = np.hstack([row.reshape(_SIDE, _SIDE) for row in np.clip(rows, 0.0, 1.0)])
    return tuple(tuple(line) for line in beside.round(2).tolist())


def run_layers(seed: int, quick: bool) -> list[Row]:
    """Figure 6: image of a digit after every layer of a conditionally deep machine, and the layer that answers."""
    rows = _eights(seed, 61 if quick else 1001)
    query, rows = rows[:1], rows[1:]
    shown = [Row("input", None, 0.0, "distance", matrix=_picture(query))]
    image, images = query, []
    for layer in range(1, (5 if quick else _LAYERS) + 1):
        image = KAHM(subspace_dim=_SUBSPACE - layer + 1, scale=None).fit(rows).image(image)  # DP-KAHM (51)
        images.append(image)
        shown.append(
            Row(
                f"layer {layer}",
                None,
                float(np.linalg.norm(image - query)),
                "distance",
                series="layers",
                x=float(layer),
                matrix=_picture(image) if layer in _SHOWN_LAYERS else None,
            )
        )
    best = int(np.argmin([np.linalg.norm(image - query) for image in images]))
    distance = float(np.linalg.norm(images[best] - query))
    return [*shown, Row(f"output, that of layer {best + 1}", None, distance, "distance", matrix=_picture(images[best]))]


def run_fabricated(seed: int, quick: bool) -> list[Row]:
    """Figure 9: digits fabricated at several (epsilon, n), and how far from the raw ones they are."""
    rows = _eights(seed, 60 if quick else 1000)
    shown = [Row("raw digits", None, 0.0, "root mean squared error", matrix=_picture(rows[:_SHOWN_ROWS]))]
    for epsilon, dim in _POINTS[-2:] if quick else _POINTS:
        noisy = noisy_rows(rows, epsilon, PIXELS, noise_source(seed, "figure 9", f"{epsilon:g}"))
        made = fabricate(noisy, noise=noise_deviation(epsilon, PIXELS), subspace_dim=dim)
        error, before = (float(np.sqrt(np.square(table - rows).mean())) for table in (made.values, noisy))
        shown.append(
            Row(
                f"epsilon {epsilon:g}, n = {dim}",
                None,
                error,
                "root mean squared error",
                f"{made.steps[0]} smoothing step(s); noisy rows {before:.3f}",
                matrix=_picture(made.values[:_SHOWN_ROWS]),
            )
        )
    return shown


def run_histograms(
    table: PrivateTable, point: str, printed: dict[str, tuple[float, float]], seed: int, quick: bool
) -> list[Row]:
    """Figures 13 and 15: densities of distances of training and test rows; ``printed``: accuracy and mis by column."""
    reason = missing_data(table.dataset)
    if reason:
        return [
            not_run(f"{kind}: {name}", value, unit, reason)
            for kind, pair in printed.items()
            for name, unit, value in zip(("accuracy", "mis"), ("fraction", "mis"), pair, strict=True)
        ]
    data, size = load_table(table, seed, quick)
    rows: list[Row] = []
    for learned in private_banks(table, point, data, size.batch, seed, sound_only=True):
        accuracy, mis = printed[learned.kind]
        scores = learned.bank.scores(data.x_test, "distance").values
        value = accuracy_of(scores, np.unique(data.y_train), data.y_test)
        rows.append(Row(f"{learned.kind}: accuracy", accuracy, value, "fraction", learned.note))
        rows.append(membership_row(f"{learned.kind}: mis", mis, learned.bank, data, seed))
        distances = membership_distances(learned.bank, data, seed)
        edges = np.histogram_bin_edges(np.concatenate(distances), _BINS)
        for who, values in zip(("training", "test"), distances, strict=True):
            heights, _ = np.histogram(values, edges, density=True)
            rows += [
                Row(
                    f"{learned.kind}: {who} rows at distance {middle:.2f}",
                    None,
                    float(height),
                    "density",
                    series=f"{learned.name}: {who} rows",
                    x=float(middle),
                )
                for middle, height in zip((edges[1:] + edges[:-1]) / 2, heights, strict=True)
            ]
    return rows


def _histograms(
    number: int, table: PrivateTable, point: str, printed: dict[str, tuple[float, float]], nearest: str
) -> Experiment:
    return Experiment(
        id=f"dpkahm-figure-{number}",
        title="distances of training and test rows, with and without fabrication",
        source=f"DP-KAHM Figure {number}",
        datasets=(table.dataset,),
        protocol=(
            f"As in dpkahm-table-{table.number} with the sound rule, at (epsilon, n) = {point}: the paper does not say "
            f"which it was, and {nearest} Densities of the "
            "smallest distance to a class, for raw training rows and for test rows."
        ),
        run=lambda seed, quick: run_histograms(table, point, printed, seed, quick),
        axes=Axes("distance", "density"),
    )


EXPERIMENTS = (
    Experiment(
        id="dpkahm-figure-6",
        title="a digit after each layer of a conditionally deep machine",
        source="DP-KAHM Figure 6",
        datasets=("mnist",),
        protocol=(
            "1000 random training rows of the digit 8 over 255 and another one as input. Layers compose machines of "
            "dimension 20, 19, ..., 1 on the same rows (51); the output is the layer nearest to the input (52). The "
            "paper does not say which digits it drew, nor where n begins. Pictures for some layers, distance to the "
            "input for all."
        ),
        run=run_layers,
        axes=Axes("layer", "distance to the input"),
    ),
    Experiment(
        id="dpkahm-figure-9",
        title="digits fabricated from noisy ones",
        source="DP-KAHM Figure 9",
        datasets=("mnist",),
        protocol=(
            "1000 random training rows of the digit 8 over 255, public range [0, 1], so d = 1. Laplace noise on every "
            "pixel, then fabrication (Definition 14) with the number of smoothing steps by the coupled bootstrap; the "
            "paper stops by the modelling error of the raw rows, which is not private. (epsilon, n) are ours. "
            "Pictures of five digits, ten in the paper; the number is the error against the raw digits, which the "
            "paper does not print."
        ),
        run=run_fabricated,
    ),
    _histograms(
        13,
        MNIST,
        "(32, 20)",
        {"Def. 12": (0.9858, 0.35919), "Def. 15": (0.9849, 0.05377)},
        "the printed accuracies and mis are nearest to that row of the table.",
    ),
    _histograms(
        15,
        FREIBURG,
        "(16, 20)",
        {"Def. 12": (0.8880, 0.51320), "Def. 15": (0.8615, 0.12286)},
        "what is printed of noisy rows is nearest to that row of the table, of fabricated ones to (32, 10).",
    ),
)
