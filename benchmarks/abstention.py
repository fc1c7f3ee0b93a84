"""Coverage of sets that are made from histograms of sites, beside pooled split conformal, and strangers that are told.

python benchmarks/abstention.py [--quick] [--splits 200] [--seed 0] [--only private] [--out benchmarks/kept]

coverage   digits, breast cancer and a sample of letter at five sites: rows that were not trained on are divided anew,
           half kept aside and half new. Covered rows of a split of n and m are beta-binomial, or more: the lower side
           binds. Beside it the same with pooled rows and their scores as they are, literally, and by the library
           ``crepes`` where it is installed.
strangers  share of rows of a kind never seen that have a p-value of at most 0.05, and of rows of the known kinds;
           beside the distance of the nearest training row and the Mahalanobis distance of the nearest class, each with
           its threshold from the same rows kept aside. MNIST against Fashion-MNIST and against printed letters, and
           sets of which a class was left out of training at all sites.
private    the sets of coverage 0.9 with noise on the counts, at epsilon 1 and 3: one noise where sites add up under
           masks, and one for each site (``abstention_private.py``).

Writes ``abstention.json``, of which ``--only`` renews one part. MNIST, Fashion-MNIST and letter are left out where
their files are not there.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from abstention_private import PrivateRow, private_rows, private_table
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import betabinom, binom
from sklearn.datasets import load_breast_cancer
from timing import machine_facts

import kernfed as kf
from kernfed.abstain import probability_bins
from kernfed.base.text import TextTable
from kernfed.cli.console import show
from kernfed.errors import DatasetNotFoundError

try:
    from crepes import ConformalClassifier
except ImportError:  # not a dependency of anything here
    ConformalClassifier = None

HERE = Path(__file__).resolve().parent
SITES, COVERAGE, ALARMS = 5, 0.9, 0.05
#: A count of splits below their band that is less likely than this is no chance.
_CHANCE = 1e-3
#: Largest ratio of the size of sets to that of pooled split conformal.
_SIZE = 1.05

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class CoverageRow:
    """One data set and model: coverage over splits, splits outside of their 95 % band, mean sizes of sets."""

    data: str
    model: str
    splits: int
    aside: int
    new: int
    accuracy: float
    coverage: float
    lowest: float
    below_band: int
    above_band: int
    size: float
    pooled_size: float
    pooled_coverage: float
    crepes_size: float | None
    worst_class: float
    worst_class_conditional: float
    ok: bool


@dataclass(frozen=True)
class StrangerRow:
    """One pair of sets: shares with a p-value of at most ``ALARMS`` by each test, of strangers and of known kinds."""

    data: str
    aside: int
    strangers: int
    ours: float
    ours_alarms: float
    neighbour: float
    neighbour_alarms: float
    mahalanobis: float
    mahalanobis_alarms: float


def sets(quick: bool) -> Iterator[tuple[str, Rows]]:
    """All rows of the sets whose coverage is measured, in the unit cube or standardised."""
    digits = kf.data.load_dataset("digits", scaling="unit")
    yield "digits", (np.concatenate([digits.x_train, digits.x_test]), np.concatenate([digits.y_train, digits.y_test]))
    cancer = load_breast_cancer()
    yield "breast cancer", ((cancer.data - cancer.data.mean(axis=0)) / cancer.data.std(axis=0), cancer.target)
    if not quick and (letter := available("letter", "none")) is not None:
        rows = np.random.default_rng(0).permutation(len(letter.y_train))[:5000]
        X = letter.x_train[rows].astype(np.float64)
        yield "letter, 5,000 rows", ((X - X.mean(axis=0)) / X.std(axis=0), letter.y_train[rows])


def available(name: str, scaling: str = "unit") -> Any:
    """A data set, None where its file is not there."""
    try:
        return kf.data.load_dataset(name, scaling=scaling)
    except DatasetNotFoundError:
        return None


def learners() -> dict[str, Any]:
    """What is tested: one division and scale for all, so that nothing is chosen again in every split."""
    folding = kf.FoldingLearner("distance", hold="machines", batch_size=100, partition="order", scale=None)
    return {"machines": folding, "ridge": kf.RidgeLearner("exact", n_components=300, regularization=1e-4)}


def at_sites(X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, Rows]:
    """Rows at sites that have some classes each, mostly."""
    parts = kf.data.partition_label_skew(y, n_sites=SITES, share=0.6, seed=seed)
    return {f"site-{number}": (X[rows], y[rows]) for number, rows in enumerate(parts)}


def fitted(learner: Any, sites: dict[str, Rows]) -> Any:
    """A model of all sites."""
    with kf.Federation.local(sites) as federation:
        return learner.fit(federation)


def pooled_sets(aside: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Split conformal sets (n, C) of probabilities, as it is written: the k-th smallest 1 - p of the true class."""
    rank = math.ceil((len(aside) + 1) * COVERAGE)
    threshold = np.sort(1 - aside)[rank - 1] if rank <= len(aside) else np.inf
    return 1 - queries <= threshold


