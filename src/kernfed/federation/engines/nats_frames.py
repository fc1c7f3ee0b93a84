"""What travels over a hub: subjects that say who speaks to whom, and frames that carry messages in parts.

    <prefix>.ask.<site>.<caller>.<key>.<process>.<asker>.<question>      from a caller to a site
    <prefix>.reply.<site>.<caller>.<asker>.<question>                    from a site to a caller

The server lets a caller publish only under its own name and key, and a site only under its own name: both ends learn
from the subject who speaks, never from a field of the message. ``<process>`` is "any" for a question that whichever
process of the site is free may take, or the process that took it. ``<asker>`` is one connection of the caller.

A message is cut into parts of ``PART`` bytes. The first part comes unasked, further ones when the receiver wants them,
a few at a time: who cannot keep up is never sent more than it has room for.
"""

import re
import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote, unquote

from kernfed.errors import MessageError

#: Bytes of a message in one frame; a server that takes messages of 1 MB, as all do unless told otherwise, takes it.
PART = 512 * 1024
#: Bytes of a message, at most.
LARGEST = 2 * 1024**3
#: What stands for whichever process of a site is free.
ANY = "any"
#: Letters of a word that stands for a process, a connection or a question.
WORD = 12
_HEAD = struct.Struct("<3sBIIQd12s")
_MAGIC = b"KF1"
_WORD = re.compile(r"[0-9A-Za-z]{1,64}")


class Kind(IntEnum):
    """What a frame is for."""

    QUESTION = 1  # part of a question
    WANT = 2  # the receiver wants ``parts`` further parts, from ``part`` on
    ANSWER = 3  # part of an answer
    WORKING = 4  # the question was taken and is not answered yet
    BUSY = 5  # the process has too much to do; ask again
    LOST = 6  # the process does not know the question, or will not answer it any more; ask another one
    PING = 7  # is anybody there?
    HERE = 8  # yes
    REFUSED = 9  # what was sent is no frame, or too large; the content says why


@dataclass(frozen=True)
class Frame:
    """One message of the hub.

    part : number of this part, or of the first one wanted. parts : of how many, or how many are wanted. size : bytes of
    the whole message. patience : seconds that the caller waits for an answer. process : who at the site speaks.
    """

    kind: Kind
    part: int = 0
    parts: int = 1
    size: int = 0
    patience: float = 0.0
    process: str = ""
    content: bytes | memoryview = b""

    def encode(self) -> bytes:
        """The frame as bytes."""
        head = _HEAD.pack(
            _MAGIC, self.kind, self.part, self.parts, self.size, self.patience, self.process.encode("ascii")
        )
        return b"".join((head, self.content))

    @classmethod
    def decode(cls, data: bytes) -> "Frame":
        """The frame in ``data``; raises ``MessageError`` where there is none."""
        if len(data) < _HEAD.size:
            raise MessageError(f"a frame has at least {_HEAD.size} bytes, got {len(data)}")
        magic, kind, part, parts, size, patience, process = _HEAD.unpack_from(data)
        if magic != _MAGIC or kind not in Kind.__members__.values():
            raise MessageError("not a frame of kernfed, or of another version; update the older side")
        content = memoryview(data)[_HEAD.size :]
        name = process.rstrip(b"\0").decode("ascii", "replace")
        if not 0.0 <= patience < 1e9:  # also refuses what is not a number
            raise MessageError(f"patience must be seconds, got {patience}")
        if name and not _WORD.fullmatch(name):
            raise MessageError("the process of a frame must be letters and digits")
        if kind in (Kind.QUESTION, Kind.ANSWER):
            _check_part(part, parts, size, len(content))
        return cls(Kind(kind), part, parts, size, patience, name, content)


def _check_part(part: int, parts: int, size: int, length: int) -> None:
    """Refuse a part whose numbers do not fit each other."""
    if size > LARGEST:
        raise MessageError(f"a message has at most {LARGEST:,} bytes, this one would have {size:,}")
    if parts != count_parts(size) or part >= parts or length != part_size(part, size):
        raise MessageError(f"part {part} of {parts} with {length:,} bytes does not fit a message of {size:,} bytes")


