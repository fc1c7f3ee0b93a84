"""What becomes of one column: a kind of plan for each kind of column, each a pure function to numbers.

All numbers come out on one scale: one unit is about one standard deviation of a number, and two categories are
``FLAG * sqrt(2)`` apart. Smaller flags than that made kernels on tables better, standardised ones worse: of a rare
category they are far from everything. No cell is refused: what cannot be read is missing.

An asker writes the settings, so a preparation whose result is infinite for some cells would tell which rows have them.
Settings are therefore bounded when a plan is made, before a row is looked at, and every prepared value is cut to a
bound that its kind of plan has: after that a learner sees finite rows of public size, whatever the table holds.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, final

import numpy as np

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.plain import read_text
from kernfed.data.columns import LARGEST, RawColumn
from kernfed.data.encoders import USUAL_ENCODER, check_encoder_name, find_encoder
from kernfed.errors import InputError

#: Size of a prepared number. What ``kernfed prepare`` chooses comes to a few hundred at most; a file that leaves
#: numbers as they are may come to this; and squares of it can be added over 1e280 rows.
LARGEST_NUMBER = 1e9
#: Size of low, high, center and offset: numbers are at most ``LARGEST``, and six standard deviations beyond them 7e100.
FARTHEST = 10 * LARGEST
#: Least of spread and unit: the square root of the smallest square that a sum can hold is 2e-162.
SMALLEST_SCALE = 1e-200
#: Least width of [low, high] in parts of its larger end: nearer values are the same but for rounding.
NARROWEST = 1e-9
#: Least unit of a logarithm in parts of high - low. Histograms know values from 1e-12 to 1e100.
FINEST_UNIT = 1e-120
#: Days from 1970, and days of a spread: files count at most 2^63 microseconds, 1.1e8 days.
FARTHEST_DAY, LEAST_DAYS = 1e9, 1e-9
#: Characters of a name, a reason, a word or a fingerprint, and words of a column.
MOST_CHARACTERS, MOST_VALUES = 1000, 10_000
#: Numbers of one list or one vector of a text, and columns that a preparation may make.
MOST_OUTPUTS = 1_000_000
#: Characters of the names of all columns that a preparation makes.
MOST_NAME_CHARACTERS = 100_000_000


def saturated(made: FloatArray, bound: float) -> FloatArray:
    """Values cut to [-bound, bound], those that are not a number as 0; finite values inside keep their bits.

    >>> saturated(np.array([[np.nan, np.inf, -0.5]]), 4.0).tolist()
    [[0.0, 4.0, -0.5]]
    """
    limit = min(bound, float(np.finfo(made.dtype).max))
    cut = np.clip(np.nan_to_num(made, nan=0.0, posinf=limit, neginf=-limit), -limit, limit)
    return np.asarray(cut, dtype=made.dtype)  # lists may be float32, and stay so


def check_text(text: str, name: str) -> None:
    """Refuse text that is longer than ``MOST_CHARACTERS``, or that no file can hold."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{name} must have at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} must be text that can be written as UTF-8, got {text!r:.60}") from None


def check_values(values: tuple[str, ...], column: str, at_least: int) -> None:
    """Refuse too few, too many, repeated or too long words of a column."""
    if not at_least <= len(values) <= MOST_VALUES or len(set(values)) != len(values):
        raise InputError(f"values of column {column!r:.60} must be {at_least} to {MOST_VALUES:,} words, each once")
    for word in values:
        check_text(word, f"a word of column {column!r:.60}")


def check_scale(value: float, name: str) -> None:
    """A positive spread or unit that divides no number of public size to infinity."""
    check_number(value, name, above=0, at_least=SMALLEST_SCALE, at_most=FARTHEST)


def check_range(low: float, high: float, column: str) -> None:
    """Refuse a range that is empty, or so narrow that rounding decides on which side of it a value is."""
    if not low < high:
        raise InputError(f"low of column {column!r:.60} must be below high, got {low} and {high}")
    if high - low < NARROWEST * max(abs(low), abs(high)):
        raise InputError(
            f"low and high of column {column!r:.60} must differ by at least {NARROWEST:g} of their size, got {low} and "
            f"{high}; choose a wider range"
        )


