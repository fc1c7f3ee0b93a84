"""Model files: safetensors with a JSON header, read without executing anything, written whole or not at all.

A format is a name, a version, and two functions between a model and a ``Record`` (arrays and plain values). Models
register theirs beside their mathematics; ``load`` finds it by the name in the file. Earlier versions are read through
the migrations that a format declares, and a format whose class is gone is read by ``register_former``.

A file carries a digest of all that it says, so that one that was damaged is refused, and no array of any format holds
NaN or infinity. A digest is no signature: who changes a file on purpose can make a new one, and what loads then is
checked by its format.

Model files, and all that a site's store holds, are for their owner alone (0600, folders 0700) whatever the umask:
``atomic_path(private=True)``, ``open_private`` and ``private_folder`` see to it, ``tighten`` where they were made by
an earlier version.
"""

import hashlib
import json
import os
import reprlib
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from kernfed._version import __version__
from kernfed.base.plain import read_json, read_labels
from kernfed.errors import FileFormatError, InputError

#: Version of the container itself: the header's own fields. Those of 0.1 had no digest.
CONTAINER = 2
_WITHOUT_DIGEST = 1
_HEADER = "kernfed"
#: Bytes of a header, at most: parsed, JSON takes some thirty times as much, before anything of it is checked.
_HEADER_LIMIT = 10_000_000
#: Permissions of what nobody but its owner may read.
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700


@dataclass(frozen=True)
class Record:
    """What a file holds: arrays by name, and plain JSON values."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Mapping[str, Any] = field(default_factory=dict)


Migration = Callable[[Record], Record]


@dataclass(frozen=True)
class Format:
    """How models of one class become a record and back.

    ``migrations`` take a record of an earlier version to the next one; ``dump`` is None where a format is only read.
    """

    name: str
    version: int
    model: type
    dump: Callable[[Any], Record] | None
    load: Callable[[Record], Any]
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that are read."""
        return (*sorted(self.migrations), self.version)


_formats: dict[str, Format] = {}
_providers: list[Callable[[], Mapping[str, str]]] = []


def register(
    name: str,
    version: int,
    model: type,
    dump: Callable[[Any], Record],
    load: Callable[[Record], Any],
    *,
    migrations: Mapping[int, Migration] | None = None,
) -> None:
    """Make models of class ``model`` savable under ``name``; ``migrations[v]`` makes a record of v one of v + 1."""
    _formats[name] = Format(name, version, model, dump, load, migrations or {})


def register_former(name: str, version: int, model: type, load: Callable[[Record], Any]) -> None:
    """Read files of a format that is written no more as models of class ``model``."""
    _formats[name] = Format(name, version, model, None, load)


def formats_from(provider: Callable[[], Mapping[str, str]]) -> None:
    """Let ``provider`` name the module of formats that are not known yet; it is imported when one is met.

    Whatever need not read estimators is then spared the libraries they are built on.
    """
    _providers.append(provider)


def _find_format(name: str) -> Format | None:
    """The format of this name, which is also that of the model's class."""
    for provider in _providers:
        if name not in _formats and name in (modules := provider()):
            import_module(modules[name])
    return _formats.get(name)


def _known_formats() -> str:
    return ", ".join(sorted({*_formats, *(name for provider in _providers for name in provider())}))


class Savable:
    """Gives a registered model its ``save`` method."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, whole or not at all; read it with ``kernfed.load``."""
        save(self, path)


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a registered model to ``path``; an interrupted write leaves what was there before.

    The file is readable by its owner alone, whether or not it holds rows: who may have it is the owner's to say.
    """
    record = to_record(model)
    header = {"container": CONTAINER, "package": __version__, **record.values}
    arrays = {name: np.ascontiguousarray(array) for name, array in record.arrays.items()}
    _check_arrays("the model", arrays)
    header["digest"] = content_digest(header, arrays)
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    if len(text) > _HEADER_LIMIT // 2:  # it grows when it is quoted
        raise InputError(f"names and plain values of a model must stay below {_HEADER_LIMIT // 2:,} bytes of JSON")
    # Made here and written to our own file: one that safetensors began would be left behind by a kill.
    content = to_safetensors(arrays, metadata={_HEADER: text})
    with atomic_path(path, private=True) as temporary:
        temporary.write_bytes(content)


def content_digest(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of all that a file says: its header but for the digest, and names, types, shapes and bytes of arrays."""
    said = {name: value for name, value in header.items() if name != "digest"}
    whole = hashlib.sha256(json.dumps(said, sort_keys=True, allow_nan=False, separators=(",", ":")).encode())
    for name, array in sorted(arrays.items()):
        whole.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def to_record(model: Any) -> Record:
    """A registered model as arrays and plain values, for a message; ``from_record`` makes it again."""
    entry = _find_format(type(model).__name__)
    if entry is None or entry.dump is None or type(model) is not entry.model:
        raise InputError(f"model must be one of {_known_formats()}, got {type(model).__name__}")
    record = entry.dump(model)
    return Record(record.arrays, {"format": entry.name, "version": entry.version, "values": dict(record.values)})


def from_record(record: Record) -> Any:
    """Model from ``to_record``; anything else raises ``FileFormatError``."""
    with _refusing("the model in the message"):
        if not isinstance(record.values, Mapping):
            raise FileFormatError(f"a model in a message must be an object, got {type(record.values).__name__}")
        return _build("the model in the message", record.arrays, {"container": CONTAINER, **record.values})


