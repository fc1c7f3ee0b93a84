"""One round of folding against averaging, sites alone and pooled data: accuracy, bytes, seconds; scaling; forgetting.

python benchmarks/federation.py [--quick] [--only PART ...] [--seed 0] [--out benchmarks/out]

images      MNIST over 100 sites (Dirichlet 0.5): one round, FedAvg, each site alone, pooled
text        20 Newsgroups embeddings over 100 sites at three concentrations, beside pooled linear models
scaling     the same rows over 10, 100 and 1000 sites
forgetting  one row forgotten, against training

Each part prints a table and writes ``federation_<part>.json``. The quick run takes scikit-learn's digits for all data.
"Up" is from the sites, "down" is to them, both summed over sites. All sites share this machine, so seconds are those
of their work together.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV
from timing import machine_facts

from kernfed import KAHMClassifier
from kernfed.base.random import generator
from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.console import note, show
from kernfed.data import Dataset, load_dataset, partition_dirichlet
from kernfed.errors import DatasetNotFoundError
from kernfed.federation import Federation, FoldingLearner, SiteStore
from kernfed.kahm.model import FoldingModel
from kernfed_papers.baselines.averaging import AveragingLearner
from kernfed_papers.baselines.averaging_model import AveragingModel

HERE = Path(__file__).resolve().parent
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Which data, how many sites and rounds, and how much of the rest."""

    images: str
    text: str
    sites: int
    batch_size: int
    rounds: tuple[int, ...]
    long_rounds: tuple[int, ...]
    scaling: tuple[int, ...]
    scaling_queries: int
    forgotten: int


FULL = Sizes("mnist", "20ng_minilm", 100, 100, (1, 10, 100), (1, 10), (10, 100, 1000), 1000, 20)
QUICK = Sizes("digits", "digits", 10, 20, (1, 3), (1,), (5, 20), 50, 3)


def split(data: Dataset, n_sites: int, alpha: float, seed: int) -> dict[str, tuple[Any, Any]]:
    """Rows of each site, by Dirichlet label skew."""
    parts = partition_dirichlet(data.y_train, n_sites, alpha, seed)
    return {f"site {number:04d}": (data.x_train[part], data.y_train[part]) for number, part in enumerate(parts)}


@contextmanager
def clock() -> Iterator[Callable[[], float]]:
    """Seconds since the beginning, or of the whole block once it is over."""
    start, stop = time.perf_counter(), [0.0]
    yield lambda: (stop[0] or time.perf_counter()) - start
    stop[0] = time.perf_counter()


# Images -----------------------------------------------------------------------------------------------------------


def images(sizes: Sizes, seed: int) -> tuple[str, list[Figures]]:
    data = load_dataset(sizes.images, scaling="tanh")
    sites = split(data, sizes.sites, 0.5, seed)
    found = folding_lines(data, sites, sizes, seed)
    found.append(pooled_line(data))
    for kind, epochs, rounds in (("linear", 1, sizes.rounds), ("mlp", 1, sizes.rounds), ("mlp", 5, sizes.long_rounds)):
        found += averaging_lines(data, sites, kind, epochs, rounds, seed)
    where = f"{len(data.y_train):,} rows over {sizes.sites} sites (Dirichlet 0.5)"
    return f"{data.name}, {where}, {len(data.y_test):,} queries", found


def folding_learner(sizes: Sizes) -> FoldingLearner:
    return FoldingLearner(
        measure="distance", batch_size=sizes.batch_size, dtype="float32", partition="order", scale=None
    )


def folding_lines(data: Dataset, sites: dict[str, Any], sizes: Sizes, seed: int) -> list[Figures]:
    """The federation in one round, and the mean of its sites' own classifiers."""
    with Federation.local(sites, seed=seed) as federation:
        with clock() as fitting:
            model = folding_learner(sizes).fit(federation)
        up, down = federation.traffic.bytes_up, federation.traffic.bytes_down
        with clock() as scoring:
            scores = model.scores_by_site(data.x_test)
        count = len(data.y_test)
        per_query = {
            "bytes up per query": (federation.traffic.bytes_up - up) / count,
            "bytes down per query": (federation.traffic.bytes_down - down) / count,
        }
    together = accuracy(model.classes_[scores.min(axis=0).argmin(axis=1)], data)
    alone = [accuracy(model.classes_[own.argmin(axis=1)], data) for own in scores]
    return [
        {
            "method": "folding, one round",
            "rounds": 1,
            "accuracy": together,
            "bytes up": up,
            "bytes down": down,
            **per_query,
            "fit seconds": fitting(),
            "predict seconds": scoring(),
        },
        {"method": "each site alone, mean", "rounds": 0, "accuracy": float(np.mean(alone))},
        {"method": "best site alone", "rounds": 0, "accuracy": float(np.max(alone))},
    ]


