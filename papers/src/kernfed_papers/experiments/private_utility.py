"""What record-level privacy costs: accuracy on MNIST by epsilon, by number of sites and by released dimensions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kernfed.data import Dataset
from kernfed.kahm import split_rows
from kernfed.privacy import (
    ClassMoments,
    RecordGaussian,
    RecordMoments,
    clip_rows,
    discriminant_scores,
    fabricate_rows,
    pool_moments,
    public_basis,
)
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.private_logistic import RecordLogistic
from kernfed_papers.draws import generator
from kernfed_papers.experiment import Axes, Experiment, Row
from kernfed_papers.experiments.dpkahm_rows import accuracy_of, class_bank, noise_source
from kernfed_papers.rows import load_rows, slice_rows

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0, 8.0, 16.0)
#: Public settings, none of them read from the data: half of the longest image; a quarter around a class's mean.
RADIUS, SPREAD = 14.0, 7.0
#: Noisy rows are put on a sphere: a smaller ball takes less noise, and only directions are kept.
SPHERE = 5.0
DIMENSION = 64
DIMENSIONS = (16, 32, 64, 100, 256)
ROW_DIMENSION = 16
#: Of the gradient baseline: the best of a few settings tried at one site, which here costs it no privacy.
GRADIENT_DIMENSION, GRADIENT_RADIUS, RATE = 100, 10.0, 60.0
_SUBSPACE = 20


@dataclass(frozen=True)
class _Extent:
    """How much is run: epsilons, numbers of sites, dimensions, rows of a machine, rounds of gradients."""

    epsilons: tuple[float, ...]
    sites: tuple[int, ...]
    dimensions: tuple[int, ...]
    machine: int
    rounds: int


_FULL = _Extent(EPSILONS, (1, 10, 100), DIMENSIONS, 1000, 100)
_QUICK = _Extent((1.0, 8.0), (1, 3), (16, 64), 60, 10)


def load_images(seed: int, quick: bool) -> Dataset:
    """MNIST over 255; a slice for a quick run."""
    data = load_rows("mnist", "unit")
    return slice_rows(data, 3000, 500, seed) if quick else data


def run_utility(seed: int, quick: bool) -> list[Row]:
    """One curve per method and number of sites."""
    data, extent = load_images(seed, quick), _QUICK if quick else _FULL
    plain = _kahm(data.x_train, data.y_train, data, data.x_test, extent.machine, "kmeans", seed)
    note = f"all {len(data.y_train):,} rows, all pixels"
    rows = [
        Row(
            f"KAHM without noise, beside epsilon {epsilon:g}",
            None,
            plain,
            "fraction",
            note,
            series="KAHM without noise",
            x=epsilon,
        )
        for epsilon in extent.epsilons
    ]
    for epsilon in extent.epsilons:
        rows.append(_row("noisy rows and KAHM", epsilon, 1, noisy_rows_accuracy(data, epsilon, extent.machine, seed)))
    for sites in extent.sites:
        for epsilon in extent.epsilons:
            moments = release_moments(data, epsilon, DIMENSION, sites, seed)
            rows.append(_row("moments and KAHM", epsilon, sites, moments.kahm(extent.machine)))
            rows.append(_row("moments and discriminant", epsilon, sites, moments.discriminant()))
            value = gradient_accuracy(data, epsilon, sites, extent.rounds, seed)
            rows.append(_row("private logistic regression", epsilon, sites, value))
    return rows


def _row(method: str, epsilon: float, sites: int, value: float) -> Row:
    series = f"{method}, {sites} site{'s' if sites > 1 else ''}"
    return Row(f"{series}: record epsilon {epsilon:g}", None, value, "fraction", series=series, x=epsilon)


def run_dimensions(seed: int, quick: bool) -> list[Row]:
    """One curve per epsilon and classifier, over the number of released dimensions, at one site."""
    data, extent = load_images(seed, quick), _QUICK if quick else _FULL
    rows = []
    for epsilon in extent.epsilons:
        for dimension in extent.dimensions:
            moments = release_moments(data, epsilon, dimension, 1, seed)
            accuracies = {"KAHM": moments.kahm(extent.machine), "discriminant": moments.discriminant()}
            for name, value in accuracies.items():
                rows.append(
                    Row(
                        f"{name}, record epsilon {epsilon:g}, k = {dimension}",
                        None,
                        value,
                        "fraction",
                        series=f"{name}, epsilon {epsilon:g}",
                        x=float(dimension),
                    )
                )
    return rows


def _kahm(
    rows: FloatArray, labels: IntArray, data: Dataset, queries: FloatArray, machine: int, partition: str, seed: int
) -> float:
    """Accuracy of single-layer machines on all rows, each class divided into machines of about that many."""
    parts = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        draws = generator(seed, "private utility", "machines", str(label))
        parts += [own[part] for part in split_rows(rows[own], machine, partition, draws)]
    bank = class_bank(rows, labels, parts, _SUBSPACE, layers=1)
    return accuracy_of(bank.scores(queries, "distance").values, np.unique(labels), data.y_test)


def noisy_rows_accuracy(data: Dataset, epsilon: float, machine: int, seed: int) -> float:
    """Every row released by ``RecordGaussian`` in a public basis, machines on all noisy rows in their order.

    K-means would cut the noise into sectors, none of which holds the middle, where the queries are.
    """
    basis = public_basis("dct", data.x_train.shape[1], ROW_DIMENSION)
    mechanism = RecordGaussian(epsilon, DELTA, SPHERE, projection=basis)
    noisy = mechanism.release(data.x_train, generator=noise_source(seed, "rows", f"{epsilon:g}")).values
    queries = clip_rows(mechanism.project(data.x_test), SPHERE)
    return _kahm(noisy, data.y_train, data, queries, machine, "order", seed)


@dataclass(frozen=True, eq=False)
class ReleasedMoments:
    """Moments of every class that all sites released, each with noise of its own, and what is built on them."""

    data: Dataset
    mechanism: RecordMoments
    classes: tuple[ClassMoments, ...]
    seed: int

    def discriminant(self) -> float:
        """Accuracy of the quadratic discriminant straight from the moments."""
        labels = np.array([part.label for part in self.classes])
        scores = discriminant_scores(self.classes, self.mechanism.project(self.data.x_test))
        return accuracy_of(scores, labels, self.data.y_test)

    def kahm(self, per_class: int) -> float:
        """Accuracy of machines on ``per_class`` rows fabricated from the moments of each class."""
        rows, labels = fabricate_rows(self.classes, per_class, radius=RADIUS, seed=self.seed)
        queries = self.mechanism.project(self.data.x_test)
        return _kahm(rows, labels, self.data, queries, per_class, "order", self.seed)


def release_moments(data: Dataset, epsilon: float, dimension: int, sites: int, seed: int) -> ReleasedMoments:
    """One release; for several sites means of all are pooled first, then second moments around the pooled means."""
    mechanism = RecordMoments(epsilon, DELTA, dimension, radius=RADIUS, spread=SPREAD, basis="dct")
    source = noise_source(seed, "moments", f"{epsilon:g}", str(dimension), str(sites))
    if sites == 1:
        classes = mechanism.release(data.x_train, data.y_train, generator=source).classes
        return ReleasedMoments(data, mechanism, classes, seed)
    parts = [(data.x_train[part], data.y_train[part]) for part in site_rows(len(data.y_train), sites, seed)]
    centres = pool_moments([mechanism.release_means(X, y, generator=source) for X, y in parts])
    classes = pool_moments([mechanism.release_spreads(X, y, centres, generator=source) for X, y in parts])
    return ReleasedMoments(data, mechanism, classes, seed)


def site_rows(count: int, sites: int, seed: int) -> Iterator[IntArray]:
    """Row numbers of sites of equal size, at random."""
    yield from np.array_split(generator(seed, "private utility", "sites", str(sites)).permutation(count), sites)


def gradient_accuracy(data: Dataset, epsilon: float, sites: int, rounds: int, seed: int) -> float:
    """Logistic regression by noisy gradients on the same kind of public projection."""
    basis = public_basis("dct", data.x_train.shape[1], GRADIENT_DIMENSION)
    home = np.empty(len(data.y_train), dtype=np.intp)
    for number, part in enumerate(site_rows(len(home), sites, seed)):
        home[part] = number
    learner = RecordLogistic(epsilon, DELTA, GRADIENT_RADIUS, rounds=rounds, rate=RATE)
    source = noise_source(seed, "gradients", f"{epsilon:g}", str(sites))
    release = learner.release(data.x_train @ basis, data.y_train, np.unique(data.y_train), sites=home, generator=source)
    return float((release.predict(data.x_test @ basis) == data.y_test).mean())


_WORDS = (
    f"MNIST over 255. Guarantees are for a whole image, at delta {DELTA:g}; labels and class sizes are public for the "
    "moments and the noisy rows, while the gradients protect labels too. "
)


def _experiment(name: str, title: str, words: str, run: Callable[[int, bool], list[Row]], x: str) -> Experiment:
    return Experiment(
        id=name,
        title=title,
        source="this package, record-level privacy",
        datasets=("mnist",),
        protocol=_WORDS + words,
        run=run,
        axes=Axes(x, "accuracy", log_x=True),
    )


EXPERIMENTS = (
    _experiment(
        "private-utility",
        "privacy of whole records against accuracy: rows, moments, gradients",
        f"Moments: each site releases mean and covariance of its rows in each class, {DIMENSION} lowest frequencies of "
        f"a cosine basis, in a ball of {RADIUS:g}; several sites add their noise on their own and pool, first means, "
        "then second moments around them (summed under encryption with one noise, any number of sites is as one). "
        f"KAHM: one machine a class on {_FULL.machine:,} rows fabricated from the moments. Discriminant: quadratic, "
        "straight from the moments, the plainest use of the same release. Noisy rows: RecordGaussian on "
        f"{ROW_DIMENSION} frequencies put on a sphere; machines of about {_FULL.machine:,} rows on all noisy rows in "
        "the order of the file (k-means of rows that are mostly noise does worse than guessing). Without noise: "
        f"machines of about {_FULL.machine:,} rows by k-means on all pixels of all rows. Logistic regression: "
        f"{_FULL.rounds} rounds of noisy gradients of all rows in {GRADIENT_DIMENSION} frequencies, each site with "
        f"its own noise in each round, so it needs {_FULL.rounds} exchanges where the others need one or two. "
        "Machines score in float32. One draw of the noise, so differences below half "
        "a point mean nothing. The settings of every method (frequencies, radii, step length) were chosen by a few "
        "tries on this data set at one site, which is not charged to the budget: a favour to all, and none was chosen "
        "anew for 10 or 100 sites. Noise is seeded, so that the numbers can be repeated.",
        run_utility,
        "record epsilon",
    ),
    _experiment(
        "private-dimensions",
        "released dimensions against accuracy, at one site",
        "As private-utility, for moments of one site, by the number k of released frequencies.",
        run_dimensions,
        "released dimensions k",
    ),
)
