"""Model files: safetensors with a JSON header, read without executing anything, written whole or not at all.

A format is a name, a version, and two functions between a model and a ``Record`` (arrays and plain values). Models
register theirs beside their mathematics; ``load`` finds it by the name in the file.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kernfed._version import __version__
from kernfed.errors import FileFormatError, InputError

#: Version of the container itself: the header's own fields.
CONTAINER = 1
_HEADER = "kernfed"


@dataclass(frozen=True)
class Record:
    """What a file holds: arrays by name, and plain JSON values."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """How models of one class become a record and back."""

    name: str
    version: int
    model: type
    dump: Callable[[Any], Record]
    load: Callable[[Record], Any]


_formats: dict[str, Format] = {}
_providers: list[Callable[[], Mapping[str, str]]] = []


def register(
    name: str, version: int, model: type, dump: Callable[[Any], Record], load: Callable[[Record], Any]
) -> None:
    """Make models of class ``model`` savable under ``name``."""
    _formats[name] = Format(name, version, model, dump, load)


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
    """Write a registered model to ``path``; an interrupted write leaves what was there before."""
    entry = _format_of(model)
    record = entry.dump(model)
    header = {
        "container": CONTAINER,
        "format": entry.name,
        "version": entry.version,
        "package": __version__,
        "values": dict(record.values),
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in record.arrays.items()}
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    with atomic_path(path) as temporary:
        save_file(arrays, temporary, metadata={_HEADER: text})


def to_record(model: Any) -> Record:
    """A registered model as arrays and plain values, for a message; ``from_record`` makes it again."""
    entry = _format_of(model)
    record = entry.dump(model)
    return Record(record.arrays, {"format": entry.name, "version": entry.version, "values": dict(record.values)})


def from_record(record: Record) -> Any:
    """Model from ``to_record``; anything else raises ``FileFormatError``."""
    entry, values = _check_header(Path("the message"), {"container": CONTAINER, **record.values})
    return _build(Path("the message"), entry, Record(record.arrays, values))


def _format_of(model: Any) -> Format:
    entry = _find_format(type(model).__name__)
    if entry is None or type(model) is not entry.model:
        raise InputError(f"model must be one of {_known_formats()}, got {type(model).__name__}")
    return entry


def load(path: str | os.PathLike[str]) -> Any:
    """Read any model written by ``save``. Nothing in the file is executed."""
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"no model file at {place}")
    try:
        with safe_open(place, framework="numpy") as content:
            header = json.loads((content.metadata() or {}).get(_HEADER, "null"))
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{place} is not a kernfed model file, or is cut off: {error}") from None
    entry, values = _check_header(place, header)
    return _build(place, entry, Record(arrays, values))


def _build(place: Path, entry: Format, record: Record) -> Any:
    try:
        return entry.load(record)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{place} is damaged: {type(error).__name__}: {error}") from error


def _check_header(place: Path, header: Any) -> tuple[Format, Mapping[str, Any]]:
    if not isinstance(header, dict) or not {"container", "format", "version", "values"} <= header.keys():
        raise FileFormatError(f"{place} holds no kernfed header; it was written by another program")
    writer = header.get("package", "unknown")
    entry = _find_format(str(header["format"]))
    if header["container"] != CONTAINER or entry is None:
        raise FileFormatError(
            f"{place} has format {header['format']!r} (container {header['container']}) written by kernfed {writer}, "
            f"and this is kernfed {__version__} with {_known_formats()}; update kernfed"
        )
    if header["version"] != entry.version:
        raise FileFormatError(
            f"{place} has version {header['version']} of format {entry.name!r}, written by kernfed {writer}; "
            f"kernfed {__version__} reads version {entry.version}"
        )
    if not isinstance(header["values"], dict):
        raise FileFormatError(f"{place} is damaged: its values are {type(header['values']).__name__}, expected object")
    return entry, header["values"]


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    Contents reach the disk before the name does, so a crash leaves the old file or the new one.
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
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


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
    kind = np.dtype(values["dtype"])
    if kind.kind not in "biufUO" or not all(isinstance(v, (bool, int, float, str)) for v in values["labels"]):
        raise InputError(f"class labels of dtype {kind} are not allowed")
    return np.array(values["labels"], dtype=str if kind.kind == "U" else kind)  # text as long as it is, not as declared
