"""A gateway on a free port of this machine, in a thread, and requests to it as they come from outside."""

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

import uvicorn

from kernfed.serve.app import bind, configuration


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Any
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class Running:
    """An application that is served until the block ends."""

    def __init__(self, app: Any) -> None:
        self._socket: socket.socket = bind("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(configuration(app, grace=5))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Running":
        self._thread.start()
        ends = time.monotonic() + 30
        while not self._server.started:
            assert self._thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < ends
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def post(
        self, path: str, given: Any = None, *, content: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Post a value as JSON, or ``content`` as it is."""
        kind = {} if given is None else {"Content-Type": "application/json"}
        body = content if given is None else json.dumps(given).encode()
        return self.request("POST", path, body, {**kind, **(headers or {})})
