"""Seconds and bytes of runs on a Flower deployment of three nodes on this machine, with TLS and node keys.

python benchmarks/flower.py [--rounds 5] [--rows 4000] [--width 256] [--megabytes 0] [--out benchmarks/out]

Our overhead is the time of a round that asks every site for its schema over that of an empty round: the same exchange
through Flower's grid with a ClientApp that returns at once and imports nothing of ours. Both alternate within one run.
A node looks for messages every 3 seconds, so single rounds scatter by that much; the medians are compared. Beside it
stand the processor seconds that a site spends on importing kernfed and on answering, which no other load disturbs.
Bytes are what SuperLink and nodes count as network traffic of a run, against kernfed's own record. With
``--megabytes`` one more run collects machines of about that size (``hold="machines"``), which must arrive whole.
"""

import argparse
import filecmp
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from timing import machine_facts

from kernfed.base.text import TextTable
from kernfed.cli.console import show
from kernfed.data import read_table, write_table
from kernfed.federation import Federation, FoldingLearner
from kernfed.jobs.flower_app import write_app
from kernfed.jobs.flower_run import _environment, _executable, run_app

SITES = ("a", "b", "c")
#: Bytes of machines per row of 1,024 columns, about.
_BYTES_PER_ROW = 9_350
SERVER_APP = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
from kernfed import Federation
from kernfed.jobs.run import serve

def empty_round(grid):
    # What the engine does, with nothing of ours at the sites.
    waiting = set()
    for node in grid.get_node_ids():
        waiting |= set(grid.push_messages([Message(RecordDict(), node, "query.empty")]))
    pause = 0.05
    while waiting:
        waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(waiting))}
        if waiting:
            time.sleep(pause)
            pause = min(1.5 * pause, 1.0)

app = ServerApp()

@app.main()
def main(grid, context):
    config = dict(context.run_config)
    rounds = config.pop("empty-rounds")
    if not rounds:
        context.run_config = config
        return serve(grid, context)
    found = {"empty": [], "kernfed": []}
    with Federation.flower(grid, expect=config["sites"].split(",")) as federation:
        for _ in range(rounds):
            started = time.monotonic()
            empty_round(grid)
            found["empty"].append(time.monotonic() - started)
            started = time.monotonic()
            assert len(federation.schemas()) == 3
            found["kernfed"].append(time.monotonic() - started)
    folder = Path(config["results"]) / str(context.run_id)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(found))
"""
CLIENT_APP = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("empty")
def empty(message, context):
    return Message(RecordDict(), reply_to=message)

@app.query("kernfed")
def query(message, context):
    import os, time
    before = time.process_time()
    from kernfed.federation.engines.flower_site import answer
    imported = time.process_time()
    reply = answer(message, context)
    with open(os.environ["KERNFED_SPENT"], "a") as notes:
        notes.write(f"{imported - before} {time.process_time() - imported}\\n")
    return reply
"""


