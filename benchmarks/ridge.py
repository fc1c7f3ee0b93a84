"""Time and traffic of federated ridge regression, as ratios to doing it in one place.

python benchmarks/ridge.py [--quick] [--rounds 2] [--out benchmarks/out]

A whole ``conjugate`` run (survey, factors, ten rounds) over ten sites in this process is compared with scikit-learn's
``RBFSampler`` and ``Ridge`` on the pooled rows; the bytes of a round with 2 M C floats per site and direction.
One exact exchange is compared with the sums that its sites make, the check of a site's sums with one Cholesky factor,
one row predicted with its features and their product, and what goes down to choose a regularisation with the
eigenvectors once.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from timing import Comparison, interleave, machine_facts, report

from kernfed.base.threads import single_blas_thread
from kernfed.data import load_dataset
from kernfed.errors import DatasetNotFoundError
from kernfed.federation import Federation, RidgeLearner
from kernfed.kernels import Moments
from kernfed.ridge import RidgeModel

HERE = Path(__file__).resolve().parent
Rows = npt.NDArray[np.float64]
REGULARIZATION = 1e-5
#: How often one row is predicted in a row.
REPEATS = 50


@dataclass(frozen=True)
class Sizes:
    """Rows, columns, features, sites, and rounds of training."""

    rows: int
    width: int
    components: int
    sites: int
    rounds: int


FULL = Sizes(60_000, 784, 2000, 10, 10)
QUICK = Sizes(600, 784, 50, 5, 3)


def images(sizes: Sizes) -> tuple[str, Rows, npt.NDArray[np.int64]]:
    """Name, rows and labels of MNIST, or of random rows of the same shape."""
    try:
        data = load_dataset("mnist", scaling="unit")
        return "MNIST", data.x_train[: sizes.rows].astype(np.float64), data.y_train[: sizes.rows].astype(np.int64)
    except DatasetNotFoundError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, sizes.rows)
        centres = rng.random((10, sizes.width))
        return "random rows", 0.3 * centres[labels] + 0.1 * rng.random((sizes.rows, sizes.width)), labels


def pooled_ridge(X: Rows, y: npt.NDArray[np.int64], components: int, bandwidth: float) -> Pipeline:
    """The same problem with scikit-learn: its features are sqrt(2) times ours, so lambda is doubled."""
    features = RBFSampler(gamma=0.5 / bandwidth**2, n_components=components, random_state=0)
    ridge = Ridge(alpha=2 * REGULARIZATION * len(X), fit_intercept=False)
    return make_pipeline(features, ridge).fit(X, np.eye(10)[y])


def federated_ridge(X: Rows, y: npt.NDArray[np.int64], sizes: Sizes, method: str = "conjugate") -> RidgeModel:
    parts = np.array_split(np.arange(len(X)), sizes.sites)
    data = {f"site {number:02d}": (X[part], y[part]) for number, part in enumerate(parts)}
    learner = RidgeLearner(
        method,
        rounds=sizes.rounds,
        n_components=sizes.components,
        bandwidth="median",
        regularization=REGULARIZATION,
        tolerance=0.0,
        fit_intercept=False,
    )
    with Federation.local(data) as federation:
        return learner.fit(federation)


def site_sums(model: RidgeModel, X: Rows, y: npt.NDArray[np.int64], sizes: Sizes) -> None:
    """Sums of products of features and targets of every site, one after the other and in this process."""
    features = model.parameters.feature_map()
    assert features is not None
    with single_blas_thread():
        for part in np.array_split(np.arange(len(X)), sizes.sites):
            Moments.from_rows(X[part], np.eye(10)[y[part]], features=features.transform)


def measured(sizes: Sizes, rounds: int) -> tuple[list[Comparison], dict[str, float]]:
    """Comparisons, and the accuracies of both on the first rows: they must have solved the same problem."""
    name, X, y = images(sizes)
    federated: list[RidgeModel] = []
    pooled: list[Pipeline] = []
    bandwidth = float(federated_ridge(X[:1000], y[:1000], QUICK, "dkrr").parameters.bandwidth)  # type: ignore[arg-type]
    seconds = interleave(
        lambda: pooled.append(pooled_ridge(X, y, sizes.components, bandwidth)),
        lambda: federated.append(federated_ridge(X, y, sizes)),
        rounds,
    )
    work = f"conjugate, {len(X):,} x {sizes.width} {name}, M = {sizes.components}, {sizes.sites} sites"
    floats = 2 * sizes.components * 10 * 8 * sizes.sites
    last = federated[-1].history_[-1]
    seen = slice(0, 5000)
    accuracy = {
        "reference_accuracy": float((pooled[-1].predict(X[seen]).argmax(axis=1) == y[seen]).mean()),
        "accuracy": federated[-1].score(X[seen], y[seen]),
    }
    exact = interleave(
        lambda: site_sums(federated[-1], X, y, sizes), lambda: federated_ridge(X, y, sizes, "exact"), rounds
    )
    return [
        Comparison(work, "RBFSampler + Ridge, pooled", *seconds, 1.5),
        Comparison(f"exact, {len(X):,} rows, {sizes.sites} sites", "sums of its sites, one by one", *exact, 1.5),
        check_sums(sizes, rounds),
        predict_row(federated[-1], X, rounds),
        choose_strength(X[:6000], y[:6000], sizes),
        Comparison("bytes up in a round", "2 M C floats per site", floats, last.bytes_up, 1.1, "bytes"),
        Comparison("bytes down in a round", "2 M C floats per site", floats, last.bytes_down, 1.1, "bytes"),
    ], accuracy


def check_sums(sizes: Sizes, rounds: int) -> Comparison:
    """Reading one site's sums, of which the coordinator finds out whether any rows can have them."""
    k = sizes.components + 10
    sent = Moments.from_rows(np.random.default_rng(0).standard_normal((k + 10, k))).to_arrays()
    positive = np.cov(np.random.default_rng(1).standard_normal((k, k + 10)))

    def factor() -> None:
        with single_blas_thread():
            np.linalg.cholesky(positive)

    times = interleave(factor, lambda: Moments.from_arrays(sent), rounds)
    return Comparison(f"read and check sums of {k} columns", "one Cholesky factor", *times, 3)


