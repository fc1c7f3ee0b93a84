"""A hub of its own for a test: the real server over TLS on a port that the system chose, and sites in this process."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from kernfed.federation import Fault, Policy
from kernfed.federation.engines.nats import NatsEngine
from kernfed.federation.engines.nats_credentials import Credentials
from kernfed.federation.engines.nats_frames import token
from kernfed.federation.engines.nats_hub import Hub, server_program
from kernfed.federation.engines.nats_site import SiteService

#: Patience with a machine that may be busy, in seconds.
SOON = 30.0


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(condition: Any, what: str, seconds: float = SOON) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.01)


@cache
def _template(sites: tuple[str, ...]) -> Any:
    """A folder with a hub that is made once and copied: keys and certificates take a while."""
    folder = tempfile.TemporaryDirectory(prefix="kernfed-hub-")
    hub = Hub.create(Path(folder.name) / "hub", "127.0.0.1:4222")
    for site in sites:
        hub, _ = hub.add("site", site)
    hub.add("caller", "alice", sites=("*",))
    return folder


class HubServer:
    """A hub in ``folder`` with these sites, and the caller alice who may ask all; started, and stopped at the end."""

    def __init__(self, folder: Path, sites: Iterable[str] = ()) -> None:
        self.port = free_port()
        place = folder / "hub"
        shutil.copytree(Path(_template(tuple(sorted(sites))).name) / "hub", place)
        address = f"127.0.0.1:{self.port}"
        self.hub = replace(Hub.read(place), address=address, listen=address)
        self.hub.write()
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, role: str, name: str, sites: tuple[str, ...] = ()) -> None:
        self.hub, _ = self.hub.add(role, name, sites=sites)
        self.hub.reload()

    def credentials(self, name: str) -> Credentials:
        known = Credentials.read(self.hub.folder / "credentials" / f"{token(name)}.toml")
        return replace(known, hub=f"tls://{self.hub.address}")

    def start(self) -> None:
        command = [server_program(), "-c", str(self.hub.folder.resolve() / "hub.conf")]
        self.log = self.hub.folder / "hub.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._answers, "the hub to start")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> "HubServer":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


class Faulty:
    """A site that answers late, or noise."""

    def __init__(self, site: Any, fault: Fault) -> None:
        self.site, self.fault = site, fault
        self.name, self.policy = site.name, site.policy

    def answer(self, data: bytes, caller: str | None = None) -> bytes:
        time.sleep(self.fault.seconds)
        reply = self.site.answer(data, caller)
        return os.urandom(len(reply)) if self.fault.kind == "garbage" else bytes(reply)


class WholeHub(NatsEngine):
    """An engine with its own hub and all its sites in this process; ``close`` ends all of it."""

    def __init__(self, sites: Mapping[str, Any], faults: Mapping[str, Fault] | None = None, **options: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kernfed-hub-")
        self.server = HubServer(Path(self.folder.name), sites)
        self.server.start()
        broken = faults or {}
        self.services = {
            name: SiteService(Faulty(site, broken[name]) if name in broken else site, self.server.credentials(name))
            for name, site in sites.items()
            if name not in broken or broken[name].kind != "dead"
        }
        for service in self.services.values():
            service.link.wait(SOON)
        super().__init__(self.server.credentials("alice"), **options)

    def close(self) -> None:
        super().close()
        for service in self.services.values():
            service.stop(grace=0.0)
        self.server.stop()
        self.folder.cleanup()


def policy(**settings: Any) -> Policy:
    return Policy(**{"tasks": ("*",), **settings})
