"""A bound with everything that is needed to judge it."""

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
