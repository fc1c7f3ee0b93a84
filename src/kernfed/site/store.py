"""A site's memory between processes: a folder of files, each whole or absent, behind one lock.

state.json            rows forgotten, the head of the ledger, and what else is small
queries/<day>         queries answered on the day, a line for each question: see ``quota``
rows.safetensors      rows that were added after the site was set up
<learner>/<handle>    what a learner left: machines, membership, factors
releases/<name>       what was released under differential privacy, so that it is released once
ledger.jsonl          what these releases cost: the privacy ledger; state.json has its head and number of charges
secret.key            key of the hashes that stand for persons in the ledger
sum.key               the site's long-lived key, by which others know it in masked sums and its receipts are signed
receipts/             what was forgotten and added, in a chain of signed lines: see ``receipts``; receipts.key is the
                      key of the hashes that stand for rows in them
journal/              who asked what, in a chain of lines: see ``journal``
approvals.json        questions that wait for the operator, and those approved
answers/<id>          answers to questions that changed something, so that a repeated question changes nothing

Every file carries a checksum of its content, so that a damaged one is noticed and never used. Files and folders are
their owner's alone (0600, 0700), and those that were not become so when the owner opens the store.
"""

import copy
import fcntl
import json
import re
import shutil
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from kernfed.base.plain import read_json
from kernfed.errors import FileFormatError, InputError, StoreError
from kernfed.files import Record, atomic_path, open_private, private_folder, sync_folder, tighten
from kernfed.site.protocol.task import methods, resolve

#: The file of the site's long-lived key.
KEY_FILE = "sum.key"
_VERSION = 1
_KEPT_ANSWERS = 200
_ANSWERS = "answers"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")

Resource = TypeVar("Resource")