def pooled_line(data: Dataset) -> Figures:
    with clock() as fitting:
        model = KAHMClassifier(dtype="float32", batch_size=1000, partition="kmeans", scale=None).fit(
            data.x_train, data.y_train
        )
    with clock() as scoring:
        found = accuracy(model.predict(data.x_test), data)
    return {
        "method": "pooled data, KAHMClassifier",
        "rounds": 0,
        "accuracy": found,
        "fit seconds": fitting(),
        "predict seconds": scoring(),
    }


def averaging_lines(
    data: Dataset, sites: dict[str, Any], kind: str, epochs: int, rounds: Sequence[int], seed: int
) -> list[Figures]:
    """FedAvg after each of ``rounds``, from one run; what the measuring itself takes does not count."""
    found: list[Figures] = []
    measuring = 0.0

    def look(number: int, model: AveragingModel) -> None:
        nonlocal measuring
        if number not in rounds:
            return
        fitted = spent() - measuring
        with clock() as scoring:
            correct = accuracy(model.predict(data.x_test), data)
        done = model.history_[-1]
        many = f", {epochs} local epochs" if epochs > 1 else ""
        found.append(
            {
                "method": f"FedAvg, {kind}{many}",
                "rounds": number,
                "accuracy": correct,
                "bytes up": done.bytes_up,
                "bytes down": done.bytes_down,
                "bytes up per query": 0.0,
                "bytes down per query": 0.0,
                "fit seconds": fitted,
                "predict seconds": scoring(),
            }
        )
        measuring += scoring()

    with Federation.local(sites, seed=seed) as federation, clock() as spent:
        AveragingLearner(kind, rounds=max(rounds), local_epochs=epochs).fit(federation, callback=look)
    return found


def accuracy(predicted: npt.NDArray[Any], data: Dataset) -> float:
    return float((predicted == data.y_test).mean())


# Text -------------------------------------------------------------------------------------------------------------


def text(sizes: Sizes, seed: int) -> tuple[str, list[Figures]]:
    data = load_dataset(sizes.text, scaling="times10")
    found: list[Figures] = []
    for alpha in (5.0, 1.0, 0.1):
        sites = split(data, sizes.sites, alpha, seed)
        found += [
            {**line, "method": f"{line['method']}, alpha {alpha:g}"}
            for line in folding_lines(data, sites, sizes, seed)[:2]
        ]
    ridge = RidgeClassifierCV(alphas=np.logspace(-2, 4, 13))
    logistic = GridSearchCV(LogisticRegression(max_iter=2000), {"C": [0.003, 0.01, 0.03, 0.1]}, cv=3)
    for name, model in (("pooled data, ridge", ridge), ("pooled data, logistic regression", logistic)):  # both tuned
        with clock() as fitting:
            model.fit(data.x_train, data.y_train)
        found.append(
            {
                "method": name,
                "rounds": 0,
                "accuracy": accuracy(model.predict(data.x_test), data),
                "fit seconds": fitting(),
            }
        )
    return f"{data.name} x 10, {len(data.y_train):,} rows over {sizes.sites} sites, {len(data.y_test):,} queries", found


# Scaling ----------------------------------------------------------------------------------------------------------


def scaling(sizes: Sizes, seed: int) -> tuple[str, list[Figures]]:
    data = load_dataset(sizes.images, scaling="tanh")
    queries = data.x_test[: sizes.scaling_queries]
    found: list[Figures] = []
    for count in sizes.scaling:
        with Federation.local(split(data, count, 0.5, seed), seed=seed) as federation:
            with clock() as fitting:
                model = folding_learner(sizes).fit(federation)
            up, down = federation.traffic.bytes_up, federation.traffic.bytes_down
            with clock() as scoring:
                predicted = model.predict(queries)
            found.append(
                {
                    "sites": count,
                    "machines": sum(member.machines for member in model.members_.values()),
                    "accuracy": float((predicted == data.y_test[: len(queries)]).mean()),
                    "bytes up": up,
                    "bytes down": down,
                    "bytes up per query": (federation.traffic.bytes_up - up) / len(queries),
                    "bytes down per query": (federation.traffic.bytes_down - down) / len(queries),
                    "fit seconds": fitting(),
                    "predict seconds": scoring(),
                }
            )
    return f"{data.name}, {len(data.y_train):,} rows over more and more sites, {len(queries):,} queries", found