def load(path: str | os.PathLike[str]) -> Any:
    """Read any model written by ``save``. Nothing in the file is executed.

    Whatever else is there raises ``FileFormatError``, or ``OSError`` where it cannot be read at all.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"no model file at {place}")
    with _refusing(str(place)):
        arrays, header = _read(place)
        _check_header(str(place), header)  # first, so that what a newer version wrote is named
        if header["container"] != _WITHOUT_DIGEST and header.get("digest") != content_digest(header, arrays):
            raise FileFormatError(f"{place} is damaged: its content differs from its digest; copy or save it again")
        return _build(str(place), arrays, header)


def _read(place: Path) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """Arrays and header of a file, as they are."""
    try:
        with place.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
        if _HEADER_LIMIT < size < place.stat().st_size:
            raise FileFormatError(f"{place} has a header of {size:,} bytes, at most {_HEADER_LIMIT:,} are read")
        with safe_open(place, framework="numpy") as content:
            header = read_json((content.metadata() or {}).get(_HEADER, "null"), "its header")
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{place} is not a kernfed model file, or is cut off: {str(error)[:200]}") from None
    return arrays, header


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    """Whatever a hostile content provokes, down to too deep a nesting or too little memory, is a damaged file."""
    try:
        yield
    except (FileFormatError, ImportError):  # an import fails for want of an extra, which the content cannot choose
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise FileFormatError(f"{place} is damaged: {type(error).__name__}: {reason}") from error


def _check_arrays(place: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Arrays of every format hold finite numbers, files of 0.1 included."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise FileFormatError(f"{place} is damaged: array {reprlib.repr(name)} has dtype {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FileFormatError(f"{place} is damaged: array {reprlib.repr(name)} holds NaN or infinity")


def _build(place: str, arrays: Mapping[str, npt.NDArray[Any]], header: Any) -> Any:
    """The model of a header and its arrays, brought to the present version first."""
    entry, version, values = _check_header(place, header)
    _check_arrays(place, arrays)
    record = Record(arrays, values)
    for step in range(version, entry.version):
        record = entry.migrations[step](record)
    return entry.load(record)


def _check_header(place: str, header: Any) -> tuple[Format, int, Mapping[str, Any]]:
    if not isinstance(header, dict) or not {"container", "format", "version", "values"} <= header.keys():
        raise FileFormatError(f"{place} holds no kernfed header; it was written by another program")
    name, container, version = header["format"], header["container"], header["version"]
    writer = reprlib.repr(header.get("package", "unknown")).strip("'")
    entry = _find_format(name) if isinstance(name, str) else None
    if type(container) is not int or container not in (_WITHOUT_DIGEST, CONTAINER) or entry is None:
        raise FileFormatError(
            f"{place} has format {reprlib.repr(name)} (container {reprlib.repr(container)}) written by kernfed "
            f"{writer}, and this is kernfed {__version__} with {_known_formats()}; update kernfed"
        )
    if type(version) is not int or version not in entry.versions:
        raise FileFormatError(
            f"{place} has version {reprlib.repr(version)} of format {entry.name!r}, written by kernfed {writer}; "
            f"kernfed {__version__} reads version {' and '.join(map(str, entry.versions))}"
        )
    if not isinstance(header["values"], dict):
        raise FileFormatError(f"{place} is damaged: its values are {type(header['values']).__name__}, expected object")
    return entry, version, header["values"]


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    Contents reach the disk before the name does, and the name before this returns: a crash leaves the old file or the
    new one, and whoever was told that it is written finds it after a power cut. A ``private`` file is never readable by
    others than its owner.
    """
    place = Path(path)
    if not place.parent.is_dir():
        raise FileNotFoundError(f"folder {place.parent} does not exist; make it first")
    if place.is_symlink() or (place.exists() and not place.is_file()):  # a rename would put a file in its place
        raise InputError(f"{place} must be a file or nothing yet, and is a link, a folder or a device")
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(_PRIVATE_FILE if private else 0o666 & ~_umask())
        temporary.replace(place)
        sync_folder(place.parent)
    finally:
        temporary.unlink(missing_ok=True)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Descriptor of a file, which is its owner's alone where this makes it; fits ``opener`` of ``open``."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, _PRIVATE_FILE)
    if flags & os.O_CREAT and stat.S_IMODE(os.fstat(descriptor).st_mode) != _PRIVATE_FILE:
        with suppress(PermissionError):  # it was there, and is another user's
            os.fchmod(descriptor, _PRIVATE_FILE)
    return descriptor


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, for their owner alone."""
    if path.is_dir():
        return
    if path.parent != path:
        private_folder(path.parent)
    path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
    path.chmod(_PRIVATE_FOLDER)


def tighten(folder: Path) -> None:
    """Make a folder and all files and folders below it their owner's alone; what is another user's is left as it is."""
    for place in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # another process has removed it
            status = place.lstat()
            kinds = {stat.S_IFDIR: _PRIVATE_FOLDER, stat.S_IFREG: _PRIVATE_FILE}
            allowed = kinds.get(stat.S_IFMT(status.st_mode))  # links are left alone
            if allowed and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & ~allowed:
                place.chmod(allowed)


def sync_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk: what was renamed or deleted there stays so."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def labels_to_values(labels: npt.NDArray[Any]) -> dict[str, Any]:
    """Class labels (C,) as plain values that keep their type."""
    if labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels):
        raise InputError(f"class labels must be numbers, booleans or strings, got {labels.tolist()!r}")
    kind = "O" if labels.dtype.kind == "O" else labels.dtype.str
    return {"dtype": kind, "labels": labels.tolist()}


def labels_from_values(values: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Class labels (C,) from ``labels_to_values``."""
    return read_labels(values["labels"], values["dtype"])