def check_reach(ends: FloatArray, center: float, spread: float, column: str) -> None:
    """Refuse a center and spread by which the ends (2,) of a range, on its curve, are beyond ``LARGEST_NUMBER``."""
    if not float(np.abs(ends - center).max()) <= LARGEST_NUMBER * spread:
        raise InputError(
            f"spread of column {column!r:.60} must be at least {1 / LARGEST_NUMBER:g} of the distance from center to "
            f"low and to high, on its curve, got {spread}; choose center between them, and a larger spread"
        )


#: Size of a flag: of one category among several, of a missing value, of half the way from false to true.
FLAG = 0.5


@dataclass(frozen=True)
class Plan(ABC):
    """How column ``name`` becomes columns of numbers; ``why`` is for people. A plan that exists was checked."""

    kind: ClassVar[str] = ""
    #: Largest size of a prepared value, whatever settings and cells are.
    bound: ClassVar[float] = FLAG

    name: str
    why: str = ""

    def __post_init__(self) -> None:
        self.check()

    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""

    @property
    def n_outputs(self) -> int:
        """Number of columns that it makes."""
        return len(self.outputs())

    @property
    def _called(self) -> str:
        """The column as messages name it."""
        return f"column {self.name!r:.60}"

    @final
    def apply(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k), as many columns as ``outputs``, finite and at most ``bound`` in size for all cells."""
        with np.errstate(all="ignore"):  # a warning would tell of a cell
            return saturated(self._numbers(column), self.bound)

    @final
    def check(self) -> None:
        """Refuse settings that are too long, too many or too large; it follows from the settings alone."""
        check_text(self.name, "the name of a column")
        check_text(self.why, f"why of column {self.name!r:.60}")
        self._check_settings()

    @abstractmethod
    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k) before they are cut to ``bound``."""

    @abstractmethod
    def _check_settings(self) -> None:
        """Refuse what this kind of plan cannot have."""

    def summary(self) -> str:
        """What is done, in a few words."""
        return self.kind

    def to_values(self) -> dict[str, Any]:
        """Plain values, the kind first."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"name": plain.pop("name"), "kind": self.kind, **plain}


#: Radius of the circle on which months, weekdays and hours lie.
CIRCLE = 0.35
#: Length of the vector of a text: it says as much as about nine columns of numbers.
TEXT = 3.0
#: Half the way from the first word of an order to the last, and the most of years before or after the middle.
ORDER, YEARS = 1.5, 4.0
#: What a category is called that is rare, or was not met before, and one that is missing.
OTHER, MISSING = "(other)", "(missing)"
CURVES = ("none", "log")
#: Parts of a time, with the days or hours after which each begins again; "years" goes on.
PARTS = {"years": 0.0, "month": 12.0, "weekday": 7.0, "hour": 24.0}


@dataclass(frozen=True)
class NumberPlan(Plan):
    """``(curve(x) - center) / spread`` of x moved into [low, high]; a missing value is 0, with a flag where asked for.

    curve "log" : ``sign(u) log(1 + |u|)`` of ``u = (x - offset) / unit``, for heavy tails.
    """

    kind: ClassVar[str] = "number"
    bound: ClassVar[float] = LARGEST_NUMBER

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

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        values = column.numbers
        absent = ~np.isfinite(values)
        moved = bend(np.clip(values, self.low, self.high), self.curve, self.offset, self.unit)
        scaled = np.where(absent, 0.0, (moved - self.center) / self.spread)
        return _with_flag(scaled, absent, self.missing)

    def _check_settings(self) -> None:
        """Refuse a range that is empty, and one that becomes larger than ``LARGEST_NUMBER``."""
        for name in ("low", "high", "center", "offset"):
            check_number(getattr(self, name), f"{name} of {self._called}", at_least=-FARTHEST, at_most=FARTHEST)
        for name in ("spread", "unit"):
            check_scale(getattr(self, name), f"{name} of {self._called}")
        check_choice(self.curve, f"curve of {self._called}", CURVES)
        check_range(self.low, self.high, self.name)
        if self.curve == "log":
            check_number(self.unit, f"unit of {self._called}", at_least=FINEST_UNIT * (self.high - self.low))
        ends = bend(np.array([self.low, self.high]), self.curve, self.offset, self.unit)
        check_reach(ends, self.center, self.spread, self.name)

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

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        values = column.flags
        absent = ~np.isfinite(values)
        return _with_flag(np.where(absent, 0.0, (values - 0.5) * FLAG * np.sqrt(2)), absent, self.missing)

    def _check_settings(self) -> None:
        """Nothing more: a flag has no settings."""

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

    def _numbers(self, column: RawColumn) -> FloatArray:
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

    def _check_settings(self) -> None:
        """Refuse values that are no words, or occur twice."""
        check_values(self.values, self.name, at_least=1)

    def summary(self) -> str:
        """How many values."""
        extra = " and others" if self.other else ""
        return f"{len(self.values)} values{extra}{', flag where missing' if self.missing else ''}"


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

    def outputs(self) -> tuple[str, ...]:
        """The column itself, and the flag."""
        return (self.name, f"{self.name}={MISSING}") if self.missing else (self.name,)

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, 1), or (n, 2) with the flag."""
        codes, words = column.named
        heights = dict(zip(self.values, np.linspace(-ORDER, ORDER, len(self.values)).tolist(), strict=True))
        values = np.array([*(heights.get(word, np.nan) for word in words), np.nan])[codes]
        absent = np.isnan(values)
        return _with_flag(np.where(absent, 0.0, values), absent, self.missing)

    def _check_settings(self) -> None:
        """Refuse an order of fewer than two values."""
        check_values(self.values, self.name, at_least=2)

    def summary(self) -> str:
        """The order."""
        shown = " < ".join(self.values if len(self.values) <= 5 else (*self.values[:2], "...", *self.values[-2:]))
        return f"{shown}, flag where missing" if self.missing else shown