@contextmanager
def deployment(folder: Path, rows: Mapping[str, int], width: int, policy: str = "") -> Iterator[Path]:
    """App of a deployment whose processes end with the block; ``policy`` is the sites' own, if not the default."""
    port = _free_port()
    app = folder / "app"
    write_app(app, f"127.0.0.1:{port}")
    (app / "kernfed_app" / "server_app.py").write_text(SERVER_APP)
    (app / "kernfed_app" / "client_app.py").write_text(CLIENT_APP)
    project = app / "pyproject.toml"
    project.write_text(project.read_text() + "empty-rounds = 0\n")
    subprocess.run([app / "make-certificates.sh"], check=True, stdout=subprocess.DEVNULL)
    keys = app / "certificates"
    tls = [
        "--ssl-ca-certfile",
        keys / "ca.crt",
        "--ssl-certfile",
        keys / "server.pem",
        "--ssl-keyfile",
        keys / "server.key",
        "--host",
        "127.0.0.1",
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(
            _process(
                app,
                "flower-superlink",
                "--port",
                port,
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
                *tls,
            )
        )
        _wait_for(port)
        draws = np.random.default_rng(0)
        for number, site in enumerate(SITES, start=1):
            subprocess.run([app / "make-node-key.sh", site], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(
                [_executable(), "supernode", "register", app / "keys" / f"{site}.pub", "--name", site],
                check=True,
                env=_environment(app),
                stdout=subprocess.DEVNULL,
            )
            table = {"X": draws.standard_normal((rows[site], width)), "y": draws.integers(0, 10, rows[site])}
            write_table(folder / f"{site}.parquet", table)
            config = (
                f'site="{site}" data="{folder}/{site}.parquet" label="y" features="X" store="{folder}/store-{site}"'
            )
            if policy:
                (folder / "site.toml").write_text(policy)
                config += f' policy="{folder}/site.toml"'
            started.append(
                _process(
                    app,
                    "flower-supernode",
                    "--superlink",
                    f"127.0.0.1:{port}",
                    "--root-certificates",
                    keys / "ca.crt",
                    "--auth-supernode-private-key",
                    app / "keys" / site,
                    "--port",
                    port + number,
                    "--node-config",
                    config,
                    *tls,
                )
            )
        yield app
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _process(app: Path, command: str, *words: object) -> "subprocess.Popen[bytes]":
    program = Path(sys.executable).with_name(command)
    environment = {
        **_environment(app),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "KERNFED_SPENT": str(_spent(app)),
    }
    return subprocess.Popen(
        [program, *map(str, words)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _spent(app: Path) -> Path:
    """Where sites note their processor seconds."""
    return app / "home" / "spent"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return min(int(one.getsockname()[1]), 65_000)


def _wait_for(port: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the SuperLink did not listen on port {port} within {seconds:g} s")


def measure(app: Path, folder: Path, rounds: int, rows: int, width: int) -> dict[str, Any]:
    sites = ",".join(SITES)

    def timed(settings: dict[str, Any]) -> tuple[float, Any]:
        started = time.monotonic()
        finished = run_app(app, {"sites": sites, **settings}, report=lambda _: None)
        return time.monotonic() - started, finished

    _, alternating = timed({"empty-rounds": rounds})
    empty, ours = (statistics.median(alternating.result[name]) for name in ("empty", "kernfed"))
    imports, answers = np.loadtxt(_spent(app), ndmin=2).T
    training, trained = timed({"job": "train", "learner": "folding"})
    np.save(folder / "queries.npy", np.random.default_rng(1).standard_normal((rows, width)))
    predicting, predicted = timed(
        {"job": "predict", "model": str(trained.product()), "queries": str(folder / "queries.npy")}
    )
    listed = subprocess.run(
        [_executable(), "list", "--run-id", predicted.run, "--format", "json"],
        check=True,
        env=_environment(app),
        capture_output=True,
        text=True,
    ).stdout
    network = json.loads(listed[listed.index("{") :])["runs"][0]["network-traffic"]
    return {
        "empty_round": empty,
        "kernfed_round": ours,
        "overhead": ours - empty,
        "rounds": alternating.result,
        "training_run": training,
        "training_job": trained.result["seconds"],
        "prediction_run": predicting,
        "prediction_job": predicted.result["seconds"],
        "network": network,
        "site_importing": float(np.median(imports)),
        "site_answering": float(np.median(answers)),
        "bytes_down": predicted.result["bytes_down"],
        "bytes_up": predicted.result["bytes_up"],
    }


def measure_large(folder: Path, megabytes: int) -> dict[str, Any]:
    """A model with machines of about this size over a deployment, against the same model made here."""
    rows = {**dict.fromkeys(SITES, 300), "a": megabytes * 1_000_000 // _BYTES_PER_ROW}  # nearly all in one message
    with deployment(folder, rows, 1024, 'tasks = ["*"]\n') as app:
        told: list[str] = []
        started = time.monotonic()
        finished = run_app(
            app,
            {"sites": ",".join(SITES), "job": "train", "learner": "folding", "hold": "machines"},
            report=told.append,
        )
        seconds = time.monotonic() - started
    tables = {site: read_table(folder / f"{site}.parquet", features="X", label="y") for site in SITES}
    with Federation.local(
        {site: (table.X, table.y) for site, table in tables.items()}, columns=tables["a"].columns
    ) as federation:
        FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        ).save(folder / "local.kfd")
    return {
        "seconds": seconds,
        "bytes_up": finished.result["bytes_up"],
        "job_seconds": finished.result["seconds"],
        "equal_to_local": filecmp.cmp(finished.product(), folder / "local.kfd", shallow=False),
        "progress": [line.partition("kernfed: ")[2] for line in told],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=0, help="also collect machines of about this size")
    parser.add_argument("--rows", type=int, default=4000, help="rows per site, and queries")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kernfed-flower-") as name,
        deployment(Path(name), dict.fromkeys(SITES, given.rows), given.width) as app,
    ):
        found = measure(app, Path(name), given.rounds, given.rows, given.width)
    shown = [
        (key.replace("_", " "), f"{found[key]:.2f}")
        for key in (
            "empty_round",
            "kernfed_round",
            "overhead",
            "training_run",
            "training_job",
            "prediction_run",
            "prediction_job",
        )
    ]
    apart = abs(found["network"]["total-bytes"] / (found["bytes_down"] + found["bytes_up"]) - 1)
    show(TextTable(("seconds, three nodes", "median"), shown))
    show(
        f"processor seconds at a site: {found['site_importing']:.2f} to import kernfed, "
        f"{found['site_answering']:.2f} to answer"
    )
    show(
        f"bytes of the prediction batch: {found['bytes_down']:,} down and {found['bytes_up']:,} up by our record, "
        f"{found['network']['outbound-bytes']:,} and {found['network']['inbound-bytes']:,} by Flower's: "
        f"{apart:.2%} apart"
    )
    if given.megabytes:
        with tempfile.TemporaryDirectory(prefix="kernfed-flower-") as name:
            found["large"] = measure_large(Path(name), given.megabytes)
        show(
            f"machines of {found['large']['bytes_up']:,} bytes in {found['large']['seconds']:.1f} s, "
            f"equal to the local engine's: {found['large']['equal_to_local']}"
        )
    whole = {"benchmark": "flower", "machine": machine_facts(), "rows": given.rows, "width": given.width, **found}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "flower.json").write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