class SiteStore:
    """Folder of one site. Without a path it is temporary and vanishes with the object."""

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            folder = tempfile.mkdtemp(prefix="kernfed-store-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.path = Path(folder)
        else:
            self.path = Path(path)
            private_folder(self.path)
            tighten(self.path)
        self._threads = threading.RLock()
        self._depth = 0
        self._owner: int | None = None
        self._state: dict[str, Any] | None = None
        self._open: dict[str, Any] = {}
        self._closing = ExitStack()
        self._clean()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive use, against other threads and other processes; may be entered again by the same thread."""
        with self._threads:
            if self._depth:
                yield
                return
            with self._lock_file() as handle:
                fcntl.flock(handle, fcntl.LOCK_EX)
                self._depth, self._owner, self._state = 1, threading.get_ident(), None
                try:
                    with self._closing:
                        yield
                finally:
                    self._open.clear()
                    self._depth, self._owner, self._state = 0, None, None
                    fcntl.flock(handle, fcntl.LOCK_UN)

    def keep_open(self, name: str, open_it: Callable[[], AbstractContextManager[Resource]]) -> Resource:
        """What ``open_it`` opens, once while the store is locked: it is closed when the lock is given back."""
        if not self.is_locked:
            raise RuntimeError(f"{name} is kept open with the store locked: use `with site.store.locked():`")
        if name not in self._open:
            self._open[name] = self._closing.enter_context(open_it())
        resource: Resource = self._open[name]
        return resource

    def _lock_file(self) -> TextIO:
        return open(self.path / "lock", "a", encoding="ascii", opener=open_private)

    @property
    def is_locked(self) -> bool:
        """Whether this thread has exclusive use."""
        return self._owner == threading.get_ident()

    def _clean(self) -> None:
        """Remove what killed writes left over, unless somebody is writing now."""
        with self._lock_file() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._sweep()

    def sweep(self) -> None:
        """Remove what killed writes left over, of this version and of earlier ones: it may hold rows."""
        with self.locked():
            self._sweep()

    def _sweep(self) -> None:
        for stray in self.path.rglob(".*"):  # ours end in .part; safetensors, which wrote for 0.1, had .tmpXXXXXX
            if stray.is_file():
                stray.unlink(missing_ok=True)
                sync_folder(stray.parent)

    def read_state(self) -> dict[str, Any]:
        """The site's state; a damaged or lost one stops everything, for it says which rows are forgotten.

        While the store is locked nobody else changes it, so that it is read once.
        """
        if not self.is_locked:
            return self._read_state()
        if self._state is None:
            self._state = self._read_state()
        return copy.deepcopy(self._state)

    def _read_state(self) -> dict[str, Any]:
        place = self.path / "state.json"
        if not place.exists():
            if next(self.path.rglob("*.safetensors"), None) is not None:
                raise StoreError(f"{place} is missing; it lists the forgotten rows, restore it")
            return {"version": _VERSION, "forgotten": [], "queries": {}, "generations": {}}
        try:
            state = read_json(place.read_bytes(), "it")
        except InputError as error:
            raise StoreError(f"{place} is damaged ({error}); it lists the forgotten rows, restore it") from None
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise StoreError(f"{place} has another version than {_VERSION}; use the kernfed that wrote it")
        if state.pop("checksum", None) != _checksum(state):
            raise StoreError(f"{place} is damaged (its checksum differs); it lists the forgotten rows, restore it")
        return state

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the site's state."""
        content = {**state, "checksum": _checksum(state)}
        with atomic_path(self.path / "state.json", private=True) as temporary:
            temporary.write_text(json.dumps(content, sort_keys=True), encoding="utf-8")
        self._state = None

    def read(self, *names: str) -> Record | None:
        """Record under ``names``, or None; a damaged one raises ``FileFormatError``."""
        place = self._place(*names)
        if not place.exists():
            return None
        with _opened(place) as content:
            metadata = content.metadata() or {}
            values, checksum = read_json(metadata["values"]), int(metadata["checksum"])
            record = Record({name: content.get_tensor(name) for name in content.keys()}, values)  # noqa: SIM118
        if checksum != _checksum(values, record.arrays):
            raise FileFormatError(f"{place} is damaged: its checksum differs")
        return record

    def read_about(self, *names: str) -> Mapping[str, Any]:
        """Plain values of a record, without its arrays and so without its checksum; for lists."""
        place = self._place(*names)
        with _opened(place) as content:
            about = read_json((content.metadata() or {})["values"])
        if not isinstance(about, dict):
            raise FileFormatError(f"{place} is damaged: its values are no mapping")
        return about

    def identity(self, *names: str) -> tuple[int, int, int] | None:
        """What tells a record's file from any other that takes its place; None where there is none."""
        try:
            status = self._place(*names).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def rename(self, folder: str, name: str, new: str) -> None:
        """Let a record have another name in its folder."""
        place = self._place(folder, name)
        place.replace(self._place(folder, new))
        sync_folder(place.parent)

    def write(self, record: Record, *names: str) -> None:
        """Put a record under ``names``."""
        place = self._place(*names)
        private_folder(place.parent)
        arrays: dict[str, npt.NDArray[Any]] = {key: np.asarray(a, order="C") for key, a in record.arrays.items()}
        values = json.dumps(dict(record.values), allow_nan=False)
        metadata = {"values": values, "checksum": str(_checksum(read_json(values), arrays))}
        with self.locked():
            if not (self.path / "state.json").exists():  # from now on a missing one means that it was lost
                self.write_state(self.read_state())
            # Made here and written to our own file: one that safetensors began would be left behind by a kill.
            content = to_safetensors(arrays, metadata=metadata)
            with atomic_path(place, private=True) as temporary:
                temporary.write_bytes(content)

    def delete(self, *names: str) -> None:
        """Remove a record, if there is one."""
        place = self._place(*names)
        if place.exists():
            place.unlink(missing_ok=True)
            sync_folder(place.parent)

    def names(self, *folder: str) -> list[str]:
        """Names of the records in a folder."""
        place = self.path.joinpath(*map(_safe, folder))
        return sorted(entry.stem for entry in place.glob("*.safetensors")) if place.is_dir() else []

    def newest(self, *folder: str) -> list[str]:
        """Names of the records in a folder, those written last first."""
        written = {name: self._place(*folder, name).stat().st_mtime_ns for name in self.names(*folder)}
        return sorted(written, key=lambda name: (-written[name], name))

    def read_answer(self, question: str) -> Record | None:
        """Answer given earlier to a question that changed something."""
        return self.read(_ANSWERS, question)

    def write_answer(self, question: str, answer: Record) -> None:
        """Remember an answer; the oldest are dropped beyond a few hundred."""
        with self.locked():
            self.write(answer, _ANSWERS, question)
            kept = sorted(self._place(_ANSWERS, question).parent.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
            for old in kept[:-_KEPT_ANSWERS]:
                old.unlink(missing_ok=True)

    def _place(self, *names: str) -> Path:
        *folders, last = map(_safe, names)
        return self.path.joinpath(*folders, f"{last}.safetensors")


@contextmanager
def _opened(place: Path) -> Iterator[Any]:
    """The file of a record; whatever cannot be read of it inside the block is a ``FileFormatError``."""
    try:
        with safe_open(place, framework="numpy") as content:
            yield content
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{place} is damaged: {error}") from None


def _checksum(values: Any, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> int:
    """Checksum against accidents of plain values and arrays."""
    total = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    for name, array in sorted((arrays or {}).items()):
        total = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), total)
        if array.size:
            total = zlib.crc32(array.reshape(-1).view(np.uint8).data, total)
    return total


def _safe(name: str) -> str:
    """A name that cannot leave the folder."""
    if not _NAME.fullmatch(name):
        raise StoreError(f"a stored name must be letters, digits, '.', '_' or '-', got {name!r}")
    return name


# What is kept for models -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptModel:
    """What a method keeps for one generation of a model: its ``handle``, ``made`` when, of how many ``rows``, for whom.

    ``name`` is the record in the folder of ``method``. ``rows`` is None, and ``made`` and ``asked_by`` are empty, where
    the record does not say.
    """

    method: str
    handle: str
    generation: int
    name: str
    rows: int | None
    private: bool
    made: str = ""
    asked_by: str = ""


def list_models(store: SiteStore) -> list[KeptModel]:
    """All that the store keeps, method by method, each with its newest first."""
    return [kept for method in methods() if method.keeps for kept in resolve(method.keeps)(store)]
