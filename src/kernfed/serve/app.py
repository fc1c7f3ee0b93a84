"""The gateway's HTTP: who asks, how much, what comes back. Every refusal is a status and one sentence."""

import asyncio
import base64
import hashlib
import ipaddress
import json
import logging
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import Any

from kernfed._version import __version__
from kernfed.base.checks import FloatArray
from kernfed.errors import HubUnreachable, InputError, KernfedError, NotConnected, StaleModel, TooFewReplies
from kernfed.serve.encrypted import EncryptedDesk
from kernfed.serve.gateway import Gateway
from kernfed.serve.metrics import UNKNOWN
from kernfed.serve.requests import Rate, RequestError, Tokens
from kernfed.serve.rows import JSON, PREDICT, content_kind

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ImportError:
    raise ImportError("a gateway needs fastapi and uvicorn: pip install -e '.[serve]' in a clone of kernfed") from None

_log = logging.getLogger("kernfed.serve")
_log.addHandler(logging.NullHandler())
#: Who asks a gateway without tokens.
ANYBODY = "anybody"
#: Names under which a browser on this machine reaches a gateway without tokens: no page of elsewhere may use it.
_HERE = ("localhost",)
#: Seconds that a refused body may still take to arrive, and that may pass between two parts of it.
_DRAIN, _PAUSE = 2.0, 0.05
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_SCRIPT = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Desk:
    """Lets requests in: by token, rate and size."""

    def __init__(self, gateway: Gateway, tokens: Tokens | None) -> None:
        self._gateway, self._tokens = gateway, tokens
        self._rate = Rate(gateway.limits.rate)
        self._held = 0

    def caller(self, request: Request) -> str:
        """Name of who asks; refused where the token is unknown, or there are none and the request is from elsewhere."""
        if self._tokens is None:
            if not _is_here(_host_of(request)):
                raise RequestError(403, "without tokens this gateway answers under localhost and its address only")
            return ANYBODY
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self._tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise RequestError(401, "a token is needed that this gateway knows: send Authorization: Bearer TOKEN")
        return caller

    def count(self, caller: str) -> None:
        """Count a request of a caller; refuse one too many."""
        self._rate.take(caller)

    async def rows(self, request: Request) -> FloatArray:
        """Rows (n, p) of the body, if it is not too large, arrives in time, and there is room until it is read."""
        kind = content_kind(request.headers.get("content-type", ""))
        limits = self._gateway.limits
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limits.bytes:
            raise _too_large(limits.bytes)
        body = bytearray()
        try:
            await _receive(request, body, limits.bytes, limits.seconds, self._hold)
            return await self._gateway.read(bytes(body), kind)
        finally:
            self._held -= len(body)

    def _hold(self, size: int) -> None:
        """Count bytes of a body that is being read."""
        self._held += size
        if self._held > self._gateway.limits.bodies:
            raise RequestError(503, "too much is being read already; ask again in a second", wait=1.0)

    async def keys(self, request: Request) -> bytes:
        """Keys for encrypted answers: the body, if it is not too large and arrives in time."""
        body = bytearray()
        await _receive(request, body, self._gateway.limits.key_bytes, self._gateway.limits.key_seconds)
        return bytes(body)

    async def drain(self, request: Request) -> None:
        """Read what is left of a refused body, within limits: a caller who is still sending reads no reply."""
        left, ends = self._gateway.limits.bytes, time.monotonic() + _DRAIN
        with suppress(ClientDisconnect, TimeoutError, RuntimeError):  # gone, slow, or read already
            async with asyncio.timeout(_PAUSE) as patience:
                async for part in request.stream():
                    left -= len(part)
                    if left < 0 or time.monotonic() > ends:
                        return
                    patience.reschedule(asyncio.get_running_loop().time() + _PAUSE)


async def _receive(
    request: Request, body: bytearray, most: int, seconds: float, hold: Callable[[int], None] = lambda _: None
) -> None:
    """Put what arrives into ``body``, at most so many bytes within so many seconds; ``hold`` counts each part."""
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                hold(len(part))
                if len(body) > most:
                    raise _too_large(most)
    except ClientDisconnect:
        raise RequestError(400, "the body ended before it was complete") from None
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {seconds:g} s") from None


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"a request may have at most {most:,} bytes")


