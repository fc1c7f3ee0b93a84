"""Which plan a column gets, from what was counted of it, and why: the sentences that ``kernfed prepare`` prints.

Besides, whether a site's column looks to be in another unit than that of the others, from the quartiles of each.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernfed.base.checks import check_count
from kernfed.data.encoders import find_encoder
from kernfed.data.preparation_plans import (
    BooleanPlan,
    CategoryPlan,
    DropPlan,
    ListPlan,
    NumberPlan,
    OrderedPlan,
    Plan,
    TextPlan,
    TimePlan,
    bend,
)
from kernfed.data.preparation_statistics import ColumnStatistics, Histogram, TableStatistics, bins_of
from kernfed.errors import InputError

#: Share of the present values that must be numbers, or times, for the others to count as missing.
_NEARLY_ALL = 0.9
#: Reach of the outermost half percent over the middle nine tenths, from which tails are heavy: .8 of a normal column,
#: 1.35 of a log-normal one with sigma .45, 1.6 of an exponential one.
_HEAVY = 1.2
#: Bins between which a histogram knows quantiles.
_ENOUGH_BINS = 8
#: Days: above the first a spread is one of lives, of which months say little; below the second there is no season.
_LIVES, _SEASON = 3650.0, 60.0
#: Characters of words, on average, from which they are sentences.
_SENTENCES = 30
_IDENTIFIER = re.compile(r"(.*[ _.-])?(id|ids|uuid|guid|key|mrn|nr|no|number|index)", re.IGNORECASE)
_ONE = int(bins_of(np.array([1.0]))[0])


@dataclass(frozen=True)
class Rules:
    """What is left to whoever prepares.

    min_rows : rows of all sites that a category needs to have a column of its own. most_values : columns of categories,
    those of most rows. ordered : words in order, by column. kinds : by column "category", "number" or "drop", against
    what would be chosen. texts : encoders by column, for columns of text.
    """

    min_rows: int = 10
    most_values: int = 50
    ordered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self.min_rows, "min_rows")
        check_count(self.most_values, "most_values")
        for name, kind in self.kinds.items():
            if kind not in ("category", "number", "drop"):
                raise InputError(f"kind of column {name!r} must be category, number or drop, got {kind!r}")

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns that are declared to be categories, sorted: of these sites count words whatever they hold."""
        return tuple(sorted(name for name, kind in self.kinds.items() if kind == "category"))


def choose_plans(statistics: TableStatistics, rules: Rules) -> tuple[Plan, ...]:
    """A plan for every column, in the order of the table; columns that not all sites have are left out."""
    for name in (*rules.ordered, *rules.kinds, *rules.texts):
        if name not in statistics.columns:
            raise InputError(f"there is no column {name!r}; there are {', '.join(map(repr, statistics.columns))}")
    plans = [_rounded(_choose(name, col, rules)) for name, col in statistics.columns.items()]
    return (*plans, *(DropPlan(name, "not every site has it") for name in statistics.partial))


def _rounded(plan: Plan) -> Plan:
    """The plan with numbers of six digits, for people; more would say more than needed of the rows.

    Numbers that are large beside the spread, as dates of one day are, keep as many digits as one hundredth of it needs.
    """
    numbers: dict[str, Any] = {name: value for name, value in vars(plan).items() if isinstance(value, float)}
    spread = numbers.get("spread", 0.0)
    on_curve = getattr(plan, "curve", "none") != "none"  # then low and high are in other units than the spread
    scales = {"center": spread, "offset": numbers.get("unit", 0.0)}
    scales |= dict.fromkeys(("low", "high"), numbers["high"] - numbers["low"] if on_curve else spread)
    for name, value in numbers.items():
        scale = scales.get(name, 0.0)
        further = math.ceil(math.log10(abs(value) / scale) - 3) if scale and value else 0
        numbers[name] = float(f"{value:.{6 + min(max(further, 0), 11)}g}")
    return replace(plan, **numbers)


def _choose(name: str, col: ColumnStatistics, rules: Rules) -> Plan:
    order, wanted = tuple(rules.ordered.get(name, col.order)), rules.kinds.get(name)
    flagged = col.missing >= rules.min_rows
    if name in rules.texts:
        encoder = find_encoder(rules.texts[name])
        return TextPlan(name, f"text as declared{_gaps(col)}", encoder.name, encoder.digest, encoder.width)
    if col.width:
        why = "embeddings" if col.width > 0 else "lists of different lengths at different sites"
        return ListPlan(name, why, col.width) if col.width > 0 else DropPlan(name, why)
    if wanted == "drop" or not col.present:
        return DropPlan(name, "as declared" if wanted else "no values, or of a kind that cannot be learned from")
    if order:
        return OrderedPlan(name, f"ordered as declared{_gaps(col)}", order, flagged)
    if wanted != "category":
        if col.flags == col.present and not wanted:
            return BooleanPlan(name, f"true or false{_gaps(col)}", flagged) if _differs(col) else _constant(name)
        if col.numbers >= _NEARLY_ALL * col.present or wanted == "number":
            return _number(name, col, rules, wanted == "number")
        if col.times >= _NEARLY_ALL * col.present:
            return _time(name, col, rules)
    return _category(name, col, rules, wanted == "category")


