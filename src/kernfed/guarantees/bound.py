"""A bound with everything that is needed to judge it, and every numbered statement of the papers with its status."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError

#: How far a bound can be relied on, from most to least, in the words it is printed with.
STATUSES = {
    "proven": "proven",
    "holds where sum(h) > 0": "proven only where the memberships have a positive sum",
    "proof gap": "not proven: there is a gap in the published proof",
    "rate only": "a rate without constants, not a bound",
    "counterexample": "false as published: there is a counterexample",
}


@dataclass(frozen=True)
class Bound:
    """A number that something is at most, how sure that is, under which assumptions, and who says so.

    value : the bound itself. confidence : probability that it holds, over the draw of the data; 1 where nothing is
    random. assumptions : each completes "if". status : one of ``STATUSES``, perhaps with a remark after a colon.
    source : paper and theorem. words : what the number says, where it is not that something is at most so much.

    >>> print(Bound(0.0713, 0.95, ("the rows are independent",), "proven", "Hoeffding (1963)"))
    at most 0.0713 with probability 0.95, if the rows are independent; proven, Hoeffding (1963)
    """

    value: float
    confidence: float
    assumptions: tuple[str, ...]
    status: str
    source: str
    words: str = ""

    def __post_init__(self) -> None:
        check_choice(self.kind, "status", tuple(STATUSES))
        check_number(self.confidence, "confidence", above=0, at_most=1)
        if self.value != self.value:
            raise InputError("value must be a number, got nan; a bound that says nothing is infinite")
        if isinstance(self.assumptions, str):
            raise InputError(f"assumptions must be a tuple of sentences, got the text {self.assumptions!r}")

    @property
    def kind(self) -> str:
        """The status without its remark, one of ``STATUSES``."""
        return self.status.partition(":")[0]

    @property
    def reliable(self) -> bool:
        """Whether the statement is proven as it stands."""
        return self.kind == "proven"

    @property
    def statement(self) -> str:
        """What is said, without how sure that is."""
        return self.words or f"at most {self.value:.4g}"

    def __str__(self) -> str:
        chance = "" if self.confidence == 1 else f" with probability {self.confidence:g}"
        given = f", if {' and '.join(self.assumptions)}" if self.assumptions else ""
        remark = self.status.partition(":")[2].strip()
        status = STATUSES[self.kind] + (f" ({remark})" if remark else "")
        return f"{self.statement}{chance}{given}; {status}, {self.source}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for reports."""
        return {
            "value": self.value,
            "confidence": self.confidence,
            "assumptions": list(self.assumptions),
            "status": self.status,
            "source": self.source,
            "words": self.words,
        }


@dataclass(frozen=True)
class Theorem:
    """One numbered statement.

    function : name in ``kernfed.guarantees``. status : one of ``STATUSES``. remark : why, in one sentence.
    """

    paper: str
    number: str
    function: str
    status: str
    remark: str

    def __post_init__(self) -> None:
        check_choice(self.status, "status", tuple(STATUSES))


_SUM = "a product of two positive matrices is taken for positive; sum(h) can vanish (DP-KAHM step (140))"
_RANK_ONE = "the kernel has rank one, so the inverse of J* is one on multiples of the feature map only"
_SIGNS = "the supremum depends on the signs"
_DEPENDENT = "the hypothesis space is made from the rows it is tested on"
_SHRINKS = "not by the printed factor, which may approach 1: errors vanish as the rows themselves shrink to the origin"
_ANY_WEIGHTS = "every choice of weights is as near, the best and the worst: it does not say that the solution is good"
_NO_PROBABILITY = "at 784 columns in [-1, 1] it is above 0.93 for every class, so ten classes come to more than 9"
_MEMBER = "an identity where every row is nearest to its own class; otherwise off by the share of rows that are not"