def predict_row(model: RidgeModel, X: Rows, rounds: int) -> Comparison:
    """One row: its frequencies are those of the row before."""
    features = model.parameters.feature_map()
    assert features is not None
    W, b, scale = features.frequencies, features.phases, len(model.weights_) ** -0.5
    row = X[:1]
    times = interleave(
        lambda: [(scale * np.cos(row @ W + b)) @ model.weights_ for _ in range(REPEATS)],
        lambda: [model.decision_function(row) for _ in range(REPEATS)],
        rounds,
    )
    work = f"predict one row of {X.shape[1]}, M = {len(model.weights_)}"
    return Comparison(work, "cos(x W + b) V", times[0] / REPEATS, times[1] / REPEATS, 5)


def choose_strength(X: Rows, y: npt.NDArray[np.int64], sizes: Sizes) -> Comparison:
    """Bytes to the sites of a fit that chooses its regularisation; without noise the best one is at an end."""
    parts = np.array_split(np.arange(len(X)), sizes.sites)
    data = {f"site {number:02d}": (X[part], y[part]) for number, part in enumerate(parts)}
    with Federation.local(data) as federation:
        model = RidgeLearner("exact", n_components=sizes.components, bandwidth="median").fit(federation)
        down = federation.traffic.bytes_down
    once = 8 * len(model.weights_) ** 2 * sizes.sites
    return Comparison("bytes down, regularisation chosen", "M^2 floats per site", once, down, 1.2, "bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and traffic of federated ridge regression, as ratios.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts (default: 2)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for ridge.json")
    chosen = parser.parse_args()
    rows, accuracy = measured(QUICK if chosen.quick else FULL, chosen.rounds)
    facts = {**machine_facts(), **accuracy, "quick": chosen.quick, "rounds": chosen.rounds}
    report("ridge", f"Federated ridge regression, {facts['threads']} threads", rows, facts, chosen.out)


if __name__ == "__main__":
    main()
