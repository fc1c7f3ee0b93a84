"""Sites that stay, each a process of its own behind a hub with TLS: how fast they answer, and what survives accidents.

python benchmarks/hub.py [--quick] [--only PART ...] [--sites 5] [--rows 5000] [--events 100] [--out DIR]

answers  one query, 1,000 queries in one question, and 64 callers at once, beside the same sites in one process; the two
         alternate within one run, so that what else the machine does slows both
idle     processor time and memory of a site that nobody asks
hostile  10,000 messages that are damaged frames or damaged questions: every one gets an answer, and the site's memory
         stays as it was
events   random accidents under load: processes killed, paused, stopped and started again, also the hub. Every answer is
         compared to the bit with what the sites answered before, must name whoever is missing, and at the end every
         site's journal must be one whole chain with a line for each answer

Each part prints a table and goes into ``hub.json``. The quick run takes scikit-learn's digits in place of MNIST.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from timing import machine_facts

from kernfed.base.text import TextTable, format_seconds
from kernfed.cli.console import note, show
from kernfed.data import load_dataset
from kernfed.errors import DatasetNotFoundError, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, Payload
from kernfed.federation.engines.nats_credentials import Credentials
from kernfed.federation.engines.nats_frames import Frame, Kind, ask_subject, cut
from kernfed.federation.engines.nats_hub import Hub
from kernfed.federation.engines.nats_link import Link
from kernfed.site.protocol.message import Question, encode_question

HERE = Path(__file__).resolve().parent
PARTS = ("answers", "idle", "hostile", "events")
#: Patience with a machine that may be busy, in seconds.
SOON = 30.0
Figures = dict[str, Any]


class Deployment:
    """A hub and its sites, one process each, in a folder."""

    def __init__(self, folder: Path, data: dict[str, tuple[Any, Any]]) -> None:
        self.folder, self.sites = folder, tuple(sorted(data))
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        hub = Hub.create(folder / "hub", f"127.0.0.1:{port}")
        for site, (X, y) in data.items():
            hub, _ = hub.add("site", site)
            np.savez(folder / f"{site}.npz", X=X, y=y)
            settings = f'data = "{site}.npz"\nlabel = "y"\nstore = "store-{site}"\n[policy]\ntasks = ["*"]\n'
            (folder / f"{site}.toml").write_text(f'credentials = "hub/credentials/{site}.toml"\n{settings}')
        _, self.credentials = hub.add("caller", "alice", sites=("*",))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start the hub, or a site."""
        words = ["hub", "run", "hub"] if name == "hub" else ["site", "run", f"{name}.toml"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "kernfed", *words], cwd=self.folder, stdout=log, stderr=log
            )

    def send(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self.processes[name].send_signal(number)

    def end(self) -> None:
        """End all processes, however they are."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def federation(self) -> Federation:
        """The sites, asked over the hub."""
        return Federation.nats(credentials=self.credentials, wait=SOON, patience=0.0)

    def wait_for_all(self, federation: Federation) -> None:
        """Wait until every site is there."""
        ends = time.monotonic() + SOON
        while None in federation.engine.present().values():  # type: ignore[attr-defined]
            if time.monotonic() > ends:
                for place in sorted(self.folder.glob("*.log")):
                    note(f"{place.name}: ... {place.read_text()[-2000:]}")
                raise RuntimeError(f"sites did not come: {federation.engine.present()}")  # type: ignore[attr-defined]
            time.sleep(0.1)


@contextmanager
def deployment(data: dict[str, tuple[Any, Any]]) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="kernfed-hub-") as folder:
        running = Deployment(Path(folder), data)
        try:
            for name in ("hub", *running.sites):
                running.start(name)
            yield running
        finally:
            running.end()


def rows_of_sites(quick: bool, sites: int, rows: int) -> tuple[dict[str, tuple[Any, Any]], Any]:
    """Rows of each site, and queries that none of them has."""
    try:
        dataset = load_dataset("digits" if quick else "mnist")
        X, y, queries = dataset.x_train, dataset.y_train, dataset.x_test[:1000]
    except DatasetNotFoundError:
        note("no MNIST here: random rows in its place")
        generator = np.random.default_rng(0)
        X, y = generator.standard_normal((sites * rows, 784)), np.arange(sites * rows) % 10
        queries = generator.standard_normal((1000, 784))
    order = np.random.default_rng(0).permutation(len(y))
    rows = min(rows, len(y) // sites)
    parts = {f"site-{number}": order[number * rows : (number + 1) * rows] for number in range(sites)}
    return {site: (X[part].astype(float), y[part]) for site, part in parts.items()}, queries.astype(float)


# Parts ------------------------------------------------------------------------------------------------------------


def timed(work: Any, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure_answers(running: Deployment, data: Any, queries: Any, rounds: int, load_seconds: float) -> Figures:
    """Median and p95 of one query, seconds of many in one question, and throughput of callers at once."""
    with Federation.local(data) as local, running.federation() as federation:
        running.wait_for_all(federation)
        here, there = FoldingLearner().fit(local), FoldingLearner().fit(federation)
        np.testing.assert_array_equal(here.scores(queries[:20]), there.scores(queries[:20]))
        one: dict[str, list[float]] = {"here": [], "there": []}
        many: dict[str, list[float]] = {"here": [], "there": []}
        for number in range(rounds + 2):  # the first two do not count
            for place, model in (("here", here), ("there", there)):
                query = queries[number % len(queries)][None]
                several = timed(lambda m=model, q=query: m.scores(q), 5)
                all_of_them = timed(lambda m=model: m.scores(queries), 1)
                if number >= 2:
                    one[place] += several
                    many[place] += all_of_them
        throughput = {callers: measure_load(there, queries, callers, load_seconds) for callers in (1, 64)}
    middle = {place: statistics.median(seconds) for place, seconds in one.items()}
    return {
        "queries": len(queries),
        "one query": {"local": middle["here"], "hub": middle["there"], "ratio": middle["there"] / middle["here"]},
        "one query, p95": float(np.percentile(one["there"], 95)),
        "many queries": {
            "local": min(many["here"]),
            "hub": min(many["there"]),
            "ratio": min(many["there"]) / min(many["here"]),
        },
        "callers": throughput,
    }


def measure_load(model: Any, queries: Any, callers: int, seconds: float) -> Figures:
    """Questions per second of so many callers that ask one query after the other, and their latencies."""
    ends = time.monotonic() + seconds

    def ask(number: int) -> list[float]:
        taken = []
        while time.monotonic() < ends:
            taken += timed(lambda: model.scores(queries[number % len(queries)][None]), 1)
        return taken

    with ThreadPoolExecutor(callers) as pool:
        taken = [second for seconds_of_one in pool.map(ask, range(callers)) for second in seconds_of_one]
    return {
        "questions per second": len(taken) / seconds,
        "median": statistics.median(taken),
        "p99": float(np.percentile(taken, 99)),
    }


def measure_idle(running: Deployment, seconds: float) -> Figures:
    """Share of a core and memory of one site while nobody asks."""
    pid = running.processes[running.sites[0]].pid

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with running.federation() as federation:
        running.wait_for_all(federation)
    before = used()
    time.sleep(seconds)
    return {"seconds": seconds, "share of a core": (used() - before) / seconds, "megabytes": resident(pid)}


def measure_hostile(running: Deployment, messages: int, seed: int) -> Figures:
    """Damaged messages to one site: how many were answered, how, and what the site's memory became."""
    draw = random.Random(seed)
    site, pid = running.sites[0], running.processes[running.sites[0]].pid
    credentials = Credentials.read(running.credentials)
    kinds: dict[str, str] = {}
    question = encode_question(Question("run", "id", "describe", Payload(values={"some": "words"})))
    link = Link(credentials, {"kernfed.reply.*.alice.>": ("", lambda told: kinds.update([_kind(told)]))})
    link.wait(SOON)
    before = resident(pid)
    for number in range(messages):
        frame = bytearray(cut(Kind.QUESTION, _damaged(question, draw), 0, patience=SOON).encode())
        if draw.random() < 0.7:
            frame = bytearray(_damaged(bytes(frame), draw))
        subject = ask_subject("kernfed", site, "alice", credentials.key, "any", "asker", f"q{number}")
        link.call(link.publish(subject, bytes(frame)))
        while number - len(kinds) > 200:  # as many as may wait at a site
            time.sleep(0.01)
    ends = time.monotonic() + SOON
    while len(kinds) < messages and time.monotonic() < ends:
        time.sleep(0.05)
    link.close()
    counts = {kind: list(kinds.values()).count(kind) for kind in sorted(set(kinds.values()))}
    return {"messages": messages, "answered": len(kinds), "how": counts, "megabytes more": resident(pid) - before}


def _kind(told: Any) -> tuple[str, str]:
    """The question that an answer is for, and what kind of answer it is."""
    frame = Frame.decode(told.data)
    kind = frame.kind.name.lower()
    if frame.kind == Kind.ANSWER:
        content = bytes(frame.content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["kernfed"]
        kind += ": reply" if json.loads(header)["refusal"] is None else ": refusal"
    return told.subject.rpartition(".")[2], kind


def _damaged(content: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, or the end cut off, or something behind it."""
    damaged = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged[: draw.randrange(len(damaged))] if draw.random() < 0.3 else damaged)


def resident(pid: int) -> float:
    """Megabytes that a process holds in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1000


def measure_events(running: Deployment, queries: Any, events: int, seed: int) -> Figures:
    """Accidents one after the other, while four callers ask without a pause."""
    draw = random.Random(seed)
    counts = {"answers": 0, "with somebody missing": 0, "nobody there": 0}
    wrong: list[str] = []
    over, lock = threading.Event(), threading.Lock()
    with running.federation() as federation:
        running.wait_for_all(federation)
        model = FoldingLearner().fit(federation)
        expected = model.site_scores(queries).values
        answered = dict.fromkeys(running.sites, 0)

        def ask() -> None:
            while not over.is_set():
                try:
                    scores = model.site_scores(queries, min_replies=1, timeout=3.0)
                except TooFewReplies as error:
                    with lock:
                        counts["nobody there"] += 1
                        wrong.extend(site for site in running.sites if site not in error.missing)
                    continue
                with lock:
                    counts["answers"] += 1
                    counts["with somebody missing"] += bool(scores.missing)
                    for site, values in zip(scores.sites, scores.values, strict=True):
                        answered[site] += 1
                        if not np.array_equal(values, expected[running.sites.index(site)]):
                            wrong.append(site)
                    if {*scores.sites, *scores.missing} != set(running.sites):
                        wrong.append("somebody is neither there nor missing")

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            kinds = [accident(running, draw) for _ in range(events)]
            running.wait_for_all(federation)
        finally:
            over.set()
            for caller in callers:
                caller.join()
    return {
        "events": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        **counts,
        "wrong answers": len(wrong),
        "journals": {site: check_journal(running, site, answered[site]) for site in running.sites},
    }


def accident(running: Deployment, draw: random.Random) -> str:
    """Something happens to a site or to the hub, and is mended after a while."""
    kind = draw.choice(("kill", "kill", "pause", "pause", "stop", "cut off", "hub"))
    name = "hub" if kind == "hub" else draw.choice(running.sites)
    process = running.processes[name]
    if kind == "pause":
        running.send(name, signal.SIGSTOP)
        time.sleep(draw.uniform(0.5, 4.0))
        running.send(name, signal.SIGCONT)
    elif kind == "cut off":  # a key that is taken away and given back ends its connections, and the site comes again
        hub = Hub.read(running.folder / "hub")
        kept = (running.folder / "hub" / "credentials" / f"{name}.toml").read_text()
        hub.revoke(name).reload()
        time.sleep(draw.uniform(0.2, 1.0))
        hub.write()
        hub.reload()
        (running.folder / "hub" / "credentials" / f"{name}.toml").write_text(kept)
    else:
        running.send(name, signal.SIGTERM if kind == "stop" else signal.SIGKILL)
        process.wait(SOON)
        time.sleep(draw.uniform(0.0, 0.5))
        running.start(name)
    time.sleep(draw.uniform(0.5, 2.0))
    return kind


def check_journal(running: Deployment, site: str, answered: int) -> bool:
    """Whether a site's journal is one whole chain that has every answer that arrived."""
    command = [sys.executable, "-m", "kernfed", "journal"]
    store = running.folder / f"store-{site}"
    whole = subprocess.run([*command, "check", store], capture_output=True, check=False).returncode == 0
    out = running.folder / f"{site}.jsonl"
    subprocess.run([*command, "export", store, "--out", out], capture_output=True, check=False)
    lines = sum('"scores"' in line for line in out.read_text().splitlines()) if out.exists() else 0
    return whole and lines >= answered


def show_part(name: str, figures: Figures) -> None:
    rows = []
    for what, value in figures.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(what, str(key), f"{one:.4g}" if isinstance(one, float) else str(one)) for key, one in inner]
    show(TextTable(("what", "of", "figure"), rows, title=name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, few events")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, and of idleness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    options = parser.parse_args()
    if options.quick:
        options.sites, options.rows, options.rounds, options.events, options.seconds = 3, 200, 1, 4, 1.0
    warnings.simplefilter("ignore")
    data, queries = rows_of_sites(options.quick, options.sites, options.rows)
    told: Figures = {"benchmark": "hub", "quick": options.quick, "sites": options.sites, "machine": machine_facts()}
    told["rows per site"] = len(next(iter(data.values()))[1])
    with deployment(data) as running:
        work = {
            "answers": lambda: measure_answers(running, data, queries, options.rounds, options.seconds),
            "idle": lambda: measure_idle(running, options.seconds),
            "hostile": lambda: measure_hostile(running, 200 if options.quick else 10_000, options.seed),
            "events": lambda: measure_events(running, queries[:3], options.events, options.seed),
        }
        for name in options.only:
            start = time.monotonic()
            told[name] = work[name]()
            show_part(name, told[name])
            note(f"{name}: {format_seconds(time.monotonic() - start)}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "hub.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