# Forgetting -------------------------------------------------------------------------------------------------------


def forgetting(sizes: Sizes, seed: int) -> tuple[str, list[Figures]]:
    """Training and forgetting by the wall clock with and without writing files, and by processor time.

    Training keeps every core busy and forgetting one, so the processor time says what each costs.
    """
    data = load_dataset(sizes.images, scaling="tanh")
    sites = split(data, sizes.sites, 0.5, seed)
    draws = generator(seed, "forgetting")
    chosen = [str(site) for site in draws.choice(sorted(sites), sizes.forgotten, replace=False)]
    with Federation.local(sites, seed=seed) as federation, written() as writing:
        measured = [cost(lambda: folding_learner(sizes).fit(federation), writing)]
        model: FoldingModel = measured[0][0]
        for site in chosen:
            row = int(draws.integers(len(sites[site][1])))
            measured.append(cost(lambda: model.forget(site=site, rows=[row]), writing))  # noqa: B023  called at once
            model = measured[-1][0]
    costs = np.array([times for _, times in measured])
    training, one = costs[0], np.median(costs[1:], axis=0)
    columns = ("seconds", "seconds without files", "processor seconds")
    return f"one row forgotten, median of {len(chosen)}; {data.name} over {sizes.sites} sites", [
        {"work": "training", **dict(zip(columns, training.tolist(), strict=True))},
        {"work": "forgetting a row", **dict(zip(columns, one.tolist(), strict=True))},
        {
            "work": "training over forgetting",
            **dict(zip(("ratio", "ratio without files", "processor ratio"), (training / one).tolist(), strict=True)),
        },
    ]


def cost(work: Callable[[], Any], writing: list[float]) -> tuple[Any, tuple[float, float, float]]:
    """What ``work`` returns, and its seconds, those without writing files, and those of the processor."""
    writing[0], processor = 0.0, time.process_time()
    with clock() as spent:
        result = work()
    return result, (spent(), spent() - writing[0], time.process_time() - processor)


@contextmanager
def written() -> Iterator[list[float]]:
    """Seconds that stores spend writing files, added up over threads that run together, in a list of one number."""
    spent, names = [0.0], ("write", "write_state", "write_answer", "delete")
    originals = {name: getattr(SiteStore, name) for name in names}

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            with clock() as one:
                result = original(*given, **options)
            spent[0] += one()
            return result

        return call

    for name, original in originals.items():
        setattr(SiteStore, name, timed(original))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(SiteStore, name, original)


# Report -----------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Sizes, int], tuple[str, list[Figures]]]] = {
    "images": images,
    "text": text,
    "scaling": scaling,
    "forgetting": forgetting,
}


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if "seconds" in name:
        return format_seconds(value)
    if "bytes" in name:
        return format_bytes(value)
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:,.4g}" if "ratio" in name else str(value)


def report(part: str, title: str, lines: list[Figures], facts: dict[str, Any], folder: Path) -> None:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    show(TextTable(columns, [[cell(name, line.get(name)) for name in columns] for line in lines], title))
    print()
    folder.mkdir(parents=True, exist_ok=True)
    told = {"benchmark": "federation", "part": part, "title": title, **facts, "lines": lines}
    (folder / f"federation_{part}.json").write_text(json.dumps(told) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="One round of folding against averaging, alone and pooled.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=0, help="of the split, the machines and the descent (default: 0)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for federation_<part>.json")
    chosen = parser.parse_args()
    facts = {**machine_facts(), "quick": chosen.quick, "seed": chosen.seed}
    for part in chosen.only:
        try:
            title, lines = PARTS[part](QUICK if chosen.quick else FULL, chosen.seed)
        except DatasetNotFoundError as error:
            note(f"{part}: not run, {error}")
            continue
        report(part, title, lines, facts, chosen.out)


if __name__ == "__main__":
    main()
