"""Sets of classes with a stated coverage, and p-values of "nothing like this was ever seen", from histograms.

Split conformal prediction (Vovk, Gammerman and Shafer 2005) needs of rows that were kept aside only where their scores
lie. Here scores are put into bins that are fixed and public before any row is looked at, so that the histograms of all
sites add up. The bin itself is then the score: rows of one bin are ties, a threshold has its whole bin, and coverage is
that of the theorem, with sets that are larger by at most the rows of one bin.

Two scores of a row x are counted by its true class y:

- ``log((1 - p_y) / p_y)`` of the model's probability, in ``BINS`` bins: 1 - p_y, spread out where models are sure;
- the strangeness of x by the folding measures, in ``RATIO_BINS`` bins of 1/64 octave: how far the nearest class is, and
  how much nearer than the others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernfed._plain import read_reasons
from kernfed._validation import FloatArray, IntArray, check_choice, check_number
from kernfed.errors import InputError
from kernfed.prior import Prior, check_prior, prior_from_values, prior_to_values

#: Bins of the log-odds against the true class, which reach from -40 to 40; a probability of 1 has -36.7 or less.
BINS, _REACH = 2000, 40.0
#: Bins of the strangeness over the unit: 64 in an octave, from 2^-12 to 2^20.
RATIO_BINS, _PER_OCTAVE, _SMALLEST = 2048, 64, -12
#: For whom a coverage holds.
CONDITIONS = ("class", "site", "new site")
#: A rank that is whole but for rounding is whole.
_ROUNDING = 1e-9
_NOT_CONFORMED = (
    "this model states no coverage: use kernfed.conform(model, federation) with sites that keep rows aside, "
    "as in Federation.local(..., holdout=0.2)"
)


def probability_bins(probabilities: FloatArray) -> npt.NDArray[np.intp]:
    """Bins of probabilities, in the same shape: 0 where a class is certain, ``BINS - 1`` where it is impossible.

    >>> probability_bins(np.array([1.0, 0.5, 0.0])).tolist()
    [0, 1000, 1999]
    """
    likely = np.clip(probabilities, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # of a certain class and of an impossible one
        odds = np.log1p(-likely) - np.log(likely)
    return np.clip(np.floor((odds + _REACH) * (BINS / (2 * _REACH))), 0, BINS - 1).astype(np.intp)


def strangeness(scores: FloatArray) -> FloatArray:
    """``d (d / m)^2`` (n,), with d the smallest and m the mean of a row's scores (n, C); absent classes do not count.

    The distance d alone is small for rows of little content, such as images with little ink. A row of a known kind is
    much nearer to its own class than to others, a stranger is not. Of printed letters beside MNIST the square of that
    ratio told 45 in 100, d alone 18; on digits and letters of tables as many. With one class it is d.

    >>> strangeness(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, np.inf]])).tolist()
    [0.25, 2.0, 2.0]
    """
    known = np.isfinite(scores)
    nearest = np.where(known, scores, np.inf).min(axis=1)
    mean = np.where(known, scores, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    share = np.where(known.any(axis=1), nearest, 1.0) / np.where(mean > 0, mean, 1.0)
    return np.asarray(nearest * np.square(share))


def ratio_bins(ratios: FloatArray) -> npt.NDArray[np.intp]:
    """Bins of strangeness over the unit (n,); what has more than 2^20 units is in the last one.

    >>> ratio_bins(np.array([0.0, 1.0, np.inf])).tolist()
    [0, 768, 2047]
    """
    with np.errstate(divide="ignore"):  # a row that a machine reproduces
        octaves = np.log2(ratios)
    bins: npt.NDArray[np.intp] = np.clip(np.floor((octaves - _SMALLEST) * _PER_OCTAVE), 0, RATIO_BINS - 1).astype(
        np.intp
    )
    return bins


def count_scores(
    numbers: npt.NDArray[np.intp], probabilities: FloatArray, ratios: FloatArray | None
) -> tuple[IntArray, IntArray]:
    """Histograms of rows by true class: of odds (C + 1, BINS) and of ratios (C, RATIO_BINS).

    ``numbers`` (n,) are classes, C for a label that the model does not know. Such a row is in no set, so that it counts
    in the last bin of the last line. Without ``ratios`` (n,) the second histogram is empty.
    """
    classes = probabilities.shape[1]
    counts = np.zeros((classes + 1, BINS), dtype=np.int64)
    nearest = np.zeros((classes, RATIO_BINS), dtype=np.int64)
    known = numbers < classes
    own = probabilities[known, numbers[known]]
    np.add.at(counts, (numbers[known], probability_bins(own)), 1)
    counts[-1, -1] = len(numbers) - int(known.sum())
    if ratios is not None:
        np.add.at(nearest, (numbers[known], ratio_bins(ratios[known])), 1)
    return counts, nearest


@dataclass(frozen=True, eq=False)
class Conformal:
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
            raise InputError("a model without machines cannot tell what is unlike everything; use predict_set")
        if conditional not in (None, "class"):
            raise InputError(f"p-values are for all rows (None) or for each class ('class'), got {conditional!r}")
        groups = self.nearest if conditional == "class" else self.nearest.sum(axis=0, keepdims=True)
        beyond = groups[:, ::-1].cumsum(axis=1)[:, ::-1]
        table = ((1 + beyond) / (1 + groups.sum(axis=1, keepdims=True))).max(axis=0)
        return np.asarray(table[ratio_bins(strange / self.unit)])

    def answers(
        self,
        classes: npt.NDArray[Any],
        probabilities: FloatArray,
        strange: FloatArray | None,
        abstain: float,
        prior: Prior = None,
    ) -> "np.ma.MaskedArray[Any, Any]":
        """Labels (n,) that are alone in their set of coverage 1 - ``abstain``, masked elsewhere and for strangers."""
        check_number(abstain, "abstain", above=0, below=1)
        sets = probability_bins(probabilities) <= self.thresholds(classes, 1 - abstain, prior=prior)
        unsure = sets.sum(axis=1) != 1
        if strange is not None:
            unsure |= self.p_values(strange) <= abstain
        return np.ma.MaskedArray(classes[sets.argmax(axis=1)], mask=unsure)

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
    def from_parts(
        cls, arrays: Mapping[str, npt.NDArray[Any]], values: Any, classes: npt.NDArray[Any]
    ) -> "Conformal | None":
        """The histograms in a file, checked; None where ``values`` are None."""
        if values is None:
            return None
        count, names = len(classes), values["by_site"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"sites of a coverage must be names, got {names!r:.60}")
        counts = read_counts(arrays["conformal.counts"], (count + 1, BINS))
        nearest, shares = arrays.get("conformal.nearest"), arrays["conformal.shares"]
        sites = values["sites"]
        if type(sites) is not int or sites < 1 or shares.dtype != np.float64 or shares.shape != (BINS,):
            raise InputError(f"shares of sites must be {BINS} numbers of at least one site, got {shares.shape}")
        if (shares < 0).any() or shares.sum() > sites * (1 + _ROUNDING):
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
    rank = math.ceil((int(counts.sum()) + 1) * coverage - _ROUNDING)
    return _first(np.cumsum(counts).astype(np.float64), float(rank))


def _first(below: FloatArray, needed: float) -> int:
    """The first bin up to which there is as much as ``needed``, the last one where nowhere is."""
    return min(int(np.searchsorted(below, needed - _ROUNDING)), BINS - 1)


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


class Abstaining(ABC):
    """What classifiers with a coverage have in common; ``kernfed.conform`` makes their ``conformal_``."""

    if TYPE_CHECKING:  # fields of some models and properties of others

        @property
        def conformal_(self) -> Conformal | None:
            """Histograms that the coverage is from; None where no coverage is stated."""

        @property
        def classes_(self) -> npt.NDArray[Any]:
            """Labels (C,)."""

    @property
    def distance_unit(self) -> float:
        """In which distances are counted: of the size of their usual differences, where there are some."""
        return 1.0

    @abstractmethod
    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C) as they were counted, and the strangeness (n,) of rows, None without machines."""

    def predict_set(
        self,
        X: npt.ArrayLike,
        coverage: float = 0.9,
        *,
        conditional: str | None = None,
        site: str | None = None,
        prior: Prior = None,
        **options: Any,
    ) -> npt.NDArray[np.bool_]:
        """Which classes (n, C) are in the set of each query; it has the true one with probability ``coverage``.

        conditional : None for rows as those kept aside at all sites together, "class" for the rows of every class,
        "site" for rows of ``site``, "new site" for a site that is drawn as these were. prior : shares of classes where
        the sets are used, as in ``predict``. A set may be empty: then no class is likely enough.
        """
        limits = self._conformed().thresholds(self.classes_, coverage, conditional, site, prior)
        return np.asarray(probability_bins(self.conforming(X, **options)[0]) <= limits)

    def p_values(self, X: npt.ArrayLike, *, conditional: str | None = None, **options: Any) -> FloatArray:
        """P-values (n,) of "nothing like this was ever seen", by the distance of the nearest class among all.

        At most a share e of rows like those kept aside has a p-value of e or less; with ``conditional="class"`` at most
        that share of every class.
        """
        told, (_, strange) = self._conformed(), self.conforming(X, **options)
        if strange is None:
            raise InputError("a model without machines cannot tell what is unlike everything; use predict_set")
        return told.p_values(strange, conditional)

    def abstaining(
        self, X: npt.ArrayLike, abstain: float, prior: Prior = None, **options: Any
    ) -> "np.ma.MaskedArray[Any, Any]":
        """Labels (n,), masked where the set of coverage 1 - ``abstain`` has not one class, or nothing like it was seen.

        At most a share ``abstain`` of rows like those kept aside gets a wrong label, and as many are taken for
        strangers.
        """
        told = self._conformed()
        check_number(abstain, "abstain", above=0, below=1)
        return told.answers(self.classes_, *self.conforming(X, **options), abstain, prior)

    def _conformed(self) -> Conformal:
        if self.conformal_ is None:
            raise InputError(_NOT_CONFORMED)
        return self.conformal_