@dataclass(frozen=True)
class TimePlan(Plan):
    """Years from ``center`` over ``spread`` (both in days), and month, weekday and hour as points of a circle."""

    kind: ClassVar[str] = "time"
    bound: ClassVar[float] = YEARS

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

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, k)."""
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

    def _check_settings(self) -> None:
        """Refuse days that no calendar has, and parts that a time does not have."""
        check_number(self.center, f"center of {self._called}", at_least=-FARTHEST_DAY, at_most=FARTHEST_DAY)
        check_number(self.spread, f"spread of {self._called}", above=0, at_least=LEAST_DAYS, at_most=FARTHEST_DAY)
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
    bound: ClassVar[float] = LARGEST

    width: int = 1

    @property
    def n_outputs(self) -> int:
        """Numbers of a list."""
        return self.width

    def outputs(self) -> tuple[str, ...]:
        """A column for each number of the list."""
        return tuple(f"{self.name}[{place}]" for place in range(self.width))

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Numbers (n, width)."""
        if column.stored != "list" or column.values.shape[1] != self.width:
            raise InputError(f"column {self.name!r} must hold lists of {self.width} numbers, as at training")
        return column.values

    def _check_settings(self) -> None:
        """Refuse lists of nothing."""
        check_count(self.width, f"width of {self._called}", at_most=MOST_OUTPUTS)

    def summary(self) -> str:
        """How long."""
        return f"{self.width} numbers as they are"


@dataclass(frozen=True)
class TextPlan(Plan):
    """Texts as vectors of length ``TEXT`` by an encoder of this name and fingerprint; a missing text is 0."""

    kind: ClassVar[str] = "text"
    bound: ClassVar[float] = 2 * TEXT

    encoder: str = USUAL_ENCODER
    digest: str = ""
    width: int = 1

    @property
    def n_outputs(self) -> int:
        """Numbers of a vector."""
        return self.width

    def outputs(self) -> tuple[str, ...]:
        """A column for each number of a vector."""
        return tuple(f"{self.name}[{place}]" for place in range(self.width))

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

    def _check_settings(self) -> None:
        """Refuse names that are no names."""
        check_encoder_name(self.encoder)
        check_text(self.digest, f"digest of {self._called}")
        check_count(self.width, f"width of {self._called}", at_most=MOST_OUTPUTS)

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

    def _numbers(self, column: RawColumn) -> FloatArray:
        """Nothing (n, 0)."""
        return np.zeros((len(column), 0))

    def _check_settings(self) -> None:
        """Nothing more: what is left out has no settings."""

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
    return kind(name, **made)


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
