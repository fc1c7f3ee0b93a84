"""Coverage from counts with noise, rounded to the safe side.

With n rows a threshold of coverage c is the first bin beyond which at most ``n - ceil((n + 1) c)`` rows lie. Of a noisy
count only its sum with a noise bound is used, which is below the truth with probability b at most. The threshold is the
first bin *from which on* all these sums are small enough. If it is too low, then the sum at the last bin before the
true threshold was below the truth. That bin does not depend on the noise, so b is spent once, and not for each bin.

b is a share of the miscoverage, and c is raised by it: the set misses the true class with probability ``1 - c - b``
where the threshold is not too low, and it is too low with probability b.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain.bins import BINS, ratio_bins
from kernfed.abstain.coverage import NO_MACHINES, ROUNDING, Coverage
from kernfed.abstain.ladder import PLACES, last_odds_bin, lengths, noise_bound, ratio_table, rows_beyond
from kernfed.base.checks import FloatArray, IntArray, check_count, check_number
from kernfed.base.plain import read_reasons
from kernfed.base.prior import Prior, prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.promise import Terms

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

    counts : (PLACES,) sums over rows in the bins of their odds, in units of 2^-BITS (``ladder.py``); a row that no set
    can have is beyond all bins. nearest : likewise of their strangeness, None where strangers are not told. deviation :
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
