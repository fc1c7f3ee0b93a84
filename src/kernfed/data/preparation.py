"""From raw columns to numbers: what sites agree on, what the model file carries, and what a person can edit.

The file is TOML: Python reads it, and this module writes the little that a preparation needs of it.
"""

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_rows
from kernfed.data.columns import RawTable, is_table, raw_table
from kernfed.data.preparation_choice import Rules, choose_plans
from kernfed.data.preparation_limits import MOST_NAME_CHARACTERS, MOST_OUTPUTS
from kernfed.data.preparation_plans import DropPlan, Plan, read_plan
from kernfed.data.preparation_statistics import TableStatistics
from kernfed.errors import InputError
from kernfed.files import atomic_path

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


@dataclass(frozen=True)
class Preparation:
    """What becomes of every column: a pure function from raw tables to matrices with named columns.

    >>> prepared = Preparation.fit({"age": [41, 58, None, 70] * 5, "ward": ["a", "b", "b", "a"] * 5})
    >>> prepared.columns
    ('age', 'ward=a', 'ward=b')
    >>> X, columns = prepared.apply({"age": [58.0], "ward": ["c"], "other": [1]})
    >>> X.shape, columns == prepared.columns
    ((1, 3), True)
    """

    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        names = [plan.name for plan in self.plans]
        if len(set(names)) != len(names):
            raise InputError("a preparation must name every column once")
        # Counted before they are named: a few hostile plans would name more than memory holds.
        if not 0 < sum(plan.n_outputs for plan in self.plans) <= MOST_OUTPUTS:
            reasons = "; ".join(f"{plan.name!r:.60}: {plan.why or 'left out':.60}" for plan in self.plans[:10])
            raise InputError(f"a preparation must leave 1 to {MOST_OUTPUTS:,} columns to learn from; {reasons}")
        if sum(plan.n_outputs * len(plan.name) for plan in self.plans) > MOST_NAME_CHARACTERS:
            raise InputError(
                f"the names of the columns that a preparation makes must have at most {MOST_NAME_CHARACTERS:,} "
                "characters in all; give columns shorter names"
            )

    # Made ---------------------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, tables: Any, *, min_rows_per_value: int = 1, rules: Rules | None = None) -> "Preparation":
        """Preparation of a table, or of several ``{site: table}`` together, that are all here.

        Sites elsewhere agree on theirs with ``kernfed.federation.preparing.agree``. ``min_rows_per_value``: rows of one
        table that a word needs to be named at all.
        """
        several = isinstance(tables, Mapping) and bool(tables) and all(map(is_table, tables.values()))
        read = [raw_table(tables[name]) for name in sorted(tables)] if several else [raw_table(tables)]
        declared = rules.categories if rules is not None else ()
        counted = [TableStatistics.of(table, min_rows=min_rows_per_value, categories=declared) for table in read]
        return cls.from_statistics(counted, rules)

    @classmethod
    def from_statistics(cls, statistics: Iterable[TableStatistics], rules: Rules | None = None) -> "Preparation":
        """Preparation of rows of which only statistics are known, those of each site in the order of their names.

        They must be counted with ``categories=rules.categories``: only so are words of columns of numbers counted.
        """
        every = list(statistics)
        if not every:
            raise InputError("a preparation needs the statistics of at least 1 table, got none")
        whole = every[0]
        for other in every[1:]:
            whole = whole + other
        return cls(choose_plans(whole, rules or Rules()))

    # Used ---------------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that come out."""
        return tuple(name for plan in self.plans for name in plan.outputs())

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the raw columns that go in: a table must have these, and may have others."""
        return tuple(plan.name for plan in self.plans if not isinstance(plan, DropPlan))

    @property
    def left_out(self) -> dict[str, str]:
        """Columns that are not learned from, with the reason of each."""
        return {plan.name: plan.why or "left out" for plan in self.plans if isinstance(plan, DropPlan)}

    @property
    def needed(self) -> bool:
        """Whether anything but complete numbers and lists goes in: others can be learned from as they are."""
        return any(plan.kind not in ("list", "number", "drop") or plan.flagged for plan in self.plans)

    def apply(self, table: Any) -> tuple[FloatArray, tuple[str, ...]]:
        """Matrix (n, p) of a raw table, a data frame, an Arrow table or columns by name, and the names of its columns.

        A column that is missing is refused by name, further ones are ignored, values that were never met count as
        others, and what cannot be read as missing.
        """
        raw = raw_table(table).select(self.used)
        made = [plan.apply(raw.columns[plan.name]) for plan in self.plans if not isinstance(plan, DropPlan)]
        return np.column_stack(made) if len(made) > 1 else np.ascontiguousarray(made[0]), self.columns

    def rows(self, X: Any) -> npt.ArrayLike:
        """What a model of prepared rows computes with: a raw table prepared, an array of prepared rows as it is."""
        if not is_table(X):
            return check_rows(X, width=len(self.columns))
        names = getattr(X, "columns", ())
        if not isinstance(X, (RawTable, Mapping)) and tuple(map(str, names)) == self.columns:
            return np.asarray(X)  # a data frame of prepared rows
        return self.apply(X)[0]

    # Kept ---------------------------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """Fingerprint of 128 bits, the same on every machine: nobody finds two preparations that have the same."""
        text = json.dumps(self.to_values(), sort_keys=True, allow_nan=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_values(self) -> list[dict[str, Any]]:
        """Plain values, for messages and model files."""
        return [plan.to_values() for plan in self.plans]

    @classmethod
    def from_values(cls, values: Any) -> "Preparation":
        """Preparation from ``to_values``; whatever cannot be is refused by column and setting."""
        if not isinstance(values, list):
            raise InputError(f"a preparation must be a list of columns, got {type(values).__name__}")
        if len(values) > MOST_OUTPUTS:
            raise InputError(f"a preparation must have at most {MOST_OUTPUTS:,} columns, got {len(values):,}")
        return cls(tuple(read_plan(entry) for entry in values))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TOML file that a person can read and edit."""
        with atomic_path(path) as temporary:
            temporary.write_text(plans_to_toml(self.to_values()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Preparation":
        """Preparation from a TOML file."""
        place = Path(path)
        try:
            content = tomllib.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{place}: there is no such file; kernfed prepare writes one") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{place} is no preparation in TOML: {error}") from None
        if set(content) != {"column"}:
            raise InputError(f"{place} must hold [[column]] and nothing else, got {sorted(content)}")
        try:
            return cls.from_values(content["column"])
        except InputError as error:
            raise InputError(f"{place}: {error}") from None

    def summary(self) -> list[tuple[str, str, str, str]]:
        """For every column its name, the kind of plan, what is done and why."""
        return [(plan.name, plan.kind, plan.summary(), plan.why) for plan in self.plans]


# For models -------------------------------------------------------------------------------------------------------


def prepared_rows(preparation: Preparation | None, X: Any) -> npt.ArrayLike:
    """Rows as a model computes with them: prepared where it has a preparation and they are a table."""
    return X if preparation is None else preparation.rows(X)


def preparation_values(preparation: Preparation | None) -> dict[str, Any]:
    """What a model file says of a preparation: nothing where there is none."""
    return {} if preparation is None else {"preparation": preparation.to_values()}


def read_preparation(values: Mapping[str, Any], width: int) -> Preparation | None:
    """The preparation in a model file of rows with ``width`` columns, or None."""
    if "preparation" not in values:
        return None
    preparation = Preparation.from_values(values["preparation"])
    if len(preparation.columns) != width:
        raise InputError(f"the preparation must make {width} columns, and makes {len(preparation.columns)}")
    return preparation
