"""The guide of sites that stay, executed: hub, three sites, a question, a killed process, a revoked caller, restarts.

Every process is one of its own and listens on loopback. The tests share one deployment and run in order.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed
from kernfed.data import read_table
from kernfed.errors import StaleModel, TooFewReplies
from kernfed.federation import Federation, Payload
from kernfed.site.fields import Given, make_learner

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from federation.hub_server import free_port, wait_for

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "serving.md"
SITES = ("east", "north", "south")


class Deployment:
    """A folder in which the guide's commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.blocks = re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        # The interpreter of the tests comes first, as in an activated environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}

    def block(self, words: str) -> str:
        return next(block for block in self.blocks if words in block)

    def shell(self, commands: str) -> str:
        """Run commands as in the guide's shell; returns what they print."""
        printed = self.folder / "printed.log"
        with printed.open("w") as out:  # a file: background processes would keep a pipe open
            done = subprocess.run(
                ["bash", "-e", "-c", commands.replace("4222", str(self.port))],
                cwd=self.folder,
                env=self.env,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, printed.read_text()
        return printed.read_text()

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process of ours and wait until it is gone."""
        pid = self.pid(name)
        os.kill(pid, how)
        wait_for(lambda: not alive(pid), f"{name} to end")

    def start_site(self, site: str) -> None:
        self.shell(f"kernfed site run {site}.toml > {site}.log 2>&1 &\necho $! > {site}.pid")
        wait_for(lambda: "is connected to" in (self.folder / f"{site}.log").read_text(), f"{site} to come back")

    def federation(self, **options: Any) -> Federation:
        return Federation.nats(credentials=self.folder / "hub" / "credentials" / "alice.toml", **options)

    def end(self) -> None:
        for place in self.folder.glob("*.pid"):
            pid = int(place.read_text())
            if alive(pid):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended stays listed until its parent takes note, if ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    running = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        for words in ("kernfed hub init", "python - <<", "for site in north south east; do\n"):
            running.shell(running.block(words))
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def trained(deployment: Deployment) -> Any:
    """The model of the guide, and scores (3, n, C) of all sites for its new rows."""
    told = deployment.shell(deployment.block("kernfed train"))
    assert "3 of 3 site(s)" in told
    assert "all sites" in told
    model = kernfed.load(deployment.folder / "model.kfd")
    with deployment.federation() as federation:
        return model, model.connect(federation).site_scores(read_table(deployment.folder / "new.csv").X[:5]).values


def test_training_gives_the_local_engines_model(deployment: Deployment, trained: Any) -> None:
    tables = {site: read_table(deployment.folder / f"{site}.csv", label="digit") for site in SITES}
    data = {site: (table.X, table.y) for site, table in tables.items()}
    store = deployment.folder / "stores"
    with Federation.local(data, store=store, holdout=0.1, columns=tables["north"].columns) as local:
        model = make_learner("folding", Given()).fit(local)
        model.save(deployment.folder / "local.kfd")
        np.testing.assert_array_equal(
            model.site_scores(read_table(deployment.folder / "new.csv").X[:5]).values, trained[1]
        )
    assert (deployment.folder / "model.kfd").read_bytes() == (deployment.folder / "local.kfd").read_bytes()


def test_the_guides_gateway_answers_as_the_sites_do(deployment: Deployment) -> None:
    pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")
    if not (deployment.folder / "model.kfd").exists():
        deployment.shell(deployment.block("kernfed train"))
    port = str(free_port())
    for words in ("kernfed serve --new-token", "--data-binary @new.csv"):
        deployment.shell(deployment.block(words).replace("8080", port))
    told = json.loads((deployment.folder / "answers.json").read_text())
    rows = read_table(deployment.folder / "new.csv").X
    with deployment.federation() as federation:
        expected = kernfed.load(deployment.folder / "model.kfd").connect(federation).answer(rows)
    assert [answer["label"] for answer in told["answers"]] == expected.labels.tolist()
    assert [list(answer["probabilities"].values()) for answer in told["answers"]] == expected.probabilities.tolist()
    assert told["sites"] == sorted(SITES)
    lines = deployment.shell("kernfed journal show store-north --json")
    assert '"on_behalf_of": "ann"' in lines
    pid = deployment.pid("gateway")
    deployment.shell(deployment.block("kill $(cat gateway.pid)"))
    wait_for(lambda: not alive(pid), "the gateway to end")
    assert "gateway: has stopped" in (deployment.folder / "gateway.log").read_text()


@pytest.mark.usefixtures("trained")
def test_a_killed_process_is_not_missed_where_there_is_another(deployment: Deployment) -> None:
    """The guide's second process answers for the one that was killed, bit for bit, and both wrote one journal."""
    deployment.shell(deployment.block("north-2.pid"))
    log = deployment.folder / "north-2.log"  # made by a process that the shell has just started
    wait_for(lambda: log.exists() and "is connected to" in log.read_text(), "the second process")
    deployment.shell(deployment.block("kill -9"))
    assert "every line follows from the one before" in deployment.shell("kernfed journal check store-north")


@pytest.mark.filterwarnings("ignore::kernfed.errors.MissingSites")
def test_a_process_killed_or_paused_under_load_never_answers_wrongly(deployment: Deployment, trained: Any) -> None:
    """Killed and stopped for a while: every answer is the sites' own, and says who is missing."""
    model, expected = trained
    queries = read_table(deployment.folder / "new.csv").X[:5]
    missed: list[set[str]] = []
    ended = threading.Event()

    def ask(connected: Any) -> None:
        while not ended.is_set():
            try:
                scores = connected.site_scores(queries, min_replies=1, timeout=2.0)
            except (TooFewReplies, StaleModel) as error:
                pytest.fail(str(error))
            missed.append(set(scores.missing))
            rows = [SITES.index(site) for site in scores.sites]
            np.testing.assert_array_equal(scores.values, expected[rows])

    with deployment.federation() as federation:
        callers = [threading.Thread(target=ask, args=(model.connect(federation),)) for _ in range(2)]
        for caller in callers:
            caller.start()
        deployment.stop("south", signal.SIGKILL)
        wait_for(lambda: {"south"} in missed[-2:], "south to be missed")
        deployment.start_site("south")
        wait_for(lambda: missed[-1] == set(), "all to be there again")
        os.kill(deployment.pid("east"), signal.SIGSTOP)
        wait_for(lambda: {"east"} in missed[-2:], "east to be missed")
        os.kill(deployment.pid("east"), signal.SIGCONT)
        wait_for(lambda: missed[-1] == set(), "all to be there again")
        ended.set()
        for caller in callers:
            caller.join()
    assert set().union(*missed) == {"south", "east"}


def test_the_hub_may_be_restarted(deployment: Deployment, trained: Any) -> None:
    model, expected = trained
    queries = read_table(deployment.folder / "new.csv").X[:5]
    with deployment.federation(wait=30.0, patience=30.0) as federation:
        deployment.stop("hub")
        deployment.shell("kernfed hub run hub > hub.log 2>&1 &\necho $! > hub.pid")
        np.testing.assert_array_equal(model.connect(federation).site_scores(queries).values, expected)


def test_revoking_as_the_guide_says_and_stopping_cleanly(deployment: Deployment) -> None:
    told = deployment.shell(deployment.block("kernfed hub revoke"))
    assert "its connections have ended" in told
    with deployment.federation() as federation:
        assert len(federation.ask("describe", Payload())) == 3
    for name in ("north-2", "south", "east"):
        deployment.stop(name)
        assert "has stopped" in (deployment.folder / f"{name}.log").read_text()
    for site in SITES:
        assert "every line follows" in deployment.shell(f"kernfed journal check store-{site}")
    with deployment.federation() as federation:
        gone = federation.ask("describe", Payload(), min_replies=0).missing
    assert set(gone) == set(SITES)
