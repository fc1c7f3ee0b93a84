"""Whether a site's part in a model makes answers worse for the rows of *others*: the test that names a site.

A row's loss is Brier's: the squared distance of its probabilities from its label. It is compared with and without a
site. Rows of a site say nothing of the site itself, and since those who count may lie as well, the testers that speak
most against a site, and those that speak most for it, are not heard. Rows are weighed so that classes have the shares
of the training: a site that alone has many rows of a class rightly makes it more likely, and is no liar for that. For
the same reason more is asked for to name a site that alone has a class (``ownership``), and never less than twice what
leaving out changes at the median site. The limits were set on simulated federations, see ``docs/liars.md``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, IntArray, check_count


@dataclass(frozen=True, eq=False)
class LossSums:
    """What one tester adds up over its rows, for a model as it is and without each of V sets of sites.

    rows (C,) : of each class. right (1 + V, C) : of these, labelled correctly. gain (V, C) : losses with all sites less
    those without the set; square (V, C) : squares of that. moved (V,) : rows whose label changes.
    """

    rows: IntArray
    right: IntArray
    gain: FloatArray
    square: FloatArray
    moved: IntArray


#: Names of sites that are left out together.
SiteSet = tuple[str, ...]
#: The chance that any honest site of a federation is named, if rows were independent.
LEVEL = 0.01
#: A smaller mean difference of losses, which lie between 0 and 2, is nothing to name a site for; neither is one of less
#: than so many times the median over the other sites.
LEAST_GAIN, _UNUSUAL = 0.001, 2.0
#: Who alone has a class takes answers from others' rows by that alone: so much for a class of all rows.
_OWN_CLASS = 0.5
#: What a site claims counts at most so many times what the median site claims, in all and of a class.
_CLAIMED = 3.0
#: A site whose removal lowers the other sites' mean loss by more than this is named when p < LEVEL, even if it alone
#: holds a class.
_MOST_NEEDED = 0.2
#: A tester weighs at most so many times the median one: nobody can count its rows.
_HEARD = 1.5
#: Fewer rows say nothing.
_FEWEST_ROWS = 20
#: A row weighs at most so many times the mean.
_HEAVIEST = 10.0


@dataclass(frozen=True)
class Influence:
    """What some sites do to the answers for rows of others, by leaving them out.

    rows : of other sites that were heard. gain : mean improvement of the loss without them. z : gain over its standard
    error. p_value : one-sided, times the sets that were tried; None where too few others were heard. points : change of
    accuracy on the rows of all others without them, NaN to regress. moved : share of these rows whose label changes.
    least : the gain from which on they are named, if it is no chance.
    """

    sites: SiteSet
    rows: int
    gain: float
    z: float
    p_value: float | None
    points: float
    moved: float
    least: float = LEAST_GAIN

    @property
    def named(self) -> bool:
        """Whether others are better off without them, by more than chance and differences of sites explain."""
        return self.p_value is not None and self.p_value < LEVEL and self.gain >= self.least


@dataclass(frozen=True)
class Influences:
    """Influence of every site, those that harm most first; ``together`` of pairs that hide each other.

    ``liars`` is how many of those who count may lie without anybody being named, or saved, by that. ``head`` says
    whether sites were left out of the head, too, where there is one.
    """

    sites: tuple[Influence, ...]
    together: tuple[Influence, ...] = ()
    liars: int = 1
    head: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """Sites whose answers do not fit those of the others, sorted."""
        return tuple(sorted({site for found in (*self.sites, *self.together) if found.named for site in found.sites}))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "named": list(self.named),
            "liars": self.liars,
            "head": self.head,
            "sites": [_plain(found) for found in self.sites],
            "together": [_plain(found) for found in self.together if found.named],
            "missing": dict(self.missing),
        }

    def words(self) -> str:
        """Whom to look at, in one sentence."""
        if not self.named:
            nobody = all(found.p_value is None for found in self.sites)
            few = (
                f"nobody can be named: beside the {2 * self.liars} that are not heard, at least one other must test on "
            )
            few += f"{_FEWEST_ROWS} rows or more; rows that you hold yourself need nobody unheard (liars=0)"
            return few if nobody else "no site makes the answers for the others worse by more than chance explains"
        singles = {found.sites[0] for found in self.sites if found.named}
        pairs = [" with ".join(found.sites) for found in self.together if found.named]
        listed = ", ".join([*sorted(singles), *pairs])
        return f"the others are better off without: {listed}; look at their rows and labels before anything else"

    def __str__(self) -> str:
        shown = [*self.sites, *(found for found in self.together if found.named)]
        names = [" + ".join(found.sites) for found in shown]
        width = max([len("site left out"), *map(len, names)])
        lines = [f"{'site left out':<{width}}  others' accuracy  labels moved   loss saved       z  p-value"]
        for name, found in zip(names, shown, strict=True):
            points = (
                "               ."
                if math.isnan(found.points)
                else f"{round(100 * found.points, 2) + 0.0:>+9.2f} points"
            )
            chance = "      ." if found.p_value is None else f"{found.p_value:>7.2g}"
            mark = "  <- does not fit" if found.named else ""
            figures = f"{found.moved:>12.1%}  {found.gain:>+11.5f}  {found.z:>+6.1f}  {chance}"
            lines.append(f"{name:<{width}}  {points}  {figures}{mark}")
        return "\n".join([*lines, f"{self.words()[:1].upper()}{self.words()[1:]}."])


def ownership(counts: Mapping[str, FloatArray], sites: SiteSet) -> float:
    """How much of what is learned only these sites know, from rows ``counts`` {site: (C,)} of every class.

    ``sum_c pi_c s_c^2``, pi_c the share of a class in all rows and s_c that of its rows which are theirs: for a class
    that nobody else has its whole share, next to nothing for classes that everybody has. Claims far above those of
    other sites, or of other holders of a class, are cut: whoever claims all rows would not be named for anything.

    >>> ownership({"a": np.array([10.0, 0.0]), "b": np.array([0.0, 5.0]), "c": np.array([0.0, 5.0])}, ("a",))
    0.5
    """
    if not counts:
        return 0.0
    table = _cut_claims(counts)
    held = np.where(table > 0, table, np.nan)
    holders = (table > 0).any(axis=0)
    limits = np.zeros(table.shape[1])
    limits[holders] = _CLAIMED * np.nanmedian(held[:, holders], axis=0)
    table = np.minimum(table, limits)
    total = table.sum(axis=0)
    theirs = table[[place for place, site in enumerate(sorted(counts)) if site in sites]].sum(axis=0)
    shares = np.divide(theirs, total, out=np.zeros_like(total), where=total > 0)
    return float((total / total.sum()) @ shares**2) if total.sum() > 0 else 0.0


def claimed_shares(counts: Mapping[str, FloatArray]) -> FloatArray | None:
    """Shares (C,) of classes in training by what sites claim, no site far above the median; None without any."""
    total = _cut_claims(counts).sum(axis=0) if counts else np.zeros(0)
    return total / total.sum() if total.sum() > 0 else None


def _cut_claims(counts: Mapping[str, FloatArray]) -> FloatArray:
    """Rows (Q, C) in order of names, no site with more than ``_CLAIMED`` times those of the median site."""
    table = np.array([counts[site] for site in sorted(counts)])
    rows = table.sum(axis=1)
    limit = _CLAIMED * float(np.median(rows[rows > 0])) if (rows > 0).any() else 0.0
    return np.asarray(table * np.minimum(1.0, limit / np.maximum(rows, 1.0))[:, None])


def judge(
    sums: Mapping[str, LossSums],
    sets: Sequence[SiteSet],
    shares: FloatArray | None,
    apart: Sequence[float] = (),
    *,
    liars: int = 1,
    usual: Sequence[float] | None = None,
    labels: bool = True,
) -> tuple[Influence, ...]:
    """Influence of each of ``sets`` from the ``sums`` of testers, in the order of the sets.

    shares (C,) : of classes in training; None takes those of the rows that were tested. apart : ``ownership`` of each
    set. usual : gains of sites to compare with, by default those of the other sets. labels : whether rows have any.
    """
    check_count(liars, "liars", at_least=0)
    measured = [_judge_one(sums, left_out, number, len(sets), shares, liars) for number, left_out in enumerate(sets)]
    judged = []
    for number, found in enumerate(measured):
        others = [other.gain for place, other in enumerate(measured) if place != number] if usual is None else usual
        typical = float(np.median(np.abs(others))) if len(others) else 0.0
        known = _OWN_CLASS * apart[number] if len(apart) else 0.0
        least = min(_MOST_NEEDED, max(LEAST_GAIN, _UNUSUAL * typical, known))
        judged.append(replace(found, least=least, points=found.points if labels else math.nan))
    return tuple(judged)


def _judge_one(
    sums: Mapping[str, LossSums], left_out: SiteSet, number: int, tried: int, shares: FloatArray | None, liars: int
) -> Influence:
    others = [sums[name] for name in sorted(sums) if name not in left_out and sums[name].rows.sum()]
    if not others:
        return Influence(left_out, 0, 0.0, 0.0, None, math.nan, 0.0)
    votes = _votes(others, number, shares)
    counted = sorted(range(len(others)), key=lambda place: votes.gain[place])[liars : len(others) - liars]
    rows = sum(int(others[place].rows.sum()) for place in counted)
    if rows < _FEWEST_ROWS:
        return Influence(left_out, rows, 0.0, 0.0, None, math.nan, 0.0)
    weight = votes.weight[counted]
    right = np.array([others[place].right.sum(axis=1) / others[place].rows.sum() for place in counted])
    moved = np.array([others[place].moved[number] / others[place].rows.sum() for place in counted])
    points = float(weight @ (right[:, number + 1] - right[:, 0]) / weight.sum())
    gain, z = votes.mean(counted)
    chance = min(1.0, tried * math.erfc(z / math.sqrt(2)) / 2)
    return Influence(left_out, rows, gain, z, chance, points, float(weight @ moved / weight.sum()))


@dataclass(frozen=True, eq=False)
class _Votes:
    """What each tester (T,) adds to a weighted mean: gain, weight of its rows, and what variances are made of."""

    gain: FloatArray
    weight: FloatArray
    squares: FloatArray
    products: FloatArray
    weights: FloatArray

    def mean(self, counted: Sequence[int]) -> tuple[float, float]:
        """Mean gain of testers ``counted``, and over its standard error: of rows, or of testers if that is larger."""
        places = list(counted)
        total = float(self.weight[places].sum())
        mean = float(self.gain[places].sum()) / total
        deviations = self.squares[places] - 2 * mean * self.products[places] + mean**2 * self.weights[places]
        by_tester = float(((self.gain[places] - mean * self.weight[places]) ** 2).sum())
        error = math.sqrt(max(float(deviations.sum()), by_tester, 0.0)) / total
        return mean, (mean / error if error > 0 else 0.0)


def _votes(others: Sequence[LossSums], number: int, shares: FloatArray | None) -> _Votes:
    """Votes of testers: rows weighed by class, no tester above ``_HEARD`` times the median one.

    Weights are settled before anybody is left unheard: whose vote is largest is then known, however it is made up.
    """
    rows = np.array([sums.rows for sums in others], dtype=np.float64)
    gain = np.array([sums.gain[number] for sums in others])
    square = np.array([sums.square[number] for sums in others])
    sizes = rows.sum(axis=1)
    factor = np.minimum(1.0, _HEARD * np.median(sizes) / sizes)
    met = factor @ rows
    wanted = met if shares is None else np.where(met > 0, shares, 0.0)
    wanted = wanted if wanted.sum() > 0 else met
    by_class = np.where(met > 0, wanted / wanted.sum() / np.maximum(met, 1e-9), 0.0)
    by_class = np.minimum(by_class, _HEAVIEST / met.sum())
    return _Votes(
        factor * (gain @ by_class),
        factor * (rows @ by_class),
        factor**2 * (square @ by_class**2),
        factor**2 * (gain @ by_class**2),
        factor**2 * (rows @ by_class**2),
    )


def _plain(found: Influence) -> dict[str, Any]:
    points = None if math.isnan(found.points) else found.points
    return {**vars(found), "sites": list(found.sites), "points": points, "named": found.named}
