"""What a line of a site's journal costs, and whether killed processes lose one: waits for the disk, threads, kills.

python benchmarks/journal.py [--quick] [--kills 200] [--seed 0] [--out benchmarks/out]

one       a question that is refused at once, with the journal, against one wait for the disk
threads   the same from 16 threads at once, which share waits
check     lines checked in a second
quota     a question counted for ``queries_per_day``: number 100,000 of the day against number 1,000, and the first
          of a process that finds 100,000
kills     two processes write, one of them is killed with -9 after a random number of lines, again and again: every line
          that a process was told to be on disk must be there, and the chain must hold

Writes ``journal.json``.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from timing import machine_facts

from kernfed.base.chain import ChainedLines
from kernfed.base.text import TextTable, format_seconds
from kernfed.cli.console import show
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.site.authorise import Caller, count_queries
from kernfed.site.journal import check_journal, read_journal
from kernfed.site.protocol.message import Question, encode_question
from kernfed.site.quota import DailyQueries

HERE = Path(__file__).resolve().parent
THREADS = 16
#: A process that writes lines, and says on stdout which are on disk, until it is killed.
WRITER = """
import sys
import time
from pathlib import Path
from kernfed.base.chain import ChainedLines
lines = ChainedLines(Path(sys.argv[1]), {})
while True:
    time.sleep(float(sys.argv[2]))
    place = lines.append({"event": "asked", "filling": "x" * 300})
    print(place.number, place.chain, flush=True)
"""


def question() -> bytes:
    """One that is refused before anything is computed."""
    return encode_question(Question("run", "id", "nonsense", Payload(), "benchmark"))


def median_seconds(work: Callable[[], object], count: int) -> float:
    """Median over calls."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def costs(folder: Path, count: int) -> dict[str, float]:
    """Seconds of a question: with its line on disk, from threads, in a temporary store; and of a wait for the disk."""
    rows = np.eye(4), np.arange(4) % 2
    durable = Site("a", *rows, store=SiteStore(folder / "site"), policy=Policy())
    temporary = Site("a", *rows)
    asked = question()
    durable.answer(asked)
    with (folder / "plain").open("ab", buffering=0) as plain:

        def wait() -> None:
            plain.write(b"x" * 400)
            os.fsync(plain.fileno())

        disk = median_seconds(wait, count)
        one = median_seconds(lambda: durable.answer(asked), count)
    own = median_seconds(lambda: temporary.answer(asked), count)
    each = max(1, count // 4)
    threads = [threading.Thread(target=lambda: [durable.answer(asked) for _ in range(each)]) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared = (time.perf_counter() - started) / (each * THREADS)
    return {"disk": disk, "one": one, "temporary": own, "threads": shared}


def checking(folder: Path, lines: int) -> float:
    """Lines checked in a second."""
    writer = ChainedLines(folder / "long", {}, durable=False)
    for number in range(lines):
        writer.append({"event": "asked", "number": number, "filling": "x" * 300})
    started = time.perf_counter()
    verdict = check_journal(folder / "long")
    assert not verdict.problems, verdict.problems
    return verdict.lines / (time.perf_counter() - started)


def quota(folder: Path, few: int, many: int) -> dict[str, float]:
    """Seconds to count a question after ``few`` and after ``many`` of the day, and to read these; no disk waits."""
    policy, caller, row = Policy(queries_per_day=10**9), Caller("benchmark", True), {"X": np.zeros((1, 4))}
    store, numbers = SiteStore(folder / "quota"), itertools.count()

    def count(counted: DailyQueries) -> None:
        asked = Question("run", f"question {next(numbers)}", "scores", Payload(row), "benchmark")
        with store.locked():
            count_queries(policy, "a", counted, asked, caller)

    counted, seconds = DailyQueries(store, durable=False), {}
    for name, before in (("few", few), ("many", many)):
        for _ in range(next(numbers), before):
            count(counted)
        seconds[name] = median_seconds(lambda: count(counted), 50)
    return {**seconds, "first": median_seconds(lambda: count(DailyQueries(store, durable=False)), 3)}


def written(said: str) -> dict[int, str]:
    """Hashes by number of the lines that a process said to be on disk."""
    words = [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]
    return {int(number): chain for number, chain in words}


def kills(folder: Path, count: int, seed: int) -> dict[str, int]:
    """How many lines were told to be on disk, how many of these are not there, and how many were torn."""
    draws = random.Random(seed)
    told: dict[int, str] = {}
    place = folder / "killed"

    def start(stdout: Any, pause: float) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", WRITER, str(place), str(pause)], stdout=stdout, text=True)

    with (folder / "steady").open("w") as said:
        steady = start(said, 0.01)
    for _ in range(count):
        process = start(subprocess.PIPE, 0.0)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(draws.randint(1, 40))]
        process.send_signal(signal.SIGKILL)
        told |= written("".join(lines) + process.communicate()[0])
    steady.kill()
    steady.wait()
    told |= written((folder / "steady").read_text())
    ChainedLines(place, {}).append({"event": "asked"})
    kept = {line["n"]: line["chain"] for line in read_journal(place)}
    verdict = check_journal(place)
    lost = sum(kept.get(number) != chain for number, chain in told.items())
    return {"kills": count, "told": len(told), "lost": lost, "torn": verdict.torn, "problems": len(verdict.problems)}


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernfed-journal-", dir=given.out if given.out.is_dir() else None) as name:
        folder = Path(name)
        seconds = costs(folder, 20 if given.quick else 200)
        rate = checking(folder, 500 if given.quick else 50_000)
        counting = quota(folder, *((100, 1000) if given.quick else (1000, 100_000)))
        outcome = kills(folder, 2 if given.quick else given.kills, given.seed)
    result: dict[str, Any] = {"benchmark": "journal", "quick": given.quick, "machine": machine_facts()}
    result |= {"seconds": seconds, "over_disk": seconds["one"] / seconds["disk"], "checked_per_second": rate, **outcome}
    result |= {"quota_seconds": counting, "quota_many_over_few": counting["many"] / counting["few"]}
    table = [
        ("one wait for the disk, 400 bytes", format_seconds(seconds["disk"])),
        ("a question that is refused, with its line on disk", format_seconds(seconds["one"])),
        (f"the same from {THREADS} threads, each", format_seconds(seconds["threads"])),
        ("the same in a temporary store, which waits for no disk", format_seconds(seconds["temporary"])),
        ("lines checked in a second", f"{rate:,.0f}"),
        ("a question counted after many of the day, over one after few", f"{counting['many'] / counting['few']:.2f}"),
        ("the first one of a process, which reads them all", format_seconds(counting["first"])),
        ("processes killed", f"{outcome['kills']:,}"),
        ("lines that were told to be on disk", f"{outcome['told']:,}"),
        ("of these not there", f"{outcome['lost']:,}"),
        ("torn lines, closed", f"{outcome['torn']:,}"),
        ("problems of the chain", f"{outcome['problems']:,}"),
    ]
    show(TextTable(("what", "value"), table))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "journal.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
