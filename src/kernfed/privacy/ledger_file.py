"""The file of a ledger: lines of JSON, each with a hash over itself and the line before, locked, synced and checked.

``opened`` takes the lock, reads all lines once, and keeps both until it ends: several steps that belong together, such
as checking the ledger, charging it and stating what was spent, see the same lines and cost one lock and one read.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernfed.base.chain import chained
from kernfed.errors import InputError

FORMAT = "kernfed privacy ledger 1"


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Descriptor of the file, created for its owner only, with a lock that the system drops when a process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class LedgerFile:
    """A ledger's file while it is locked: all lines, in memory as on disk."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path
        self.lines = read_lines(descriptor, path)
        self._is_torn = False

    def append(self, body: dict[str, Any]) -> dict[str, Any]:
        """Write one line, which is whole and on disk before this returns it."""
        if self._is_torn:  # an earlier append failed halfway, on a full disk for example
            self.lines = read_lines(self._descriptor, self._path)
        self._is_torn = True
        line = append_line(self._descriptor, self.lines[-1]["chain"] if self.lines else "", body)
        self.lines.append(line)
        self._is_torn = False
        return line


@contextmanager
def opened(path: Path) -> Iterator[LedgerFile]:
    """The file at ``path``, locked and read once, until the end of the block."""
    with locked(path) as descriptor:
        yield LedgerFile(descriptor, path)


def read_lines(descriptor: int, path: Path) -> list[dict[str, Any]]:
    """All lines, checked. A last line that is torn was being written when a process died: it is cut off.

    Its release never left, since the noise is drawn after the line is on disk. A last line that is whole and only lacks
    its newline counts, and gets one: its release may have left before somebody stripped the file.
    """
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        content = file.read()
    complete, _, torn = content.rpartition(b"\n")
    if torn and _is_whole(torn):
        os.write(descriptor, b"\n")
        complete = content
    elif torn:
        os.ftruncate(descriptor, len(content) - len(torn))
    if torn:
        os.fsync(descriptor)
    lines, chain = [], ""
    for number, raw in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            line = json.loads(raw)
            chain = chained(chain, line)
            if line["chain"] != chain or (number == 1 and line["format"] != FORMAT):
                raise ValueError
        except (ValueError, KeyError, AttributeError):
            raise InputError(
                f"the ledger {path} is damaged at line {number}: what was spent is not known. "
                "Restore it from a copy; nothing is released until then"
            ) from None
        lines.append(line)
    return lines


def _is_whole(text: bytes) -> bool:
    """Whether a line is complete: it reads as one, hash and all."""
    try:
        return isinstance(json.loads(text)["chain"], str)
    except (ValueError, KeyError, TypeError):
        return False


def append_line(descriptor: int, previous: str, body: dict[str, Any]) -> dict[str, Any]:
    """One line, whole and on disk before this returns."""
    line = {**body, "chain": chained(previous, body)}
    text = (json.dumps(line) + "\n").encode()
    while text:
        text = text[os.write(descriptor, text) :]
    os.fsync(descriptor)
    return line
