"""Lines of JSON in a chain of hashes: every record of a site that must not be changed behind its back is one.

Every line ends with ``chain``, a hash over itself and the hash of the line before (``chained``). A line is appended
under a lock and is on disk before whoever appends goes on. There are two ways to keep a chain:

``ChainFile``     one file, read and checked as a whole while it is locked: a ledger. A last line that is torn, because
                  a process was killed while it wrote, is cut off.
``ChainedLines``  a folder of files, appended to without reading them: a journal, the receipts. Lines have a number
                  ``n``. What is torn is closed by a line that says so; lines that are gone from the end are noticed
                  by ``head``, and by every process that has seen them, and a line says so, too.

The files of such a folder::

    <number>.jsonl   lines from this number on; a file that is full is followed by another one
    head             number and hash of the last line that is known to be on disk
    lock             held while a line is written, by whichever thread of whichever process

Files of all versions are read: neither the hash nor the way a line is written may ever change.
"""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernfed.base.plain import read_json
from kernfed.errors import InputError
from kernfed.files import open_private, private_folder, sync_folder

#: What a file of lines begins with, at first and after a full one.
FORMAT = "kernfed journal 1"
#: Bytes after which a file is full, and how many of its end most often hold a whole line.
FULL, TAIL = 64_000_000, 1 << 16
#: What a line says, or what makes it of the hash of the line before.
Body = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]
#: Events of this module itself.
BEGUN, CONTINUED, TORN, CUT = "begun", "continued", "torn", "cut"


# What every chain is made of -------------------------------------------------------------------------------------


def chained(previous: str, line: Mapping[str, Any]) -> str:
    """Hash of a line, without the hash that it has, and of the hash of the line before."""
    body = {name: value for name, value in line.items() if name != "chain"}
    return hashlib.sha256((previous + json.dumps(body, sort_keys=True)).encode()).hexdigest()


