"""Questions and replies as bytes: what travels between a learner and a site.

The container is safetensors: a JSON header and raw arrays. Reading it copies nothing and executes nothing, and every
length is checked before it is used. A message names its protocol, package version, run, task and the digest of its
parameters; whoever reads it refuses what does not match, by name.
"""

import hashlib
import json
import logging
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as to_safetensors

from kernfed._version import __version__
from kernfed.base.plain import read_json
from kernfed.errors import MessageError

#: Version of what travels: messages of another one are refused. Packages of different versions talk, if it is the same.
PROTOCOL = 3
#: Bytes of a header, at most: parsed, JSON takes some thirty times as much, before anybody has asked the policy.
_HEADER_LIMIT = 1_000_000
_MOST_AXES = 32
#: Messages in a bundle, at most.
MOST_PARTS = 32
_LONGEST_WORD = 1_000
_FOLDERS = re.compile(r"(?<!\w)~?/(?=[\w.~-])(?:.*/)?")
#: Characters of a sentence about an error, at most.
_REASON_LIMIT = 500
#: What goes wrong at a site, with the way there. Who runs a site listens to it; in a library it is silent.
_log = logging.getLogger("kernfed.site")
_log.addHandler(logging.NullHandler())
_KINDS = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}


@dataclass(frozen=True)
class Payload:
    """Arrays by name, and plain values (numbers, words, and lists or mappings of them)."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scalars(self) -> int:
        """How many numbers the arrays hold."""
        return sum(int(array.size) for array in self.arrays.values())


@dataclass(frozen=True)
class Question:
    """What a learner asks. ``caller`` is who asks, as the site's policy knows them."""

    run: str
    id: str
    task: str
    payload: Payload
    caller: str = "local"
    protocol: int = PROTOCOL
    package: str = __version__


@dataclass(frozen=True)
class Refusal:
    """Why a site does not answer: a code to act on and a sentence to read."""

    code: str
    reason: str


def error_refusal(error: BaseException) -> Refusal:
    """Refusal for what went wrong at a site: its type and sentence in one line, without paths.

    Where it happened is for the site's operator, in the log "kernfed.site"; whoever asks does not see it.
    """
    _log.error("a question ended with an error", exc_info=error)
    told = (error.strerror or "") if isinstance(error, OSError) else (str(error).strip().splitlines() or [""])[0]
    # From the first slash of a path to its last one, for a folder's name may hold anything.
    return Refusal("error", f"{type(error).__name__}: {_FOLDERS.sub('', told)[:_REASON_LIMIT]}".rstrip(": "))


@dataclass(frozen=True)
class Reply:
    """What a site answers to question ``id``: a payload, or a refusal. ``information`` says what kind left the site."""

    site: str
    run: str
    id: str
    task: str
    parameters: str
    information: str = "none"
    payload: Payload = field(default_factory=Payload)
    refusal: Refusal | None = None
    protocol: int = PROTOCOL
    package: str = __version__


