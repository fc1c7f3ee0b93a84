"""What becomes of one column: a kind of plan for each kind of column, each a pure function to numbers.

All numbers come out on one scale: one unit is about one standard deviation of a number, and two categories are
``FLAG * sqrt(2)`` apart. Smaller flags than that made kernels on tables better, standardised ones worse: of a rare
category they are far from everything. No cell is refused: what cannot be read is missing.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from kernfed._plain import read_text
from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.data.columns import RawColumn
from kernfed.data.encoders import USUAL_ENCODER, check_encoder_name, find_encoder
from kernfed.errors import InputError

#: Size of a flag: of one category among several, of a missing value, of half the way from false to true.
FLAG = 0.5
#: Radius of the circle on which months, weekdays and hours lie.
CIRCLE = 0.35
#: Length of the vector of a text: it says as much as about nine columns of numbers.
TEXT = 3.0
#: What a category is called that is rare, or was not met before, and one that is missing.
OTHER, MISSING = "(other)", "(missing)"
CURVES = ("none", "log")
#: Parts of a time, with the days or hours after which each begins again; "years" goes on.
PARTS = {"years": 0.0, "month": 12.0, "weekday": 7.0, "hour": 24.0}
_MOST_VALUES, _LONGEST_NAME = 10_000, 1000


@dataclass(frozen=True)
class Plan(ABC):
    """How column ``name`` becomes columns of numbers; ``why`` is for people."""

    kind: ClassVar[str] = ""

    name: str
    why: str = ""

    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""

    @abstractmethod
    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k), as many columns as ``outputs``."""

    def check(self) -> None:
        """Refuse settings that cannot be."""
        if len(self.name) > _LONGEST_NAME:
            raise InputError(f"the name of a column must have at most {_LONGEST_NAME} characters")

    def summary(self) -> str:
        """What is done, in a few words."""
        return self.kind

    def to_values(self) -> dict[str, Any]:
        """Plain values, the kind first."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"name": plain.pop("name"), "kind": self.kind, **plain}


@dataclass(frozen=True)
class NumberPlan(Plan):
    """``(curve(x) - center) / spread`` of x moved into [low, high]; a missing value is 0, with a flag where asked for.

    curve "log" : ``sign(u) log(1 + |u|)`` of ``u = (x - offset) / unit``, for heavy tails.
    """

    kind: ClassVar[str] = "number"

    low: float = 0.0
    high: float = 1.0
    center: float = 0.5
    spread: float = 0.5
    curve: str = "none"
    offset: float = 0.0
    unit: float = 1.0
    missing: bool = False

    def outputs(self) -> tuple[str, ...]:
        """The column itself, and the flag."""
        return (self.name, f"{self.name}={MISSING}") if self.missing else (self.name,)

    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        values = column.numbers
        absent = ~np.isfinite(values)
        moved = bend(np.clip(values, self.low, self.high), self.curve, self.offset, self.unit)
        scaled = np.where(absent, 0.0, (moved - self.center) / self.spread)
        return _with_flag(scaled, absent, self.missing)

    def check(self) -> None:
        """Refuse an empty range and a spread of nothing."""
        for name in ("low", "high", "center", "offset"):
            check_number(getattr(self, name), f"{name} of column {self.name!r}")
        for name in ("spread", "unit"):
            check_number(getattr(self, name), f"{name} of column {self.name!r}", above=0)
        check_choice(self.curve, f"curve of column {self.name!r}", CURVES)
        if not self.low < self.high:
            raise InputError(f"low of column {self.name!r} must be below high, got {self.low} and {self.high}")

    def summary(self) -> str:
        """Range and curve."""
        told = f"{self.low:.4g} to {self.high:.4g}" + (", log" if self.curve == "log" else "")
        return f"{told}, flag where missing" if self.missing else told


@dataclass(frozen=True)
class BooleanPlan(Plan):
    """False is -FLAG / sqrt(2) and true FLAG / sqrt(2), as far apart as two categories; missing is between them."""

    kind: ClassVar[str] = "boolean"

    missing: bool = False

    def outputs(self) -> tuple[str, ...]:
        """The column itself, and the flag."""
        return (self.name, f"{self.name}={MISSING}") if self.missing else (self.name,)

    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        values = column.flags
        absent = ~np.isfinite(values)
        return _with_flag(np.where(absent, 0.0, (values - 0.5) * FLAG * np.sqrt(2)), absent, self.missing)

    def summary(self) -> str:
        """Whether there is a flag."""
        return "true or false, flag where missing" if self.missing else "true or false"


@dataclass(frozen=True)
class CategoryPlan(Plan):
    """A flag for each of ``values``, for all others together, and for missing ones; without that flag they are 0."""

    kind: ClassVar[str] = "category"

    values: tuple[str, ...] = ()
    other: bool = True
    missing: bool = False

    def outputs(self) -> tuple[str, ...]:
        """A column for each value."""
        names = (*self.values, *([OTHER] if self.other else []), *([MISSING] if self.missing else []))
        return tuple(f"{self.name}={value}" for value in names)

    def apply(self, column: RawColumn) -> FloatArray:
        """Flags (n, k)."""
        codes, words = column.named
        count, known = len(self.values), {value: place for place, value in enumerate(self.values)}
        other = count if self.other else -1
        missing = count + self.other if self.missing else -1
        places = np.array([*(known.get(word, other) for word in words), missing], dtype=np.int64)[codes]
        flags = np.zeros((len(column), len(self.outputs())))
        flagged = np.flatnonzero(places >= 0)
        flags[flagged, places[flagged]] = FLAG
        return flags

    def check(self) -> None:
        """Refuse values that are no words, or occur twice."""
        _check_words(self.name, self.values)

    def summary(self) -> str:
        """How many values."""
        extra = " and others" if self.other else ""
        return f"{len(self.values)} values{extra}{', flag where missing' if self.missing else ''}"


@dataclass(frozen=True)
class OrderedPlan(Plan):
    """The place of the value among ``values``, from -1 for the first to 1 for the last; unknown ones are missing: 0."""

    kind: ClassVar[str] = "ordered"

    values: tuple[str, ...] = ()
    missing: bool = False

    def outputs(self) -> tuple[str, ...]:
        """The column itself, and the flag."""
        return (self.name, f"{self.name}={MISSING}") if self.missing else (self.name,)

    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        codes, words = column.named
        heights = dict(zip(self.values, np.linspace(-1.5, 1.5, len(self.values)).tolist(), strict=True))
        values = np.array([*(heights.get(word, np.nan) for word in words), np.nan])[codes]
        absent = np.isnan(values)
        return _with_flag(np.where(absent, 0.0, values), absent, self.missing)

    def check(self) -> None:
        """Refuse an order of fewer than two values."""
        _check_words(self.name, self.values, at_least=2)

    def summary(self) -> str:
        """The order."""
        shown = " < ".join(self.values if len(self.values) <= 5 else (*self.values[:2], "...", *self.values[-2:]))
        return f"{shown}, flag where missing" if self.missing else shown


@dataclass(frozen=True)
class TimePlan(Plan):
    """Years from ``center`` over ``spread`` (both in days), and month, weekday and hour as points of a circle."""

    kind: ClassVar[str] = "time"

    center: float = 0.0
    spread: float = 365.25
    parts: tuple[str, ...] = ("years",)
    missing: bool = False

    def outputs(self) -> tuple[str, ...]:
        """A column for the years, two for each other part."""
        names = [
            name
            for part in self.parts
            for name in ((part,) if part == "years" else (f"{part} (sine)", f"{part} (cosine)"))
        ]
        flag = [f"{self.name}={MISSING}"] if self.missing else []
        return (*(f"{self.name}: {name}" for name in names), *flag)

    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k)."""
        days = column.days
        absent = ~np.isfinite(days)
        present = np.where(absent, self.center, days)
        made: list[FloatArray] = []
        for part in self.parts:
            if part == "years":
                made.append(np.clip((present - self.center) / self.spread, -4.0, 4.0))
                continue
            angle = 2 * np.pi * _phase(present, part) / PARTS[part]
            made += [np.where(absent, 0.0, turn(angle)) * CIRCLE for turn in (np.sin, np.cos)]
        if self.missing:
            made.append(absent * FLAG)
        return np.column_stack(made)

    def check(self) -> None:
        """Refuse parts that a time does not have."""
        check_number(self.center, f"center of column {self.name!r}")
        check_number(self.spread, f"spread of column {self.name!r}", above=0)
        if not self.parts or len(set(self.parts)) != len(self.parts):
            raise InputError(f"parts of column {self.name!r} must be some of {', '.join(PARTS)}, each once")
        for part in self.parts:
            check_choice(part, f"parts of column {self.name!r}", tuple(PARTS))

    def summary(self) -> str:
        """The parts."""
        return f"{', '.join(self.parts)}{', flag where missing' if self.missing else ''}"


