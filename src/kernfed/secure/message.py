"""Bytes with a header: what the roles exchange.

A message is ``KFSM``, the length of a JSON header, the header, and parts of stated lengths. The header names the
protocol version, the scheme and its parameters, what the message is, and whose keys it belongs to; a receiver checks
all of it before it touches a part. The digest finds damage; it is no signature, so messages between organisations
travel over an authenticated channel.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from kernfed.base.plain import read_json
from kernfed.errors import InputError, ProtocolError

Part = bytes | memoryview

VERSION = 1
MAGIC = b"KFSM"
LONGEST_HEADER = 1 << 20
KINDS = ("secret key", "site key", "evaluation keys", "scores", "answer")


@dataclass(frozen=True)
class Header:
    """What stands at the head of every message; ``site`` is -1 and ``queries`` 0 where they have no meaning."""

    version: int
    scheme: str
    parameters: str
    kind: str
    n_sites: int
    n_classes: int
    bits: int
    key: str
    site: int
    queries: int
    question: str
    parts: tuple[int, ...]
    digest: str


def digest(*parts: Part) -> str:
    """SHA-256 of lengths and contents."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def pack(parts: Sequence[Part], **named: Any) -> bytes:
    """Message of ``parts``; ``named`` are the other fields of :class:`Header`."""
    header = Header(version=VERSION, parts=tuple(len(part) for part in parts), digest=digest(*parts), **named)
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    return b"".join([MAGIC, len(text).to_bytes(4, "little"), text, *parts])


def read_header(data: bytes) -> tuple[Header, int]:
    """Header and the offset of the first part, or :class:`ProtocolError`."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ProtocolError(f"a message must be bytes, got {type(data).__name__}")
    head = bytes(data[:8])
    if head[:4] != MAGIC or len(head) < 8:
        raise ProtocolError(f"not a kernfed message: it must begin with {MAGIC!r}, got {head[:4]!r}")
    length = int.from_bytes(head[4:], "little")
    if length > LONGEST_HEADER or 8 + length > len(data):
        raise ProtocolError(f"damaged message: a header of {length} bytes in a message of {len(data)} bytes")
    try:
        named = read_json(bytes(data[8 : 8 + length]))
    except InputError:
        raise ProtocolError("damaged message: the header is not JSON") from None
    return _header(named), 8 + length


def _header(named: Any) -> Header:
    names = {field.name: field.type for field in fields(Header)}
    if not isinstance(named, dict) or set(named) != set(names):
        raise ProtocolError(f"damaged message: the header must have the fields {', '.join(names)}")
    for name, kind in names.items():
        expected = list if name == "parts" else kind
        if type(named[name]) is not expected:
            raise ProtocolError(f"damaged message: header field {name!r} is {named[name]!r}")
    if not all(type(length) is int and length >= 0 for length in named["parts"]):
        raise ProtocolError(f"damaged message: lengths of parts are {named['parts']!r}")
    header = Header(**{**named, "parts": tuple(named["parts"])})
    if header.version != VERSION:
        raise ProtocolError(f"protocol version must be {VERSION}, got {header.version}: use equal versions")
    if header.kind not in KINDS:
        raise ProtocolError(f"kind of message must be one of {', '.join(KINDS)}, got {header.kind!r}")
    return header


def unpack(data: bytes, kind: str) -> tuple[Header, list[memoryview]]:
    """Header and parts (views, no copies) of a message of this kind; lengths and digest are checked."""
    header, offset = read_header(data)
    if header.kind != kind:
        raise ProtocolError(f"expected a message with {kind}, got one with {header.kind}")
    view = memoryview(data)[offset:]
    if sum(header.parts) != len(view):
        raise ProtocolError(f"damaged message: {len(view)} bytes of parts, the header says {sum(header.parts)}")
    ends = list(accumulate(header.parts, initial=0))
    parts = [view[start:end] for start, end in pairwise(ends)]
    if digest(*parts) != header.digest:
        raise ProtocolError("damaged message: its content does not match the digest in its header")
    return header, parts
