"""What becomes of one column: a kind of plan for each kind of column, each a pure function to numbers.

All numbers come out on one scale: one unit is about one standard deviation of a number, and two categories are
``FLAG * sqrt(2)`` apart. Smaller flags than that made kernels on tables better, standardised ones worse: of a rare
category they are far from everything. No cell is refused: what cannot be read is missing.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from kernfed.base.checks import FloatArray, check_choice, check_number
from kernfed.base.fields import check_fields, check_text, declared, fields_of, from_values, to_values
from kernfed.base.plain import read_text
from kernfed.data.columns import LARGEST, RawColumn
from kernfed.data.encoders import USUAL_ENCODER, check_encoder_name, find_encoder
from kernfed.data.preparation_limits import (
    FARTHEST,
    FARTHEST_DAY,
    FINEST_UNIT,
    LARGEST_NUMBER,
    LEAST_DAYS,
    MOST_CHARACTERS,
    MOST_OUTPUTS,
    SMALLEST_SCALE,
    check_range,
    check_reach,
    check_values,
    saturated,
)
from kernfed.errors import InputError

#: Size of a flag: of one category among several, of a missing value, of half the way from false to true.
FLAG = 0.5
#: Radius of the circle on which months, weekdays and hours lie.
CIRCLE = 0.35
#: Length of the vector of a text: it says as much as about nine columns of numbers.
TEXT = 3.0
#: Half the way from the first word of an order to the last, and the most of years before or after the middle.
ORDER, YEARS = 1.5, 4.0
#: What a category is called that is rare, or was not met before, and one that is missing.
OTHER, MISSING = "(other)", "(missing)"
#: Parts of a time, with the days or hours after which each begins again; "years" goes on.
PARTS = {"years": 0.0, "month": 12.0, "weekday": 7.0, "hour": 24.0}


@dataclass(frozen=True)
class Plan(ABC):
    """How column ``name`` becomes columns of numbers; ``why`` is for people. A plan that exists was checked.

    ``check`` and ``apply`` are final, so that no kind of plan can leave out a limit.
    """

    kind: ClassVar[str] = ""
    #: Largest size of a prepared value, whatever settings and cells are.
    bound: ClassVar[float] = FLAG

    name: str
    why: str = declared("", longest=MOST_CHARACTERS)

    def __post_init__(self) -> None:
        self.check()

    @property
    def flagged(self) -> bool:
        """Whether one more column says where the value is missing."""
        return bool(getattr(self, "missing", False))

    def names(self) -> tuple[str, ...]:
        """Names of the columns that it makes, but for the flag: by default the column itself."""
        return (self.name,)

    @final
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return (*self.names(), f"{self.name}={MISSING}") if self.flagged else self.names()

    @property
    def n_outputs(self) -> int:
        """Number of columns that it makes."""
        return len(self.outputs())

    @final
    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k), as many columns as ``outputs``, finite and at most ``bound`` in size for all cells."""
        with np.errstate(all="ignore"):  # a warning would tell of a cell
            return saturated(self._numbers(column), self.bound)

    @final
    def check(self) -> None:
        """Refuse settings that are too long, too many or too large; it follows from the settings alone."""
        check_text(self.name, "the name of a column", MOST_CHARACTERS)
        check_fields(self, f" of column {self.name!r:.60}")
        self._check_together()

    @abstractmethod
    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k) before they are cut to ``bound``."""

    def _check_together(self) -> None:  # noqa: B027  most kinds have nothing more to check
        """Refuse settings that do not go together."""

    @final
    def summary(self) -> str:
        """What is done, in a few words."""
        return f"{self._about()}, flag where missing" if self.flagged else self._about()

    @abstractmethod
    def _about(self) -> str:
        """What is done with a value that is not missing."""

    def to_values(self) -> dict[str, Any]:
        """Plain values, the kind first."""
        plain = to_values(self)
        return {"name": plain.pop("name"), "kind": self.kind, **plain}


@dataclass(frozen=True)
class NumberPlan(Plan):
    """``(curve(x) - center) / spread`` of x moved into [low, high]; a missing value is 0, with a flag where asked for.

    curve "log" : ``sign(u) log(1 + |u|)`` of ``u = (x - offset) / unit``, for heavy tails.
    """

    kind: ClassVar[str] = "number"
    bound: ClassVar[float] = LARGEST_NUMBER

    low: float = declared(0.0, at_least=-FARTHEST, at_most=FARTHEST)
    high: float = declared(1.0, at_least=-FARTHEST, at_most=FARTHEST)
    center: float = declared(0.5, at_least=-FARTHEST, at_most=FARTHEST)
    spread: float = declared(0.5, above=0, at_least=SMALLEST_SCALE, at_most=FARTHEST)
    curve: str = declared("none", choices=("none", "log"))
    offset: float = declared(0.0, at_least=-FARTHEST, at_most=FARTHEST)
    unit: float = declared(1.0, above=0, at_least=SMALLEST_SCALE, at_most=FARTHEST)
    missing: bool = False

    def _numbers(self, column: RawColumn) -> FloatArray:
        values = column.numbers
        absent = ~np.isfinite(values)
        moved = bend(np.clip(values, self.low, self.high), self.curve, self.offset, self.unit)
        scaled = np.where(absent, 0.0, (moved - self.center) / self.spread)
        return _with_flag(scaled, absent, self.missing)

    def _check_together(self) -> None:
        """Refuse a range that is empty, and one that becomes larger than ``LARGEST_NUMBER``."""
        check_range(self.low, self.high, self.name)
        if self.curve == "log":
            finest = FINEST_UNIT * (self.high - self.low)
            check_number(self.unit, f"unit of column {self.name!r:.60}", at_least=finest)
        ends = bend(np.array([self.low, self.high]), self.curve, self.offset, self.unit)
        check_reach(ends, self.center, self.spread, self.name)

    def _about(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}" + (", log" if self.curve == "log" else "")


@dataclass(frozen=True)
class BooleanPlan(Plan):
    """False is -FLAG / sqrt(2) and true FLAG / sqrt(2), as far apart as two categories; missing is between them."""

    kind: ClassVar[str] = "boolean"

    missing: bool = False

    def _numbers(self, column: RawColumn) -> FloatArray:
        values = column.flags
        absent = ~np.isfinite(values)
        return _with_flag(np.where(absent, 0.0, (values - 0.5) * FLAG * np.sqrt(2)), absent, self.missing)

    def _about(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class CategoryPlan(Plan):
    """A flag for each of ``values``, for all others together, and for missing ones; without that flag they are 0."""

    kind: ClassVar[str] = "category"

    values: tuple[str, ...] = ()
    other: bool = True
    missing: bool = False

    def names(self) -> tuple[str, ...]:
        """A column for each value, and for the others."""
        return tuple(f"{self.name}={value}" for value in (*self.values, *([OTHER] if self.other else [])))

    def _numbers(self, column: RawColumn) -> FloatArray:
        codes, words = column.named
        count, known = len(self.values), {value: place for place, value in enumerate(self.values)}
        other = count if self.other else -1
        missing = count + self.other if self.missing else -1
        places = np.array([*(known.get(word, other) for word in words), missing], dtype=np.int64)[codes]
        flags = np.zeros((len(column), self.n_outputs))
        flagged = np.flatnonzero(places >= 0)
        flags[flagged, places[flagged]] = FLAG
        return flags

    def _check_together(self) -> None:
        check_values(self.values, self.name, at_least=1)

    def _about(self) -> str:
        return f"{len(self.values)} values{' and others' if self.other else ''}"


@dataclass(frozen=True)
class OrderedPlan(Plan):
    """The place of the value among ``values``, evenly from -1.5 for the first to 1.5 for the last; unknown ones: 0.

    Spread evenly over [-1.5, 1.5] words have a standard deviation of .87 where there are many of them, near that of a
    number; two words are 3 apart.
    """

    kind: ClassVar[str] = "ordered"
    bound: ClassVar[float] = ORDER

    values: tuple[str, ...] = ()
    missing: bool = False

    def _numbers(self, column: RawColumn) -> FloatArray:
        codes, words = column.named
        heights = dict(zip(self.values, np.linspace(-ORDER, ORDER, len(self.values)).tolist(), strict=True))
        values = np.array([*(heights.get(word, np.nan) for word in words), np.nan])[codes]
        absent = np.isnan(values)
        return _with_flag(np.where(absent, 0.0, values), absent, self.missing)

    def _check_together(self) -> None:
        check_values(self.values, self.name, at_least=2)

    def _about(self) -> str:
        return " < ".join(self.values if len(self.values) <= 5 else (*self.values[:2], "...", *self.values[-2:]))


@dataclass(frozen=True)
class TimePlan(Plan):
    """Years from ``center`` over ``spread`` (both in days), and month, weekday and hour as points of a circle."""

    kind: ClassVar[str] = "time"
    bound: ClassVar[float] = YEARS

    center: float = declared(0.0, at_least=-FARTHEST_DAY, at_most=FARTHEST_DAY, unit="days since 1970")
    spread: float = declared(365.25, above=0, at_least=LEAST_DAYS, at_most=FARTHEST_DAY, unit="days")
    parts: tuple[str, ...] = declared(("years",), choices=tuple(PARTS))
    missing: bool = False

    def names(self) -> tuple[str, ...]:
        """A column for the years, two for each other part."""
        points = [(part,) if part == "years" else (f"{part} (sine)", f"{part} (cosine)") for part in self.parts]
        return tuple(f"{self.name}: {name}" for names in points for name in names)

    def _numbers(self, column: RawColumn) -> FloatArray:
        days = np.clip(column.days, -FARTHEST_DAY, FARTHEST_DAY)
        absent = ~np.isfinite(column.days)
        present = np.where(absent, self.center, days)
        made: list[FloatArray] = []
        for part in self.parts:
            if part == "years":
                made.append(np.clip((present - self.center) / self.spread, -YEARS, YEARS))
                continue
            angle = 2 * np.pi * _phase(present, part) / PARTS[part]
            made += [np.where(absent, 0.0, turn(angle)) * CIRCLE for turn in (np.sin, np.cos)]
        if self.missing:
            made.append(absent * FLAG)
        return np.column_stack(made)

    def _check_together(self) -> None:
        if not self.parts or len(set(self.parts)) != len(self.parts):
            raise InputError(f"parts of column {self.name!r} must be some of {', '.join(PARTS)}, each once")

    def _about(self) -> str:
        return ", ".join(self.parts)


@dataclass(frozen=True)
class _VectorPlan(Plan):
    """Several numbers of every row: a list, or the vector of a text. They are counted before they are named."""

    def names(self) -> tuple[str, ...]:
        """A column for each number."""
        return tuple(f"{self.name}[{place}]" for place in range(self.n_outputs))


@dataclass(frozen=True)
class ListPlan(_VectorPlan):
    """Lists of ``width`` numbers as they are: embeddings."""

    kind: ClassVar[str] = "list"
    bound: ClassVar[float] = LARGEST

    width: int = declared(1, at_least=1, at_most=MOST_OUTPUTS)

    @property
    def n_outputs(self) -> int:
        """Columns that it makes, counted before they are named."""
        return self.width

    def _numbers(self, column: RawColumn) -> FloatArray:
        if column.stored != "list" or column.values.shape[1] != self.width:
            raise InputError(f"column {self.name!r} must hold lists of {self.width} numbers, as at training")
        return column.values

    def _about(self) -> str:
        return f"{self.width} numbers as they are"


@dataclass(frozen=True)
class TextPlan(_VectorPlan):
    """Texts as vectors of length ``TEXT`` by an encoder of this name and fingerprint; a missing text is 0."""

    kind: ClassVar[str] = "text"
    bound: ClassVar[float] = 2 * TEXT

    encoder: str = USUAL_ENCODER
    digest: str = declared("", longest=MOST_CHARACTERS)
    width: int = declared(1, at_least=1, at_most=MOST_OUTPUTS)

    @property
    def n_outputs(self) -> int:
        """Columns that it makes, counted before they are named."""
        return self.width

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, width); texts that occur twice are encoded once."""
        encoder = find_encoder(self.encoder)
        if (encoder.digest, encoder.width) != (self.digest, self.width):
            raise InputError(
                f"encoder {self.encoder!r} of column {self.name!r} is another one here: its fingerprint is "
                f"{encoder.digest}, and {self.digest} was learned with"
            )
        codes, words = column.named
        vectors = np.vstack([TEXT * encoder.encode(words), np.zeros((1, self.width))])
        return np.asarray(vectors[codes])

    def _check_together(self) -> None:
        check_encoder_name(self.encoder)

    def _about(self) -> str:
        return f"text by encoder {self.encoder!r} ({self.digest})"


