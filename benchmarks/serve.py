"""What a gateway costs: hub, sites and gateway are processes of this machine, connected over TLS; callers speak HTTP.

answers  one row through the gateway beside scoring the same sites in one process, median, ratio and p95; 1,000 rows in
         one request (Arrow, and JSON) beside the local engine
load     one caller, and 64 at once, that ask one row after the other: requests per second, median, p99, errors
hostile  requests that are no requests, bodies that are no rows, wrong tokens, too much, too deep: each must end with a
         status from 400 to 499 and one sentence, or with a connection that the gateway ends; memory before and after
idle     share of a core and memory of the gateway and of a site while nobody asks

Each part prints a table and goes into ``serve.json``. The quick run takes scikit-learn's digits in place of MNIST.
"""

import argparse
import http.client
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from hub import SOON, Deployment, Figures, deployment, rows_of_sites, show_part, timed
from timing import machine_facts

from kernfed.base.text import format_seconds
from kernfed.cli.console import note
from kernfed.federation import Federation, FoldingLearner
from kernfed.serve.requests import new_token
from kernfed.serve.rows import ARROW, JSON

HERE = Path(__file__).resolve().parent
PARTS = ("answers", "load", "hostile", "idle")


class Gateway:
    """A gateway in a process of its own, in front of the model of a deployment."""

    def __init__(self, running: Deployment, model: Any) -> None:
        folder = running.folder
        model.save(folder / "model.kfd")
        self.token = new_token(folder / "tokens.json", "caller")
        words = ["serve", "model.kfd", "--credentials", str(running.credentials), "--tokens", "tokens.json"]
        words += ["--port", "0", "--rate", "0", "--timeout", str(SOON), "--json"]
        with (folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kernfed", *words], cwd=folder, stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((folder / "gateway.log").read_text()[-2000:])
        self.port = urlsplit(json.loads(line)["url"]).port
        running.processes["gateway"] = self.process

    def connect(self) -> http.client.HTTPConnection:
        """A connection that sends at once what it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * SOON)
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, connection: http.client.HTTPConnection, body: bytes, kind: str) -> dict[str, Any]:
        """The answer, in which nobody may be missing."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        connection.request("POST", "/predict", body, headers)
        reply = connection.getresponse()
        told: dict[str, Any] = json.loads(reply.read())
        if reply.status != 200 or told["missing"]:
            raise RuntimeError(f"{reply.status}: {told.get('error') or told['missing']}")
        return told


def as_json(rows: Any) -> bytes:
    return json.dumps({"rows": rows.tolist()}).encode()


def as_arrow(rows: Any) -> bytes:
    flat = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).ravel()), rows.shape[1])
    sink = io.BytesIO()
    table = pa.table({"X": flat})  # as the sites' files call it
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def memory(pid: int) -> float:
    """Megabytes that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1000


def used(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Parts ------------------------------------------------------------------------------------------------------------


def measure_answers(gateway: Gateway, here: Any, queries: Any, rounds: int) -> Figures:
    """One row and many, here and through the gateway, in turns."""
    connection = gateway.connect()
    expected = here.answer(queries).labels.tolist()
    many = {"arrow": (as_arrow(queries), ARROW), "json": (as_json(queries), JSON)}
    for body, kind in many.values():
        assert [one["label"] for one in gateway.ask(connection, body, kind)["answers"]] == expected
    one: dict[str, list[float]] = {"here": [], "gateway": []}
    all_of_them: dict[str, list[float]] = {"here": [], "arrow": [], "json": []}
    for number in range(rounds + 2):  # the first two do not count
        query = queries[number % len(queries)][None]
        body = as_json(query)
        several = {
            "here": timed(lambda q=query: here.answer(q), 5),
            "gateway": timed(lambda b=body: gateway.ask(connection, b, JSON), 5),
        }
        whole = {"here": timed(lambda: here.answer(queries), 1)}
        whole |= {form: timed(lambda f=form: gateway.ask(connection, *many[f]), 1) for form in many}
        if number >= 2:
            for name, seconds in several.items():
                one[name] += seconds
            for name, seconds in whole.items():
                all_of_them[name] += seconds
    middle = {name: statistics.median(seconds) for name, seconds in one.items()}
    best = {name: min(seconds) for name, seconds in all_of_them.items()}
    return {
        "queries": len(queries),
        "one query": {**middle, "ratio": middle["gateway"] / middle["here"]},
        "one query, p95": float(np.percentile(one["gateway"], 95)),
        "many queries": {**best, "ratio": best["arrow"] / best["here"], "ratio of json": best["json"] / best["here"]},
    }


def measure_load(gateway: Gateway, queries: Any, seconds: float) -> Figures:
    """Callers that ask one row after the other, one and 64 at once."""
    bodies = [as_json(query[None]) for query in queries[:64]]

    def ask(number: int, ends: float) -> tuple[list[float], int]:
        connection, taken, errors = gateway.connect(), [], 0
        while time.monotonic() < ends:
            start = time.perf_counter()
            try:
                gateway.ask(connection, bodies[number % len(bodies)], JSON)
            except (OSError, RuntimeError, http.client.HTTPException):
                errors += 1
                connection = gateway.connect()
            else:
                taken.append(time.perf_counter() - start)
        connection.close()
        return taken, errors

    told: Figures = {}
    for callers in (1, 64):
        ends = time.monotonic() + seconds
        with ThreadPoolExecutor(callers) as pool:
            results = list(pool.map(ask, range(callers), [ends] * callers))
        taken = [second for one, _ in results for second in one]
        told[f"{callers} callers"] = {
            "requests per second": len(taken) / seconds,
            "median": statistics.median(taken),
            "p99": float(np.percentile(taken, 99)),
            "errors": sum(errors for _, errors in results),
        }
    rates = [told[f"{callers} callers"]["requests per second"] for callers in (1, 64)]
    return {**told, "64 callers over one": {"ratio": rates[1] / rates[0]}}


def hostile_body(draw: random.Random, good: bytes) -> tuple[bytes, str]:
    """A body that is not what its content type says, or no rows of the model."""
    kinds = [
        JSON,
        "text/csv",
        ARROW,
        "text/plain",
        "",
        "multipart/form-data; boundary=x",
        "application/json; charset=x",
    ]
    noise = draw.randbytes(draw.choice([0, 1, 7, 100, 5000]))
    damaged = bytearray(good)
    for _ in range(3):
        damaged[draw.randrange(20)] = draw.randrange(256)
    bodies = [
        noise,
        bytes(damaged),
        good[: draw.randrange(len(good) - 2)],
        b"[" * draw.choice([10, 10_000, 200_000]),
        b'{"rows": [' + b"[]," * draw.choice([1, 20_000]) + b"[]]}",
        b'{"rows": [[' + b"1e999," * 5 + b"1]]}",
        b'{"rows": {"a": 1}}',
        b'{"rows": [["' + b"x" * draw.choice([1, 100_000]) + b'"]]}',
        b'{"rows": [[' + b"9" * draw.choice([100, 10_000]) + b"]]}",
        b"a,b\n" + b'"' * draw.randrange(1, 1000),
        b"1," * draw.randrange(1, 3000) + b"\n1\n",
    ]
    return draw.choice(bodies), draw.choice(kinds)


def hostile_words(draw: random.Random, token: str, good: bytes) -> bytes:
    """What a connection sends that means no good: broken HTTP, wrong tokens, wrong lengths, wrong bodies."""
    body, kind = hostile_body(draw, good)
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: {kind}\r\n".encode()
    known = f"Authorization: Bearer {token}\r\n".encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    strange = draw.choice([b"", b"Authorization: Basic x\r\n", b"Authorization: Bearer " + b"x" * 5000 + b"\r\n"])
    methods = [b"GET", b"PUT", b"DELETE", b"TRACE", b"OPTIONS", b"PATCH", b"BREW"]
    paths = [
        b"/predict",
        b"/../../etc/passwd",
        b"/%00",
        b"/" + b"a" * 3000,
        b"/metrics",
        b"/about",
        b"//",
        b"/?x=" + b"y" * 99,
    ]
    return draw.choices(
        [
            head + known + length + body,
            head + strange + length + body,
            head + known + b"Content-Length: 99999999999999999999\r\n\r\n",
            head + known + b"Content-Length: -1\r\n\r\n" + body,
            head + known + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
            draw.choice(methods) + b" " + draw.choice(paths) + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            draw.randbytes(draw.randrange(1, 500)) + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nConnection: close\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        ],
        weights=[8, 3, 1, 1, 1, 3, 2, 1],
    )[0]


def status_of(gateway: Gateway, words: bytes) -> str:
    """The status that answers what was sent; "ended" where the gateway only ends the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=SOON) as connection:
        try:
            connection.sendall(words)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            return "ended"
        except TimeoutError:
            return "no answer"
    first = answer.split(b"\r\n", 1)[0].split()
    return first[1].decode() if len(first) > 1 else "ended"