def coverage_row(name: str, rows: Rows, model_name: str, splits: int, seed: int) -> CoverageRow:
    """Coverage over splits: ten models, and the rows that each did not see divided anew."""
    X, y = rows
    models = min(10, splits)
    covered, sizes, pooled, pooled_covered, library, right = [], [], [], [], [], []
    by_class: list[np.ndarray] = []
    for turn in range(models):
        draws = np.random.default_rng([seed, turn])
        order = draws.permutation(len(y))
        train, rest = order[: len(y) // 2], order[len(y) // 2 :]
        model = fitted(learners()[model_name], at_sites(X[train], y[train], turn))
        likely = model.predict_proba(X[rest])
        truth = np.searchsorted(model.classes_, y[rest])
        right.append(float((likely.argmax(axis=1) == truth).mean()))
        for _ in range(splits // models):
            mixed = draws.permutation(len(rest))
            aside, new = mixed[: len(rest) // 2], mixed[len(rest) // 2 :]
            places = {f"s{place}": part for place, part in enumerate(np.array_split(aside, SITES))}
            sure = kf.conform(model, holdout={s: (X[rest[part]], y[rest[part]]) for s, part in places.items()})
            ours = {c: in_sets(sure, likely[new], c) for c in (None, "class")}
            own = np.arange(len(new)), truth[new]
            literal = pooled_sets(likely[aside, truth[aside]], likely[new])
            covered.append(int(ours[None][own].sum()))
            sizes.append(float(ours[None].sum(axis=1).mean()))
            pooled.append(float(literal.sum(axis=1).mean()))
            pooled_covered.append(float(literal[own].mean()))
            library.append(crepes_size(likely, truth, aside, new))
            hits = [np.bincount(truth[new], ours[c][own], len(model.classes_)) for c in (None, "class")]
            by_class.append(np.stack([*hits, np.bincount(truth[new], minlength=len(model.classes_))]))
    n, m = len(aside), len(new)
    rank = math.ceil((n + 1) * COVERAGE)
    low, high = betabinom.ppf([0.025, 0.975], m, rank, n + 1 - rank)
    below, above = int(np.sum(np.array(covered) < low)), int(np.sum(np.array(covered) > high))
    total = np.sum(by_class, axis=0)
    ratio = np.mean(sizes) / np.mean(pooled)
    likely_by_chance = binom.sf(below - 1, len(covered), 0.025) > _CHANCE
    return CoverageRow(
        name,
        model_name,
        len(covered),
        n,
        m,
        float(np.mean(right)),
        float(np.mean(covered) / m),
        float(np.min(covered) / m),
        below,
        above,
        float(np.mean(sizes)),
        float(np.mean(pooled)),
        float(np.mean(pooled_covered)),
        None if library[0] is None else float(np.mean([size for size in library if size is not None])),
        float((total[0] / total[2]).min()),
        float((total[1] / total[2]).min()),
        bool(likely_by_chance and ratio <= _SIZE),
    )


def in_sets(model: Any, probabilities: np.ndarray, conditional: str | None) -> np.ndarray:
    """``predict_set`` of probabilities that are known already."""
    return probability_bins(probabilities) <= model.conformal_.thresholds(model.classes_, COVERAGE, conditional)


def crepes_size(likely: np.ndarray, truth: np.ndarray, aside: np.ndarray, new: np.ndarray) -> float | None:
    """Mean size of the sets of a library, from pooled rows."""
    if ConformalClassifier is None:
        return None
    fitted_classifier = ConformalClassifier().fit(1 - likely[aside, truth[aside]])
    members = fitted_classifier.predict_set(1 - likely[new], confidence=COVERAGE, smoothing=False)
    return float(members.sum(axis=1).mean())


def private_coverage(quick: bool, splits: int, seed: int) -> Iterator[PrivateRow]:
    """Sets from counts with noise, of every set and of a larger sample of letter: ten models, or as many as splits."""
    models = min(10, splits)
    larger = None if quick else available("letter", "none")
    rows = list(sets(quick))
    if larger is not None:
        X = larger.x_train.astype(np.float64)
        rows.append((f"letter, {len(X):,} rows", ((X - X.mean(axis=0)) / X.std(axis=0), larger.y_train)))
    for name, (X, y) in rows:
        for model_name, learner in learners().items():
            scored = {}
            for turn in range(models):
                order = np.random.default_rng([seed, turn]).permutation(len(y))
                train, rest = order[: len(y) // 2], order[len(y) // 2 :]
                model = fitted(learner, at_sites(X[train], y[train], turn))
                scored[turn] = model.predict_proba(X[rest]), np.searchsorted(model.classes_, y[rest])
            yield from private_rows(name, model_name, scored, splits // models, SITES, COVERAGE)


def stranger_row(name: str, known: Rows, new: np.ndarray, strangers: np.ndarray, seed: int, aside: int) -> StrangerRow:
    """Tests that were given the same rows: known ones to train on and, the last of them, to keep aside."""
    X, y = known
    train, kept = slice(0, len(y) - aside), slice(len(y) - aside, len(y))
    model = fitted(learners()["machines"], at_sites(X[train], y[train], seed))
    sure = kf.conform(model, holdout={"aside": (X[kept], y[kept])})
    shares = [float((sure.p_values(rows) <= ALARMS).mean()) for rows in (strangers, new)]
    for score in (nearest_row(X[train]), mahalanobis(X[train], y[train])):
        own = np.sort(score(X[kept]))
        for rows in (strangers, new):
            as_far = aside - np.searchsorted(own, score(rows), side="left")
            shares.append(float(((1 + as_far) / (aside + 1) <= ALARMS).mean()))
    return StrangerRow(name, aside, len(strangers), *shares)


def nearest_row(train: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Squared distance of the nearest of all training rows, pooled."""
    norms = (train**2).sum(axis=1)

    def score(rows: np.ndarray) -> np.ndarray:
        return np.asarray((norms - 2 * rows @ train.T).min(axis=1) + (rows**2).sum(axis=1))

    return score


def mahalanobis(train: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Squared distance of the nearest mean of a class in the covariance within classes, with a little of the unit."""
    means = np.stack([train[labels == label].mean(axis=0) for label in np.unique(labels)])
    centred = train - means[np.searchsorted(np.unique(labels), labels)]
    covariance = centred.T @ centred / len(train)
    covariance += 1e-3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    whiten = np.linalg.cholesky(np.linalg.inv(covariance))

    def score(rows: np.ndarray) -> np.ndarray:
        return np.min([(((rows - mean) @ whiten) ** 2).sum(axis=1) for mean in means], axis=0)

    return score


def printed_letters(count: int, seed: int) -> np.ndarray:
    """Letters (count, 784) in the fonts that matplotlib brings, turned and moved a little, white on black."""
    fonts = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf"))
    fonts = [font for font in fonts if "Display" not in font.name]
    draws, images = np.random.default_rng(seed), []
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for _ in range(count):
        image = Image.new("L", (28, 28))
        font = ImageFont.truetype(fonts[draws.integers(len(fonts))], int(draws.integers(20, 25)))
        letter = letters[draws.integers(len(letters))]
        middle = tuple((14 + draws.integers(-1, 2, size=2)).tolist())
        ImageDraw.Draw(image).text(middle, letter, fill=255, font=font, anchor="mm")
        images.append(np.asarray(image.rotate(draws.uniform(-12, 12), resample=Image.Resampling.BILINEAR)))
    return np.stack(images).reshape(count, -1) / 255.0


def stranger_rows(quick: bool, seed: int) -> Iterator[StrangerRow]:
    """All pairs."""
    draws = np.random.default_rng(seed)
    for name, (X, y) in sets(quick):
        left_out = [] if name == "breast cancer" else np.unique(y)[:: 1 if len(np.unique(y)) == 10 else 5]
        rows = []
        for label in left_out[: 2 if quick else None]:
            known = draws.permutation(np.flatnonzero(y != label))
            new, rest = known[: len(known) // 5], known[len(known) // 5 :]
            aside = len(rest) // 3
            rows.append(stranger_row(name, (X[rest], y[rest]), X[new], X[y == label], seed, aside))
        if rows:
            yield mean_row(f"{name}, one class left out, mean of {len(rows)}", rows)
    mnist, fashion = (None, None) if quick else (available("mnist"), available("fashion_mnist"))
    if mnist is None or fashion is None:
        return
    rows_of = draws.permutation(len(mnist.y_train))[:6000]
    known, new = (mnist.x_train[rows_of], mnist.y_train[rows_of]), mnist.x_test[:1000]
    for name, strangers in (("Fashion-MNIST", fashion.x_test[:1000]), ("printed letters", printed_letters(1000, seed))):
        yield stranger_row(f"MNIST against {name}", known, new, strangers, seed, 1000)
    for label in (4, 7):
        own, seen = known[1] != label, mnist.y_test[:2000] != label
        strangers = mnist.x_test[:2000][~seen]
        rest = (known[0][own], known[1][own])
        yield stranger_row(f"MNIST without {label}", rest, mnist.x_test[:2000][seen][:1000], strangers, seed, 1000)


def mean_row(name: str, rows: list[StrangerRow]) -> StrangerRow:
    """Means of shares, and sums of rows."""
    shares = np.mean([list(asdict(row).values())[3:] for row in rows], axis=0).tolist()
    return StrangerRow(name, rows[0].aside, sum(row.strangers for row in rows), *shares)


def main() -> None:
    """Run everything and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sets, few splits")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "kept")
    parser.add_argument("--only", choices=("coverage", "strangers", "private"), help="renew this part only")
    options = parser.parse_args()
    splits, kept = 4 if options.quick else options.splits, options.out / "abstention.json"
    told = json.loads(kept.read_text()) if options.only and kept.exists() else {}
    wanted = [options.only] if options.only else ["coverage", "strangers", "private"]
    facts = {"benchmark": "abstention", "quick": options.quick, "seed": options.seed, **machine_facts()}
    if "coverage" in wanted:
        found = sets(options.quick)
        coverage = [coverage_row(name, rows, one, splits, options.seed) for name, rows in found for one in learners()]
        show(coverage_table(coverage))
        told["coverage"] = [asdict(row) for row in coverage]
    if "strangers" in wanted:
        strangers = list(stranger_rows(options.quick, options.seed))
        show(stranger_table(strangers))
        told["strangers"] = [asdict(row) for row in strangers]
    if "private" in wanted:
        private = list(private_coverage(options.quick, splits, options.seed))
        show(private_table(private))
        told["private"] = [asdict(row) for row in private]
    options.out.mkdir(parents=True, exist_ok=True)
    kept.write_text(
        json.dumps({**told, **facts} if not options.only else {**told, f"{options.only}_facts": facts}) + "\n"
    )


def coverage_table(coverage: list[CoverageRow]) -> TextTable:
    """What came out, to be read."""
    first = (
        "data",
        "model",
        "accuracy",
        "coverage",
        "below, above band",
        "size",
        "pooled",
        "crepes",
        "worst class",
        "ok",
    )
    rows = [
        (
            row.data,
            row.model,
            f"{row.accuracy:.3f}",
            f"{row.coverage:.4f}",
            f"{row.below_band}, {row.above_band} of {row.splits}",
            f"{row.size:.3f}",
            f"{row.pooled_size:.3f}",
            "." if row.crepes_size is None else f"{row.crepes_size:.3f}",
            f"{row.worst_class:.3f}, by class {row.worst_class_conditional:.3f}",
            "yes" if row.ok else "NO",
        )
        for row in coverage
    ]
    return TextTable(first, rows, "Sets of coverage 0.9")


def stranger_table(strangers: list[StrangerRow]) -> TextTable:
    """What came out, to be read."""
    second = ("strangers told at 5 % alarms", "machines", "nearest row", "Mahalanobis")
    told = [
        (
            row.data,
            f"{row.ours:.3f} ({row.ours_alarms:.3f})",
            f"{row.neighbour:.3f} ({row.neighbour_alarms:.3f})",
            f"{row.mahalanobis:.3f} ({row.mahalanobis_alarms:.3f})",
        )
        for row in strangers
    ]
    return TextTable(second, told, "Strangers (false alarms)")


if __name__ == "__main__":
    main()