def digest(values: Mapping[str, Any]) -> str:
    """Short fingerprint of plain values, the same on every machine."""
    text = json.dumps(values, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_question(question: Question) -> bytes:
    """Bytes of a question."""
    fields = ("run", "id", "task", "caller", "protocol", "package")
    header = {name: getattr(question, name) for name in fields}
    return _pack({**header, "is": "question", "parameters": digest(question.payload.values)}, question.payload)


def decode_question(data: bytes) -> Question:
    """Question in ``data``; refuses other protocols and altered parameters."""
    header, payload = _unpack(data)
    _expect(header, "is", "question")
    _check_origin(header, "the question")
    if header.get("parameters") != _fingerprint(payload.values):
        raise MessageError("the question's parameters do not match their digest; it was altered on the way")
    run, identity, task, caller = (_word(header, name) for name in ("run", "id", "task", "caller"))
    return Question(run, identity, task, payload, caller)


def encode_reply(reply: Reply) -> bytes:
    """Bytes of a reply."""
    header = {
        name: getattr(reply, name)
        for name in ("site", "run", "id", "task", "parameters", "information", "protocol", "package")
    }
    if reply.refusal is not None:
        header["refusal"] = [reply.refusal.code, reply.refusal.reason]
    return _pack({**header, "is": "reply"}, reply.payload)


def decode_reply(data: bytes, question: Question, site: str) -> Reply:
    """Reply in ``data``, which must be ``site``'s answer to ``question``."""
    header, payload = _unpack(data)
    _expect(header, "is", "reply")
    _check_origin(header, f"the reply of {site!r}")
    refusal = _refusal(header)
    if refusal is not None and header.get("site") == site and header.get("id") == "":
        # The site could not read the question, so it cannot say which one it was; its reason is still worth hearing.
        return Reply(site, question.run, question.id, question.task, digest(question.payload.values), refusal=refusal)
    expected = {
        "site": site,
        "run": question.run,
        "id": question.id,
        "task": question.task,
        "parameters": digest(question.payload.values),
    }
    for name, value in expected.items():
        _expect(header, name, value)
    information = _text(header, "information")
    return Reply(site, question.run, question.id, question.task, expected["parameters"], information, payload, refusal)


def encode_bundle(messages: Sequence[bytes]) -> bytes:
    """Bytes of several messages that travel as one; a single message travels as it is."""
    if len(messages) == 1:
        return messages[0]
    parts = {f"{place:03d}": np.frombuffer(message, dtype=np.uint8) for place, message in enumerate(messages)}
    return _pack({"is": "bundle", "protocol": PROTOCOL, "package": __version__}, Payload(parts))


def decode_bundle(data: bytes, who: str) -> list[bytes]:
    """The messages in ``data``: those of a bundle, or ``data`` alone where it is a message itself."""
    header, payload = _unpack(data)
    if header.get("is") != "bundle":
        return [data]
    _check_origin(header, who)
    if sorted(payload.arrays) != [f"{place:03d}" for place in range(len(payload.arrays))] or payload.values:
        raise MessageError("a bundle must hold messages by number")
    if not 2 <= len(payload.arrays) <= MOST_PARTS:
        raise MessageError(f"a bundle must hold 2 to {MOST_PARTS} messages, got {len(payload.arrays)}")
    if any(array.ndim != 1 or array.dtype != np.uint8 for array in payload.arrays.values()):
        raise MessageError("a bundle must hold messages as bytes")
    return [array.tobytes() for _, array in sorted(payload.arrays.items())]


def _refusal(header: Mapping[str, Any]) -> Refusal | None:
    told = header.get("refusal")
    if told is None:
        return None
    if not (isinstance(told, list) and len(told) == 2 and all(isinstance(part, str) for part in told)):
        raise MessageError(f"a refusal must be a code and a reason, got {reprlib.repr(told)}")
    return Refusal(told[0], told[1])


def _fingerprint(values: Mapping[str, Any]) -> str:
    try:
        return digest(values)
    except RecursionError:
        raise MessageError("not a kernfed message: its values are nested too deeply") from None


def _check_origin(header: Mapping[str, Any], who: str) -> None:
    if header.get("protocol") != PROTOCOL:
        written = reprlib.repr(header.get("protocol"))
        package = reprlib.repr(header.get("package"))
        raise MessageError(
            f"{who} speaks protocol {written} (kernfed {package}), this is protocol {PROTOCOL} "
            f"(kernfed {__version__}); update the older one"
        )


def _expect(header: Mapping[str, Any], name: str, value: Any) -> None:
    if header.get(name) != value:
        raise MessageError(f"{name} must be {value!r}, got {reprlib.repr(header.get(name))}")


def _text(header: Mapping[str, Any], name: str) -> str:
    if not isinstance(header.get(name), str):
        raise MessageError(f"{name} must be text, got {reprlib.repr(header.get(name))}")
    return str(header[name])


def _word(header: Mapping[str, Any], name: str) -> str:
    """Text that a reply repeats: one as long as a header may be would leave no room for an answer."""
    text = _text(header, name)
    if len(text) > _LONGEST_WORD:
        raise MessageError(f"{name} must have at most {_LONGEST_WORD:,} characters, got {len(text):,}")
    return text


def _pack(header: Mapping[str, Any], payload: Payload) -> bytes:
    arrays = {name: np.asarray(array, order="C") for name, array in payload.arrays.items()}
    for name, array in arrays.items():
        if array.dtype.newbyteorder("<").str not in _KINDS.values():
            raise MessageError(f"array {name!r} of dtype {array.dtype} cannot travel; use {', '.join(_KINDS)}")
    text = json.dumps({**header, "values": dict(payload.values)}, allow_nan=False)
    if len(text) > _HEADER_LIMIT // 2:  # it may grow when it is quoted
        raise MessageError(f"plain values must stay below {_HEADER_LIMIT // 2:,} bytes, got {len(text):,}; use arrays")
    packed: bytes = to_safetensors(arrays, metadata={"kernfed": text})
    return packed


def _unpack(data: bytes) -> tuple[dict[str, Any], Payload]:
    """Header and payload; arrays are read-only views of ``data``."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > len(data) - 8:
            raise MessageError(f"a message of {len(data)} bytes is cut off")
        if size > _HEADER_LIMIT:
            raise MessageError(f"a message's header must have at most {_HEADER_LIMIT:,} bytes, got {size:,}")
        tensors = read_json(data[8 : 8 + size], "its header")
        header = read_json(tensors.pop("__metadata__")["kernfed"], "its values")
        arrays = {name: _view(data, 8 + size, name, entry) for name, entry in tensors.items()}
        values = header.pop("values")
        if not isinstance(values, dict):
            raise MessageError("a message's values must be a mapping")
    except MessageError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"not a kernfed message: {type(error).__name__}: {str(error)[:200]}") from None
    return header, Payload(arrays, values)


def _view(data: bytes, start: int, name: str, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    shape, (first, last) = entry["shape"], entry["data_offsets"]
    shown = f"array {reprlib.repr(name)} of shape {reprlib.repr(shape)}"  # short, however long the sender made them
    if len(shape) > _MOST_AXES or not all(type(number) is int and number >= 0 for number in [*shape, first, last]):
        raise MessageError(f"{shown} has offsets {reprlib.repr([first, last])}")
    if entry["dtype"] not in _KINDS:
        raise MessageError(f"{shown} has dtype {reprlib.repr(entry['dtype'])}, expected one of {', '.join(_KINDS)}")
    kind = np.dtype(_KINDS[entry["dtype"]])
    count = 1
    for number in shape:
        count *= number
    if last - first != count * kind.itemsize or start + last > len(data):
        raise MessageError(f"{shown} does not fit its bytes {reprlib.repr([first, last])}")
    return np.frombuffer(data, dtype=kind, count=count, offset=start + first).reshape(shape)