def _number(name: str, col: ColumnStatistics, rules: Rules, declared: bool) -> Plan:
    if not col.numbers:
        return DropPlan(name, "no numbers")
    if not declared and col.counting == col.rows:
        return DropPlan(name, "numbers the rows: an identifier")
    identifies = col.different == col.rows and col.whole == col.present and _IDENTIFIER.fullmatch(name)
    if identifies and not declared:
        return DropPlan(name, "a different whole number in every row: an identifier")
    mean = col.total / col.numbers
    spread = float(np.sqrt(max(col.square / col.numbers - mean**2, 0.0)))
    if spread <= 1e-7 * abs(mean) + 1e-300:  # of nearer values sums of squares do not know the spread
        return _constant(name)
    absent = col.missing + col.present - col.numbers
    return _scaled(name, col, mean, spread, absent >= rules.min_rows)


def _scaled(name: str, col: ColumnStatistics, mean: float, spread: float, flagged: bool) -> NumberPlan:
    """A number on one scale; where the histogram knows quantiles, with a curve for heavy tails."""
    histogram, why = col.histogram, f"number{_gaps(col)}"
    low, high = mean - 6 * spread, mean + 6 * spread
    quantiles = {share: histogram.quantile(share) for share in (0.001, 0.005, 0.05, 0.5, 0.95, 0.995, 0.999)}
    middle = quantiles[0.95] - quantiles[0.05]
    if histogram.bins_between(quantiles[0.05], quantiles[0.95]) < _ENOUGH_BINS or not middle > 0:
        return NumberPlan(name, why, low, high, mean, spread, missing=flagged)
    whole = quantiles[0.999] - quantiles[0.001]
    low, high = quantiles[0.001] - whole / 2, quantiles[0.999] + whole / 2
    if quantiles[0.001] >= 0:
        low = max(low, 0.0)
    reach = max(quantiles[0.995] - quantiles[0.5], quantiles[0.5] - quantiles[0.005]) / middle
    if reach < _HEAVY:
        center, spread = _moments(histogram, low, high, "none", 0.0, 1.0)
        return NumberPlan(name, why, low, high, center, spread, missing=flagged)
    offset, unit = quantiles[0.5], middle / 4
    if quantiles[0.001] >= 0:  # sizes: on a logarithmic scale from the smallest usual ones on
        offset, unit, low = 0.0, quantiles[0.05] if quantiles[0.05] > 0 else quantiles[0.95] / 20, 0.0
    center, spread = _moments(histogram, low, high, "log", offset, unit)
    return NumberPlan(name, f"{why}, heavy tails", low, high, center, spread, "log", offset, unit, flagged)


def _moments(
    histogram: Histogram, low: float, high: float, curve: str, offset: float, unit: float
) -> tuple[float, float]:
    """Mean and standard deviation on a curve, of the values of a histogram moved into a range."""
    middles, counts = histogram.middles()
    bent = bend(np.clip(middles, low, high), curve, offset, unit)
    mean = float((counts @ bent) / counts.sum())
    return mean, float(np.sqrt(counts @ (bent - mean) ** 2 / counts.sum()))


def _time(name: str, col: ColumnStatistics, rules: Rules) -> Plan:
    mean = col.days / col.times
    spread = float(np.sqrt(max(col.days_square / col.times - mean**2, 0.0)))
    parts = ["years"]
    if spread < _LIVES:
        parts += [*(["month"] if spread > _SEASON else []), "weekday"]
    if col.timed:
        parts.append("hour")
    if spread <= 1e-6:
        return _constant(name)
    why = f"{'times' if col.timed else 'dates'} within about {max(3.5 * spread / 365.25, 0.1):.1f} years{_gaps(col)}"
    return TimePlan(name, why, mean, spread, tuple(parts), col.missing >= rules.min_rows)


def _category(name: str, col: ColumnStatistics, rules: Rules, declared: bool) -> Plan:
    if not declared and col.different == col.rows:
        return DropPlan(name, "a different word in every row: an identifier")
    if not declared and col.words and col.characters > _SENTENCES * col.words:
        return DropPlan(name, "text of sentences: learn from it with --text")
    enough = {word: count for word, count in col.named.items() if count >= rules.min_rows}
    kept = sorted(sorted(enough, key=lambda word: (-enough[word], word))[: rules.most_values])
    rest = col.present - sum(enough[word] for word in kept)
    flagged = col.missing >= rules.min_rows
    if not kept:
        return DropPlan(name, f"every word is rare, below {rules.min_rows} rows")
    if len(kept) == 1 and rest < rules.min_rows and not flagged:
        return _constant(name)
    rare = f", {rest / col.rows:.1%} rare" if rest else ""
    return CategoryPlan(name, f"{len(kept)} words{rare}{_gaps(col)}", tuple(kept), rest >= rules.min_rows, flagged)


