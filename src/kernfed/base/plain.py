"""Plain values of files and messages, read as strictly as arrays: whoever wrote them may have meant harm."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError

#: Columns that a model may have; memory is taken for as many.
MOST_COLUMNS = 10_000_000
_LABELS = re.compile(r"[<>=|]?([biufUO])\d{0,9}")
_PLAIN: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
    "U": (str,),
    "O": (str,),
}


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
    """A word or a sentence."""
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
