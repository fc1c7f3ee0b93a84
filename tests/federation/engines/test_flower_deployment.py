"""The operator's guide, executed: SuperLink, three SuperNodes, TLS, node keys, and what may go wrong with them.

Everything listens on loopback, and every process refuses and notes a connection to anywhere else. The tests share one
deployment and run in order.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kernfed
from kernfed import PersonalLearner
from kernfed.data import read_table
from kernfed.federation import Federation, FoldingLearner

pytest.importorskip("flwr", reason="needs the extra flower: pip install -e '.[flower]' in a clone of kernfed")

from kernfed.jobs.flower_run import run_app

pytestmark = pytest.mark.deployment
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "operator.md"
SITES = ("north", "south", "east")
#: Patience with a machine that may be busy, in seconds, and with a node that is killed.
SOON, LONG, KILLED = 60.0, 300.0, 30.0

#: Put before every process: only loopback may be reached, and what the node at a port starts may be told to pretend to
#: speak another protocol.
GUARD = """
import os, sys

def _allowed(host):
    return host is None or str(host) in ("", "localhost", "::1", "0.0.0.0", "::") or str(host).startswith("127.")

def _hook(event, arguments):
    host = None
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    if isinstance(host, bytes):
        host = host.decode()
    if not _allowed(host):
        with open(os.environ["KERNFED_TEST_OUTSIDE"], "a") as notes:
            notes.write(f"{event} {host} {sys.argv}\\n")
        raise ConnectionRefusedError(f"only loopback, not {host}")

sys.addaudithook(_hook)
for word in sys.argv:
    pretended = os.path.join(os.path.dirname(__file__), "protocol-" + word.rpartition(":")[2])
    if word.startswith("127.0.0.1:") and os.path.exists(pretended):
        import kernfed.site.protocol.message
        kernfed.site.protocol.message.PROTOCOL = int(open(pretended).read())
"""


class Deployment:
    """A folder in which the guide's commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.blocks = re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        (folder / "guard").mkdir()
        (folder / "guard" / "sitecustomize.py").write_text(GUARD)
        self.port = free_ports(6)
        path = os.pathsep.join(filter(None, [str(folder / "guard"), os.environ.get("PYTHONPATH")]))
        self.env = {
            **os.environ,
            "PYTHONPATH": path,
            "KERNFED_TEST_OUTSIDE": str(folder / "outside.log"),
            "KERNFED_TEST_MARK": self.mark,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            # The interpreter of the tests comes first, as in an activated environment.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    @property
    def app(self) -> Path:
        return self.folder / "app"

    def block(self, starts_with: str) -> str:
        """The guide's block of commands that contains a line starting so."""
        return next(block for block in self.blocks if re.search(f"^ *{re.escape(starts_with)}", block, re.MULTILINE))

    def shell(self, commands: str, code: int | None = 0, **env: str) -> str:
        """Run commands as in the guide's shell; returns what they print. ``code`` None: they must fail."""
        known = f"export PORT={self.port}\n" + (". app/environment.sh\n" if self.app.exists() else "")
        commands = commands.replace("export PORT=9092\n", f"export PORT={self.port}\n")
        printed = self.folder / "printed.log"
        with printed.open("w") as out:  # a file: background processes would keep a pipe open
            done = subprocess.run(
                ["bash", "-e", "-c", known + commands],
                cwd=self.folder,
                env={**self.env, **env},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                timeout=LONG,
                check=False,
            )
        text = printed.read_text()
        assert done.returncode == code if code is not None else done.returncode != 0, text
        return text

    def start_node(self, site: str) -> None:
        """Start one node with the guide's command, again until the SuperLink has noticed that it was gone."""
        command = self.block("flower-supernode").replace("for site in north south east", f"for site in {site}")
        command, deadline = command.replace("number=0", f"number={SITES.index(site)}"), time.monotonic() + 2 * SOON
        log = self.folder / f"{site}.log"
        while time.monotonic() < deadline:
            self.shell(command)
            wait_for(lambda: "SuperNode ID" in log.read_text() or not alive(self.pid(site)), f"{site} to start")
            if "SuperNode ID" in log.read_text():
                return
            assert "Failed to activate SuperNode" in log.read_text()
            time.sleep(3.0)
        pytest.fail(f"{site} was not let in again: {log.read_text()}")

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process of ours and wait until it is gone."""
        pid = self.pid(name)
        os.kill(pid, how)
        wait_for(lambda: not alive(pid), f"{name} to end", also=lambda: os.kill(pid, signal.SIGKILL))

    def end(self) -> None:
        """End whatever of this deployment is still there, by its mark."""
        deadline = time.monotonic() + SOON
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.2)
        assert not left

    def processes(self) -> list[int]:
        """Processes that carry the mark of this deployment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes() and alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended stays listed until its parent takes note, if ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: object, what: str, seconds: float = SOON, also: object = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            if also is not None:
                also()  # type: ignore[operator]
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)


