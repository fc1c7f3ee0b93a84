"""What a release promises, as data; every sentence about it is made of the data, and none is ever read back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.base.warn import warn
from kernfed.errors import InputError, LedgerRewound

UNITS = ("element", "record")
#: What a release protects: see ``Terms``.
PROTECTED = ("rows", "rows and labels", "rows and targets")
#: Mechanisms that release every row by itself.
BY_ROW = ("element-laplace", "element-staircase", "record-gaussian")
#: A delta below this is said to be so: its digits would only distract.
_NEGLIGIBLE = 1e-30


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a ``unit``, for data sets that differ as ``adjacency`` says.

    ``adjacency`` completes "... for". ``bounds`` are the public bounds to which values were clipped, ``d`` the
    largest change of an element that is protected, each where the mechanism has one. An infinite epsilon means no
    guarantee at this delta.

    >>> print(Guarantee(1.00001, 1e-5, "record", "one row replaced by any other"))
    record: (1.001, 1e-05)-differential privacy for one row replaced by any other
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    bounds: tuple[float, float] | None = None
    d: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.unit, "unit", UNITS)
        check_number(self.delta, "delta", at_least=0, at_most=1)
        if not self.epsilon >= 0:
            raise InputError(f"epsilon must be >= 0, got {self.epsilon!r}")

    def __str__(self) -> str:
        clipped = (
            ""
            if self.bounds is None
            else f", values clipped to the public bounds [{self.bounds[0]:g}, {self.bounds[1]:g}]"
        )
        if math.isinf(self.epsilon):
            return f"{self.unit}: no guarantee at delta {delta_words(self.delta)} for {self.adjacency}{clipped}"
        pair = f"({round_up(self.epsilon):g}, {delta_words(self.delta)})"
        return f"{self.unit}: {pair}-differential privacy for {self.adjacency}{clipped}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files and reports; ``bounds`` as a list, an infinite epsilon (no guarantee) as None."""
        bounds = None if self.bounds is None else list(self.bounds)
        names = ("delta", "unit", "adjacency", "d")
        values = {name: getattr(self, name) for name in names}
        return {"epsilon": _none_if_infinite(self.epsilon), **values, "bounds": bounds}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """Guarantee from ``to_dict``, checked."""
        epsilon, delta = _check_pair(values["epsilon"], values["delta"])
        low_high, d = values["bounds"], values["d"]
        bounds = None if low_high is None else _check_bounds(*low_high)
        return cls(
            epsilon,
            delta,
            values["unit"],
            str(values["adjacency"]),
            bounds,
            None if d is None else check_number(d, "d", above=0),
        )


def round_up(value: float, digits: int = 4) -> float:
    """The value to that many significant digits, never less than the truth."""
    if value == 0 or math.isinf(value):
        return value
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return rounded if rounded >= value else round(rounded + 10.0**-places, places)


def delta_words(delta: float) -> str:
    """A delta for people, never less than the truth.

    >>> delta_words(1e-5), delta_words(7e-56), delta_words(0.0)
    ('1e-05', 'below 1e-30', '0')
    """
    tiny = 0 < delta < _NEGLIGIBLE
    return f"below {_NEGLIGIBLE:g}" if tiny else f"{round_up(delta):g}"


