"""Files that lie: damaged by accident, and made by somebody who knows the format and its digest."""

import contextlib
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from safetensors.numpy import save as to_safetensors

import kernfed as kf
from kernfed.errors import FileFormatError, KernfedError
from kernfed.files import content_digest

from . import models
from .outcome import REFUSED, SURVIVED, UNNOTICED, WRONG, Outcomes
from .values import mutate, mutate_arrays

#: What may be raised for a file that cannot be used.
_NAMED = (FileFormatError, OSError)
Header = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]


def attack_files(outcomes: Outcomes, folder: Path, seed: int, count: int) -> None:
    """``count`` attacks of each kind on a file of every format."""
    _, queries = models.rows()
    write_tables(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = models.make_files(folder)
        for number, (name, path) in enumerate(made.items()):
            honest = models.ask(kf.load(path), queries)
            rng = np.random.default_rng([seed, number])
            target = folder / "attacked.kfd"
            for kind, damage in ACCIDENTS.items():
                for _ in range(count):
                    target.write_bytes(damage(path.read_bytes(), rng))
                    outcomes.add(f"file, {kind}", name, *_after_accident(target, queries, honest))
            for kind, forge in FORGERIES.items():
                for _ in range(count):
                    target.write_bytes(forge(*read(path), rng))
                    outcomes.add(f"file, {kind}", name, *_after_forgery(target, queries))
            for _ in range(max(1, count // 20)):
                _forge_until_loaded(path, target, rng)
                for command in commands(target, folder):
                    outcomes.add("file, forged, to a command", name, *_after_command(*models.run_command(*command)))


# Accidents: the digest is as it was, so that nothing but the same answers may come of them ---------------------------


def _flip(content: bytes, place: int, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    damaged[place] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def _flip_array(content: bytes, rng: np.random.Generator) -> bytes:
    start = _header_end(content)
    return _flip(content, int(rng.integers(start, len(content))) if start < len(content) else start - 1, rng)


def _flip_header(content: bytes, rng: np.random.Generator) -> bytes:
    return _flip(content, int(rng.integers(_header_end(content))), rng)


def _truncate(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def _swap(content: bytes, rng: np.random.Generator) -> bytes:
    """Two parts of the arrays exchanged, as by a disk that returns another block."""
    start = _header_end(content)
    size = max(1, (len(content) - start) // 8)
    if start + 2 * size > len(content):
        return content[:-1]
    first, second = sorted(rng.integers(start, len(content) - size, 2))
    damaged = bytearray(content)
    damaged[first : first + size], damaged[second : second + size] = (
        content[second : second + size],
        content[first : first + size],
    )
    return bytes(damaged)


ACCIDENTS: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "bit flipped in an array": _flip_array,
    "bit flipped in the header": _flip_header,
    "cut off": _truncate,
    "blocks exchanged": _swap,
}


def _after_accident(path: Path, queries: npt.NDArray[Any], honest: list[npt.NDArray[Any]]) -> tuple[str, str]:
    try:
        told = models.ask(kf.load(path), queries)
    except _NAMED:
        return REFUSED, ""
    except Exception as error:
        return WRONG, f"{type(error).__name__}: {error}"
    if models.same(told, honest):
        return SURVIVED, ""
    return (UNNOTICED, "") if _without_digest(path) else (WRONG, "other answers")


def _without_digest(path: Path) -> bool:
    return read(path)[0].get("container") == 1


# Forgeries: whoever makes them knows how to make the digest ----------------------------------------------------------


def read(path: Path) -> tuple[Header, Arrays]:
    """Header and arrays of a file."""
    content = path.read_bytes()
    header: Header = json.loads(json.loads(content[8 : _header_end(content)])["__metadata__"]["kernfed"])
    return header, load_file(path)


def write(header: Header, arrays: Arrays, text: str | None = None) -> bytes:
    """A file with the right digest, where there can be one; ``text`` is the header as it is to be written."""
    with contextlib.suppress(ValueError, RecursionError):
        header = {**header, "digest": content_digest(header, arrays)}
    ready = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    content: bytes = to_safetensors(ready, metadata={"kernfed": json.dumps(header) if text is None else text})
    return content


def _forge_header(header: Header, arrays: Arrays, rng: np.random.Generator) -> bytes:
    if rng.integers(10) == 0:
        return write(mutate(header, rng), arrays)
    changed = copy.deepcopy(header["values"])
    for _ in range(int(rng.integers(1, 4))):
        changed = mutate(changed, rng) or {"empty": 1}
    return write({**header, "values": changed}, arrays)


def _forge_arrays(header: Header, arrays: Arrays, rng: np.random.Generator) -> bytes:
    return write(header, mutate_arrays(arrays, rng))


def _forge_json(header: Header, arrays: Arrays, rng: np.random.Generator) -> bytes:
    """Headers that are hard to parse: endless numbers, nesting, NaN, other encodings, other types."""
    whole = json.dumps(header)
    hard = (
        "[" * 100_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        whole.replace("1", "9" * 6000, 1),
        whole.replace("1", "NaN", 1),
        whole.replace("1", "1e999", 1),
        whole.replace("1", "-Infinity", 1),
        whole[: len(whole) // 2],
        whole + whole,
        "null",
        "[]",
        '"text"',
        "",
        "\ufeff" + whole,
        whole.replace("values", "Values"),
        json.dumps({**header, "values": {"a": "x" * 11_000_000}}),
        json.dumps({**header, "format": ["KAHM"] * 50}),
        json.dumps({**header, "version": 10**300}),
        json.dumps({**header, "container": True}),
        json.dumps({**header, "container": 1, "values": "[" * 1000}),
        json.dumps({**header, "package": "x" * 100_000, "version": -1}),
    )
    return write(header, arrays, hard[rng.integers(len(hard))])


FORGERIES: dict[str, Callable[[Header, Arrays, np.random.Generator], bytes]] = {
    "forged header": _forge_header,
    "forged arrays": _forge_arrays,
    "hostile JSON": _forge_json,
}


def _after_forgery(path: Path, queries: npt.NDArray[Any]) -> tuple[str, str]:
    """Refused by name, or a model that can be used: nothing else says what is wrong with the file."""
    try:
        model = kf.load(path)
    except _NAMED as error:
        long = len(str(error)) > 2000 or "\n" in str(error)
        return (WRONG, f"a refusal of {len(str(error))} characters") if long else (REFUSED, "")
    except Exception as error:
        return WRONG, f"load: {type(error).__name__}: {str(error)[:200]}"
    try:
        with np.errstate(all="ignore"):
            models.ask(model, queries)
    except KernfedError:
        return REFUSED, ""
    except Exception as error:
        return WRONG, f"use: {type(error).__name__}: {str(error)[:200]}"
    return SURVIVED, ""


# Commands ------------------------------------------------------------------------------------------------------------


def write_tables(folder: Path) -> None:
    """Two tables with labels, to predict, test and audit on."""
    for name, seed in (("rows.csv", 5), ("others.csv", 6)):
        sites, _ = models.rows(seed)
        lines = [",".join((*models.NAMES, "outcome"))]
        lines += [",".join((*map(str, row), label)) for X, y in sites.values() for row, label in zip(X, y, strict=True)]
        (folder / name).write_text("\n".join(lines) + "\n")


def _forge_until_loaded(path: Path, target: Path, rng: np.random.Generator) -> None:
    """A forged file that gets past the reader, if one is found: what it refuses no command sees."""
    for attempt in range(30):
        target.write_bytes(list(FORGERIES.values())[attempt % 2](*read(path), rng))
        try:
            kf.load(target)
        except _NAMED:
            continue
        return


def commands(path: Path, folder: Path) -> list[list[str]]:
    """What a user does with a file."""
    table, others, page = (str(folder / name) for name in ("rows.csv", "others.csv", "page.html"))
    labelled = ["--data", table, "--label", "outcome"]
    return [
        ["predict", str(path), table, "--features", ",".join(models.NAMES), "--json"],
        ["evaluate", str(path), *labelled, "--json"],
        ["report", str(path), "--out", page, "--json"],
        ["audit", "--model", str(path), *labelled, "--others", others, "--json"],
    ]


def _after_command(code: int, told: str) -> tuple[str, str]:
    """A result, or one sentence and exit code 2."""
    if code == 0:
        return SURVIVED, ""
    sentences = [line for line in told.splitlines() if not line.startswith("kernfed: warning")]
    if code == 2 and len(sentences) == 1 and "internal error" not in told:
        return REFUSED, ""
    return WRONG, f"exit code {code}: {told[:300]}"
