"""A preparation as TOML: Python reads it, and this writes the little that a preparation needs of it."""

import json
import math
from collections.abc import Sequence
from typing import Any

from kernfed.errors import InputError

_ABOUT = """\
# What becomes of every column, in the order of the table. Edit what you know better, then
#   kernfed train --preparation FILE ...
#
# kind = "number"    moved into [low, high], then (curve(x) - center) / spread; curve is "none", or "log" for heavy
#                    tails: sign(u) log(1 + |u|) of u = (x - offset) / unit; missing = true adds a column that says so
# kind = "boolean"   true, yes, 1 and false, no, 0
# kind = "category"  a column for each of values; other = true adds one for all others; missing as above
# kind = "ordered"   the place among values, which are in order
# kind = "time"      parts, of "years" (from center over spread, in days), "month", "weekday", "hour"
# kind = "list"      width numbers as they are
# kind = "text"      vectors of an encoder, by its name and fingerprint (digest)
# kind = "drop"      not learned from
#
# Where privacy is required, sites tell no statistics: write low and high, values and parts from public knowledge.
"""


def plans_to_toml(plans: Sequence[dict[str, Any]]) -> str:
    """Text of a file with one ``[[column]]`` for each plan."""
    blocks = [[f"{name} = {_value(value)}" for name, value in plan.items()] for plan in plans]
    return "\n\n".join([_ABOUT.rstrip(), *("\n".join(["[[column]]", *block]) for block in blocks)]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON and TOML quote alike, but for one character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, (int, float)) and math.isfinite(value):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise InputError(f"a preparation holds words, numbers, flags and lists of words, got {value!r:.60}")