@dataclass(frozen=True)
class Terms:
    """Under which terms of differential privacy the sites released what a model is made of, as data.

    mechanism : its kind and parameters, plain values. labels : likewise how labels were randomised, None where they are
    public. protects : "rows" (labels, classes and counts are public), "rows and labels" (labels were randomised) or
    "rows and targets" (a target is protected with its row). element, record : what is promised for each unit. spent :
    (epsilon, delta) that each site's ledger had come to by then. request : all that the sites were asked. charges : how
    many releases each ledger had been charged with, where sites tell it.
    """

    mechanism: Mapping[str, Any]
    labels: Mapping[str, Any] | None
    protects: str
    element: Guarantee
    record: Guarantee
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    charges: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.protects, "protects", PROTECTED)
        if (self.labels is not None) != (self.protects == "rows and labels"):
            raise InputError(
                f"labels are protected where they are randomised, got {self.protects!r} and {self.labels!r:.80}"
            )
        for unit in UNITS:
            if getattr(self, unit).unit != unit:
                raise InputError(
                    f"{unit} must be a Guarantee of unit {unit!r}, got one of {getattr(self, unit).unit!r}"
                )

    def __str__(self) -> str:
        paid = (f"{site}: {_pair(*pair)} spent by its ledger in all" for site, pair in sorted(self.spent.items()))
        return "\n  ".join([self.kind, *self.lines(), *self.again_lines(), *paid])

    @property
    def kind(self) -> str:
        """Name of the mechanism."""
        return str(self.mechanism["kind"])

    def line(self) -> str:
        """Everything in one line."""
        labels = {"rows": "labels public", "rows and labels": "labels randomised", "rows and targets": "targets too"}
        record, element = (_pair(unit.epsilon, unit.delta) for unit in (self.record, self.element))
        return f"record {record}, element {element} by {self.kind}, {labels[self.protects]}"

    def lines(self) -> tuple[str, str, str]:
        """For people: the guarantee per element, per record, and what of the labels."""
        return str(self.element), str(self.record), self.labels_line()

    def labels_line(self) -> str:
        """What is public of labels or targets, in words."""
        if self.labels is not None:
            epsilon = float(self.labels["epsilon"])
            return f"labels are randomised with epsilon {epsilon:g}; the classes there can be are public"
        if self.protects == "rows and targets":
            return "targets are protected with their row"
        return "labels, classes and rows per class are public"

    def again_lines(self) -> tuple[str, ...]:
        """What further releases of rows that have changed would tell, in words; none where rows are not released."""
        if self.kind not in BY_ROW:
            return ()
        return (
            "that rows changed can be seen when they are released again, and which, unless the site requires privacy: "
            "it then draws all of them again",
        )

    def with_row_in(self, other: "Terms") -> tuple[float, float]:
        """(epsilon, delta) of a person with one record in this release and one in the ``other``: they add up."""
        return self.record.epsilon + other.record.epsilon, min(1.0, self.record.delta + other.record.delta)

    def check_told(self, told: Mapping[str, Sequence[str]]) -> None:
        """Refuse a site that promises something else than was asked for; ``told`` are its (epsilon, delta) as text."""
        for guarantee in (self.element, self.record):
            asked = guarantee.epsilon, guarantee.delta
            if not all(map(_equals, _read_pair(told[guarantee.unit]), asked)):
                raise InputError(
                    f"the site promises {told[guarantee.unit]} per {guarantee.unit}, asked for was {asked}"
                )
        epsilon, delta = _read_pair(told["spent"])
        if not (epsilon >= 0 and 0 < delta < 1):
            raise InputError(f"a ledger must come to an epsilon and a delta, got {told['spent']}")
        _read_charges(told)

    def with_told(self, told: Mapping[str, Mapping[str, Sequence[str]]]) -> "Terms":
        """Terms with what the ledgers of these sites have come to; warns of a ledger with fewer charges than before."""
        spent = {site: _read_pair(pairs["spent"]) for site, pairs in told.items()}
        charges = {site: count for site, pairs in told.items() if (count := _read_charges(pairs)) is not None}
        warn_if_rewound(self.charges, charges)
        return replace(self, spent={**self.spent, **spent}, charges={**self.charges, **charges})

    def to_values(self) -> dict[str, Any]:
        """Plain values for a file; an infinite epsilon is None. Of the request, what is not said before."""
        return {
            "mechanism": dict(self.mechanism),
            "labels": None if self.labels is None else dict(self.labels),
            "protects": self.protects,
            "element": self.element.to_dict(),
            "record": self.record.to_dict(),
            "spent": {
                site: [_none_if_infinite(number) for number in pair] for site, pair in sorted(self.spent.items())
            },
            "request": {name: value for name, value in self.request.items() if name not in ("mechanism", "labels")},
            "charges": dict(sorted(self.charges.items())),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Terms":
        """Terms from ``to_values``, checked."""
        said = {"mechanism": dict(values["mechanism"]), "labels": values["labels"]}
        spent = {}
        for site, (epsilon, delta) in values["spent"].items():
            spent[str(site)] = _check_pair(epsilon, delta)
        terms = cls(
            said["mechanism"],
            said["labels"],
            values["protects"],
            Guarantee.from_dict(values["element"]),
            Guarantee.from_dict(values["record"]),
            spent,
            {**values["request"], **said},
            {str(site): check_count(n, "charges", at_least=0) for site, n in values.get("charges", {}).items()},
        )
        terms.lines()  # what it says must be there
        terms.line()
        return terms


def warn_if_rewound(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Warn of sites whose ledger has fewer charges than they once told: their store was set back to an earlier day."""
    rewound = sorted(site for site, count in now.items() if count < before.get(site, 0))
    if rewound:
        site = rewound[0]
        warn(
            f"{len(rewound)} site(s), such as {site!r}, told of {before[site]} charge(s) before and of {now[site]} "
            "now: the store was replaced by an older copy, and what was released in between is not counted. Have it "
            "restored before anything else is released",
            LedgerRewound,
        )


def read_terms_of_0_1(values: Mapping[str, Any]) -> Terms:
    """Terms from a file of version 0.1, which had pairs of numbers, and sentences for whom and for what they are.

    A sentence reads "record: (1, 1e-05)-differential privacy for one row replaced by any other", perhaps with
    ", values clipped to the public bounds [0, 1]" behind it. Bounds and d are also parameters of the mechanism.
    """
    request = dict(values["request"])
    mechanism, labels = dict(request["mechanism"]), request["labels"]
    *sentences, about_labels = map(str, values["promises"])
    bounds = _check_bounds(*mechanism["bounds"]) if "bounds" in mechanism else None

    def guarantee(unit: str, sentence: str) -> Guarantee:
        epsilon, delta = _check_pair(*values[unit])
        adjacency = sentence.partition(" for ")[2].partition(", values clipped to")[0]
        return Guarantee(epsilon, delta, unit, adjacency, bounds, mechanism.get("d"))

    element, record = (guarantee(unit, sentence) for unit, sentence in zip(UNITS, sentences, strict=True))
    protects = "rows and labels" if labels is not None else "rows"
    if about_labels.startswith("targets"):
        protects = "rows and targets"
    spent = {str(site): _check_pair(*pair) for site, pair in values["spent"].items()}
    return Terms(mechanism, labels, protects, element, record, spent, request)


def _check_pair(epsilon: Any, delta: Any) -> tuple[float, float]:
    """(epsilon, delta) of a file, where None is an infinite epsilon."""
    return (
        math.inf if epsilon is None else check_number(epsilon, "epsilon", at_least=0),
        check_number(delta, "delta", at_least=0, at_most=1),
    )


def _check_bounds(low: Any, high: Any) -> tuple[float, float]:
    low = check_number(low, "bounds[0]")
    return low, check_number(high, "bounds[1]", above=low)


def _none_if_infinite(number: float) -> float | None:
    """JSON has no infinity."""
    return None if math.isinf(number) else number


def _read_pair(text: Sequence[str]) -> tuple[float, float]:
    epsilon, delta = map(float, text)
    return epsilon, delta


def _read_charges(told: Mapping[str, Sequence[str]]) -> int | None:
    """Charges that a site tells; None of one that does not, of an earlier version."""
    if "charges" not in told:
        return None
    (text,) = told["charges"]
    return check_count(int(text), "charges", at_least=0)


def _equals(told: float, asked: float) -> bool:
    return told == asked or abs(told - asked) <= 1e-6 * abs(asked) < math.inf


def _pair(epsilon: float, delta: float) -> str:
    """(epsilon, delta) to four digits, never less than the truth but for the rounding of a sum."""
    return f"({round_up(epsilon * (1 - 1e-12)):g}, {round_up(delta * (1 - 1e-12)):g})"
