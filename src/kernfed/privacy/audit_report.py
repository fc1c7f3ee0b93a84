"""What an audit found: attacks and bounds beside the guarantee they are held against, and a verdict in one line."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernfed.errors import InputError
from kernfed.privacy.density import MembershipScore
from kernfed.privacy.lower_bound import EpsilonBound, round_down
from kernfed.privacy.roc import Attack
from kernfed.promise import Guarantee, round_up

Finding = Attack | EpsilonBound | MembershipScore


@dataclass(frozen=True)
class AuditReport:
    """What was attacked (``subject``), what it promises in both units, and what was found.

    ``private`` is False where the audited release itself is not private, as its ``Release.private`` says. ``released``
    says in words what such a release consists of and how many numbers that are; empty where only answers were attacked.
    ``total`` is what all releases of the sites have come to for one person, by their ledgers, where that is known.
    """

    subject: str
    element: Guarantee
    record: Guarantee
    attacks: tuple[Attack, ...] = ()
    bounds: tuple[EpsilonBound, ...] = ()
    membership: MembershipScore | None = None
    private: bool = True
    released: str = ""
    total: Guarantee | None = None

    def __post_init__(self) -> None:
        if self.total is not None and (not isinstance(self.total, Guarantee) or self.total.unit != "record"):
            raise InputError(f"total must be a Guarantee of unit 'record', got {self.total!r}")
        for name in ("element", "record"):
            guarantee = getattr(self, name)
            if not isinstance(guarantee, Guarantee) or guarantee.unit != name:
                raise InputError(f"{name} must be a Guarantee of unit {name!r}, got {guarantee!r}")
        if not isinstance(self.released, str):
            raise InputError(f"released must say in words what was released, got {self.released!r}")
        if not isinstance(self.subject, str) or not self.subject.strip():
            raise InputError(f"subject must say in words what was audited, got {self.subject!r}")
        for name, kind in (("attacks", Attack), ("bounds", EpsilonBound)):
            if not all(isinstance(finding, kind) for finding in getattr(self, name)):
                raise InputError(f"{name} must be of type {kind.__name__}, got {getattr(self, name)!r}")

    def plus(self, *findings: Finding) -> "AuditReport":
        """The report with more attacks, bounds, or the membership score."""
        report = self
        for finding in findings:
            if isinstance(finding, Attack):
                report = replace(report, attacks=(*report.attacks, finding))
            elif isinstance(finding, EpsilonBound):
                report = replace(report, bounds=(*report.bounds, finding))
            elif isinstance(finding, MembershipScore):
                report = replace(report, membership=finding)
            else:
                raise InputError(f"a finding must be an Attack, EpsilonBound or MembershipScore, got {finding!r}")
        return report

    @property
    def worst(self) -> Guarantee:
        """What a person is left with: the total of the ledgers where it is known and more, else this record's."""
        return self.record if self.total is None or self.total.epsilon < self.record.epsilon else self.total

    def detects(self, unit: str) -> float | None:
        """The smallest epsilon of a ``unit`` that these trials would most likely have refuted; None where none."""
        known = [bound.detects for bound in self.bounds if bound.unit == unit and bound.detects is not None]
        return min(known, default=None)

    @property
    def confidence(self) -> float:
        """Probability at least that all bounds hold together."""
        return max(0.0, 1.0 - sum(1.0 - bound.confidence for bound in self.bounds))

    @property
    def contradicted(self) -> tuple[EpsilonBound, ...]:
        """The bounds that a stated guarantee cannot be true with."""
        return tuple(b for b in self.bounds if b.contradicts(self.element) or b.contradicts(self.record))

    @property
    def verdict(self) -> str:
        """One line: whether the audited bound contradicts the stated guarantee; without one, what attacks achieved."""
        if not self.bounds:
            return self._without_bounds()
        sure = f"{100 * self.confidence:.4g} % confidence"
        if self.contradicted:
            worst = max(self.contradicted, key=lambda bound: bound.value)
            stated, audited = stated_epsilon(getattr(self, worst.unit)), round_down(worst.value)
            return f"CONTRADICTED: audited {worst.unit} epsilon >= {audited:g}, stated {stated} ({sure})"
        return f"not contradicted: {'; '.join(filter(None, map(self._compared, ('element', 'record'))))} ({sure})"

    def _without_bounds(self) -> str:
        """What can be said of attacks alone, which cannot contradict a guarantee: the noise was drawn once."""
        claimed = math.isfinite(self.record.epsilon)
        start = "not tested: no lower bound on epsilon was computed" if claimed else "no guarantee is claimed"
        if not self.attacks:
            return start
        best = max(self.attacks, key=lambda attack: attack.roc.auc)
        low, high = best.roc.auc_interval
        exposed = "".join(
            f", and finds {point.tpr:.1%} of the members at {point.rate:.1%} false alarms"
            for point in best.roc.points[-1:]
        )
        achieved = (
            f"the best attack tried, {best.name}, has an area under the curve of {best.roc.auc:.3f} "
            f"[{low:.3f}, {high:.3f}], where guessing has 0.5{exposed}"
        )
        if not claimed:
            return f"{start}; {achieved}; nothing bounds what other attacks achieve"
        limit = attack_limit(self.worst)
        which = (
            "stated record epsilon" if self.worst is self.record else "epsilon that the ledgers have come to in all,"
        )
        allowed = f"the {which} {stated_epsilon(self.worst)} allows {limit:.3f} on average over the noise"
        more = ", which is less: audit the mechanism itself" if low > limit else ""
        return f"{start}, as the noise was drawn once; {achieved}; {allowed}{more}"

    def _compared(self, unit: str) -> str:
        bounds = [bound for bound in self.bounds if bound.unit == unit]
        if not bounds:
            return ""
        stated, ceiling = getattr(self, unit).epsilon, max(bound.ceiling for bound in bounds)
        limit = f", more than the {ceiling:.3g} that so many trials can show" if stated > ceiling else ""
        audited = round_down(max(bound.value for bound in bounds))
        smallest = self.detects(unit)
        power = "" if smallest is None else f", where {round_up(smallest, 3):g} would most likely have been refuted"
        return f"audited {unit} epsilon >= {audited:g}, stated {stated_epsilon(getattr(self, unit))}{limit}{power}"

    def __str__(self) -> str:
        lines = [f"Audit of {self.subject}", *self.promised()]
        if not self.private:
            lines.append("  marked not private: the guarantee does not hold")
        findings = (*self.attacks, *((self.membership,) if self.membership else ()), *self.bounds)
        return "\n".join([*lines, *(f"  {finding}" for finding in findings), f"Verdict: {self.verdict}"])

    def promised(self) -> list[str]:
        """Lines of what is promised: all releases together first, as a person has only one budget."""
        total = [] if self.total is None else [f"  in all, {self.total}"]
        return [*total, f"  {self.element}", f"  {self.record}"]

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite epsilon, no guarantee, is None."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "contradicted": bool(self.contradicted),
            "confidence": self.confidence,
            "element": self.element.to_dict(),
            "record": self.record.to_dict(),
            "attacks": [asdict(attack) for attack in self.attacks],
            "bounds": [asdict(bound) for bound in self.bounds],
            "membership": None if self.membership is None else asdict(self.membership),
            "private": self.private,
            "released": self.released,
            "total": None if self.total is None else self.total.to_dict(),
        }


def stated_epsilon(guarantee: Guarantee) -> str:
    """The epsilon in words, never less than the truth."""
    return "none" if math.isinf(guarantee.epsilon) else f"{round_up(guarantee.epsilon):g}"


def attack_limit(guarantee: Guarantee) -> float:
    """Largest area under the curve of an attack on one unit, on average over the noise, rounded up to three digits.

    ``TPR <= exp(epsilon) FPR + delta`` and the same with the two cases exchanged: the area under both is at most
    ``exp(epsilon) / (1 + exp(epsilon)) + delta``.

    >>> attack_limit(Guarantee(1.0, 1e-5, "record", "one row replaced by any other"))
    0.732
    """
    area = 1.0 / (1.0 + math.exp(-guarantee.epsilon)) + guarantee.delta
    return min(1.0, math.ceil(1000 * area) / 1000)