@dataclass(frozen=True)
class ListPlan(Plan):
    """Lists of ``width`` numbers as they are: embeddings."""

    kind: ClassVar[str] = "list"

    width: int = 1

    def outputs(self) -> tuple[str, ...]:
        """A column for each number of the list."""
        return tuple(f"{self.name}[{place}]" for place in range(self.width))

    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, width)."""
        if column.stored != "list" or column.values.shape[1] != self.width:
            raise InputError(f"column {self.name!r} must hold lists of {self.width} numbers, as at training")
        return column.values

    def check(self) -> None:
        """Refuse lists of nothing."""
        check_count(self.width, f"width of column {self.name!r}", at_most=1_000_000)

    def summary(self) -> str:
        """How long."""
        return f"{self.width} numbers as they are"


@dataclass(frozen=True)
class TextPlan(Plan):
    """Texts as vectors of length ``TEXT`` by an encoder of this name and fingerprint; a missing text is 0."""

    kind: ClassVar[str] = "text"

    encoder: str = USUAL_ENCODER
    digest: str = ""
    width: int = 1

    def outputs(self) -> tuple[str, ...]:
        """A column for each number of a vector."""
        return tuple(f"{self.name}[{place}]" for place in range(self.width))

    def apply(self, column: RawColumn) -> FloatArray:
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

    def check(self) -> None:
        """Refuse names that are no names."""
        check_encoder_name(self.encoder)
        check_count(self.width, f"width of column {self.name!r}", at_most=1_000_000)

    def summary(self) -> str:
        """Which encoder."""
        return f"text by encoder {self.encoder!r} ({self.digest})"


@dataclass(frozen=True)
class DropPlan(Plan):
    """A column that is not learned from."""

    kind: ClassVar[str] = "drop"

    def outputs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def apply(self, column: RawColumn) -> FloatArray:
        """Nothing (n, 0)."""
        return np.zeros((len(column), 0))

    def summary(self) -> str:
        """That it is left out."""
        return "left out"


PLANS: dict[str, type[Plan]] = {
    plan.kind: plan
    for plan in (NumberPlan, BooleanPlan, CategoryPlan, OrderedPlan, TimePlan, ListPlan, TextPlan, DropPlan)
}


def read_plan(values: Any) -> Plan:
    """Plan from plain values, each of the type that its kind declares."""
    if not isinstance(values, dict):
        raise InputError(f"a column must be settings by name, got {type(values).__name__}")
    given = dict(values)
    name = read_text(given.pop("name", None), "name of a column")
    kind = PLANS[check_choice(given.pop("kind", None), f"kind of column {name!r}", tuple(PLANS))]
    settings = {entry.name: entry for entry in fields(kind) if entry.name != "name"}
    made: dict[str, Any] = {}
    for word, value in given.items():
        if word not in settings:
            known = ", ".join(settings)
            raise InputError(f"column {name!r} of kind {kind.kind!r} has no setting {word!r:.40}; there are {known}")
        made[word] = _of_type(f"{word} of column {name!r}", value, settings[word].type)
    plan = kind(name, **made)
    plan.check()
    return plan


def bend(values: FloatArray, curve: str, offset: float, unit: float) -> FloatArray:
    """Values on a curve: as they are, or ``sign(u) log(1 + |u|)`` of ``u = (x - offset) / unit``."""
    if curve == "none":
        return values
    scaled = (values - offset) / unit
    return np.asarray(np.sign(scaled) * np.log1p(np.abs(scaled)))


def _of_type(name: str, value: Any, wanted: Any) -> Any:
    if wanted is float:
        return check_number(value, name)
    if wanted is tuple[str, ...] or getattr(wanted, "__origin__", None) is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
            raise InputError(f"{name} must be a list of words, got {value!r:.60}")
        return tuple(value)
    if type(value) is not wanted:
        raise InputError(f"{name} must be {wanted.__name__}, got {value!r:.60}")
    return value


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


def _check_words(name: str, values: tuple[str, ...], at_least: int = 1) -> None:
    if not at_least <= len(values) <= _MOST_VALUES or len(set(values)) != len(values):
        raise InputError(f"values of column {name!r} must be {at_least} to {_MOST_VALUES:,} words, each once")
