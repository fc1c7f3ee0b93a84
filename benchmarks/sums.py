"""Masked sums: what they cost members and coordinator, and what privacy costs a model that is made of one.

    python benchmarks/sums.py size                1,000 sites of 832,650 numbers each on the local engine
    python benchmarks/sums.py accuracy            MNIST over 100 sites and digits over ten, by epsilon and t
    python benchmarks/sums.py ... --out FOLDER    write the figures to FOLDER/sums_size.json or sums_accuracy.json

Kills are in ``sum_kills.py``.
"""

import argparse
import json
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from kernfed.data import load_dataset
from kernfed.federation import Federation, FoldingLearner, Payload, Site, task
from kernfed.privacy import RecordMoments
from kernfed.secure import Committee
from kernfed.secure.committee.member import Member

NUMBERS, SITES = 832_650, 1000


@task("ones", leaves="statistics", additive=True)
def ones(site: Site, payload: Payload) -> Payload:
    """As many numbers as are asked for, all the number of the site's rows."""
    return Payload({"numbers": np.full(int(payload.values["numbers"]), float(len(site.rows().y)))})


def measure_size(sites: int, numbers: int, corrupt: bool, before: int) -> dict[str, Any]:
    """Processor time of each member, and peak memory of this process above ``before`` (kB), in vectors.

    The peak never falls: that of the second setting is at least that of the first.
    """
    spent: list[float] = []
    answer = Member.answer

    def timed(member: Member, *arguments: Any) -> Any:
        started = time.thread_time()
        told = answer(member, *arguments)
        spent.append(time.thread_time() - started)
        return told

    Member.answer = timed  # type: ignore[method-assign]
    data = {f"site-{i:04}": (np.zeros((1 + i % 3, 1)), np.zeros(1 + i % 3, dtype=int)) for i in range(sites)}
    with Federation.local(data) as federation:
        started = time.monotonic()
        total = federation.sum(
            "ones",
            Payload(values={"numbers": numbers}),
            {"numbers": ((numbers,), 16.0)},
            committee=Committee(corrupt=corrupt),
            timeout=3600.0,
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = time.monotonic() - started
    Member.answer = answer  # type: ignore[method-assign]
    expected = sum(1 + i % 3 for i in range(sites))
    assert (total.arrays["numbers"] == expected).all()
    return {
        "sites": sites,
        "numbers": numbers,
        "members": 4 if corrupt else 3,
        "member_processor_seconds": [round(value, 2) for value in spent],
        "seconds_for_all_in_one_process": round(seconds, 1),
        "peak_memory_in_vectors": round((peak - before) * 1024 / (8 * numbers), 1),
        "bytes_up": federation.traffic.bytes_up,
    }


def measure_accuracy(repetitions: int) -> list[dict[str, Any]]:
    """Accuracy of machines from summed moments, for every repetition new noise and new divisions of digits."""
    warnings.simplefilter("ignore")
    rows = []
    mnist = load_dataset("mnist")
    flat = [np.asarray(part).reshape(len(part), -1) / 255.0 for part in (mnist.x_train, mnist.x_test)]
    labels = [np.asarray(part).astype(int) for part in (mnist.y_train, mnist.y_test)]
    if flat[0].max() < 0.1:
        flat = [part * 255.0 for part in flat]
    for epsilon, honest in [(3.0, 90), (3.0, 50), (1.0, 90)]:
        mechanism = RecordMoments(epsilon, 1e-5, 64, radius=14.0, spread=7.0, basis="dct")
        told = [
            _accuracy(mechanism, flat[0], labels[0], flat[1], labels[1], 100, honest, 1000, seed)
            for seed in range(repetitions)
        ]
        rows.append(_row("mnist", 100, epsilon, honest, told))
    X, y = load_digits(return_X_y=True)
    for honest in (10, 5):
        told = []
        for seed in range(max(5, repetitions)):
            order = np.random.default_rng(seed).permutation(len(y))
            test, train = order[:450], order[450:]
            mechanism = RecordMoments(3.0, 1e-5, 52, radius=4.0, spread=1.5, basis="dct")
            parts = X[train] / 16, y[train], X[test] / 16, y[test]
            told.append(_accuracy(mechanism, *parts, 10, honest, 500, seed))
        rows.append(_row("digits", 10, 3.0, honest, told))
    return rows


def _accuracy(
    mechanism: RecordMoments,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    sites: int,
    honest: int,
    per_class: int,
    seed: int,
) -> float:
    order = np.random.default_rng(seed).permutation(len(y))
    data = {f"site-{i:03}": (X[part], y[part]) for i, part in enumerate(np.array_split(order, sites))}
    learner = FoldingLearner(
        "distance",
        privacy=mechanism,
        sum=Committee(honest=honest),
        batch_size=per_class,
        rows_per_class=per_class,
        partition="order",
    )
    with Federation.local(data, seed=seed) as federation:
        return float((learner.fit(federation).predict(X_test) == y_test).mean())


def _row(name: str, sites: int, epsilon: float, honest: int, told: list[float]) -> dict[str, Any]:
    row = {"data": name, "sites": sites, "epsilon": epsilon, "delta": 1e-5, "t": honest, "runs": len(told)}
    row |= {"accuracy": round(float(np.mean(told)), 4), "smallest": round(min(told), 4)}
    print(row, flush=True)
    return row


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("size", "accuracy"))
    parser.add_argument("--sites", type=int, default=SITES)
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "size":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures: Any = [measure_size(given.sites, given.numbers, corrupt, before) for corrupt in (False, True)]
        print(json.dumps(figures, indent=1))
    else:
        figures = measure_accuracy(given.runs)
    if given.out is not None:
        (given.out / f"sums_{given.what}.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
