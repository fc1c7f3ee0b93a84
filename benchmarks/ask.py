"""Encrypted answers with every role a process: sites, hub, gateway, and the asker, who alone has the secret key.

python benchmarks/ask.py [--quick] [--sites 5] [--rows 1000] [--rounds 20] [--out DIR]

Sites let encrypted scores leave and no others, under the asker's key and no other. The asker (this process) asks the
gateway over HTTP: one query, and 64 in one request. Beside the seconds on the clock, which other work on the machine
lengthens, stand the processor seconds of each role in a request; on a quiet machine with a core for each role a request
takes about those of the asker, the gateway, the hub and one site. Every answer is compared with what the same scores
give in clear, rounded to 8 bits. The table goes into ``ask.json``. The quick run takes scikit-learn's digits and three
sites in place of five of MNIST's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from hub import SOON, Deployment, resident, rows_of_sites
from timing import machine_facts

from kernfed.base.text import TextTable
from kernfed.cli.console import note, show
from kernfed.errors import RunFailed
from kernfed.federation import Federation, FoldingLearner
from kernfed.federation.engines.nats_hub import Hub
from kernfed.secure import KeyHolder, classify
from kernfed.serve.client import Decision, GatewayClient, Rows

BATCH = 64
TASKS = '["describe", "folding_fit", "secure_scores"]'
Figures = dict[str, Any]


class Roles(Deployment):
    """A deployment whose sites encrypt under one key, with a gateway beside the hub."""

    def __init__(self, folder: Path, data: dict[str, tuple[Any, Any]], digest: str) -> None:
        super().__init__(folder, data)
        Hub.read(folder / "hub").add("caller", "gateway", sites=("*",))
        for site in data:
            place = folder / f"{site}.toml"
            allowed = f'tasks = {TASKS}\ncallers = ["alice", "gateway"]\nschemes = ["bfv"]\nkeys = ["{digest}"]\n'
            place.write_text(place.read_text().replace('tasks = ["*"]\n', allowed))

    def start_gateway(self) -> str:
        """Start the gateway; returns its address."""
        words = ["serve", "model.kfd", "--credentials", "hub/credentials/gateway.toml", "--port", "0", "--json"]
        with (self.folder / "gateway.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "kernfed", *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=log
            )
        self.processes["gateway"] = process
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["url"])


def processor_seconds(pid: int) -> float:
    """Of a process and those it started, as far as they are running."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


def spent(running: Roles) -> dict[str, float]:
    """Processor seconds by role: all sites together."""
    told = {"asker": time.process_time(), "gateway": 0.0, "hub": 0.0, "all sites": 0.0}
    for name, process in running.processes.items():
        told[name if name in told else "all sites"] += processor_seconds(process.pid)
    return told


def body_of(queries: Any) -> Rows:
    return Rows(json.dumps({"rows": queries.tolist()}).encode(), "application/json", len(queries))


def measure(
    running: Roles, client: GatewayClient, holder: KeyHolder, queries: Any, expected: Any, rounds: int, size: int
) -> Figures:
    """Seconds of requests of ``size`` queries, the first apart, for it sends the keys; wrong answers over all."""
    _, classes, _ = client.needs()
    before: dict[str, float] = {}
    seconds, wrong, asked = [], 0, 0
    for number in range(rounds + 1):
        if number == 1:
            before = spent(running)
        start = number * size % (len(queries) - size + 1)
        part, started = slice(start, start + size), time.perf_counter()
        decision: Decision = client.decide(holder, classes, [body_of(queries[part])])
        seconds.append(time.perf_counter() - started)
        wrong += int((decision.labels != expected[part]).sum())
        asked += size
    first, *others = seconds
    used = {role: (now - before[role]) / rounds for role, now in spent(running).items()}
    return {
        "first s": first,
        "median s": statistics.median(others),
        "fastest s": min(others),
        "slowest s": max(others),
        "per query ms": 1e3 * statistics.median(others) / size,
        "fastest per query ms": 1e3 * min(others) / size,
        "queries": asked,
        "wrong": wrong,
        **{f"{role} processor s": value for role, value in used.items()},
    }


def refuses_other_keys(client: GatewayClient, sites: int, classes: Any, queries: Any) -> bool:
    """Whether sites refuse to encrypt under a key that their policies do not name."""
    stranger = KeyHolder(sites, len(classes), scheme="bfv")
    try:
        client.decide(stranger, classes, [body_of(queries[:1])])
    except RunFailed as error:
        return "does not know the key" in str(error)
    return False


def run(quick: bool, sites: int, rows: int, rounds: int) -> Figures:
    data, queries = rows_of_sites(quick, sites, rows)
    labels = np.unique(np.concatenate([y for _, y in data.values()]))
    holder = KeyHolder(len(data), len(labels), scheme="bfv")
    learner = FoldingLearner("rms", batch_size=100, partition="order", scale=None)
    with Federation.local(data) as here:  # the same model, to know what is right
        scores = learner.fit(here).scores_by_site(queries[:200])
    expected, queries = labels[classify(scores, bits=8)], queries[:200]
    with tempfile.TemporaryDirectory(prefix="kernfed-ask-") as folder:
        running = Roles(Path(folder), data, holder.site_key_digest)
        try:
            for name in ("hub", *running.sites):
                running.start(name)
            with running.federation() as federation:
                running.wait_for_all(federation)
                learner.fit(federation).save(Path(folder) / "model.kfd")
            client = GatewayClient(running.start_gateway())
            figures = {
                "one query": measure(running, client, holder, queries, expected, rounds, 1),
                f"{BATCH} queries": measure(running, client, holder, queries, expected, rounds, BATCH),
                "other keys are refused": refuses_other_keys(client, len(data), labels, queries),
                "gateway MB": resident(running.processes["gateway"].pid),
                "site MB": resident(running.processes[running.sites[0]].pid),
            }
            journals = [p.read_text() for p in Path(folder).glob("store-*/journal/*")]
            figures["scores left in clear"] = sum(text.count('"task": "scores"') for text in journals)
            figures["encrypted answers in journals"] = sum(text.count("secure_scores") for text in journals)
        finally:
            running.end()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sites", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"))
    given = parser.parse_args()
    sites, rounds = given.sites or (3 if given.quick else 5), given.rounds or (2 if given.quick else 20)
    figures = run(given.quick, sites, given.rows, rounds)
    told = {"benchmark": "ask", "quick": given.quick, "sites": sites, "machine": machine_facts(), **figures}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "ask.json").write_text(json.dumps(told, indent=1) + "\n")
    names = [name for name, value in figures.items() if isinstance(value, dict)]
    lines = [(what, *(f"{figures[name][what]:.4g}" for name in names)) for what in figures[names[0]]]
    show(TextTable(("", *names), lines))
    show(", ".join(f"{name}: {value}" for name, value in figures.items() if name not in names))
    note(f"patience with a busy machine: {SOON:g} s; wrote {given.out / 'ask.json'}")


if __name__ == "__main__":
    main()
