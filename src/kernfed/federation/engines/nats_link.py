"""A connection to a hub that is kept: made again whenever it ends, for as long as it is wanted.

It lives in a thread with an event loop of its own, so that whoever asks or answers may block. The client's own way of
connecting again is not used: it gives up where the server refuses a key, and a key may be allowed again.
"""

import asyncio
import logging
import random
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from kernfed.errors import HubUnreachable, InputError
from kernfed.federation.engines.nats_credentials import Credentials, needs_extra
from kernfed.federation.engines.nats_frames import PART

try:
    import nats
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
except ImportError:
    raise needs_extra() from None

#: Seconds until a first connection is given up, and between two attempts, at first and at most.
_CONNECT, _FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 0.1, 5.0
#: Seconds between two signs of life.
_PING = 5
#: Room in a message of the server beside a part of ours.
_MARGIN = 1024

__all__ = ["Link", "Msg"]
_log = logging.getLogger("kernfed.hub")
_log.addHandler(logging.NullHandler())
# The client begins TLS in a way of which asyncio warns whenever such a connection ends, to no effect.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in str(record.msg))
_WAS_CLOSED = "the connection to the hub was closed; make a new one"
_DENIED = re.compile(r"permissions violation for publish to \"([^\"]+)\"", re.IGNORECASE)
T = TypeVar("T")
Handler = Callable[[Msg], None]


class Link:
    """Connection of one party. ``hear`` maps subjects to a queue group (or "") and what is called with each message.

    Handlers are called in the link's own thread, one after the other; they must not block. So is ``denied``, with the
    subject in small letters of a message that the hub does not allow.
    """

    def __init__(
        self,
        credentials: Credentials,
        hear: Mapping[str, tuple[str, Handler]],
        *,
        url: str = "",
        denied: Callable[[str], None] | None = None,
    ) -> None:
        self.credentials, self.url = credentials, url or credentials.hub
        self._hear, self._denied = dict(hear), denied
        self._tls = credentials.tls()
        self._client: Client | None = None
        self._subscriptions: dict[str, Any] = {}
        #: Why there is no connection, for whoever asks.
        self.trouble = "not connected yet"
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending: set[asyncio.Timeout] = set()
        self._up, self._refused = asyncio.Event(), asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"kernfed-hub-{credentials.name}", daemon=True)
        self._thread.start()

    # For other threads ------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection is not wanted any more."""
        return self._closed

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start work in the link's loop."""
        if self._closed:
            work.close()
            raise InputError(_WAS_CLOSED)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the link's loop and wait for it; it is cancelled where the caller is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError:
            raise InputError(_WAS_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def wait(self, seconds: float) -> None:
        """Wait for the connection; raises ``HubUnreachable`` where it does not come."""
        if not self.call(self.connected(seconds)):
            raise HubUnreachable(f"the hub at {self.url} cannot be reached: {self.trouble}")

    def close(self) -> None:
        """End the connection, and the thread with it."""
        if self._closed:
            return
        self._closed = True
        self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_CONNECT + _LONGEST_PAUSE)

    # In the loop ------------------------------------------------------------------------------------------------

    async def connected(self, seconds: float) -> bool:
        """Whether there is a connection, waiting for one that long."""
        if not self._up.is_set() and seconds > 0:  # a key that is refused is not waited for
            await _first(self._up, self._refused, seconds=seconds)
        return self._up.is_set()

    async def publish(self, subject: str, data: bytes, reply: str = "") -> bool:
        """Send a message; False where there is no connection, and then it is lost."""
        client = self._client
        if client is None or not self._up.is_set():
            return False
        scope = asyncio.timeout(None)
        self._sending.add(scope)
        try:
            async with scope:
                await client.publish(subject, data, reply=reply)
        except (nats.errors.Error, OSError) as error:  # of a connection that ended
            _log.info("a message was lost: %s", error)
            return False
        finally:
            self._sending.discard(scope)
        return not scope.expired()  # the client itself would pass over it

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do work beside everything else; it is cancelled when the link is closed."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work of the link failed", exc_info=task.exception())

    async def stop_hearing(self, subject: str) -> None:
        """Take no new messages of a subject, now and after connecting again; those that are here are handled."""
        self._hear.pop(subject, None)
        subscription = self._subscriptions.pop(subject, None)
        if subscription is not None:
            try:
                await subscription.drain()
            except (nats.errors.Error, OSError):
                return  # the connection is gone, and the subscription with it

    # Keeping the connection -------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._keep())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(_settled(self.loop))
            self.loop.close()

    async def _keep(self) -> None:
        """Connect, and again whenever the connection has ended, until the link is closed."""
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            ended = asyncio.Event()
            try:
                await self._connect(ended)
                pause = _FIRST_PAUSE
                await self._watch(ended)
            except Exception as error:  # refused, unreachable, or a certificate that is not trusted: tell, try again
                self._lost(_reason(error))
                if _is_refusal(error):
                    self._refused.set()
            await self._disconnect()
            if not self._closing.is_set():
                await _first(self._closing, seconds=pause * (0.5 + random.random()))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _watch(self, ended: asyncio.Event) -> None:
        """Stay until the connection ends or the link is closed; a server that falls silent is left, too.

        The client does not tell of every end: it may fail at sending what it had left.
        """
        client = self._client
        assert client is not None
        while not self._closing.is_set():
            await _first(ended, self._closing, seconds=_PING)
            if ended.is_set():
                raise client.last_error or ConnectionResetError("the connection was closed")
            if not self._closing.is_set():
                await client.flush(timeout=2 * _PING)  # there and back

    async def _connect(self, ended: asyncio.Event) -> None:
        """Connect and subscribe, or raise why not; ``ended`` is set when the connection is over."""
        client = Client()
        try:
            await self._reach(client, ended)
            if client.max_payload < PART + _MARGIN:
                raise InputError(f"it takes messages of {client.max_payload:,} bytes, set max_payload = 1MB there")
            for subject, (queue, handler) in list(self._hear.items()):
                self._subscriptions[subject] = await client.subscribe(subject, queue=queue, cb=_called(handler))
            await client.flush(timeout=int(_CONNECT))
        except BaseException:
            await _close(client, seconds=_FIRST_PAUSE)  # nobody answers for a handshake that failed
            raise
        self._client = client
        self.trouble = ""
        self._refused.clear()
        self._up.set()
        _log.info("%s is connected to %s", self.credentials.name, self.url)

    async def _reach(self, client: Client, ended: asyncio.Event) -> None:
        errors: list[Exception] = []

        async def closed() -> None:
            ended.set()

        async def troubled(error: Exception) -> None:
            if self._is_about_connection(error):
                errors[:] = [error]
                ended.set()

        try:
            async with asyncio.timeout(2 * _CONNECT):
                await client.connect(
                    self.url,
                    name=self.credentials.name,
                    nkeys_seed_str=self.credentials.seed,
                    tls=self._tls,
                    tls_handshake_first=True,  # before a word in the clear, so that nobody can talk TLS away
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # the client does not count the first one
                    reconnect_time_wait=0,
                    connect_timeout=int(_CONNECT),
                    closed_cb=closed,
                    error_cb=troubled,
                )
        except nats.errors.NoServersError:
            raise errors[0] if errors else ConnectionRefusedError() from None
        ended.clear()  # of attempts before

    def _is_about_connection(self, error: Exception) -> bool:
        """Whether an error ends the connection; others are told of here."""
        if "permissions violation" in str(error).lower():
            _log.warning("the hub does not allow it: %s", error)
            denied = _DENIED.search(str(error))
            if self._denied is not None and denied is not None:
                self._denied(denied[1])
            return False
        if isinstance(error, nats.errors.SlowConsumerError):
            _log.warning("%s cannot keep up: %s", self.credentials.name, error)
            return False
        return True

    def _lost(self, why: str) -> None:
        if self._up.is_set() or why != self.trouble:
            _log.warning("%s is not connected to %s: %s", self.credentials.name, self.url, why)
        self.trouble = why
        self._up.clear()
        for scope in self._sending:  # the client would wait for ever for what it cannot send any more
            scope.reschedule(self.loop.time())

    async def _disconnect(self) -> None:
        was_up = self._up.is_set()
        client, self._client = self._client, None
        self._up.clear()
        self._subscriptions.clear()
        if client is not None:
            await _close(client, flush=was_up)


