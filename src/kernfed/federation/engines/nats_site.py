"""A site that stays: it hears questions at its hub, answers them one after the other, and goes on for ever.

Several processes may serve one site: each question goes to one of them, and they share the site's store, with its
ledger, its journal and its memory of repetitions. A question whose process ends is asked again by the caller, and the
other one answers it as the first would have.
"""

import asyncio
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from kernfed.errors import InputError, MessageError
from kernfed.federation.engines.nats_credentials import Credentials
from kernfed.federation.engines.nats_frames import (
    ANY,
    Address,
    Frame,
    Kind,
    Parts,
    cut,
    new_word,
    read_ask_subject,
    reply_subject,
    token,
)
from kernfed.federation.engines.nats_link import Link, Msg
from kernfed.site.policy import Policy

#: Questions of one caller that may wait at a process, and bytes of all messages that it holds at once.
_WAITING, _HELD = 256, 2 * 1024**3
#: Seconds between two signs that a question is being worked on, and without a word of the caller until it is forgotten.
_SIGN, _FORGET = 1.0, 60.0
#: Seconds that a part of a question may take over a slow line.
_ARRIVING = 10.0
#: Seconds after its last word that a process which stops waits for whoever fetches an answer.
_FETCHING = 2.0
#: Parts on their way to a process, over all messages.
_WINDOW = 16

_log = logging.getLogger("kernfed.site")
T = TypeVar("T")


class Answering(Protocol):
    """What answers: a ``Site``."""

    name: str
    policy: Policy

    def answer(self, data: bytes, caller: str | None = None) -> bytes:
        """Reply to a question, both as bytes; never raises."""


@dataclass
class _Visit:
    """A question at this process: parts that arrive, then the answer that is fetched."""

    address: Address
    parts: Parts
    patience: float
    came: float = field(default_factory=time.monotonic)
    last_sign: float = field(default_factory=time.monotonic)
    waiting: bool = False  # for the site, or being answered by it
    computing: bool = False
    answer: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes that are held for it, or will be."""
        return self.parts.size if self.answer is None else len(self.answer)


def _is_under_way(visit: _Visit) -> bool:
    """Whether a question is being answered, or its answer fetched."""
    return visit.computing or (visit.answer is not None and time.monotonic() - visit.last_sign < _FETCHING)


class _Worker:
    """Does one thing after the other, in a thread that does not keep a process alive which is told to end."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def do(self, function: Callable[[], T]) -> T:
        """What ``function`` returns, once its turn has come."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._work.put((future, function))
        return await future

    def end(self) -> None:
        """Take nothing more after what is there."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            result = function()
            with suppress(RuntimeError):  # the loop, and whoever waited in it, may be gone
                future.get_loop().call_soon_threadsafe(_settle, future, result)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


