"""DP-KAHM Tables 8 to 10: federated learning on fabricated rows, in the three scenarios of Section 6.3."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernfed.data import Dataset, partition_one_class
from kernfed.federation import Federation, FoldingLearner, Traffic
from kernfed.privacy import ElementLaplace
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Axes, Experiment, Row
from kernfed_papers.experiments.dpkahm_rows import (
    ALL,
    LAYERS,
    PIXELS,
    SOUND,
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
from kernfed_papers.rows import load_rows, slice_rows

Parts = Sequence[npt.NDArray[np.intp]]

EPSILONS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 16.0)
PARTIES = (2, 5, 10, 20, 50, 100)
_SUBSPACE = 20
_FULL, _QUICK = Size(ALL, ALL, 1000), Size(300, 150, 1000)
_SCENARIO_3_EPSILON = 16.0


@dataclass(frozen=True, eq=False)
class _Release:
    """Rows of all sites after the noise, and the number of smoothing steps that was found on some of them."""

    data: Dataset
    epsilon: float
    noisy: FloatArray
    steps: str | int = SOUND

    def fabricate(self, rows: npt.NDArray[np.intp], batch: int, seed: int) -> tuple[FloatArray, int]:
        """Rows fabricated from some rows of one holder, and the steps taken."""
        values, labels = self.noisy[rows], self.data.y_train[rows]
        parts = class_parts(values, labels, batch, seed)
        noise = noise_deviation(self.epsilon, PIXELS)
        fabricated = fabricated_rows(values, parts, noise, _SUBSPACE, steps=self.steps)
        return fabricated.values, fabricated.steps[0]


def _rows(size: Size, seed: int) -> Dataset:
    return slice_rows(load_rows("mnist", "unit"), size.train, size.test, seed)


def _release(data: Dataset, epsilon: float, seed: int) -> _Release:
    source = noise_source(seed, "scenario", f"{epsilon:g}")
    return _Release(data, epsilon, noisy_rows(data.x_train, epsilon, PIXELS, source))


def _central(release: _Release, batch: int, seed: int) -> tuple[float, int]:
    """Accuracy of classifier (100) on rows fabricated in one place, and the number of steps."""
    labels = release.data.y_train
    values, steps = release.fabricate(np.arange(len(labels)), batch, seed)
    bank = class_bank(values, labels, class_parts(values, labels, batch, seed), _SUBSPACE)
    scores = bank.scores(release.data.x_test, "distance").values
    return accuracy_of(scores, np.unique(labels), release.data.y_test), steps


def _distributed(release: _Release, parts: Parts, batch: int, seed: int) -> tuple[float, Traffic]:
    """Accuracy of classifier (104), every site fabricating from its own noisy rows, and what was sent."""
    sites = {
        f"site {number:03d}": (release.fabricate(part, batch, seed)[0], release.data.y_train[part])
        for number, part in enumerate(parts)
    }
    learner = FoldingLearner(
        measure="distance",
        batch_size=batch,
        partition="kmeans",
        scale=None,
        layers=LAYERS,
        dtype="float32",
        subspace_dim=_SUBSPACE,
    )
    with Federation.local(sites, seed=seed) as federation:
        predicted = learner.fit(federation).predict(release.data.x_test)
        return float((predicted == release.data.y_test).mean()), federation.traffic


def halves_by_class(labels: IntArray, seed: int) -> Parts:
    """Scenario 2: the rows of each class divided at random between two sites."""
    draws = generator(seed, "scenario 2")
    return [half for part in partition_one_class(labels) for half in np.array_split(draws.permutation(part), 2)]


def run_by_epsilon(table: int, seed: int, quick: bool) -> list[Row]:
    """Tables 8 and 9: distributed and centralised accuracy for each epsilon."""
    size = _QUICK if quick else _FULL
    data = _rows(size, seed)
    parts = partition_one_class(data.y_train) if table == 8 else halves_by_class(data.y_train, seed)
    rows: list[Row] = []
    for epsilon in (4.0,) if quick else EPSILONS:
        release = _release(data, epsilon, seed)
        central, steps = _central(release, size.batch, seed)
        distributed, sent = _distributed(replace(release, steps=steps), parts, size.batch, seed)
        _, record = ElementLaplace(epsilon, 1.0, PIXELS).guarantees(data.x_train.shape[1])
        note = f"{steps} smoothing step(s); record epsilon {record.epsilon:.0f} at delta 1e-05"
        for place, value in (("distributed", distributed), ("centralized", central)):
            rows.append(
                Row(
                    f"epsilon {epsilon:g}, {place}",
                    published("DP-KAHM", table, f"{epsilon:g}", place),
                    value,
                    "fraction",
                    note,
                    series=place,
                    x=epsilon,
                )
            )
    for unit, count in (("bytes up", sent.bytes_up), ("bytes down", sent.bytes_down)):
        rows.append(Row(f"training and {len(data.y_test):,} queries, {len(parts)} sites", None, count, unit))
    return rows


def run_by_parties(seed: int, quick: bool) -> list[Row]:
    """Table 10: rows divided at random among more and more sites; another seed is another division and other noise."""
    size, parties = (_QUICK, PARTIES[:2]) if quick else (_FULL, PARTIES)
    data = _rows(size, seed)
    release = _release(data, _SCENARIO_3_EPSILON, seed)
    central, steps = _central(release, size.batch, seed)
    release = replace(release, steps=steps)
    rows = []
    for count in parties:
        order = generator(seed, "scenario 3", str(count)).permutation(len(data.y_train))
        distributed, _ = _distributed(release, np.array_split(order, count), size.batch, seed)
        for place, value in (("distributed", distributed), ("centralized", central)):
            printed = published("DP-KAHM", 10, str(count), place)
            rows.append(Row(f"{count} sites, {place}", printed, value, "fraction", series=place, x=float(count)))
    return rows


_WORDS = (
    "MNIST over 255, public range [0, 1], so d = 1 (the paper does not state d). Laplace noise on every element, then"
    " rows fabricated at every site from its own noisy rows (sound rule: k-means after the noise; the number of "
    "smoothing steps found by the coupled bootstrap on one noisy part and used by all, 10 at most), then one round of "
    "federated learning by the smallest distance (104), n = 20, L = 5. Centralised: the same noisy rows in one place "
    "(100). epsilon is for one element; for a whole image it is in the notes. Noise is seeded, so that the numbers can "
    "be repeated. "
)


_ALL_ROWS = "All 60,000 training and 10,000 test rows. "

EXPERIMENTS = (
    Experiment(
        id="dpkahm-table-8",
        title="fabricated rows, each class at one site",
        source="DP-KAHM Table 8, Figure 16 (a)",
        datasets=("mnist",),
        protocol=_WORDS + _ALL_ROWS + "Ten sites, each with all rows of one class.",
        run=lambda seed, quick: run_by_epsilon(8, seed, quick),
        axes=Axes("epsilon per element", "accuracy", log_x=True),
    ),
    Experiment(
        id="dpkahm-table-9",
        title="fabricated rows, each class at two sites",
        source="DP-KAHM Table 9, Figure 16 (b)",
        datasets=("mnist",),
        protocol=_WORDS + _ALL_ROWS + "Twenty sites, each with half of the rows of one class.",
        run=lambda seed, quick: run_by_epsilon(9, seed, quick),
        axes=Axes("epsilon per element", "accuracy", log_x=True),
    ),
    Experiment(
        id="dpkahm-table-10",
        title="fabricated rows divided at random among sites, epsilon 16",
        source="DP-KAHM Table 10, Figure 16 (c)",
        datasets=("mnist",),
        protocol=_WORDS
        + _ALL_ROWS
        + "Rows divided at random among the sites. A seed is one division and one draw of the noise; the "
        "paper has the mean of ten.",
        run=run_by_parties,
        axes=Axes("sites", "accuracy", log_x=True),
    ),
)
