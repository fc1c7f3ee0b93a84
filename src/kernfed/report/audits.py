"""Report of an audit: what is promised, what attacks achieved, and whether the two agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from kernfed.base.checks import check_choice
from kernfed.errors import InputError
from kernfed.privacy.audit import AuditReport, stated_epsilon
from kernfed.privacy.roc import Attack
from kernfed.promise import UNITS, Guarantee, delta_words
from kernfed.report.content import SHARE, Bars, Fact, Figure, ReportData
from kernfed.report.officer import officer_sections, protection, release_words, told_apart
from kernfed.report.sections import traffic_section

_KEYS = {"subject", "element", "record", "attacks", "bounds"}
#: What audits of earlier versions do not have; each may be None.
_LATER = {"total", "detects", "mu"}
#: What JSON may have for a plain type, and how that is called.
_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a finite number"),
}


def is_audit(values: Any) -> bool:
    """Whether plain values look like ``AuditReport.to_json``, perhaps damaged."""
    return isinstance(values, Mapping) and len(_KEYS & set(values)) >= 3


def audit_from_json(values: Mapping[str, Any]) -> AuditReport:
    """An ``AuditReport`` again from its ``to_json``; a field that is missing or of another kind is refused by name."""
    if not is_audit(values):
        raise InputError(f"an audit must have {', '.join(sorted(_KEYS))}, got {', '.join(sorted(map(str, values)))}")
    try:
        audit: AuditReport = _decoded(AuditReport, values, "")
        for place, bound in enumerate(audit.bounds):
            check_choice(bound.unit, f"bounds[{place}].unit", UNITS)
    except ValueError as error:
        raise InputError(f"the audit is damaged: {error}") from None
    return audit


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as the type ``kind``: a frozen dataclass, a tuple, one of ``_PLAIN``, or None where allowed."""
    options = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else _decoded(options[0], value, where)
    if get_origin(kind) is tuple:
        return _decoded_items(options, value, where)
    if kind is Guarantee and isinstance(value, Mapping) and value.get("epsilon", 0) is None:
        return replace(_decoded(kind, {**value, "epsilon": 0}, where), epsilon=math.inf)  # JSON has no infinity
    if is_dataclass(kind):
        return _decoded_fields(kind, value, where)
    types, words = _PLAIN[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is float and not math.isfinite(value)):
        raise InputError(f"{where} must be {words}, got {value!r:.80}")
    return value


def _decoded_items(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, got {value!r:.80}")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise InputError(f"{where} must have {len(kinds)} entries, got {len(value)}")
    return tuple(
        _decoded(kind, entry, f"{where}[{place}]") for place, (kind, entry) in enumerate(zip(kinds, value, strict=True))
    )


def _decoded_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object, got {value!r:.80}")
    hints = get_type_hints(kind)
    start = f"{where}." if where else ""
    for name in hints:
        if name not in value and name not in _LATER:
            raise InputError(f"{start}{name} is missing")
    parts = {name: _decoded(hint, value.get(name), start + name) for name, hint in hints.items()}
    try:
        return kind(**parts)
    except ValueError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def audit_report(audit: AuditReport, traffic: Sequence[Mapping[str, Any]] = ()) -> ReportData:
    """The officer's page with figures; ``traffic`` as ``Traffic.to_json`` gives it, where it is known what left."""
    left, guarantee, attacks, agreement, limits = officer_sections(audit, traffic or None)
    messages = traffic_section(traffic)
    if messages is not None:
        left = replace(messages, words=(*release_words(audit.released, counted=True), *messages.words))
    sections = (
        left,
        guarantee,
        replace(attacks, figures=_attack_figures(audit)),
        replace(agreement, figures=_bound_figures(audit)),
        limits,
    )
    return ReportData("audit", f"Privacy of {audit.subject}", _sentence(audit.verdict), _facts(audit), sections)


def _sentence(verdict: str) -> str:
    return f"{verdict[:1].upper()}{verdict[1:]}."


def _facts(audit: AuditReport) -> tuple[Fact, ...]:
    facts = []
    if audit.total is not None:
        words = f"at δ {delta_words(audit.total.delta)}, by the ledgers"
        facts.append(Fact("All releases", f"ε {stated_epsilon(audit.total)}", words))
    for name, guarantee in (("element", audit.element), ("record", audit.record)):
        kept = "as stated" if audit.private else "stated, and does not hold"
        words = f"at δ {delta_words(guarantee.delta)}, {kept}"
        claimed = math.isfinite(guarantee.epsilon)
        facts.append(Fact(f"One {name}", f"ε {stated_epsilon(guarantee)}", words if claimed else "none is claimed"))
    if audit.attacks:
        best = max(audit.attacks, key=lambda attack: attack.roc.auc)
        facts.append(Fact("Best attack", f"{best.roc.auc:.3f}", f"{best.name}; guessing is 0.5, certainty 1"))
    if audit.bounds:
        words = "the stated guarantee is false" if audit.contradicted else "the guarantee may be true"
        facts.append(Fact("Contradicted", "yes" if audit.contradicted else "no", words))
    return (*facts, _worst_case(audit))


def _worst_case(audit: AuditReport) -> Fact:
    """What the guarantee of a record allows at worst: no yes or no could say it."""
    name, worth = "Right about a person", protection(audit.worst)
    if not audit.private:
        return Fact(name, "no limit", "the release is marked not private: neither guarantee holds")
    if math.isinf(audit.worst.epsilon):
        return Fact(name, "no limit", "no guarantee is claimed for one record")
    note = f"of guesses at worst{f': {worth}' if worth else ''}; chance gives 50 %"
    return Fact(name, told_apart(audit.worst), note)


def _attack_figures(audit: AuditReport) -> tuple[Figure, ...]:
    if not audit.attacks:
        return ()
    ordered = sorted(audit.attacks, key=lambda attack: -attack.roc.auc)
    names = tuple(attack.name for attack in ordered)
    words = (
        f"Area under the curve of each attack; the best, {names[0]}, has {ordered[0].roc.auc:.3f}. Guessing has 0.5."
    )
    figures: list[Figure] = [
        Bars(
            "How well attacks tell members from others",
            words,
            names,
            tuple(a.roc.auc for a in ordered),
            unit="",
            value_name="area under the curve",
            lines={"guessing": 0.5},
            intervals=tuple(attack.roc.auc_interval for attack in ordered),
        )
    ]
    rates = sorted({point.rate for attack in ordered for point in attack.roc.points})
    if rates:
        figures.append(_found_bars(ordered, rates[0]))
    return tuple(figures)


def _found_bars(attacks: Sequence[Attack], rate: float) -> Bars:
    """Members found at the smallest rate of false alarms: the few who are exposed."""
    points = [(attack.name, point) for attack in attacks for point in attack.roc.points if point.rate == rate]
    words = (
        f"Share of members found when at most {100 * rate:g} % of all others are named wrongly; "
        f"guessing finds {100 * rate:g} %."
    )
    return Bars(
        f"Found at {100 * rate:g} % false alarms",
        words,
        tuple(name for name, _ in points),
        tuple(point.tpr for _, point in points),
        SHARE,
        "found",
        intervals=tuple(point.interval for _, point in points),
    )


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
        figures.append(
            Bars(
                f"Audited epsilon of one {unit}",
                words,
                tuple(bound.method for bound in bounds),
                tuple(bound.value for bound in bounds),
                "",
                "audited epsilon",
                marks,
                {"stated": stated} if near else {},
            )
        )
    return tuple(figures)