def free_ports(count: int) -> int:
    """First of ``count`` ports in a row that are free now."""
    for first in range(20_000 + os.getpid() % 1000 * 10, 60_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    pytest.fail("no free ports")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The guide up to its nodes; at the end nothing of it is left."""
    running = Deployment(tmp_path_factory.mktemp("deployment"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "KERNFED_TEST_OUTSIDE", "KERNFED_TEST_MARK", "PATH"):
            patch.setenv(name, running.env[name])
        try:
            for starts in (
                "kernfed flower-app",
                "app/make-certificates.sh",
                "flower-superlink",
                "for site in north south east; do flwr",
                "python - <<",
                "flower-supernode",
            ):
                running.shell(running.block(starts))
            yield running
        finally:
            running.end()


@pytest.fixture(scope="module")
def trained(deployment: Deployment) -> Path:
    """Model of the guide's training run."""
    told = deployment.shell(deployment.block("kernfed flower-run app train"))
    assert "train with 3 site(s)" in told
    return deployment.folder / "model.kfd"


@pytest.fixture(scope="module")
def local(deployment: Deployment) -> Iterator[Federation]:
    """The same sites in this process."""
    tables = {site: read_table(deployment.folder / f"{site}.csv", label="digit") for site in SITES}
    data = {site: (table.X, table.y) for site, table in tables.items()}
    store = deployment.folder / "stores"
    with Federation.local(data, store=store, holdout=0.1, columns=tables["north"].columns) as federation:
        yield federation


def test_training_gives_the_local_engines_model(deployment: Deployment, trained: Path, local: Federation) -> None:
    FoldingLearner().fit(local).save(deployment.folder / "local.kfd")
    assert trained.read_bytes() == (deployment.folder / "local.kfd").read_bytes()
    folder = next((deployment.app / "results").iterdir())
    traffic = json.loads((folder / "traffic.json").read_text())
    assert {(entry["site"], entry["information"]) for entry in traffic} == {
        (site, kind) for site in SITES for kind in ("schema", "statistics", "counts")
    }


def test_a_later_run_predicts_from_the_stores(deployment: Deployment, trained: Path, local: Federation) -> None:
    deployment.shell(deployment.block("kernfed predict"))
    written = read_table(deployment.folder / "predictions.csv", features="probability", label="prediction")
    model = kernfed.load(trained).connect(local)
    FoldingLearner().fit(local)
    queries = read_table(deployment.folder / "new.csv").X
    np.testing.assert_array_equal(written.y, model.predict(queries))
    np.testing.assert_allclose(written.X[:, 0], model.predict_proba(queries).max(axis=1), rtol=1e-12)
    assert not list((deployment.app / "results").glob("batch-*")), "the queries are not left behind"


def test_personal_models_where_the_sites_allow_them(deployment: Deployment, local: Federation) -> None:
    """Refused with the task's name under the guide's policy; then byte for byte what the local engine makes."""
    train = "kernfed flower-run app train --set sites=north,south,east --set learner=personal --out personal.kfd"
    assert "personal_survey" in deployment.shell(train, code=1)
    policy = deployment.folder / "site.toml"
    before = policy.read_text()
    policy.write_text('tasks = ["describe", "personal_survey", "personal_statistics", "personal_gain"]\n')
    deployment.shell(train)
    policy.write_text(before)
    PersonalLearner(task="classify").fit(local).save(deployment.folder / "local-personal.kfd")
    found, expected = (deployment.folder / name for name in ("personal.kfd", "local-personal.kfd"))
    assert found.read_bytes() == expected.read_bytes()


def test_a_node_killed_in_the_middle_of_a_round(deployment: Deployment, trained: Path) -> None:
    """It is named, the others suffice, and the round ends at its timeout; then node and SuperLink come back."""
    np.save(deployment.folder / "queries.npy", read_table(deployment.folder / "new.csv").X)
    told: list[str] = []

    def report(text: str) -> None:
        told.append(text)
        if "connected" in text:
            deployment.stop("north", signal.SIGKILL)

    settings = {
        "job": "predict",
        "model": str(trained),
        "queries": str(deployment.folder / "queries.npy"),
        "sites": ",".join(SITES),
        "min-replies": 2,
        "timeout": KILLED,
    }
    os.kill(deployment.pid("north"), signal.SIGSTOP)  # it is known and asked, and cannot be quicker than the kill
    finished = run_app(deployment.app, settings, report=report)
    assert list(finished.result["missing"]) == ["north"]
    assert finished.result["seconds"] < KILLED + 15.0
    assert any("site north is missing" in text for text in told)
    deployment.stop("superlink")
    deployment.shell(deployment.block("flower-superlink"))


def test_strangers_are_refused(deployment: Deployment) -> None:
    """A node whose key is not registered, and one that trusts another authority, end without being let in."""
    deployment.shell(
        "app/make-node-key.sh stranger\ncp -r app other && rm -rf other/certificates other/keys\n"
        "other/make-certificates.sh"
    )
    node = deployment.block("flower-supernode").partition("flower-supernode")[2].partition("> $site.log")[0]
    node = f"flower-supernode --max-retries 1 {node}".replace("$((PORT + number))", str(deployment.port + 5))
    unregistered = node.replace("app/keys/$site", "app/keys/stranger")
    distrustful = node.replace("--root-certificates app/", "--root-certificates other/")
    for command, reason in ((unregistered, "Failed to activate SuperNode"), (distrustful, "CERTIFICATE_VERIFY_FAILED")):
        assert reason in deployment.shell(f"site=north\n{command}\n", code=None)


def test_after_restarts_the_sites_evaluate_and_forget_from_their_stores(deployment: Deployment, trained: Path) -> None:
    """The node that was killed answers for the model it helped to make, through a SuperLink that was restarted."""
    deployment.start_node("north")
    deployment.shell(deployment.block("kernfed flower-run app evaluate"))
    told = json.loads((deployment.folder / "evaluation.json").read_text())
    assert set(told["sites"]) == set(SITES)
    assert not told["missing"]
    assert told["pooled"]["accuracy"] > 0.9
    assert kernfed.load(deployment.folder / "without-south.kfd").sites == ("east", "north")
    assert kernfed.load(trained).sites == ("east", "north", "south")


def test_other_protocols_and_broken_sites_fail_the_run_by_name(deployment: Deployment) -> None:
    """Our command says that the run failed, whatever ``flwr run`` said: names and reasons."""
    pretended = deployment.folder / "guard" / f"protocol-{deployment.port + 1 + SITES.index('south')}"
    pretended.write_text("99")
    (deployment.folder / "east.csv").rename(deployment.folder / "lost.csv")
    told = deployment.shell("kernfed flower-run app train --set sites=north,south,east --set seed=1", code=1)
    assert re.search(r"run \d+ failed \(finished:failed\)", told)
    assert "site south is missing" in told
    assert "this is protocol 99" in told
    assert "site east is missing (error): DataError" in told
    assert "east.csv: there is no such file" in told
    way = re.compile(r'File ".*kernfed/data/read.py", line \d+, in read_table')
    assert not way.search(told)  # where it happened is for whoever runs the site
    assert way.search((deployment.folder / "east.log").read_text())
    assert str(deployment.folder / "east.csv") not in told
    assert "north.csv" not in told


def test_stopping_leaves_nothing_and_nobody_called_outside(deployment: Deployment) -> None:
    deployment.shell(deployment.block("kill $(cat"))
    wait_for(lambda: not deployment.processes(), "all processes to end")
    assert not (deployment.folder / "outside.log").exists(), (deployment.folder / "outside.log").read_text()
    control = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=1)"
    done = subprocess.run([sys.executable, "-c", control], env=deployment.env, capture_output=True, check=False)
    assert done.returncode == 1
    assert "192.0.2.1" in (deployment.folder / "outside.log").read_text()
