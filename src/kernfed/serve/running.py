"""Runs the gateway's application until it is told to stop."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernfed.errors import InputError

try:
    import uvicorn
except ImportError:
    raise ImportError("a gateway needs fastapi and uvicorn: pip install -e '.[serve]' in a clone of kernfed") from None

#: Connections at a time, beyond which the next hears 503, and seconds that one may be idle.
_CONNECTIONS, _IDLE = 1_000, 15


class _Server(uvicorn.Server):
    """A server that ends a stopped process as one that has done its work: it is not killed by the signal after all."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, once what is under way is answered."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; an address that is taken or not of this machine is refused."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(f"no gateway can listen at {host} port {port}: {error.strerror or error}") from None


def configuration(app: Any, *, grace: float) -> uvicorn.Config:
    """How the application is served; when it is stopped, what is under way has ``grace`` seconds."""
    return uvicorn.Config(
        app,
        http="h11",  # which bounds the size of headers
        ws="none",
        log_level="error",  # whoever sends what is no HTTP must not fill the log
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )


def run(app: Any, listening: socket.socket, *, grace: float) -> None:
    """Answer until SIGTERM or SIGINT."""
    _Server(configuration(app, grace=grace)).run(sockets=[listening])
