"""Whether a site's column looks to be in another unit than that of the others, from the quartiles of each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernfed.data.preparation_statistics import ColumnStatistics, TableStatistics

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
    names = dict.fromkeys(name for own in statistics.values() for name in own.columns)
    suspicions = []
    for name in names:
        columns = {site: own.columns[name] for site, own in statistics.items() if name in own.columns}
        numeric = {site: own for site, own in columns.items() if own.numbers >= _ENOUGH and own.numbers > own.words}
        if len(numeric) < 3:
            continue
        for site in sorted(numeric):
            suspicion = _suspect(site, name, numeric)
            if suspicion is not None:
                suspicions.append(suspicion)
    return suspicions


def _suspect(site: str, name: str, columns: Mapping[str, ColumnStatistics]) -> UnitSuspicion | None:
    own = _quartiles(columns[site])
    others = sorted(_quartiles(column)[1] for other, column in columns.items() if other != site)
    usual = others[len(others) // 2]
    if own[1] * usual <= 0 or not others[0] / usual > 0.5 or not others[-1] / usual < 2:  # they do not agree themselves
        return None
    every = [_quartiles(column) for other, column in columns.items() if other != site]
    middle = min(every, key=lambda quartiles: abs(quartiles[1] - usual))
    logs = [math.log(one / two) if one * two > 0 else math.nan for one, two in zip(own, middle, strict=True)]
    factor = min(FACTORS, key=lambda value: abs(abs(logs[1]) - math.log(value)))
    size = math.log(factor)
    quartiles = [abs(abs(value) - size) < _NEAR_QUARTILES for value in (logs[0], logs[2]) if not math.isnan(value)]
    if abs(abs(logs[1]) - size) > _NEAR or size < math.log(2) or not all(quartiles):
        return None
    return UnitSuspicion(site, name, own[1], usual, factor)


def _quartiles(column: ColumnStatistics) -> tuple[float, float, float]:
    low, median, high = (column.histogram.quantile(share) for share in (0.25, 0.5, 0.75))
    return low, median, high