def _append(descriptor: int, previous: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Write a line after the one with hash ``previous``, all of it; returns the line and its bytes."""
    line = {**body, "chain": chained(previous, body)}
    text = left = (json.dumps(line) + "\n").encode()
    while left:
        left = left[os.write(descriptor, left) :]
    return line, len(text)


@contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    """Descriptor of a file, made for its owner only, with a lock that the system drops when a process dies."""
    descriptor = open_private(path, flags | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _line(raw: bytes) -> dict[str, Any] | None:
    """A line as it was written, or None where it is none."""
    try:
        line = read_json(raw)
        return line if isinstance(line["chain"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


# One file ---------------------------------------------------------------------------------------------------------


class ChainFile:
    """A chain in one file while that is locked: ``lines`` are all of them, in memory as on disk."""

    def __init__(self, descriptor: int, path: Path, begins: str, damaged: str) -> None:
        self._descriptor, self._path, self._begins, self._damaged = descriptor, path, begins, damaged
        self.lines = self._read()
        self._is_torn = False

    @classmethod
    @contextmanager
    def opened(cls, path: Path, begins: str, damaged: str) -> "Iterator[ChainFile]":
        """The file at ``path``, locked and read once, until the end of the block.

        begins : ``format`` of the first line. damaged : what is said of a line that does not follow from the one
        before, with {path} and {line} in it.
        """
        with _locked(path, os.O_RDWR | os.O_APPEND) as descriptor:
            yield cls(descriptor, path, begins, damaged)

    def append(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write one line, which is whole and on disk before this returns it."""
        if self._is_torn:  # an earlier append failed halfway, on a full disk for example
            self.lines = self._read()
        self._is_torn = True
        line, _ = _append(self._descriptor, self.lines[-1]["chain"] if self.lines else "", body)
        os.fsync(self._descriptor)
        self.lines.append(line)
        self._is_torn = False
        return line

    def _read(self) -> list[dict[str, Any]]:
        """All lines, checked. A last line that is torn is cut off: nobody has gone on after it.

        One that is whole and only lacks its newline counts, and gets one: somebody may have stripped the file.
        """
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            content = file.read()
        complete, _, torn = content.rpartition(b"\n")
        if torn and _line(torn) is not None:
            os.write(self._descriptor, b"\n")
            complete = content
        elif torn:
            os.ftruncate(self._descriptor, len(content) - len(torn))
        if torn:
            os.fsync(self._descriptor)
        lines: list[dict[str, Any]] = []
        for number, raw in enumerate(complete.split(b"\n") if complete else [], start=1):
            line = _line(raw)
            fits = line is not None and line["chain"] == chained(lines[-1]["chain"] if lines else "", line)
            if line is None or not fits or (number == 1 and line.get("format") != self._begins):
                raise InputError(self._damaged.format(path=self._path, line=number))
            lines.append(line)
        return lines


# A folder of files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The end of the lines: the file (its first number), its length in bytes, number and hash of the last line."""

    file: int = 0
    size: int = 0
    number: int = 0
    chain: str = ""


class ChainedLines:
    """The lines in ``folder``, which is made by the first of them. Without ``durable`` nothing waits for the disk."""

    def __init__(self, folder: Path, about: Mapping[str, Any], *, durable: bool = True) -> None:
        self.folder, self._about, self._durable = folder, dict(about), durable
        self._writing, self._syncing = threading.Lock(), threading.Lock()
        self._end: Place | None = None
        self._on_disk = 0

    def append(self, body: Body) -> Place:
        """Write a line, and return when it is on disk. Lines that come meanwhile share one wait for the disk."""
        with self._writing, self._lock():
            self._end = place = self._write(self._follow(), body)
        self._sync(place)
        return place

    def last(self) -> dict[str, Any]:
        """The last whole line, or an empty mapping."""
        files = line_files(self.folder)
        return _last_line(files[-1])[1] if files else {}

    def _lock(self) -> AbstractContextManager[int]:
        if not self.folder.is_dir():
            private_folder(self.folder)
            sync_folder(self.folder.parent)
        return _locked(self.folder / "lock", os.O_WRONLY)

    # The end of the lines ---------------------------------------------------------------------------------------

    def _follow(self) -> Place:
        """The end as it is now, after what other processes wrote, killed ones left, or somebody took away."""
        known = self._end
        if known is not None and self._unchanged(known):
            return known
        files = line_files(self.folder)
        place = _end_of(files) if files else Place()
        torn = _torn(files[-1], place.size) if files else b""
        if torn:
            place = self._close(place, torn)
        for had in (known, read_head(self.folder)):
            if (
                had is not None
                and (place.number, place.chain) != (had.number, had.chain)
                and place.number <= had.number
            ):
                return self._write(place, {"event": CUT, "had": [had.number, had.chain]})
        return place

    def _unchanged(self, known: Place) -> bool:
        try:
            return _path(self.folder, known.file).stat().st_size == known.size < FULL
        except FileNotFoundError:
            return False

    def _close(self, place: Place, torn: bytes) -> Place:
        """End a line that is torn, which no reply has left for, and say so in the next one."""
        descriptor = os.open(_path(self.folder, place.file), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)
        closed = Place(place.file, place.size + len(torn) + 1, place.number, place.chain)
        line = parsed(torn)
        if line is not None and line["chain"] == chained(place.chain, line):  # it only lacked its end
            return Place(place.file, closed.size, line["n"], line["chain"])
        about = {"event": TORN, "bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}
        return self._write(closed, about)

    # Writing ----------------------------------------------------------------------------------------------------

    def _write(self, place: Place, body: Body) -> Place:
        if place.size == 0 or place.size >= FULL:
            place = self._begin(place)
        return self._put(place, body)

    def _begin(self, place: Place) -> Place:
        """Another file; the one before is on disk first."""
        if place.file:
            _sync_file(_path(self.folder, place.file))
        event = CONTINUED if place.number else BEGUN
        fresh = Place(place.number + 1, 0, place.number, place.chain)
        os.close(open_private(_path(self.folder, fresh.file), os.O_WRONLY | os.O_CREAT))
        sync_folder(self.folder)
        return self._put(fresh, {"event": event, "format": FORMAT, **self._about, "after": place.chain})

    def _put(self, place: Place, body: Body) -> Place:
        """One line at the end, whole; where it cannot be, what there is of it is taken back."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = body(place.chain) if callable(body) else body
        numbered = {"n": place.number + 1, "time": now, **said}
        descriptor = os.open(_path(self.folder, place.file), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            line, size = _append(descriptor, place.chain, numbered)
        except OSError:
            os.ftruncate(descriptor, place.size)
            raise
        finally:
            os.close(descriptor)
        return Place(place.file, place.size + size, line["n"], line["chain"])

    def _sync(self, place: Place) -> None:
        """Wait until a line is on disk: whoever comes first waits for all that are written by then."""
        with self._syncing:
            if place.number <= self._on_disk:
                return
            newest = self._end or place
            if self._durable:
                _sync_file(_path(self.folder, newest.file))
            self._on_disk = newest.number
            _write_head(self.folder, newest)


# Reading ----------------------------------------------------------------------------------------------------------


def line_files(folder: Path) -> list[Path]:
    """The files of lines, in their order."""
    return sorted(place for place in folder.glob("*.jsonl") if place.stem.isdigit())


def read_head(folder: Path) -> Place | None:
    """Number and hash of the last line that is known to be on disk, if that is known."""
    try:
        number, chain = (folder / "head").read_text(encoding="utf-8").split()
        return Place(number=int(number), chain=chain)
    except (OSError, ValueError):
        return None


def _write_head(folder: Path, place: Place) -> None:
    """Of one length, and in place: nobody waits for it, and an older one is as true."""
    descriptor = open_private(folder / "head", os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, f"{place.number:015d} {place.chain}\n".encode(), 0)
    finally:
        os.close(descriptor)


def _end_of(files: list[Path]) -> Place:
    """The end of the last file, where its last whole line ends; its number may be of a file before."""
    size, line = _last_line(files[-1])
    if not line and len(files) > 1:  # a process was killed when it began a file
        _, line = _last_line(files[-2])
    return Place(int(files[-1].stem), size, line.get("n", 0), line.get("chain", ""))


def _last_line(place: Path) -> tuple[int, dict[str, Any]]:
    """Where the complete lines of a file end, and the last of them that can be read."""
    size, length = place.stat().st_size, TAIL
    while True:
        with place.open("rb") as content:
            content.seek(max(0, size - length))
            tail = content.read()
        complete, newline, torn = tail.rpartition(b"\n")
        lines = (parsed(raw) for raw in reversed(complete.split(b"\n")))
        line = next((line for line in lines if line is not None), {})
        if line or length >= size:  # else the last line is longer than what was read
            return size - len(torn) if newline else 0, line
        length *= 4


def _torn(place: Path, size: int) -> bytes:
    """What follows the complete lines of a file."""
    with place.open("rb") as content:
        content.seek(size)
        return content.read()


def parsed(raw: bytes) -> dict[str, Any] | None:
    """A line with its number as it was written, or None where it is none."""
    line = _line(raw)
    return line if line is not None and type(line.get("n")) is int else None


def _sync_file(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.jsonl"