CATALOG: tuple[Theorem, ...] = (
    Theorem("DP-KAHM", "Theorem 1", "fixed_point_error", "proven", "with a contraction factor that holds near 0 too"),
    Theorem("DP-KAHM", "Theorem 2", "image_norm", "holds where sum(h) > 0", _SUM),
    Theorem("DP-KAHM", "Theorem 3", "distance_ratio", "holds where sum(h) > 0", _SUM),
    Theorem("DP-KAHM", "Theorem 4", "distance_ratio", "holds where sum(h) > 0", _SUM),
    Theorem("DP-KAHM", "Theorem 5", "distance_ratio", "holds where sum(h) > 0", _SUM),
    Theorem("DP-KAHM", "Theorem 6", "smoothing_error", "proven", _SHRINKS),
    Theorem("GIKM", "Theorem 1", "image_norm", "holds where sum(h) > 0", _SUM),
    Theorem("GIKM", "Theorem 2", "distance_ratio", "holds where sum(h) > 0", _SUM),
    Theorem("GIKM", "Theorem 3", "rademacher", "proven", "for given rows"),
    Theorem("GIKM", "Lemma 1", "loss_rademacher", "proven", "for given rows"),
    Theorem("GIKM", "Theorem 4", "generalization_error", "proof gap", _DEPENDENT),
    Theorem("GIKM", "Theorem 5", "solution_gap", "proven", _ANY_WEIGHTS),
    Theorem("GIKM", "Theorem 6", "generalization_error", "proof gap", _DEPENDENT),
    Theorem("GIKM", "Theorem 7", "generalization_error", "proof gap", _DEPENDENT),
    Theorem("GIKM", "Lemma 2", "membership_gap", "counterexample", _NO_PROBABILITY),
    Theorem("GIKM", "Lemma 3", "sample_complexity", "proof gap", _DEPENDENT),
    Theorem("GIKM", "Theorem 8", "membership_loss", "holds where sum(h) > 0", _SUM),
    Theorem("SFM", "Theorem 1", "sample_risk", "proven", "for a feature map fixed beforehand"),
    Theorem("SFM", "Theorem 2", "generalized_risk", "counterexample", _RANK_ONE),
    Theorem("SFM", "Theorem 3", "generalized_risk", "counterexample", _RANK_ONE),
    Theorem("SFM", "Theorem 4", "generalized_risk", "counterexample", _RANK_ONE),
    Theorem("SFM", "Theorem 5", "rademacher_printed", "counterexample", _SIGNS),
    Theorem("SFM", "Theorem 6", "hypothesis_error", "counterexample", "it uses Theorem 5"),
    Theorem("SFM", "Theorem 7", "hypothesis_error", "counterexample", "it uses Theorem 5"),
    Theorem("SFM", "Proposition 1", "hypothesis_gap", "proven", _MEMBER),
    Theorem("SFM", "Proposition 2", "hypothesis_error", "counterexample", "it uses Theorem 5"),
    Theorem("SFM", "Theorem 8", "image_norm", "holds where sum(h) > 0", _SUM),
    Theorem("SFM", "Theorem 9", "distance_ratio", "holds where sum(h) > 0", _SUM),
    Theorem("SFM", "Proposition 3", "smoothing_factor", "proven", "mu_max / (mu_max + lambda)"),
    Theorem("FedNewton", "Theorem 1", "newton_contraction", "proven", "with R_D + R_Dj where 2 R_Dj is printed"),
    Theorem("FedNewton", "Theorem 2", "federated_error_rate", "rate only", "constants are not stated"),
    Theorem("FedNewton", "Theorem 3", "excess_risk_rate", "rate only", "constants are not stated"),
    Theorem("FedNewton", "Theorem 4", "excess_risk_rate", "rate only", "constants are not stated"),
    Theorem("KME", "Lemma 4.3", "transfer_error", "proven", "in expectation over the rows"),
    Theorem("KME", "Theorem 4.4", "aggregation_rate", "rate only", "constants are not stated"),
    Theorem("KME", "Corollary 4.6", "excess_risk", "proven", "in expectation over the rows"),
    Theorem("KME", "Theorem 5.2", "aggregation_rate", "rate only", "constants are not stated"),
)


def grouped_theorems(papers: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """(statements, function, status, remark) of these papers, in order; statements alike in all three share an entry.

    >>> grouped_theorems(["KME"])[0]
    ('KME Lemma 4.3', 'transfer_error', 'proven', 'in expectation over the rows')
    """
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for theorem in CATALOG:
        if theorem.paper in papers:
            key = (theorem.paper, theorem.function, theorem.status, theorem.remark)
            grouped.setdefault(key, []).append(theorem.number)
    return [(f"{paper} {', '.join(numbers)}", *rest) for (paper, *rest), numbers in grouped.items()]  # type: ignore[misc]
