"""Receipts in full counts: a stream of adds and forgets against training from scratch, flipped bytes, an attack.

python benchmarks/receipts.py [--steps 1000] [--flips 2000] [--seed 0] [--out benchmarks/out]

stream   rows of digits come and go at a site at random; every 50 steps, and at the end, the site's machines are held
         against machines fitted from scratch with the membership that was written down by hand: every byte
verify   receipts of the whole stream are checked, and the state is made again from the rows that are left
flips    one byte of a random file of the store is changed, again and again: how many changes are not found
attack   membership of rows before and after they are forgotten
cost     processor time of forgetting a row, and the share of it that the receipt takes

Writes ``receipts.json``.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from timing import machine_facts

from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import fit_batches, folding_handle, machines_of_record, read_machines
from kernfed.federation.folding.receipts import attack_forgetting
from kernfed.files import content_digest, labels_to_values
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.model_file import pack_machines
from kernfed.site.receipts import PendingReceipt
from kernfed.site.verification import SAME, verify

HERE = Path(__file__).resolve().parent
FIRST = 600
PARAMETERS = FoldingParameters(batch_size=20, partition="order")


def site_in(folder: Path) -> tuple[Site, Any, Any]:
    """A site with the first digits, trained, and all digits."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    policy = Policy(tasks=("*",), keep_models=2)
    site = Site("a", X[:FIRST], y[:FIRST], store=SiteStore(folder), policy=policy)
    about = {"handle": handle(), "parameters": PARAMETERS.to_values(), "privacy": None}
    site.as_owner("folding_fit", Payload(values=about))
    return site, X, y


def handle() -> str:
    """Name of the site's machines."""
    return folding_handle(PARAMETERS, None)


def digest(machines: Any) -> str:
    """Hash of machines, to the byte."""
    return content_digest({}, pack_machines(machines))


class Membership:
    """Which rows are in which batch of which class, written down by hand."""

    def __init__(self, site: Site) -> None:
        kept = read_machines(site, handle())
        assert kept is not None
        self.parts = [(int(label), batch.tolist()) for label, batch in zip(kept.labels, kept.batches, strict=True)]

    def forget(self, number: int) -> None:
        """A batch loses the row, and goes where it was its last."""
        parts = [(label, [other for other in batch if other != number]) for label, batch in self.parts]
        self.parts = [(label, batch) for label, batch in parts if batch]

    def add(self, number: int, label: int) -> None:
        """The last batch of the class takes the row, if it has room."""
        own = [batch for held, batch in self.parts if held == label]
        if own and len(own[-1]) < PARAMETERS.batch_size:
            own[-1].append(number)
        else:
            self.parts.append((label, [number]))

    def scratch(self, site: Site) -> str:
        """Hash of machines that are fitted now, of the rows that the site holds."""
        labels, batches = zip(*self.parts, strict=True)
        return digest(
            fit_batches(site.rows(), PARAMETERS, list(labels), [np.array(batch) for batch in batches]).machines
        )


def stream(site: Site, X: Any, y: Any, steps: int, seed: int) -> dict[str, Any]:
    """Random adds and forgets; how often the machines were compared, and how often they were others."""
    draws, membership = np.random.default_rng(seed), Membership(site)
    held, compared, others, forgotten = list(range(FIRST)), 0, 0, 0
    for step in range(1, steps + 1):
        if draws.random() < 0.5:
            number = held.pop(int(draws.integers(len(held))))
            site.as_owner("forget_rows", Payload({"ids": np.array([number])}))
            membership.forget(number)
            forgotten += 1
        else:
            place = int(draws.integers(len(X)))
            added = Payload({"X": X[[place]]}, {"y": labels_to_values(y[[place]])})
            number = int(site.as_owner("add_rows", added).arrays["ids"][0])
            held.append(number)
            membership.add(number, int(y[place]))
        if step % 50 == 0 or step == steps:
            kept = read_machines(site, handle())
            assert kept is not None
            compared += 1
            others += digest(kept.machines) != membership.scratch(site)
    return {"steps": steps, "forgotten": forgotten, "compared": compared, "different": others}


def flips(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Changes of one byte in the store's files, and how many are not found."""
    draws, missed = np.random.default_rng(seed), 0
    places = [
        place
        for place in sorted(folder.rglob("*"))
        if place.is_file() and place.name != "lock" and place.parent.name not in ("journal", "answers")
    ]
    for _ in range(count):
        place = places[int(draws.integers(len(places)))]
        content = place.read_bytes()
        wrong = bytearray(content)
        wrong[int(draws.integers(len(content)))] ^= int(draws.integers(1, 256))
        place.write_bytes(bytes(wrong))
        missed += verify(SiteStore(folder)).holds
        place.write_bytes(content)
    return {"files": len(places), "flips": count, "missed": missed}


def cost(site: Site, count: int) -> dict[str, float]:
    """Processor seconds of forgetting a row, median, and of the receipt in it."""
    taken, receipts = [], []
    true = PendingReceipt.__init__, PendingReceipt.write

    def timed(work: Any) -> Any:
        def measured(*arguments: Any) -> None:
            started = time.process_time()
            work(*arguments)
            receipts[-1] += time.process_time() - started

        return measured

    PendingReceipt.__init__, PendingReceipt.write = map(timed, true)  # type: ignore[method-assign]
    for number in site.rows().ids[:count].tolist():
        receipts.append(0.0)
        started = time.process_time()
        site.as_owner("forget_rows", Payload({"ids": np.array([number])}))
        taken.append(time.process_time() - started)
    PendingReceipt.__init__, PendingReceipt.write = true  # type: ignore[method-assign]
    return {"forgetting": float(np.median(taken)), "receipt": float(np.median(receipts))}


def main() -> None:
    """Run all of it and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernfed-receipts-") as name:
        folder = Path(name)
        site, X, y = site_in(folder / "stream")
        result: dict[str, Any] = {"benchmark": "receipts", **machine_facts(), "seed": given.seed}
        result["stream"] = stream(site, X, y, given.steps, given.seed)
        started = time.process_time()
        verdict = verify(SiteStore(site.store.path), site)
        assert verdict.holds, verdict.problems
        same = sum(entry.verdict == SAME for entry in verdict.remade)
        seconds = time.process_time() - started
        result["verify"] = {"receipts": len(verdict.check.receipts), "same": same, "of": len(verdict.remade)}
        result["verify"]["seconds"] = seconds
        record = site.store.read("folding", handle())
        assert record is not None
        assert machines_of_record(record).private is None
        pair = attack_forgetting(site, record, 150, given.seed)
        assert pair is not None
        result["attack"] = {attack.name: [attack.roc.auc, *attack.roc.auc_interval] for attack in pair}
        result["cost"] = cost(site, 10)
        small, _, _ = site_in(folder / "flips")
        for numbers in ([3], [17, 40], [9]):
            small.as_owner("forget_rows", Payload({"ids": np.array(numbers)}))
        small.as_owner("add_rows", Payload({"X": X[:3]}, {"y": labels_to_values(y[:3])}))
        result["flips"] = flips(small.store.path, given.flips, given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result)
    (given.out / "receipts.json").write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
