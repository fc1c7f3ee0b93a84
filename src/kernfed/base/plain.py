"""Plain values of files and messages, read as strictly as arrays: whoever wrote them may have meant harm."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError

#: Columns that a model may have; memory is taken for as many.
MOST_COLUMNS = 10_000_000
#: Bytes of JSON, unless whoever reads it allows fewer, and objects and lists inside each other.
MOST_BYTES, DEEPEST = 1_000_000_000, 100
#: Whole numbers of so many digits are finite as floats.
_FEW_DIGITS = 300
_LABELS = re.compile(r"[<>=|]?([biufUO])\d{0,9}")
_PLAIN: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
    "U": (str,),
    "O": (str,),
}


class NotFinite(InputError):
    """JSON with a number that is NaN, infinite, or of more digits than a float holds."""


def read_json(text: str | bytes, what: str = "the text", *, most: int = MOST_BYTES) -> Any:
    """Parsed JSON, read as strictly as the standard is written: ``json.loads`` takes more, and differently.

    Refused in one sentence about ``what``, as ``InputError``: more than ``most`` bytes, what is not UTF-8, a name that
    an object has twice, NaN, infinity and numbers too large for a float, nesting deeper than ``DEEPEST``, and halves of
    a character (lone surrogates), which no file can hold.
    """
    if len(text) > most:
        raise InputError(f"{what} must have at most {most:,} bytes, got {len(text):,}")
    try:
        plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        value = json.loads(
            plain,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_finite,
        )
        if "\\u" in plain:
            json.dumps(value, ensure_ascii=False).encode()
    except NotFinite as error:
        raise NotFinite(f"{what}: {error}") from None
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} must be JSON: {str(error)[:200]}") from None
    except UnicodeEncodeError:
        raise InputError(f"{what} holds half of a character, which no file can hold") from None
    except RecursionError:
        raise InputError(f"{what}: the JSON is nested too deeply") from None
    level, depth = [value], 0
    while level := [child for node in level for child in _children(node) if isinstance(child, (dict, list))]:
        depth += 1
        if depth >= DEEPEST:
            raise InputError(f"{what}: the JSON is nested too deeply")
    return value


def read_json_file(path: Path) -> Any:
    """Parsed JSON of a file in UTF-8."""
    return read_json(path.read_bytes(), str(path))


def _children(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InputError(f"an object has the name {twice!r:.40} twice")
    return made


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise NotFinite(f"numbers must be finite, got {digits[:20]}")
    return number


def _whole(digits: str) -> int:
    if len(digits) > _FEW_DIGITS:
        _finite(digits)
    return int(digits)


def read_columns(names: Any, width: int) -> tuple[str, ...]:
    """Names of ``width`` columns, or none."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) not in (0, width):
        raise InputError(f"there must be the names of {width} columns or none, got {names!r:.60}")
    return tuple(names)


def read_reasons(values: Any) -> dict[str, str]:
    """Sentences by site: why each is missing."""
    if not isinstance(values, dict) or not all(isinstance(reason, str) for reason in values.values()):
        raise InputError(f"reasons must be sentences by site, got {values!r:.60}")
    return values


def read_text(value: Any, name: str) -> str:
    """A value that must be text; anything else is refused."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r:.60}")
    return value


def check_flag(value: Any) -> bool:
    """True or false, and nothing that only counts as one."""
    if not isinstance(value, bool):
        raise InputError(f"a flag must be true or false, got {value!r:.60}")
    return value


def check_classes_sorted(classes: npt.NDArray[Any], at_least: int = 1) -> npt.NDArray[Any]:
    """Class labels (C,) in the order that all models have them, each once."""
    if len(classes) < at_least or not (classes[:-1] < classes[1:]).all():
        raise InputError(f"there must be {at_least} classes or more, sorted, got {classes.tolist()!r:.60}")
    return classes


def read_labels(labels: Any, dtype: Any) -> npt.NDArray[Any]:
    """Class labels (C,) that are a list of what their type says; numpy would make something of most else."""
    kind = _LABELS.fullmatch(dtype) if isinstance(dtype, str) else None
    wanted = None if kind is None else _PLAIN[kind[1]]
    if wanted is None or not isinstance(labels, list) or not all(isinstance(label, wanted) for label in labels):
        raise InputError(f"class labels must be a list of numbers, flags or words of one type, got {dtype!r:.40}")
    if bool not in wanted and any(isinstance(label, bool) for label in labels):
        raise InputError(f"class labels of dtype {dtype} cannot be flags")
    return np.array(labels, dtype=str if wanted == (str,) and dtype != "O" else dtype)  # words as long as they are