def measure_hostile(gateway: Gateway, queries: Any, requests: int, seed: int) -> Figures:
    """Statuses of hostile requests, and what they did to the gateway's memory."""
    draw = random.Random(seed)
    good = as_json(queries[:1])
    before = memory(gateway.process.pid)
    statuses: dict[str, int] = {}
    for _ in range(requests):
        status = status_of(gateway, hostile_words(draw, gateway.token, good))
        statuses[status] = statuses.get(status, 0) + 1
    gateway.ask(gateway.connect(), good, JSON)  # it still answers
    after = memory(gateway.process.pid)
    wrong = sum(count for status, count in statuses.items() if status.startswith("5") or status == "no answer")
    return {
        "requests": requests,
        "statuses": dict(sorted(statuses.items())),
        "neither 2xx, 4xx nor ended": wrong,
        "megabytes": {"before": before, "after": after},
    }


def measure_idle(gateway: Gateway, running: Deployment, seconds: float) -> Figures:
    """Shares of a core, and memory, of processes that nobody asks."""
    pids = {"gateway": gateway.process.pid, "site": running.processes[running.sites[0]].pid}
    before = {name: used(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    return {
        name: {"share of a core": (used(pid) - before[name]) / seconds, "megabytes": memory(pid)}
        for name, pid in pids.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, few requests")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=10_000, help="hostile ones")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, and of idleness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    options = parser.parse_args()
    if options.quick:
        options.sites, options.rows, options.rounds, options.requests, options.seconds = 3, 200, 1, 100, 1.0
    warnings.simplefilter("ignore")
    data, queries = rows_of_sites(options.quick, options.sites, options.rows)
    told: Figures = {"benchmark": "serve", "quick": options.quick, "sites": options.sites, "machine": machine_facts()}
    told["load average"] = os.getloadavg()[0]
    told["rows per site"] = len(next(iter(data.values()))[1])
    with Federation.local(data) as local, deployment(data) as running:
        with running.federation() as federation:
            running.wait_for_all(federation)
            there = FoldingLearner().fit(federation)
        here = FoldingLearner().fit(local)
        gateway = Gateway(running, there)
        work = {
            "answers": lambda: measure_answers(gateway, here, queries, options.rounds),
            "load": lambda: measure_load(gateway, queries, options.seconds),
            "hostile": lambda: measure_hostile(gateway, queries, options.requests, options.seed),
            "idle": lambda: measure_idle(gateway, running, options.seconds),
        }
        for name in options.only:
            start = time.monotonic()
            told[name] = work[name]()
            show_part(name, told[name])
            note(f"{name}: {format_seconds(time.monotonic() - start)}")
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "serve.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