@dataclass(frozen=True)
class DropPlan(Plan):
    """A column that is not learned from."""

    kind: ClassVar[str] = "drop"

    def names(self) -> tuple[str, ...]:
        """No columns come of it."""
        return ()

    def _numbers(self, column: RawColumn) -> FloatArray:
        return np.zeros((len(column), 0))

    def _about(self) -> str:
        return "left out"


PLANS: dict[str, type[Plan]] = {
    plan.kind: plan
    for plan in (NumberPlan, BooleanPlan, CategoryPlan, OrderedPlan, TimePlan, ListPlan, TextPlan, DropPlan)
}


def read_plan(values: Any) -> Plan:
    """Plan from plain values, each of the type that its kind declares; whole numbers are floats where it says so."""
    if not isinstance(values, dict):
        raise InputError(f"a column must be settings by name, got {type(values).__name__}")
    name = read_text(values.get("name"), "name of a column")
    kind = PLANS[check_choice(values.get("kind"), f"kind of column {name!r}", tuple(PLANS))]
    known, called = fields_of(kind), f" of column {name!r:.60}"
    given = {word: value for word, value in values.items() if word != "kind"}
    for word, one in known.items():
        if one.hint is float and word in given:
            given[word] = one.check(given[word], f"{word}{called}")
    return from_values(kind, given, f"column {name!r:.60} of kind {kind.kind!r}", called)


def bend(values: FloatArray, curve: str, offset: float, unit: float) -> FloatArray:
    """Values on a curve: as they are, or ``sign(u) log(1 + |u|)`` of ``u = (x - offset) / unit``."""
    if curve == "none":
        return values
    scaled = (values - offset) / unit
    return np.asarray(np.sign(scaled) * np.log1p(np.abs(scaled)))


def _with_flag(values: FloatArray, absent: Any, flagged: bool) -> FloatArray:
    return np.column_stack([values, absent * FLAG]) if flagged else values[:, None]


def _phase(days: FloatArray, part: str) -> FloatArray:
    """Months, weekdays or hours (n,) since the last beginning; 1970 began on a Thursday."""
    if part == "hour":
        return np.asarray((days - np.floor(days)) * 24.0)
    if part == "weekday":
        return np.asarray((np.floor(days) + 3) % 7)
    moments = np.floor(days).astype(np.int64).astype("datetime64[D]")
    first = moments.astype("datetime64[M]")
    return np.asarray((first.astype(np.int64) % 12) + (moments - first.astype("datetime64[D]")).astype(np.int64) / 31)