def _constant(name: str) -> DropPlan:
    return DropPlan(name, "always the same value")


def _differs(col: ColumnStatistics) -> bool:
    """Whether flags are of both kinds, as far as numbers and words tell."""
    kinds = {number == _ONE for number in col.histogram.counts}
    kinds |= {word.lower() in ("true", "yes", "y", "t", "1") for word in col.named}
    return len(kinds) == 2 or (col.rare > 0 and not col.numbers)


def _gaps(col: ColumnStatistics) -> str:
    """How much is missing, and how much is of another kind than most."""
    gaps = f", {col.missing / col.rows:.1%} missing" if col.missing else ""
    odd = col.present - max(col.numbers, col.times, col.words, col.flags)
    return f"{gaps}, {odd / col.rows:.1%} cannot be read" if odd > 0 else gaps


#: Factors between units that people mix up, in words.
FACTORS = {
    10.0: "mm and cm, or a decimal point that moved",
    12.0: "months and years",
    100.0: "cm and m, cents and euros, shares and percent",
    1000.0: "g and kg, mg and g, thousands",
    60.0: "minutes and hours, seconds and minutes",
    2.2046: "pounds and kilograms",
    2.54: "inches and centimetres",
    7.0: "days and weeks",
    24.0: "hours and days",
    365.25: "days and years",
    18.0182: "mg/dl and mmol/l of glucose",
    88.42: "mg/dl and umol/l of creatinine",
}
#: How far, in logarithms, the median and the quartiles may be from the factor; sites differ by themselves.
_NEAR, _NEAR_QUARTILES = 0.2, 0.45
#: Numbers that a site needs for its median to say something.
_ENOUGH = 20


@dataclass(frozen=True)
class UnitSuspicion:
    """Column ``column`` of ``site`` has a median ``median`` that is ``factor`` times (or one part in) the others'."""

    site: str
    column: str
    median: float
    others: float
    factor: float

    def __str__(self) -> str:
        ratio = self.median / self.others
        times = f"{self.factor:g} times" if abs(ratio) > 1 else f"1/{self.factor:g} of"
        return (
            f"column {self.column!r} of site {self.site!r} looks to be in another unit: its median is "
            f"{self.median:.4g}, about {times} the others' {self.others:.4g} ({FACTORS[self.factor]})"
        )


def suspect_units(statistics: Mapping[str, TableStatistics]) -> list[UnitSuspicion]:
    """Sites whose column looks to be in another unit, by column; at least three sites are needed to say whose it is."""
    names = dict.fromkeys(name for col in statistics.values() for name in col.columns)
    suspicions = []
    for name in names:
        columns = {site: col.columns[name] for site, col in statistics.items() if name in col.columns}
        numeric = {site: col for site, col in columns.items() if col.numbers >= _ENOUGH and col.numbers > col.words}
        if len(numeric) < 3:
            continue
        for site in sorted(numeric):
            suspicion = _suspect(site, name, numeric)
            if suspicion is not None:
                suspicions.append(suspicion)
    return suspicions


def _suspect(site: str, name: str, columns: Mapping[str, ColumnStatistics]) -> UnitSuspicion | None:
    here = _quartiles(columns[site])
    others = sorted(_quartiles(column)[1] for other, column in columns.items() if other != site)
    usual = others[len(others) // 2]
    if here[1] * usual <= 0 or not others[0] / usual > 0.5 or not others[-1] / usual < 2:  # they do not agree
        return None
    every = [_quartiles(column) for other, column in columns.items() if other != site]
    middle = min(every, key=lambda quartiles: abs(quartiles[1] - usual))
    logs = [math.log(one / two) if one * two > 0 else math.nan for one, two in zip(here, middle, strict=True)]
    factor = min(FACTORS, key=lambda value: abs(abs(logs[1]) - math.log(value)))
    size = math.log(factor)
    quartiles = [abs(abs(value) - size) < _NEAR_QUARTILES for value in (logs[0], logs[2]) if not math.isnan(value)]
    if abs(abs(logs[1]) - size) > _NEAR or size < math.log(2) or not all(quartiles):
        return None
    return UnitSuspicion(site, name, here[1], usual, factor)


def _quartiles(column: ColumnStatistics) -> tuple[float, float, float]:
    low, median, high = (column.histogram.quantile(share) for share in (0.25, 0.5, 0.75))
    return low, median, high