def count_parts(size: int) -> int:
    """In how many parts a message of ``size`` bytes travels; an empty one in one."""
    return max(1, -(-size // PART))


def part_size(part: int, size: int) -> int:
    """Bytes of part number ``part`` of a message of ``size`` bytes."""
    return min(PART, size - part * PART)


def cut(kind: Kind, message: bytes, part: int, *, patience: float = 0.0) -> Frame:
    """Part number ``part`` of a message, as a frame."""
    content = memoryview(message)[part * PART : (part + 1) * PART]
    return Frame(kind, part, count_parts(len(message)), len(message), patience, content=content)


class Parts:
    """A message of which parts arrive, in order; those that are there already are passed over."""

    def __init__(self, first: Frame) -> None:
        self.size, self.count = first.size, first.parts
        self._held: list[memoryview | bytes] = [first.content]
        #: How many parts were asked for or came unasked.
        self.wanted = 1

    @property
    def complete(self) -> bool:
        """Whether all parts are here."""
        return len(self._held) == self.count

    def add(self, frame: Frame) -> bool:
        """Take a part; says whether it was the next one."""
        if (frame.size, frame.parts, frame.part) != (self.size, self.count, len(self._held)):
            return False
        self._held.append(frame.content)
        return True

    def want(self, window: int, *, again: bool = False) -> Frame | None:
        """What to ask the sender for next, so that about ``window`` parts are on their way; None for nothing yet.

        ``again`` asks anew for what was asked for and did not come.
        """
        here = len(self._held)
        if again:
            self.wanted = here
        if self.complete or (self.wanted - here) * 2 > window:
            return None
        upto = min(self.count, here + window)
        first, self.wanted = self.wanted, max(self.wanted, upto)
        return Frame(Kind.WANT, first, self.wanted - first) if self.wanted > first else None

    def message(self) -> bytes:
        """The whole message."""
        return b"".join(self._held)


# Subjects ---------------------------------------------------------------------------------------------------------


def token(name: str) -> str:
    """A name as one token of a subject, in which dots, stars, blanks and the like have a meaning of their own.

    >>> token("north"), token("St. Mary *")
    ('north', 'St%2E%20Mary%20%2A')
    """
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def name_of(word: str) -> str:
    """The name that a token stands for.

    >>> name_of("St%2E%20Mary%20%2A")
    'St. Mary *'
    """
    return unquote(word)


def new_word() -> str:
    """A token that nobody can guess, for a process, a connection or a question."""
    return secrets.token_hex(WORD // 2)


@dataclass(frozen=True)
class Address:
    """The subject of a frame to a site, as the server let it through."""

    caller: str
    key: str
    process: str
    asker: str
    question: str


def ask_subject(prefix: str, site: str, caller: str, key: str, process: str, asker: str, question: str) -> str:
    """The subject under which a caller speaks to a site."""
    return f"{prefix}.ask.{token(site)}.{token(caller)}.{key}.{process}.{asker}.{question}"


def reply_subject(prefix: str, site: str, to: Address) -> str:
    """The subject under which a site speaks to a caller's connection about one question."""
    return f"{prefix}.reply.{token(site)}.{token(to.caller)}.{to.asker}.{to.question}"


def read_ask_subject(subject: str) -> Address:
    """Who asks, through which connection, and which question, from the subject of a frame to a site."""
    words = subject.rsplit(".", 5)
    if len(words) != 6 or not all(_WORD.fullmatch(word) for word in words[2:]):
        raise MessageError("the subject of a question must end in caller, key, process, asker and question")
    return Address(name_of(words[1]), *words[2:])


def read_reply_subject(subject: str) -> tuple[str, str]:
    """Which site speaks, and about which question, from the subject of a frame to a caller."""
    words = subject.rsplit(".", 4)
    if len(words) != 5:
        raise MessageError("the subject of a reply must end in site, caller, asker and question")
    return name_of(words[1]), words[4]
