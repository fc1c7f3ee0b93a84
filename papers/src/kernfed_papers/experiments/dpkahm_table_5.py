"""DP-KAHM Tables 5 to 7: classifiers on noisy rows, with and without fabrication, and how well they show membership."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernfed.data import Dataset
from kernfed.kahm import Bank
from kernfed.privacy import ElementLaplace, membership_score
from kernfed_papers.arrays import FloatArray
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.experiments.dpkahm_rows import (
    ALL,
    PIXELS,
    Size,
    accuracy_of,
    class_bank,
    class_parts,
    fabricated_rows,
    noise_deviation,
    noise_source,
    noisy_rows,
)
from kernfed_papers.published import published
from kernfed_papers.published.dpkahm import MIS_TABLES
from kernfed_papers.rows import load_rows, missing_data, slice_rows

#: Relabellings behind a p-value: the smallest is 1/21.
_RELABELLINGS = 20
_MEMBERS = 2000
_UNSOUND = "not private: the division and the number of steps look at the raw rows"


@dataclass(frozen=True)
class PrivateTable:
    """A table, its data set with its public bounds, and how much of both is taken in a full and a quick run."""

    number: int
    dataset: str
    bounds: tuple[float, float]
    full: Size
    quick: Size
    points: tuple[str, ...]  # of a full run
    quick_points: tuple[str, ...]
    papers_rule: tuple[str, ...]  # points at which the papers' rule is tried too
    curve: int = 20  # the dimension whose rows make the curves


MNIST = PrivateTable(
    5,
    "mnist",
    PIXELS,
    Size(ALL, ALL, 1000),
    Size(400, 200, 1000),
    (
        "(1, 20)",
        "(1.5, 20)",
        "(2, 20)",
        "(3, 20)",
        "(4, 20)",
        "(5, 20)",
        "(8, 20)",
        "(16, 20)",
        "(32, 20)",
        "(32, 5)",
        "(32, 10)",
        "(32, 15)",
        "(32, 25)",
    ),
    ("(4, 20)", "(32, 5)"),
    ("(1, 20)", "(4, 20)", "(16, 20)", "(32, 20)"),
)
FREIBURG = PrivateTable(
    6,
    "freiburg_groceries_fc6_1",
    (-1.0, 1.0),
    Size(ALL, ALL, 1000),
    Size(250, 100, 1000),
    tuple(MIS_TABLES[6].rows),
    ("(16, 20)",),
    tuple(MIS_TABLES[6].rows),
)
HEART = PrivateTable(
    7,
    "heart_rate_intervals",
    (0.0, 1.0),
    Size(ALL, ALL, 1000),
    Size(200, 100, 1000),
    tuple(MIS_TABLES[7].rows),
    ("(16, 5)",),
    tuple(MIS_TABLES[7].rows),
    curve=5,
)


@dataclass(frozen=True, eq=False)
class Learned:
    """One way to learn from a release: column of the table, name of its curve, remark, machines."""

    kind: str
    name: str
    note: str
    bank: Bank


def load_table(table: PrivateTable, seed: int, quick: bool) -> tuple[Dataset, Size]:
    """The rows that a table is run on, and their size."""
    size = table.quick if quick else table.full
    scaling = "unit" if table.dataset == "mnist" else "none"
    return slice_rows(load_rows(table.dataset, scaling), size.train, size.test, seed), size


def run_table(table: PrivateTable, seed: int, quick: bool) -> list[Row]:
    """Rows of every point (epsilon, n) of a table."""
    reason = missing_data(table.dataset)
    if reason:
        return _absent(table, reason)
    data, size = load_table(table, seed, quick)
    points = table.quick_points if quick else table.points
    return [row for point in points for row in _point(table, point, data, size.batch, seed)]


def _absent(table: PrivateTable, reason: str) -> list[Row]:
    rows = []
    for point in table.points:
        for kind in MIS_TABLES[table.number].columns:
            printed = published("DP-KAHM", table.number, point, kind)
            rows.append(not_run(f"{point} accuracy, {kind}", printed, "fraction", reason))
            rows.append(not_run(f"{point} mis, {kind}", _mis(table, point, kind), "mis", reason))
    return rows


def _mis(table: PrivateTable, point: str, kind: str) -> float | None:
    printed = MIS_TABLES[table.number]
    return printed.rows[point][printed.columns.index(kind)]


def _point(table: PrivateTable, point: str, data: Dataset, batch: int, seed: int) -> list[Row]:
    """Accuracy and mis at one (epsilon, n): noisy rows, fabricated by the sound rule, fabricated by the papers'."""
    epsilon, dim = _parameters(point)
    rows: list[Row] = []
    for learned in private_banks(table, point, data, batch, seed, sound_only=point not in table.papers_rule):
        printed = published("DP-KAHM", table.number, point, learned.kind)
        scores = learned.bank.scores(data.x_test, "distance").values
        value = accuracy_of(scores, np.unique(data.y_train), data.y_test)
        on_curve = dim == table.curve and not point.endswith("again")
        rule = ", papers' rule" if _UNSOUND in learned.note else ""
        rows.append(
            Row(
                f"{point} accuracy, {learned.kind}{rule}",
                printed,
                value,
                "fraction",
                learned.note,
                series=learned.name if on_curve else "",
                x=epsilon if on_curve else None,
            )
        )
        label = f"{point} mis, {learned.kind}{rule}"
        rows.append(membership_row(label, _mis(table, point, learned.kind), learned.bank, data, seed))
    return rows