class SiteService:
    """Lets ``site`` answer at the hub of ``credentials``, whose name is the site's, until ``stop``."""

    def __init__(self, site: Answering, credentials: Credentials, *, url: str = "") -> None:
        if credentials.role != "site" or credentials.name != site.name:
            raise InputError(
                f"the credentials must be those of site {site.name!r}, got those of {credentials.role} "
                f"{credentials.name!r}"
            )
        self.site, self.credentials = site, credentials
        self.process = new_word()
        self._visits: dict[Address, _Visit] = {}
        self._worker = _Worker(f"kernfed-site-{site.name}")
        self._anything = asyncio.Event()
        self._stopping = False
        asked = f"{credentials.prefix}.ask.{token(site.name)}.*.*"
        self._open = f"{asked}.{ANY}.*.*"
        hear = {self._open: ("kernfed", self._on_frame), f"{asked}.{self.process}.*.*": ("", self._on_frame)}
        self.link = Link(credentials, hear, url=url)
        self.link.submit(self._give_signs())

    def stop(self, grace: float = 30.0) -> None:
        """Take no new questions, answer the one that is being worked on, let the others go elsewhere, and leave."""
        if self._stopping:
            return
        self._stopping = True
        if not self.link.is_closed:
            self.link.call(self._leave(grace))
            self.link.close()
        self._worker.end()

    async def _leave(self, grace: float) -> None:
        await self.link.stop_hearing(self._open)
        for visit in list(self._visits.values()):
            if not visit.computing and visit.answer is None:
                visit.patience = -1.0  # should the site come to it after all, it passes it over
                await self._send(visit.address, Frame(Kind.LOST))
                self._visits.pop(visit.address, None)
        ends = time.monotonic() + grace
        while time.monotonic() < ends and any(map(_is_under_way, self._visits.values())):
            await asyncio.sleep(0.02)

    # Frames -----------------------------------------------------------------------------------------------------

    def _on_frame(self, message: Msg) -> None:
        """Handle whatever the server lets through to this site."""
        try:
            address = read_ask_subject(message.subject)
        except MessageError as error:  # there is nobody to tell
            _log.warning("site %s: %s", self.site.name, error)
            return
        # One question is one visit, whether its parts come to anybody or to this process.
        address = replace(address, process="")
        try:
            frame = Frame.decode(message.data)
        except MessageError as error:
            _log.warning("site %s: %s sends what is no frame: %s", self.site.name, address.caller, error)
            self._tell(address, Frame(Kind.REFUSED, content=str(error).encode()))
            return
        if frame.kind == Kind.PING:
            self._tell(address, Frame(Kind.HERE))
        elif frame.kind == Kind.QUESTION:
            self._take(address, frame)
        elif frame.kind == Kind.WANT:
            self._hand_out(address, frame)
        else:
            self._tell(address, Frame(Kind.REFUSED, content=b"a caller sends questions and asks for parts"))

    def _take(self, address: Address, frame: Frame) -> None:
        """A part of a question, of one that is known or of a new one."""
        visit = self._visits.get(address)
        if visit is None:
            if frame.part:
                self._tell(address, Frame(Kind.LOST))
                return
            refusal = self._refusal(address, frame.size)
            if refusal is not None:
                self._tell(address, refusal)
                return
            visit = self._visits[address] = _Visit(address, Parts(frame), frame.patience)
            self._anything.set()
        elif not visit.parts.complete:
            if frame.part == 0:  # asked again, since nothing was heard for a while
                self._want(visit, again=True)
            else:
                visit.parts.add(frame)
        elif visit.answer is not None:
            self._tell(address, cut(Kind.ANSWER, visit.answer, 0))
        else:
            self._tell(address, Frame(Kind.WORKING))
        visit.last_sign = time.monotonic()
        if not visit.parts.complete:
            self._want(visit)
        elif not visit.waiting and visit.answer is None:
            visit.waiting = True
            self.link.start(self._answer(visit))

    def _refusal(self, address: Address, size: int) -> Frame | None:
        """Why a new question is not taken, or None."""
        if self._stopping:
            return Frame(Kind.LOST)
        if size > _HELD // 2:
            reason = f"site {self.site.name!r} takes questions of at most {_HELD // 2:,} bytes, this one has {size:,}"
            return Frame(Kind.REFUSED, content=reason.encode())
        waiting = sum(visit.address.caller == address.caller for visit in self._visits.values())
        if waiting >= _WAITING or sum(visit.size for visit in self._visits.values()) + size > _HELD:
            return Frame(Kind.BUSY)
        return None

    def _want(self, visit: _Visit, *, again: bool = False) -> None:
        receiving = sum(not other.parts.complete for other in self._visits.values())
        wanted = visit.parts.want(max(2, _WINDOW // max(1, receiving)), again=again)
        if wanted is not None:
            self._tell(visit.address, wanted)

    def _hand_out(self, address: Address, frame: Frame) -> None:
        """Parts of an answer that the caller has room for."""
        visit = self._visits.get(address)
        if visit is None or visit.answer is None:
            self._tell(address, Frame(Kind.LOST))
            return
        visit.last_sign = time.monotonic()
        self.link.start(self._send_parts(visit, frame.part, min(frame.parts, 2 * _WINDOW)))

    async def _send_parts(self, visit: _Visit, first: int, count: int) -> None:
        assert visit.answer is not None
        total = cut(Kind.ANSWER, visit.answer, 0).parts
        for part in range(first, min(first + count, total)):
            await self._send(visit.address, cut(Kind.ANSWER, visit.answer, part))
            visit.last_sign = time.monotonic()
        if first + count >= total:  # all of it is on its way; should it be lost, the question is asked again
            self._visits.pop(visit.address, None)

    # Answers ----------------------------------------------------------------------------------------------------

    async def _answer(self, visit: _Visit) -> None:
        """Let the site answer, in its own thread, and send the beginning of the answer."""
        data = visit.parts.message()
        visit.answer = await self._worker.do(lambda: self._reply(visit, data))
        visit.waiting = visit.computing = False
        if visit.answer is None:  # nobody should wait for it any more
            self._visits.pop(visit.address, None)
            await self._send(visit.address, Frame(Kind.LOST))
            return
        if sum(other.size for other in self._visits.values()) > _HELD:  # answers that nobody fetches must not fill it
            self._visits.pop(visit.address, None)
            await self._send(visit.address, Frame(Kind.BUSY))
            return
        visit.last_sign = time.monotonic()
        first = cut(Kind.ANSWER, visit.answer, 0)
        sent = await self._send(visit.address, first)
        if sent and first.parts == 1:
            self._visits.pop(visit.address, None)

    def _reply(self, visit: _Visit, data: bytes) -> bytes | None:
        if time.monotonic() - visit.came > visit.patience:
            return None
        visit.computing = True
        return self.site.answer(data, self._caller(visit.address))

    def _caller(self, address: Address) -> str:
        """Who asks, as the policy knows them: by the name that the hub registered, or by the key."""
        return address.key if address.key in self.site.policy.callers else address.caller

    def _tell(self, to: Address, frame: Frame) -> None:
        self.link.start(self._send(to, frame))

    async def _send(self, to: Address, frame: Frame) -> bool:
        subject = reply_subject(self.credentials.prefix, self.site.name, to)
        return await self.link.publish(subject, replace(frame, process=self.process).encode())

    async def _give_signs(self) -> None:
        """Tell callers that their questions are alive, and forget those of callers who are not."""
        while True:
            if not self._visits:  # an idle site does nothing at all
                self._anything.clear()
                await self._anything.wait()
            await asyncio.sleep(_SIGN)
            now = time.monotonic()
            for visit in list(self._visits.values()):
                arriving = not visit.parts.complete and now - visit.last_sign < _ARRIVING
                if visit.waiting or arriving:
                    await self._send(visit.address, Frame(Kind.WORKING))
                elif now - visit.last_sign > _FORGET:
                    self._visits.pop(visit.address, None)


def serve_until_stopped(service: SiteService, report: Callable[[str], None], *, grace: float = 30.0) -> None:
    """Answer until the process is told to end (SIGTERM, SIGINT); for the main thread of a process."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ended.wait()
        report(f"site {service.site.name}: process {service.process} stops")
        service.stop(grace)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    report(f"site {service.site.name}: process {service.process} has stopped")
