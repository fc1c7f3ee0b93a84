"""Report of an audit: what is promised, what attacks achieved, and whether the two agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernfed.privacy.audit import AuditReport, stated_epsilon
from kernfed.privacy.density import MembershipScore
from kernfed.privacy.guarantee import round_up
from kernfed.privacy.lower_bound import EpsilonBound
from kernfed.privacy.roc import Attack, OperatingPoint, Roc
from kernfed.report.assurance import promise_section
from kernfed.report.content import SHARE, Bars, Fact, Figure, ReportData
from kernfed.report.officer import officer_sections
from kernfed.report.promises import Promise, guarantee_of
from kernfed.report.sections import traffic_section

_KEYS = {"subject", "element", "record", "attacks", "bounds"}


def is_audit(values: Any) -> bool:
    """Whether plain values look like ``AuditReport.to_json``."""
    return isinstance(values, Mapping) and set(values) >= _KEYS


def audit_from_json(values: Mapping[str, Any]) -> AuditReport:
    """An ``AuditReport`` again from its ``to_json``; anything else is refused."""
    if not is_audit(values):
        raise ValueError(f"an audit must have {', '.join(sorted(_KEYS))}, got {', '.join(sorted(map(str, values)))}")
    try:
        membership = values.get("membership")
        return AuditReport(
            values["subject"],
            guarantee_of(values["element"]),
            guarantee_of(values["record"]),
            tuple(_attack(entry) for entry in values["attacks"]),
            tuple(EpsilonBound(**entry) for entry in values["bounds"]),
            None if membership is None else MembershipScore(**membership),
            bool(values.get("private", True)),
            values.get("released", ""),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the audit is damaged: {type(error).__name__}: {error}") from None


def _attack(values: Mapping[str, Any]) -> Attack:
    curve = dict(values["roc"])
    points = tuple(OperatingPoint(**{**point, "interval": tuple(point["interval"])}) for point in curve.pop("points"))
    interval = tuple(curve.pop("auc_interval"))
    return Attack(values["name"], values["knows"], Roc(**curve, points=points, auc_interval=interval))


def audit_report(audit: AuditReport, traffic: Sequence[Mapping[str, Any]] = ()) -> ReportData:
    """The report of an audit; ``traffic`` as ``Traffic.to_json`` gives it, where it is known what left the sites."""
    page = officer_sections(audit, traffic or None)
    promise = Promise(audit.element, audit.record, audit.private)
    unsafe = next((text for text in page["Under which guarantee"].points if "marked not private" in text), "")
    left, messages = page["What left"], traffic_section(traffic)
    if messages is not None:
        told = left.words[:2] if audit.released else ()
        left = replace(messages, words=(*told, *messages.words))
    sections = (
        left,
        replace(promise_section(promise), words=(unsafe,) if unsafe else (), points=()),
        replace(page["What attacks achieved"], figures=_attack_figures(audit)),
        replace(page["Does the audit agree with the guarantee?"], figures=_bound_figures(audit)),
        page["What is not promised"],
    )
    return ReportData("audit", f"Privacy of {audit.subject}", f"{_sentence(audit.verdict)}", _facts(audit), sections)


def _sentence(verdict: str) -> str:
    return f"{verdict[:1].upper()}{verdict[1:]}."


def _facts(audit: AuditReport) -> tuple[Fact, ...]:
    facts = []
    for name, guarantee in (("element", audit.element), ("record", audit.record)):
        words = (
            f"at δ {round_up(guarantee.delta):g}, as stated" if math.isfinite(guarantee.epsilon) else "none is claimed"
        )
        facts.append(Fact(f"One {name}", f"ε {stated_epsilon(guarantee)}", words))
    if audit.attacks:
        best = max(audit.attacks, key=lambda attack: attack.roc.auc)
        facts.append(Fact("Best attack", f"{best.roc.auc:.3f}", f"{best.name}; guessing is 0.5, certainty 1"))
    if audit.bounds:
        words = "the stated guarantee is false" if audit.contradicted else "the guarantee may be true"
        facts.append(Fact("Contradicted", "yes" if audit.contradicted else "no", words))
    claimed = math.isfinite(min(audit.element.epsilon, audit.record.epsilon))
    why = "no guarantee is claimed" if not claimed else "" if audit.private else "the release is marked so"
    facts.append(Fact("Private", "no" if why else "yes", why))
    return tuple(facts)


def _attack_figures(audit: AuditReport) -> tuple[Figure, ...]:
    if not audit.attacks:
        return ()
    ordered = sorted(audit.attacks, key=lambda attack: -attack.roc.auc)
    names = tuple(attack.name for attack in ordered)
    words = (
        f"Area under the curve of each attack; the best, {names[0]}, has {ordered[0].roc.auc:.3f}. Guessing has 0.5."
    )
    figures: list[Figure] = [
        Bars("How well attacks tell members from others", words, names, tuple(a.roc.auc for a in ordered), unit="",
             value_name="area under the curve", lines={"guessing": 0.5},
             intervals=tuple(attack.roc.auc_interval for attack in ordered))
    ]  # fmt: skip
    rates = sorted({point.rate for attack in ordered for point in attack.roc.points})
    if rates:
        figures.append(_found_bars(ordered, rates[0]))
    return tuple(figures)


def _found_bars(attacks: Sequence[Attack], rate: float) -> Bars:
    """Members found at the smallest rate of false alarms: the few who are exposed."""
    found = [(attack.name, point) for attack in attacks for point in attack.roc.points if point.rate == rate]
    words = (f"Share of members found when at most {100 * rate:g} % of all others are named wrongly; "
             f"guessing finds {100 * rate:g} %.")  # fmt: skip
    return Bars(f"Found at {100 * rate:g} % false alarms", words, tuple(name for name, _ in found),
                tuple(point.tpr for _, point in found), SHARE, "found",
                intervals=tuple(point.interval for _, point in found))  # fmt: skip


def _bound_figures(audit: AuditReport) -> tuple[Figure, ...]:
    figures = []
    for unit in ("element", "record"):
        bounds = [bound for bound in audit.bounds if bound.unit == unit]
        if not bounds:
            continue
        stated = getattr(audit, unit).epsilon
        words = f"What the audit shows for one {unit} at least, and the most that so many trials could have shown."
        words += f" Stated: {stated_epsilon(getattr(audit, unit))}."
        marks: dict[str, tuple[float | None, ...]] = {"could show at most": tuple(bound.ceiling for bound in bounds)}
        # A stated epsilon far beyond what trials can show would squeeze the bars to nothing: then it is in words only.
        near = math.isfinite(stated) and stated <= 4 * max(bound.ceiling for bound in bounds)
        figures.append(Bars(f"Audited epsilon of one {unit}", words, tuple(bound.method for bound in bounds),
                            tuple(bound.value for bound in bounds), "", "audited epsilon", marks,
                            {"stated": stated} if near else {}))  # fmt: skip
    return tuple(figures)