def _parameters(point: str) -> tuple[float, int]:
    """Epsilon and n in the name of a row."""
    epsilon, dim = point.removesuffix(" again").strip("()").split(", ")
    return float(epsilon), int(dim)


def private_banks(
    table: PrivateTable, point: str, data: Dataset, batch: int, seed: int, *, sound_only: bool = False
) -> Iterator[Learned]:
    """The three ways to learn from one release; with ``sound_only`` the two that are private."""
    epsilon, dim = _parameters(point)
    labels, raw = data.y_train, data.x_train.astype(np.float64)
    noisy = noisy_rows(raw, epsilon, table.bounds, noise_source(seed, "table", str(table.number), point))
    noise = noise_deviation(epsilon, table.bounds)
    _, record = ElementLaplace(epsilon, table.bounds[1] - table.bounds[0], table.bounds).guarantees(raw.shape[1])
    promise = f"record epsilon {record.epsilon:.0f} at delta {record.delta:g}"
    after = class_parts(noisy, labels, batch, seed)
    yield Learned("Def. 12", "noisy rows", promise, class_bank(noisy, labels, after, dim))
    sound = fabricated_rows(noisy, after, noise, dim)
    bank = class_bank(sound.values, labels, after, dim)
    yield Learned("Def. 15", "fabricated, sound rule", f"{sound.note}; {promise}", bank)
    if sound_only:
        return
    before = class_parts(raw, labels, batch, seed)
    oracle = fabricated_rows(noisy, before, noise, dim, clean=raw)
    bank = class_bank(oracle.values, labels, before, dim)
    yield Learned("Def. 15", "fabricated, papers' rule (not private)", f"{oracle.note}; {_UNSOUND}", bank)


def membership_distances(bank: Bank, data: Dataset, seed: int) -> tuple[FloatArray, FloatArray]:
    """Smallest distance of raw training rows and of test rows to any class, DP-KAHM (67)-(68), of as many each."""
    count = min(_MEMBERS, len(data.x_train), len(data.x_test))
    draws = generator(seed, "membership", data.name)
    distances = []
    for rows in (data.x_train, data.x_test):
        chosen = np.sort(draws.choice(len(rows), count, replace=False))
        distances.append(bank.scores(rows[chosen], "distance").values.min(axis=1))
    return distances[0], distances[1]


def membership_row(label: str, printed: float | None, bank: Bank, data: Dataset, seed: int) -> Row:
    """DP-KAHM (69) in the units of the distances, as the paper has it; the note has what does not depend on them."""
    members, others = membership_distances(bank, data, seed)
    score = membership_score(members, others, permutations=_RELABELLINGS, seed=seed)
    value = score.value / score.scale if score.scale else 0.0  # densities per unit of distance, not per deviation
    return Row(label, printed, value, "mis", f"on standardised distances {score.value:.4f}, p = {score.p_value:.2f}")


_PROTOCOL = (
    "Laplace noise of scale d / epsilon on every element (Algorithm 1, no atom), then a classifier of wide, "
    "conditionally deep machines (L = 5, n as stated, round(N / 1000) branches) on the noisy rows (Definition 12), or "
    "on rows fabricated from them (Definition 15). Sound rule: k-means after the noise, the number of smoothing steps "
    "by the coupled bootstrap on one noisy part and used for all. Papers' rule: k-means on the raw rows and steps "
    "until the modelling error of the raw rows is reached (92), which is not private. Machines use the parts that were "
    "fabricated together. At most 10 smoothing steps are taken; the paper has no such limit. mis (69): "
    f"{_MEMBERS:,} random raw training rows against as many test rows (the paper takes all), by the smallest distance "
    "to a class, in the units of the distances, by the least-squares estimate of the difference of the densities; p by "
    f"{_RELABELLINGS} relabellings. epsilon is for one element; the note has it for a "
    "whole row. Noise is seeded, so that the numbers can be repeated. "
)


def _experiment(table: PrivateTable, title: str, source: str, words: str) -> Experiment:
    return Experiment(
        id=f"dpkahm-table-{table.number}",
        title=title,
        source=source,
        datasets=(table.dataset,),
        protocol=_PROTOCOL + words,
        run=lambda seed, quick: run_table(table, seed, quick),
        axes=Axes("epsilon per element", f"accuracy (n = {table.curve})", log_x=True),
    )


EXPERIMENTS = (
    _experiment(
        MNIST,
        "MNIST with and without fabrication: accuracy and membership score",
        "DP-KAHM Table 5, Figure 12",
        "All 60,000 and 10,000 rows of MNIST over 255, public range [0, 1], so d = 1 (the paper does not state d). "
        "The papers' rule is tried at four points, to compare; the table's second (32, 20) is left out.",
    ),
    _experiment(
        FREIBURG,
        "groceries with and without fabrication: accuracy and membership score",
        "DP-KAHM Table 6, Figure 14 (a)",
        f"Needs AlexNet and VGG-16 features in {FREIBURG.dataset}.npz, 8192 columns scaled to [-1, 1], so d = 2 (the "
        "paper scales by the smallest and largest values in the data, which its guarantee does not cover); it does not "
        "say which of the five splits it used, this is the first.",
    ),
    _experiment(
        HEART,
        "heart rate intervals with and without fabrication: accuracy and membership score",
        "DP-KAHM Table 7, Figure 14 (b)",
        f"Needs R-R intervals in {HEART.dataset}.npz: 217 columns scaled to the public range [0, 1], so d = 1 (the "
        "paper states neither); half of "
        "each subject's rows are training rows.",
    ),
)