def make_app(gateway: Gateway, tokens: Tokens | None = None) -> FastAPI:
    """The application. Without ``tokens`` everybody who reaches it may ask."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        gateway.close()

    # The pages of FastAPI that show the schema load scripts from elsewhere; the schema itself is served.
    app = FastAPI(
        title="kernfed gateway",
        version=__version__,
        description="Answers rows with a federated model, and says who decided and who was missing.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    desk = Desk(gateway, tokens)
    _add_errors(app)
    _add_answers(app, gateway, desk)
    _add_views(app, gateway, desk)
    return app


def _add_answers(app: FastAPI, gateway: Gateway, desk: Desk) -> None:
    encrypted = EncryptedDesk(gateway)
    shown = gateway.federation is not None  # a whole model refuses all that is encrypted

    async def answered(request: Request, ask: Callable[[FloatArray, str], Awaitable[dict[str, Any]]]) -> Response:
        """The path of every query: who asks, how often, which rows, the answer; each outcome is counted."""
        started, caller = time.monotonic(), UNKNOWN
        try:
            caller = desk.caller(request)
            desk.count(caller)
            rows = await desk.rows(request)
            values = await ask(rows, caller)
        except Exception as error:
            gateway.metrics.ended(caller, _refusal(error).status)
            await desk.drain(request)
            raise
        gateway.metrics.answered(caller, len(rows), time.monotonic() - started, tuple(values["missing"]))
        return Response(json.dumps(values, allow_nan=False), media_type=JSON)

    @app.post("/predict", summary="Labels, probabilities, who decided and who was missing", openapi_extra=PREDICT)
    async def predict(request: Request) -> Response:
        return await answered(request, gateway.answer_values)

    @app.post(
        "/encrypted/predict",
        summary="An answer that only the holder of the keys named in the header Kernfed-Keys reads",
        openapi_extra={"requestBody": PREDICT["requestBody"]},
        include_in_schema=shown,
    )
    async def predict_encrypted(request: Request) -> Response:
        keys = request.headers.get("kernfed-keys", "")
        return await answered(request, lambda rows, caller: encrypted.answer(rows, caller, keys))

    @app.get("/encrypted", summary="What the keys of encrypted answers must be made for", include_in_schema=shown)
    async def needed(request: Request) -> Response:
        desk.caller(request)
        return JSONResponse(encrypted.about())

    @app.put(
        "/encrypted/keys",
        summary="The key for the sites and the evaluation keys; no secret key",
        include_in_schema=shown,
    )
    async def keys(request: Request) -> Response:
        desk.count(desk.caller(request))
        with encrypted.upload():
            return JSONResponse({"keys": await encrypted.take_keys(await desk.keys(request))})


def _add_views(app: FastAPI, gateway: Gateway, desk: Desk) -> None:
    page = files("kernfed.serve").joinpath("page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy_of(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/health", summary="Whether it answers: 200, or 503 where no site is there")
    async def health() -> Response:
        sites = await gateway.sites()
        up = sum(seconds is not None for seconds in sites.values())
        well = up > 0 or not sites
        state = {"status": "ok" if well else "no site is there", "sites_up": up, "sites": len(sites)}
        return JSONResponse(state, 200 if well else 503)

    @app.get("/about", summary="The model, its columns and classes, and its federation at a glance")
    async def about(request: Request) -> Response:
        desk.caller(request)
        return JSONResponse(await gateway.about())

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics(request: Request) -> Response:
        desk.caller(request)
        await gateway.sites()
        return Response(gateway.metrics.text(), headers={"Content-Type": _PROMETHEUS})


def _add_errors(app: FastAPI) -> None:
    """Every error is ``{"error": sentence}``."""

    async def refused(request: Request, error: Exception) -> Response:
        refusal = _refusal(error)
        if refusal.status == 500:
            _log.error("%s %s ended with an error", request.method, request.url.path, exc_info=error)
        headers = dict(_CHALLENGE) if refusal.status == 401 else {}
        if refusal.wait is not None:
            headers["Retry-After"] = str(max(1, round(refusal.wait)))
        return JSONResponse({"error": str(refusal)}, refusal.status, headers)

    for kind in (KernfedError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _refusal(error: Exception) -> RequestError:
    """What is said of an error, and under which status."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        return RequestError(error.status_code, str(error.detail))
    if isinstance(error, TooFewReplies):
        reasons = "; ".join(f"{site}: {refusal.reason}" for site, refusal in list(error.missing.items())[:5])
        return RequestError(503, f"too few sites answer: {reasons[:500]}", wait=5.0)
    if isinstance(error, (HubUnreachable, StaleModel, NotConnected)):
        return RequestError(503, " ".join(str(error).split())[:500], wait=5.0)
    if isinstance(error, InputError):
        return RequestError(422, " ".join(str(error).split())[:500])
    return RequestError(500, "the gateway failed to answer; its log says why")


def _host_of(request: Request) -> str:
    """The name under which the request says that it reached the gateway, without the port."""
    host = request.headers.get("host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_here(host: str) -> bool:
    """Whether a name in a request is one that no other page's address can have."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host in _HERE
    return True


def _policy_of(page: str) -> str:
    """What the page may do: run the script in it, and ask this gateway."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _SCRIPT.findall(page):
        digests[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'")
    allowed = "; ".join(f"{kind}-src {' '.join(hashes)}" for kind, hashes in digests.items())
    return f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; {allowed}"


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
    """Serve the application until SIGTERM or SIGINT."""
    _Server(configuration(app, grace=grace)).run(sockets=[listening])