async def _close(client: Client, *, flush: bool = False, seconds: float = _CONNECT) -> None:
    """End a connection, whatever state it is in; with ``flush`` what was said last goes out."""
    if client.is_closed:
        return
    try:
        async with asyncio.timeout(seconds):
            if flush:
                await client.flush()
            await client.close()
    except (nats.errors.Error, OSError, TimeoutError):
        return  # it is gone, which was the aim


def _called(handler: Handler) -> Callable[[Msg], Coroutine[Any, Any, None]]:
    async def call(message: Msg) -> None:
        try:
            handler(message)
        except Exception:  # one message must not end the subscription
            _log.exception("a message could not be handled")

    return call


async def _first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait for the first of these events, at most so long."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _settled(loop: asyncio.AbstractEventLoop) -> None:
    """Let what was cancelled end."""
    others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    await asyncio.gather(*others, return_exceptions=True)


def _is_refusal(error: BaseException) -> bool:
    return "authorization violation" in str(error).lower()


def _reason(error: BaseException) -> str:
    """Why there is no connection, in a sentence that says what to look at."""
    text = str(error) or type(error).__name__
    if _is_refusal(error):
        return "it refuses the key; it was revoked, or is not registered there (kernfed hub add-site, add-caller)"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"its certificate is not trusted by the authority in the credentials ({text})"
    if isinstance(error, (ConnectionRefusedError, TimeoutError)):
        return "nobody answers there; is it running?"
    return text
