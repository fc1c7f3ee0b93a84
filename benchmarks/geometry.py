"""Speed and memory of the KAHM geometry, as ratios to what the hardware can do.

python benchmarks/geometry.py [--quick] [--only NAME ...] [--measure distance] [--rounds 3] [--out benchmarks/out]

Scoring is compared with the bare product ``Y @ X.T`` of the same queries and rows (into memory that is already
there), a single query with 128, fitting with the eigenvalue problem it cannot avoid and with a literal transcription of
the equations, and forgetting a row with training, both by processor time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.linalg
from literal import fit_literal
from timing import Comparison, interleave, machine_facts, report

from kernfed import KAHMClassifier
from kernfed.cli.console import progress
from kernfed.data import load_dataset, partition_dirichlet
from kernfed.errors import DatasetNotFoundError
from kernfed.federation import Federation, FoldingLearner
from kernfed.kahm import KAHM, MEASURES, WideKAHM
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.choice import split_rows
from kernfed.kahm.machine import layer_kernel

Rows = npt.NDArray[np.float32]
HERE = Path(__file__).resolve().parent
GIGABYTE = 10**9
#: Queries that one is compared with, and how often it is asked in a row.
TOGETHER, REPEATS = 128, 5


@dataclass(frozen=True)
class Sizes:
    """How large each piece of work is.

    ``fits`` image machines are fitted; ``wide`` and ``many``: queries, columns, machines, rows per machine; ``sites``:
    sites, rows per machine there, and rows forgotten.
    """

    train: int
    test: int
    batch: int
    fits: int
    wide: tuple[int, int, int, int]
    many: tuple[int, int, int, int]
    single: tuple[int, int]
    sites: tuple[int, int, int]
    stream: int


FULL = Sizes(
    60_000, 2000, 1000, 12, (4000, 1024, 113, 100), (4000, 2048, 700, 20), (1000, 5000), (100, 100, 20), 20_000
)
QUICK = Sizes(600, 100, 20, 5, (60, 48, 5, 20), (60, 64, 7, 8), (40, 60), (4, 20, 2), 1000)


class Bench:
    """The pieces of work; each method measures one line of the table."""

    def __init__(self, sizes: Sizes, measure: str, rounds: int) -> None:
        self.sizes, self.measure, self.rounds = sizes, measure, rounds

    @cached_property
    def images(self) -> tuple[str, Rows, npt.NDArray[np.integer], Rows]:
        """Name, training rows, their classes and test rows of MNIST, or of random rows of the same shape."""
        try:
            data = load_dataset("mnist", scaling="tanh")
        except DatasetNotFoundError:
            rng = np.random.default_rng(0)
            train, labels = clusters(rng, self.sizes.train, 784, 10)
            return "random rows in place of MNIST", train, labels, clusters(rng, self.sizes.test, 784, 10)[0]
        learn, ask = slice(self.sizes.train), slice(self.sizes.test)
        return "MNIST", data.x_train[learn], data.y_train[learn], data.x_test[ask]

    @cached_property
    def batches(self) -> list[Rows]:
        """Rows of the image machines: each class in consecutive parts."""
        _, rows, labels, _ = self.images
        rng = np.random.default_rng(0)  # "order" draws nothing
        classes = [rows[labels == label] for label in np.unique(labels)]
        return [own[part] for own in classes for part in split_rows(own, self.sizes.batch, "order", rng)]

    @cached_property
    def classifier(self) -> KAHMClassifier:
        """The image machines as a model in float32."""
        _, rows, labels, _ = self.images
        model = KAHMClassifier(self.measure, self.sizes.batch, "order", dtype="float32", scale=None)
        return model.fit(rows, labels)

    def score_images(self) -> Comparison:
        """Machines of about 1000 rows, more than the frame of a span is worth: images in all columns."""
        name, rows, _, queries = self.images
        model = self.classifier
        work = f"score {shape(queries)} {name} against {len(model.bank_.machines)} machines of ~{self.sizes.batch}"
        return self._against_product(work, queries, rows, lambda: model.scores(queries), 5)

    def score_wide(self) -> Comparison:
        """Machines of 100 rows, as for text embeddings: images in the span of the rows."""
        return self._score_random(self.sizes.wide, 3)

    def score_many(self) -> Comparison:
        """Many machines of 20 rows, as for long-tailed images: products of tiles with 2049 rows of directions."""
        return self._score_random(self.sizes.many, 2.25)

    def ask_many(self) -> Comparison:
        """One query against many machines of 20 rows.

        The limit is that of one tile, 8 of 128 queries, and of reading 117 MB once: where products have a kernel for
        small matrices, 128 queries take no longer than it takes to read the machines seven times.
        """
        model, _, queries = self._random_machines(self.sizes.many)
        work = f"one query against {len(model.bank_.machines)} machines of {self.sizes.many[-1]}"
        return self._ask_one(work, queries, model.bank_, 1 / 6)

    def ask_images(self) -> Comparison:
        """One query against machines whose numbers are too many for the caches."""
        name, _, _, queries = self.images
        work = f"one query against {len(self.classifier.bank_.machines)} {name} machines of ~{self.sizes.batch}"
        return self._ask_one(work, queries, self.classifier.bank_)

    def ask_site(self) -> Comparison:
        """One query against what a site of some hundred rows holds."""
        name, rows, _, queries = self.images
        size = self.sizes.sites[1]
        machines = fit_machines([rows[start : start + size] for start in range(0, 10 * size, size)], dtype=np.float32)
        bank = Bank.assemble(machines, list(range(10)), 10)
        return self._ask_one(f"one query against 10 {name} machines of {size}", queries, bank)

    def _ask_one(self, work: str, queries: Rows, bank: Bank, limit: float = 1 / 8) -> Comparison:
        """One of the first queries at a time, and all of them together, which no bit of a score may show."""
        some = queries[:TOGETHER]
        together = bank.scores(some, self.measure).values
        if not (bank.scores(some[:1], self.measure).values == together[:1]).all():
            raise RuntimeError("a query must score the same alone and among others, to the last bit")
        times = interleave(
            lambda: [bank.scores(some, self.measure) for _ in range(REPEATS)],
            lambda: [bank.scores(some[:1], self.measure) for _ in range(REPEATS)],
            self.rounds,
        )
        return Comparison(work, f"{len(some)} queries", times[0] / REPEATS, times[1] / REPEATS, limit)

    def forget_row(self) -> Comparison:
        """A row forgotten at one of many sites, median over some; processor time, for training keeps all cores busy."""
        name, rows, labels, _ = self.images
        count, size, forgotten = self.sizes.sites
        parts = partition_dirichlet(labels, count, 0.5, 0)
        sites = {f"site {number:04d}": (rows[part], labels[part]) for number, part in enumerate(parts)}
        learner = FoldingLearner(self.measure, batch_size=size, partition="kmeans", scale=None, dtype="float32")
        draws = np.random.default_rng(0)
        seconds = []
        with Federation.local(sites, seed=0) as federation:
            start = time.process_time()
            model = learner.fit(federation)
            training = time.process_time() - start
            for site in draws.choice(sorted(sites), forgotten, replace=False).tolist():
                row = int(draws.integers(len(sites[site][1])))
                start = time.process_time()
                model = model.forget(site=site, rows=[row])
                seconds.append(time.process_time() - start)
        work = f"forget a row, {len(rows):,} {name} rows over {count} sites"
        return Comparison(work, "training", training, float(np.median(seconds)), 1 / 200)

    def fit_images(self) -> Comparison:
        """All image machines; the reference is one symmetric eigenvalue problem per machine."""
        name, batches = self.images[0], self.batches[: self.sizes.fits]
        count = len(batches)
        machine = fit_machines([self.images[1][: self.sizes.batch]])[0]
        kernel = layer_kernel(machine.layers[0].exponent, machine.scores)
        reference, ours = interleave(
            lambda: [scipy.linalg.eigh(kernel, driver="evr") for _ in range(count)],
            lambda: fit_machines(batches, dtype=np.float32),
            self.rounds,
        )
        return Comparison(f"fit {count} {name} machines", f"{count} x eigh(evr) {shape(kernel)}", reference, ours, 2)

    def fit_single(self) -> Comparison:
        """One machine with many more columns than rows."""
        count, width = self.sizes.single
        rows = clusters(np.random.default_rng(3), count, width, 1)[0].astype(np.float64)
        levels: dict[str, float] = {}
        times = interleave(
            lambda: levels.update(literal=fit_literal(rows)[2]),
            lambda: levels.update(ours=KAHM(scale=None).fit(rows).regularization_),
            self.rounds,
            reference_once=True,
        )
        if not np.isclose(levels["literal"], levels["ours"], rtol=1e-6):
            raise RuntimeError(f"lambda must be the same from both, got {levels}: they do not do the same work")
        return Comparison(f"fit one machine of {shape(rows)}", "literal transcription", *times, 1 / 30)

    def memory(self) -> Comparison:
        """Resident size of a process that scores many queries, libraries included, input and output not."""
        with tempfile.TemporaryDirectory() as folder:
            model, queries = Path(folder, "model.kfd"), Path(folder, "queries.npy")
            self.classifier.save(model)
            np.save(queries, self.images[3])
            command = [sys.executable, str(HERE / "memory.py"), str(model), str(queries), str(self.sizes.stream)]
            sizes = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        work = f"peak memory, {self.sizes.stream:,} queries"
        limit = (sizes["model"] + GIGABYTE) / sizes["model"]
        return Comparison(work, "model (at most + 1 GB)", sizes["model"], sizes["peak"], limit, "bytes")

    def _score_random(self, size: tuple[int, int, int, int], limit: float) -> Comparison:
        model, rows, queries = self._random_machines(size)
        work = f"score {shape(queries)} against {len(model.bank_.machines)} machines of {size[-1]}"
        return self._against_product(work, queries, rows, lambda: model.folding(queries, self.measure), limit)

    def _random_machines(self, size: tuple[int, int, int, int]) -> tuple[WideKAHM, Rows, Rows]:
        """Machines of clustered rows, these rows, and queries; ``size`` as in ``Sizes.many``."""
        count, width, machines, each = size
        rng = np.random.default_rng(1)
        rows, labels = clusters(rng, machines * each, width, machines)
        rows = rows[np.argsort(labels, kind="stable")]
        queries, _ = clusters(rng, count, width, machines)
        return WideKAHM(each, "order", dtype="float32", scale=None).fit(rows), rows, queries

    def _against_product(
        self, work: str, queries: Rows, rows: Rows, ours: Callable[[], object], limit: float
    ) -> Comparison:
        space = np.empty((len(queries), len(rows)), dtype=np.float32)
        times = interleave(lambda: np.matmul(queries, rows.T, out=space), ours, self.rounds)
        return Comparison(work, "Y @ X.T", *times, limit)


def clusters(rng: np.random.Generator, count: int, width: int, groups: int) -> tuple[Rows, npt.NDArray[np.intp]]:
    """Rows (count, width) around ``groups`` centres, evenly, with a falling spectrum as embeddings have, and groups."""
    centres = np.random.default_rng(2).standard_normal((groups, width), dtype=np.float32)
    labels = np.arange(count) % groups
    spread = (np.arange(1, width + 1, dtype=np.float32)) ** np.float32(-0.5)
    rows = centres[labels] + rng.standard_normal((count, width), dtype=np.float32) * spread
    return rows, labels


def shape(array: npt.NDArray[np.floating]) -> str:
    return f"{array.shape[0]:,} x {array.shape[1]:,}"


PIECES = (
    "score_images",
    "score_wide",
    "score_many",
    "ask_many",
    "ask_images",
    "ask_site",
    "fit_images",
    "fit_single",
    "forget_row",
    "memory",
)


def measured(bench: Bench, names: Sequence[str]) -> Iterator[Comparison]:
    with progress("benchmark", len(names)) as advance:
        for name in names:
            advance(0, name)
            yield getattr(bench, name)()
            advance(1, name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of the KAHM geometry, as ratios.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    names = ", ".join(PIECES)
    parser.add_argument("--only", nargs="+", choices=PIECES, default=PIECES, metavar="NAME", help=names)
    parser.add_argument("--measure", choices=MEASURES, default="distance", help="what is scored (default: distance)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: 3)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for geometry.json")
    chosen = parser.parse_args()
    bench = Bench(QUICK if chosen.quick else FULL, chosen.measure, chosen.rounds)
    rows = list(measured(bench, chosen.only))
    facts = {**machine_facts(), "quick": chosen.quick, "measure": chosen.measure, "rounds": chosen.rounds}
    title = f"KAHM geometry: measure {chosen.measure}, best of {chosen.rounds}, {facts['threads']} threads"
    report("geometry", title, rows, facts, chosen.out)


if __name__ == "__main__":
    main()
