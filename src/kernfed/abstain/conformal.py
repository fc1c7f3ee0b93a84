"""Coverage from exact histograms: of all rows, of each class, of each site, and for sites to come."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import BINS, RATIO_BINS, ratio_bins
from kernfed.abstain.coverage import NO_MACHINES, ROUNDING, Coverage
from kernfed.base.checks import FloatArray, IntArray, check_choice, check_number
from kernfed.base.plain import read_reasons
from kernfed.base.prior import Prior, check_prior, prior_from_values, prior_to_values
from kernfed.errors import InputError

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
            return np.array([_quantile(own, coverage) for own in self.counts[:-1]], dtype=np.intp)
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
            told = ", ".join(map(repr, list(self.by_site)[:20])) or "none: only the sum over sites was seen"
            raise InputError(f"coverage at one site needs the name of one that kept rows aside, got {site!r}; {told}")
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
        own = read_counts(arrays["conformal.sites"], (len(names), BINS + 1)) if names else np.zeros((0, BINS + 1))
        return cls(
            counts,
            None if nearest is None else read_counts(nearest, (count, RATIO_BINS)),
            dict(zip(names, own, strict=True)),
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
