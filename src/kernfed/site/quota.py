"""How many queries a site has answered today, a line for each question, in the folder ``queries`` of its store.

<day>.jsonl   what was counted on the day (UTC): checksum, key and digest of the question, whose quota it is, its rows

A question costs one appended line, however many came before it. The day is that of the newest file: where the clock was
set back the site goes on with it, so that no day begins twice. A line is on disk before the question is answered; one
that is torn belongs to a question that was not answered, and is cut off. A process reads all lines once, and after that
those that other processes have written. All of this happens with the store locked.
"""

import json
import os
import re
import zlib
from datetime import date
from pathlib import Path

from kernfed.base.plain import read_json
from kernfed.errors import StoreError
from kernfed.files import atomic_path, open_private, private_folder, sync_folder
from kernfed.site.store import SiteStore

#: The folder in a store.
FOLDER = "queries"
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
#: Key and digest of a question, whose quota it is, and its rows; key and digest are "" in lines that only add rows.
Line = tuple[str, str, str, int]


class DailyQueries:
    """The queries of the newest day in a site's store; without ``durable`` nothing waits for the disk."""

    def __init__(self, store: SiteStore, *, durable: bool = True) -> None:
        self._store, self._durable = store, durable
        self._forget("")

    def follow(self, today: date) -> str:
        """Read what others have counted, begin a new day where it has come, and return the day that is counted now."""
        days = self._days()
        day = max([*days[-1:], *self._former_day(), today.isoformat()])
        if not days or day != days[-1]:
            self._begin(day)
        if day != self._day:
            self._forget(day)
        self._read()
        return day

    def asked(self, quota: str) -> int:
        """Rows that count against a quota."""
        return self._rows.get(quota, 0)

    def digest_of(self, key: str) -> str | None:
        """Digest of the question that was counted under a key, or None."""
        return self._digests.get(key)

    def count(self, key: str, digest: str, quota: str, rows: int) -> None:
        """Write a question down; it is on disk when this returns."""
        line: Line = (key, digest, quota, rows)
        text = left = _encoded(line)
        descriptor = open_private(self._path(self._day), os.O_WRONLY | os.O_APPEND)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
            if self._durable:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise
        finally:
            os.close(descriptor)
        self._size += len(text)
        self._take(line)

    # Days -------------------------------------------------------------------------------------------------------

    def _path(self, day: str) -> Path:
        return self._store.path / FOLDER / f"{day}.jsonl"

    def _days(self) -> list[str]:
        """Days that have a file, the newest last."""
        return sorted(place.stem for place in (self._store.path / FOLDER).glob("*.jsonl") if _DAY.fullmatch(place.stem))

    def _begin(self, day: str) -> None:
        """A file for a new day, on disk before those of the days before are deleted."""
        place = self._path(day)
        if not place.parent.is_dir():
            private_folder(place.parent)
            sync_folder(self._store.path)
        with atomic_path(place, private=True) as temporary:
            temporary.write_bytes(b"".join(map(_encoded, self._former_lines(day))))
        for old in self._days()[:-1]:
            self._path(old).unlink(missing_ok=True)
        state = self._store.read_state()
        counted = state.pop("counted", {})
        if counted or state.get("queries"):
            self._store.write_state({**state, "queries": {}})

    # Earlier versions counted in state.json: "queries" has rows by day and quota, "counted" digests by day and key.

    def _former_day(self) -> list[str]:
        """The last day that was counted in state.json, if there is one; looked for once in a process."""
        return [] if self._day else sorted(self._store.read_state().get("queries", {}))[-1:]

    def _former_lines(self, day: str) -> list[Line]:
        state = self._store.read_state()
        rows = [("", "", quota, int(count)) for quota, count in state.get("queries", {}).get(day, {}).items()]
        return rows + [(key, digest, "", 0) for key, digest in state.get("counted", {}).get(day, {}).items()]

    # Lines ------------------------------------------------------------------------------------------------------

    def _forget(self, day: str) -> None:
        self._day, self._size = day, 0
        self._rows: dict[str, int] = {}
        self._digests: dict[str, str] = {}

    def _take(self, line: Line) -> None:
        key, digest, quota, rows = line
        if key:
            self._digests[key] = digest
        if rows:
            self._rows[quota] = self._rows.get(quota, 0) + rows

    def _read(self) -> None:
        """Lines that this process does not know yet; all of them where the file is shorter than it was."""
        place = self._path(self._day)
        size = place.stat().st_size
        if size == self._size:
            return
        if size < self._size:
            self._forget(self._day)
        with place.open("rb") as content:
            content.seek(self._size)
            *lines, torn = content.read().split(b"\n")
        for raw in lines:
            line = _decoded(raw)
            if line is None:
                raise StoreError(
                    f"{place} is damaged; it counts the queries of the day: restore it, or delete it to count from 0"
                )
            self._take(line)
        self._size = size - len(torn)
        if torn:
            self._mend(place, torn)

    def _mend(self, place: Path, torn: bytes) -> None:
        """End a last line that only lacks its end, since its question may have been answered; cut off any other."""
        line = _decoded(torn)
        descriptor = open_private(place, os.O_WRONLY | os.O_APPEND)
        try:
            if line is None:
                os.ftruncate(descriptor, self._size)
            else:
                os.write(descriptor, b"\n")
                self._take(line)
                self._size += len(torn) + 1
        finally:
            os.close(descriptor)


def _encoded(line: Line) -> bytes:
    text = json.dumps(line).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decoded(raw: bytes) -> Line | None:
    """A line as it was written, or None where it is none."""
    checksum, _, text = raw.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    key, digest, quota, rows = read_json(text)
    return str(key), str(digest), str(quota), int(rows)
