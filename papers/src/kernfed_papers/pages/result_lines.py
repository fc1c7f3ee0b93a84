"""Lines of result files: every field is checked here, once, and behind this they are trusted."""

import json
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kernfed.errors import InputError
from kernfed_papers.experiment import Axes, Row
from kernfed_papers.runner import machine_words

_LARGEST = sys.float_info.max
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # it names files


@dataclass(frozen=True)
class Line:
    """One run, as it was written down; ``machine`` in words, ``processor_seconds`` None where they were not kept.

    ``part`` names the part of an experiment that is kept in parts.
    """

    id: str
    rows: tuple[Row, ...]
    source: str
    protocol: str | None
    date: str
    seed: int
    quick: bool
    not_run: str
    seconds: float
    processor_seconds: float | None
    bytes_up: float
    bytes_down: float
    machine: str
    remarks: tuple[str, ...]
    axes: Axes | None
    part: str = ""


def read_lines(path: Path) -> list[Line]:
    """The lines of one file; what is wrong with one is said with its number and the field."""
    lines = []
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: {error}") from None
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            lines.append(_line(json.loads(text)))
        except (ValueError, RecursionError) as error:
            fault = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise InputError(
                f"{path}, line {number} is no result of an experiment: {fault}; take the line out, or run "
                "the experiment again"
            ) from None
    return lines


def _line(values: Any) -> Line:
    whole = _mapping(values, "the line")
    name = _text(whole.get("id"), "id")
    if not _ID.fullmatch(name):
        _refuse("id", "letters, digits, '.', '-' and '_'", name)
    axes = whole.get("axes")
    return Line(
        name,
        _rows(_list(whole.get("rows"), "rows")),
        _text(whole.get("source", name), "source"),
        _text(whole["protocol"], "protocol") if "protocol" in whole else None,
        _text(whole.get("date", ""), "date"),
        _seed(whole.get("seed", 0)),
        _truth(whole.get("quick", False), "quick"),
        _text(whole.get("not_run", ""), "not_run"),
        _amount(whole.get("seconds", 0), "seconds"),
        _amount(whole["processor_seconds"], "processor_seconds") if "processor_seconds" in whole else None,
        _amount(whole.get("bytes_up", 0), "bytes_up"),
        _amount(whole.get("bytes_down", 0), "bytes_down"),
        machine_words(_machine(whole.get("machine", {}))),
        tuple(_text(one, "remarks") for one in _list(whole.get("remarks", []), "remarks")),
        None if axes is None else _axes(_mapping(axes, "axes")),
        _text(whole.get("part", ""), "part"),
    )


def _rows(values: list[Any]) -> tuple[Row, ...]:
    """Rows of one run; a label and a unit name one of them, or means over seeds would mix what differs."""
    rows = tuple(_row(_mapping(entry, f"rows[{place}]"), f"rows[{place}]") for place, entry in enumerate(values))
    named: set[tuple[str, str]] = set()
    for row in rows:
        if (row.label, row.unit) in named:
            raise InputError(f"two rows are named {row.label!r} with the unit {row.unit!r}")
        named.add((row.label, row.unit))
    return rows


def _optional(check: Callable[[Any, str], float]) -> Callable[[Any, str], float | None]:
    return lambda value, name: None if value is None else check(value, name)


def _row(values: Mapping[str, Any], place: str) -> Row:
    for name in ("label", "published", "ours", "unit"):
        if name not in values:
            raise InputError(f"{place} has no {name}")
    for name in values:
        if name not in _ROW:
            raise InputError(f"{place} has the unknown field {reprlib.repr(name)}; known are {', '.join(_ROW)}")
    return Row(**{name: _ROW[name](value, f"{place}.{name}") for name, value in values.items()})


def _matrix(value: Any, name: str) -> tuple[tuple[float, ...], ...] | None:
    if value is None:
        return None
    lines = [_list(line, name) for line in _list(value, name)]
    if not lines or not lines[0] or len({len(line) for line in lines}) > 1:
        _refuse(name, "lines of numbers, all of one length", [len(line) for line in lines])
    return tuple(tuple(_number(one, name) for one in line) for line in lines)


def _machine(value: Any) -> Mapping[str, Any]:
    facts = _mapping(value, "machine")
    for name, fact in facts.items():
        for one in fact if isinstance(fact, list) else [fact]:
            if one is not None and not isinstance(one, (str, int)):
                _refuse(f"machine.{name}", "text, a whole number, or a list of them", fact)
        if name == "blas":
            _list(fact, "machine.blas")
    return facts


def _axes(values: Mapping[str, Any]) -> Axes:
    names, signs = ("x", "y"), ("log_x", "log_y")
    for name in values:
        if name not in (*names, *signs):
            _refuse("axes", f"{', '.join(names + signs)}", name)
    x, y = (_text(values.get(name), f"axes.{name}") for name in names)
    return Axes(x, y, *(_truth(values.get(name, False), f"axes.{name}") for name in signs))


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _refuse(name, "an object", value)


def _list(value: Any, name: str) -> list[Any]:
    return value if isinstance(value, list) else _refuse(name, "a list", value)


def _text(value: Any, name: str) -> str:
    return value if isinstance(value, str) else _refuse(name, "text", value)


def _truth(value: Any, name: str) -> bool:
    return value if isinstance(value, bool) else _refuse(name, "true or false", value)


def _seed(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(value) if whole else _refuse("seed", "a whole number >= 0", value)


def _number(value: Any, name: str) -> float:
    """A finite number as it is, so that whole ones stay whole; JSON reads 1e999 as infinity, and NaN as itself."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return value
    return _refuse(name, "a finite number", value)


def _amount(value: Any, name: str) -> float:
    number = _number(value, name)
    return number if number >= 0 else _refuse(name, "a number >= 0", value)


def _refuse(name: str, expected: str, value: Any) -> NoReturn:
    raise InputError(f"{name} must be {expected}, got {reprlib.repr(value)}")


_ROW: dict[str, Callable[[Any, str], Any]] = {
    "label": _text,
    "published": _optional(_number),
    "ours": _optional(_number),
    "unit": _text,
    "note": _text,
    "deviation": _optional(_amount),
    "series": _text,
    "x": _optional(_number),
    "matrix": _matrix,
}
