"""Coverage from histograms: exact ones, of all rows, each class, each site, and for sites to come; or noisy ones.

*Noise* is rounded to the safe side. With n rows a threshold of coverage c is the first bin beyond which at most ``n -
ceil((n + 1) c)`` rows lie. Of a noisy count only its sum with a noise bound is used, which is below the truth with
probability b at most. The threshold is the first bin *from which on* all these sums are small enough. If it is too low,
then the sum at the last bin before the true threshold was below the truth. That bin does not depend on the noise, so b
is spent once, and not for each bin.

b is a share of the miscoverage, and c is raised by it: the set misses the true class with probability ``1 - c - b``
where the threshold is not too low, and it is too low with probability b.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import (
    BINS,
    PLACES,
    RATIO_BINS,
    last_odds_bin,
    lengths,
    noise_bound,
    ratio_bins,
    ratio_table,
    rows_beyond,
)
from kernfed.abstain.coverage import NO_MACHINES, ROUNDING, Coverage
from kernfed.base.checks import FloatArray, IntArray, check_choice, check_count, check_number
from kernfed.base.plain import read_reasons
from kernfed.base.prior import Prior, check_prior, prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.promise import Terms

#: For whom a coverage holds.
CONDITIONS = ("class", "site", "new site")


@dataclass(frozen=True, eq=False)
class Conformal(Coverage):
    """Histograms of rows that were kept aside, and what they are of.

    counts : (C + 1, BINS) rows by class and bin of their odds, of all sites; the last line has labels the model does
    not know. nearest : (C, RATIO_BINS) rows by class and bin of their strangeness; None for models without machines.
    by_site : (BINS + 1,) rows of every site, at last those in no set; {} where only sums over sites were seen.
    shares : (BINS,) sum over sites of the share of each site's rows in a bin, and ``sites`` how many sites that are.
    unit : of strangeness. prior : for which shares of classes the probabilities are. missing : sites that did not take
    part, with reasons.
    """

    counts: IntArray
    nearest: IntArray | None
    by_site: Mapping[str, IntArray]
    shares: FloatArray
    sites: int
    unit: float = 1.0
    prior: Prior = "training"
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def privacy(self) -> None:
        """The counts are exact."""

    @property
    def rows(self) -> int:
        """Rows that were kept aside and counted."""
        return int(self.counts.sum())

    @property
    def unknown(self) -> int:
        """Rows with labels that the model does not know: no set has them, and the others are larger for it."""
        return int(self.counts[-1].sum())

    def __str__(self) -> str:
        unknown = f", {self.unknown:,} of them with labels that it does not know" if self.unknown else ""
        strangers = "" if self.nearest is None else "; strangers are told by the nearest machine"
        return f"coverage from {self.rows:,} rows kept aside at {self.sites} site(s){unknown}{strangers}"

    def thresholds(
        self,
        classes: npt.NDArray[Any],
        coverage: float,
        conditional: str | None = None,
        site: str | None = None,
        prior: Prior = None,
    ) -> npt.NDArray[np.intp]:
        """The last bin (C,) in which each of ``classes`` (C,) is in the set; the last one of all where rows are few.

        Of n rows the ceil((n + 1) coverage)-th smallest bin: of all rows, of each class, or of one site. For a "new
        site" the sites are what is drawn (Lee, Barber and Willett 2023): mean over K sites of their shares up to a bin,
        and one more site beyond all bins. With a ``prior`` rows of class c weigh ``pi'_c / pi_c``, pi their share among
        the rows, and the new row as one of its candidate class (Podkopaev and Ramdas 2021).
        """
        count = len(classes)
        check_number(coverage, "coverage", above=0, below=1)
        _check_condition(conditional, site, prior)
        if conditional == "class":
            return np.array([_quantile(line, coverage) for line in self.counts[:-1]], dtype=np.intp)
        if conditional == "site":
            return np.full(count, _quantile(self._of_site(site), coverage), dtype=np.intp)
        if conditional == "new site":
            below = np.cumsum(self.shares) / (self.sites + 1)
            return np.full(count, _first(below, coverage), dtype=np.intp)
        if prior is None or prior == "training":
            return np.full(count, _quantile(self._ranked(), coverage), dtype=np.intp)
        weights = self._weights(classes, prior)
        below = np.cumsum(weights @ self.counts[:-1])
        return np.array([_first(below, coverage * (below[-1] + weight)) for weight in weights], dtype=np.intp)

    def p_values(self, strange: FloatArray, conditional: str | None = None) -> FloatArray:
        """P-values (n,) of queries by their strangeness (n,): ``(1 + #{rows as strange}) / (n + 1)``.

        Of rows drawn as those kept aside at most a share e has a p-value of e or less. For "class" that holds in every
        class: the largest p-value over the rows of each.
        """
        if self.nearest is None:
            raise InputError(NO_MACHINES)
        if conditional not in (None, "class"):
            raise InputError(f"p-values are for all rows (None) or for each class ('class'), got {conditional!r}")
        groups = self.nearest if conditional == "class" else self.nearest.sum(axis=0, keepdims=True)
        beyond = groups[:, ::-1].cumsum(axis=1)[:, ::-1]
        table = ((1 + beyond) / (1 + groups.sum(axis=1, keepdims=True))).max(axis=0)
        return np.asarray(table[ratio_bins(strange / self.unit)])

    def _ranked(self) -> IntArray:
        """Rows (BINS + 1,) by bin, those that no set can have after all others."""
        return np.append(self.counts[:-1].sum(axis=0), self.unknown)

    def _of_site(self, site: str | None) -> IntArray:
        if site is None or site not in self.by_site:
            known = ", ".join(map(repr, list(self.by_site)[:20])) or "none: only the sum over sites was seen"
            raise InputError(f"coverage at one site needs the name of one that kept rows aside, got {site!r}; {known}")
        return self.by_site[site]

    def _weights(self, classes: npt.NDArray[Any], prior: Prior) -> FloatArray:
        wanted = check_prior(prior, classes)
        shares = [1 / len(classes)] * len(classes) if not isinstance(wanted, Mapping) else list(wanted.values())
        rows = self.counts[:-1].sum(axis=1)
        if any(share > 0 and not count for share, count in zip(shares, rows.tolist(), strict=True)):
            lacking = classes[(np.array(shares) > 0) & (rows == 0)].tolist()
            raise InputError(f"no row of class {lacking[0]!r} was kept aside, so nothing is known of its scores")
        return np.asarray(np.array(shares) * rows.sum() / np.maximum(rows, 1))

    # Files ---------------------------------------------------------------------------------------------------------

    def to_parts(self, classes: npt.NDArray[Any]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values for the file of the model that has these ``classes``."""
        arrays: dict[str, npt.NDArray[Any]] = {"conformal.counts": self.counts, "conformal.shares": self.shares}
        if self.nearest is not None:
            arrays["conformal.nearest"] = self.nearest
        if self.by_site:
            arrays["conformal.sites"] = np.stack([self.by_site[site] for site in sorted(self.by_site)])
        return arrays, {
            "by_site": sorted(self.by_site),
            "sites": self.sites,
            "unit": self.unit,
            "prior": prior_to_values(self.prior, classes),
            "missing": dict(self.missing),
        }

    @classmethod
    def from_parts(cls, arrays: Mapping[str, npt.NDArray[Any]], values: Any, classes: npt.NDArray[Any]) -> "Conformal":
        """The histograms in a file, checked."""
        count, names = len(classes), values["by_site"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"sites of a coverage must be names, got {names!r:.60}")
        counts = read_counts(arrays["conformal.counts"], (count + 1, BINS))
        nearest, shares = arrays.get("conformal.nearest"), arrays["conformal.shares"]
        sites = values["sites"]
        if type(sites) is not int or sites < 1 or shares.dtype != np.float64 or shares.shape != (BINS,):
            raise InputError(f"shares of sites must be {BINS} numbers of at least one site, got {shares.shape}")
        if (shares < 0).any() or shares.sum() > sites * (1 + ROUNDING):
            raise InputError("the shares of a site in all bins are at most 1")
        by_site = read_counts(arrays["conformal.sites"], (len(names), BINS + 1)) if names else np.zeros((0, BINS + 1))
        return cls(
            counts,
            None if nearest is None else read_counts(nearest, (count, RATIO_BINS)),
            dict(zip(names, by_site, strict=True)),
            shares,
            sites,
            check_number(values["unit"], "unit", above=0),
            prior_from_values(values["prior"], classes),
            read_reasons(values["missing"]),
        )


def read_counts(array: npt.NDArray[Any], shape: tuple[int, ...]) -> IntArray:
    """A histogram of this shape from outside: integers of at least 0."""
    if array.shape != shape or array.dtype != np.int64 or (array < 0).any() or array.astype(np.float64).sum() > 2**52:
        raise InputError(f"counts must be integers of at least 0 in shape {shape}, got {array.dtype} of {array.shape}")
    return array


def _quantile(counts: IntArray, coverage: float) -> int:
    """The bin of the ceil((n + 1) coverage)-th smallest of n rows in ``counts``, the last bin where n is too small."""
    rank = math.ceil((int(counts.sum()) + 1) * coverage - ROUNDING)
    return _first(np.cumsum(counts).astype(np.float64), float(rank))


def _first(below: FloatArray, needed: float) -> int:
    """The first bin up to which there is as much as ``needed``, the last one where nowhere is."""
    return min(int(np.searchsorted(below, needed - ROUNDING)), BINS - 1)


def _check_condition(conditional: str | None, site: str | None, prior: Prior) -> None:
    if conditional is not None:
        check_choice(conditional, "conditional", CONDITIONS)
    if (conditional == "site") != (site is not None):
        raise InputError(f"conditional='site' goes with the name of a site, got {conditional!r} and site={site!r}")
    if conditional is not None and prior not in (None, "training"):
        raise InputError(
            "other shares of classes are for a coverage of all rows together: leave conditional out, or the prior; "
            "conditional='class' holds whatever the shares are"
        )


#: Share of the miscoverage that noise may use up. Of 1, 3, 10 and 20 % this gave the smallest sets, by little.
_RISK = 0.03
#: What noise may add to the level of a p-value; it is in every one.
_P_RISK = 1e-3
#: Sums beyond this are of no rows: of one site, and of all.
LARGEST_OF_SITE, _LARGEST = 2**52, 2**62
_ALL_TOGETHER = (
    "the counts have noise and are of all rows together, so that they promise nothing for one class, one site, a new "
    "site or other shares of classes: leave conditional and prior out, or conform without privacy"
)


@dataclass(frozen=True, eq=False)
class NoisyConformal(Coverage):
    """Sums over rows that were kept aside, with noise, and under which terms they were released.

    counts : (PLACES,) sums over rows in the bins of their odds, in units of 2^-BITS (``bins.py``); a row that no set
    can have is beyond all bins. nearest : likewise of their strangeness, None where they are not counted. deviation :
    of the noise on each of these numbers. rows : that were counted; their number is public. sites : that counted. unit,
    prior, missing : as in ``Conformal``.
    """

    counts: IntArray
    nearest: IntArray | None
    deviation: float
    rows: int
    sites: int
    privacy: Terms
    unit: float = 1.0
    prior: Prior = "training"
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> int:
        """Not told: rows with unknown labels are among those that no set has."""
        return 0

    def __str__(self) -> str:
        strangers = "" if self.nearest is None else "; strangers are told by the nearest machine"
        off = f"counts are off by {self.count_deviation:.3g} rows (one standard deviation)"
        return f"coverage from {self.rows:,} rows kept aside at {self.sites} site(s), with noise: {off}{strangers}"

    @property
    def count_deviation(self) -> float:
        """Standard deviation of the number of rows beyond a bin, where it is largest."""
        return float(lengths().max() * self.deviation)

    def risk(self, coverage: float) -> float:
        """Probability that noise lets the threshold of a coverage be too low, a share of the miscoverage."""
        return _RISK * (1 - coverage)

    def thresholds(
        self,
        classes: npt.NDArray[Any],
        coverage: float,
        conditional: str | None = None,
        site: str | None = None,
        prior: Prior = None,
    ) -> npt.NDArray[np.intp]:
        """The last bin (C,) in which each of ``classes`` (C,) is in the set, the same for all; see the module."""
        check_number(coverage, "coverage", above=0, below=1)
        if conditional is not None or site is not None or prior not in (None, "training"):
            raise InputError(_ALL_TOGETHER)
        risk = self.risk(coverage)
        most = self.rows - math.ceil((self.rows + 1) * (coverage + risk) - ROUNDING)
        # Counts are whole: one that is not above ``most`` is below ``most + 1``.
        too_many = np.flatnonzero(self._raised(self.counts, risk) >= most + 1)
        place = int(too_many[-1]) + 1 if len(too_many) else 0
        last = BINS - 1 if most < 0 else last_odds_bin(place)
        return np.full(len(classes), last, dtype=np.intp)

    def p_values(self, strange: FloatArray, conditional: str | None = None) -> FloatArray:
        """P-values (n,) of queries by their strangeness (n,): ``b + (1 + #{rows as strange, raised}) / (n + 1)``.

        A p-value is no smaller than that of a stranger row, so that noise at one bin decides whether one is e or less.
        """
        if self.nearest is None:
            raise InputError(
                f"{NO_MACHINES}; a model with machines tells strangers where privacy=RecordHistogram(..., "
                "strangers=True) has counted them"
            )
        if conditional is not None:
            raise InputError(_ALL_TOGETHER)
        beyond = self._raised(self.nearest, _P_RISK)
        as_strange = np.append(self.rows, np.minimum(beyond[:-1], self.rows))  # in the first place all rows are
        table = np.maximum.accumulate(((1 + as_strange) / (1 + self.rows))[::-1])[::-1]
        return ratio_table(np.minimum(table + _P_RISK, 1.0))[ratio_bins(strange / self.unit)]

    def _raised(self, sums: IntArray, risk: float) -> FloatArray:
        """Rows (PLACES,) beyond each place, raised: each is below the truth with probability ``risk`` at most."""
        raised = rows_beyond(sums) + lengths() * noise_bound(self.deviation, risk)
        return np.asarray(np.maximum(raised, 0.0))

    # Files ---------------------------------------------------------------------------------------------------------

    def to_parts(self, classes: npt.NDArray[Any]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values for the file of the model that has these ``classes``."""
        arrays: dict[str, npt.NDArray[Any]] = {"conformal.counts": self.counts}
        if self.nearest is not None:
            arrays["conformal.nearest"] = self.nearest
        return arrays, {
            "noise": self.deviation,
            "rows": self.rows,
            "sites": self.sites,
            "privacy": self.privacy.to_values(),
            "unit": self.unit,
            "prior": prior_to_values(self.prior, classes),
            "missing": dict(self.missing),
        }

    @classmethod
    def from_parts(
        cls, arrays: Mapping[str, npt.NDArray[Any]], values: Any, classes: npt.NDArray[Any]
    ) -> "NoisyConformal":
        """The sums in a file, checked."""
        nearest = arrays.get("conformal.nearest")
        return cls(
            read_sums(arrays["conformal.counts"]),
            None if nearest is None else read_sums(nearest),
            check_number(values["noise"], "noise", at_least=4),
            check_count(values["rows"], "rows", at_most=2**52),
            check_count(values["sites"], "sites"),
            Terms.from_values(values["privacy"]),
            check_number(values["unit"], "unit", above=0),
            prior_from_values(values["prior"], classes),
            read_reasons(values["missing"]),
        )


def read_sums(array: npt.NDArray[Any], largest: int = _LARGEST) -> IntArray:
    """Noisy sums (PLACES,) from outside."""
    if array.shape != (PLACES,) or array.dtype != np.int64 or (np.abs(array.astype(np.float64)) > largest).any():
        raise InputError(f"noisy sums must be {PLACES} integers, got {array.dtype} of {array.shape}")
    return array
