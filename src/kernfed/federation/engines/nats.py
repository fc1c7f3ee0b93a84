"""Learners over a hub: questions to sites that stay, in milliseconds. ``nats_site`` is the other end.

A site that is not connected is named at once, one that falls silent within seconds, one that is slow when the time is
up; the others answer meanwhile. A question that may have been lost, with its process or with the hub, is asked again:
a site answers the same question as it did before, and does not count it twice.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernfed.base.checks import check_number
from kernfed.errors import InputError, MessageError
from kernfed.federation.engines.local import Answer, Questions, question_for
from kernfed.federation.engines.nats_credentials import Credentials, check_hub_url, check_party_name
from kernfed.federation.engines.nats_frames import (
    ANY,
    LARGEST,
    WORD,
    Address,
    Frame,
    Kind,
    Parts,
    ask_subject,
    count_parts,
    cut,
    new_word,
    read_reply_subject,
    reply_subject,
    token,
)
from kernfed.federation.engines.nats_link import Link, Msg
from kernfed.site.protocol.message import Refusal

#: Seconds without a sign of a site until it is asked again, at first and at most; it gives one every second.
_SILENCE, _LONGEST_SILENCE = 4.0, 30.0
#: Seconds between two questions to a site that is busy, or has no process that is connected; at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Parts on their way to this engine, over all answers.
_WINDOW = 16
#: Frames of one site that may wait to be looked at.
_INBOX = 256
#: What the server puts into the headers of a reply where nobody listens.
_STATUS, _NOBODY = "Status", "503"


class NatsEngine:
    """Carries questions to the sites of a hub, as the caller that ``credentials`` name.

    credentials : a file of ``kernfed hub add-caller``, or ``Credentials``. url : another address of the hub than the
    one in the credentials. sites : which of the sites that the caller may ask take part, by default all. wait : seconds
    that the hub is waited for, when the engine is made and before a question. patience : seconds that a site is waited
    for of which no process is connected, before it is named as unreachable.
    """

    def __init__(
        self,
        credentials: Credentials | str | Path,
        *,
        url: str = "",
        sites: Sequence[str] = (),
        wait: float = 10.0,
        patience: float = 0.0,
    ) -> None:
        known = credentials if isinstance(credentials, Credentials) else Credentials.read(credentials)
        if known.role != "caller":
            raise InputError(f"the credentials must be those of a caller, got those of {known.role} {known.name!r}")
        chosen = tuple(sites) or known.sites
        if isinstance(sites, str) or not chosen:
            raise InputError(f"sites must name the sites to ask, got {sites!r}, and the credentials name none")
        self._sites = tuple(sorted({check_party_name(site) for site in chosen}))
        self._wait = check_number(wait, "wait", at_least=0)
        self._patience = check_number(patience, "patience", at_least=0)
        self._asker = new_word()
        self._key = known.key
        self._open: dict[str, _Conversation] = {}
        self.credentials = known
        replies = f"{known.prefix}.reply.*.{token(known.name)}.{self._asker}.*"
        address = check_hub_url(url) if url else ""
        self.link = Link(known, {replies: ("", self._on_reply)}, url=address, denied=self._not_allowed)
        try:
            self.link.wait(self._wait)
        except BaseException:
            self.link.close()
            raise

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that take part, connected or not; sorted."""
        return self._sites

    def carry(self, data: Questions, sites: Sequence[str], timeout: float) -> Mapping[str, Answer]:
        """Ask all sites at once and return when each has answered, cannot be reached, or time is up."""
        questions = {site: question_for(data, site) for site in sites}
        return self.link.call(self._carry(questions, time.monotonic() + timeout))

    def present(self, timeout: float = 2.0) -> dict[str, float | None]:
        """How many seconds each site took to say that it is there; None of one that did not."""
        return self.link.call(self._present(timeout))

    def close(self) -> None:
        """Leave the hub."""
        self.link.close()

    def _on_reply(self, message: Msg) -> None:
        """Put a frame of a site, or the server's note that nobody listens, into the inbox of its conversation."""
        site, word = read_reply_subject(message.subject)
        question, process = word[:WORD], word[WORD:]
        conversation = self._open.get(question)
        if conversation is None or conversation.site != site:  # answered already, or nobody asked this site
            return
        frame: Frame | None
        if message.headers is not None and message.headers.get(_STATUS) == _NOBODY:
            frame = Frame(Kind.LOST, process=process) if process else None
        else:
            try:
                frame = Frame.decode(message.data)
            except MessageError as error:
                frame = Frame(Kind.REFUSED, content=f"its reply is none: {error}".encode())
        if not conversation.inbox.full():  # no honest site sends so much unasked
            conversation.inbox.put_nowait(frame)

    def _not_allowed(self, subject: str) -> None:
        """The hub did not let a question through."""
        conversation = self._open.get(subject.rpartition(".")[2])
        if conversation is not None:
            reason = f"the hub does not let caller {self.credentials.name!r} ask it"
            conversation.inbox.put_nowait(Frame(Kind.REFUSED, content=reason.encode()))

    async def _carry(self, questions: Mapping[str, bytes], deadline: float) -> dict[str, Answer]:
        if not await self.link.connected(min(self._wait, deadline - time.monotonic())):
            reason = f"the hub at {self.link.url} cannot be reached: {self.link.trouble}"
            return {site: Refusal("unreachable", f"site {site!r} cannot be asked, {reason}") for site in questions}
        answers = await asyncio.gather(*(self._ask(site, data, deadline) for site, data in questions.items()))
        return dict(zip(questions, answers, strict=True))

    @contextmanager
    def _conversation(self, site: str, data: bytes, deadline: float) -> "Iterator[_Conversation]":
        """A conversation with a site, to which the site's frames go until the end of the block."""
        conversation = _Conversation(self, site, data, deadline)
        self._open[conversation.question] = conversation
        try:
            yield conversation
        finally:
            self._open.pop(conversation.question, None)

    async def _ask(self, site: str, data: bytes, deadline: float) -> Answer:
        if len(data) > LARGEST:
            return Refusal("limit", f"a question has at most {LARGEST:,} bytes, this one has {len(data):,}")
        with self._conversation(site, data, deadline) as conversation:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    return await conversation.hold(time.monotonic() + self._patience)
            except TimeoutError:
                return Refusal("no answer", f"site {site!r} did not answer in time: {conversation.state}")

    async def _present(self, timeout: float) -> dict[str, float | None]:
        async def ping(site: str) -> float | None:
            started = time.monotonic()
            with self._conversation(site, b"", started + timeout) as conversation:
                try:
                    async with asyncio.timeout(timeout):
                        await conversation.send(Frame(Kind.PING), ANY)
                        frame = await conversation.inbox.get()
                except TimeoutError:
                    return None
            return time.monotonic() - started if frame is not None else None

        return dict(zip(self._sites, await asyncio.gather(*map(ping, self._sites)), strict=True))

    async def publish(self, site: str, process: str, question: str, frame: Frame) -> bool:
        """Send a frame to a process of a site; where nobody listens the server says so under the reply's subject."""
        prefix, name = self.credentials.prefix, self.credentials.name
        subject = ask_subject(prefix, site, name, self._key, process, self._asker, question)
        # Under this the server says that nobody listens.
        unheard = Address(name, self._key, process, self._asker, question if process == ANY else f"{question}{process}")
        return await self.link.publish(subject, frame.encode(), reply_subject(prefix, site, unheard))

    @property
    def window(self) -> int:
        """Parts that one answer may have on their way."""
        receiving = sum(conversation.answer is not None for conversation in self._open.values())
        return max(2, _WINDOW // max(1, receiving))


class _Conversation:
    """One question to one site, until its answer is here."""

    def __init__(self, engine: NatsEngine, site: str, data: bytes, deadline: float) -> None:
        self.engine, self.site, self.data, self.deadline = engine, site, data, deadline
        self.question = new_word()
        #: Frames of the site; None where no process of it is connected.
        self.inbox: asyncio.Queue[Frame | None] = asyncio.Queue(_INBOX)
        self.answer: Parts | None = None
        self.process = ""
        #: What is known of the site, for whoever waited in vain.
        self.state = "nothing was heard of it"

    async def hold(self, patient_until: float) -> Answer:
        """Ask until there is an answer, or nobody to give one after ``patient_until``."""
        silence, pause = _SILENCE, _FIRST_PAUSE
        await self._put()
        while True:
            try:
                async with asyncio.timeout(silence):
                    frame = await self.inbox.get()
            except TimeoutError:  # the question, its process, or the answer may be lost
                silence = min(2 * silence, _LONGEST_SILENCE)
                await self._put()
                continue
            if frame is None:
                if time.monotonic() >= patient_until:
                    return Refusal("unreachable", f"no process of site {self.site!r} is connected to the hub")
                self.state = "no process of it is connected to the hub"
            elif frame.kind == Kind.REFUSED:
                return Refusal("error", f"site {self.site!r}: {bytes(frame.content).decode('utf-8', 'replace'):.300}")
            elif frame.kind not in (Kind.BUSY, Kind.LOST):
                silence, pause = _SILENCE, _FIRST_PAUSE
                if await self._continue(frame):
                    assert self.answer is not None
                    return self.answer.message()
                continue
            elif self.process and frame.process != self.process:
                continue  # of a process that is not waited for any more
            else:
                self.state = "it had too many questions waiting" if frame.kind == Kind.BUSY else "its process ended"
            # Busy, gone, or not there: whichever process is free shall have it, after a while.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            await self._put()

    async def _put(self) -> None:
        """Put the question to whichever process is free; what an earlier one has sent so far is forgotten."""
        self.process, self.answer = "", None
        left = max(0.0, self.deadline - time.monotonic())
        while not await self.send(cut(Kind.QUESTION, self.data, 0, patience=left), ANY):
            self.state = "the connection to the hub was lost"
            await asyncio.sleep(_FIRST_PAUSE)
            await self.engine.link.connected(_LONGEST_PAUSE)

    async def _continue(self, frame: Frame) -> bool:
        """Go on with what a process of the site sends; says whether the answer is complete."""
        if frame.kind == Kind.WORKING:
            self.process = self.process or frame.process
            self.state = "it is working on the question"
        elif frame.kind == Kind.WANT:
            self.process = frame.process
            self.state = "it was receiving the question"
            for part in range(frame.part, min(frame.part + frame.parts, count_parts(len(self.data)))):
                await self.send(cut(Kind.QUESTION, self.data, part), frame.process)
        elif frame.kind == Kind.ANSWER:
            self.state = "its answer was on its way"
            if self.answer is None and frame.part == 0:
                self.process, self.answer = frame.process, Parts(frame)
            elif self.answer is not None and frame.process == self.process:
                self.answer.add(frame)
            if self.answer is None:
                return False
            if self.answer.complete:
                return True
            wanted = self.answer.want(self.engine.window)
            if wanted is not None:
                await self.send(wanted, self.process)
        return False

    async def send(self, frame: Frame, process: str) -> bool:
        """Send a frame to a process of the site, or to any; False where there is no connection."""
        return await self.engine.publish(self.site, process, self.question, frame)
