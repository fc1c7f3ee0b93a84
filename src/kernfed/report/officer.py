"""The privacy officer's page of an audit: what left, under which guarantee, what attacks achieved, if they agree.

The words are written here once, as sections made of data; ``pages.py`` only sets them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernfed.errors import InputError
from kernfed.privacy.audit import AuditReport, attack_limit, stated_epsilon
from kernfed.privacy.lower_bound import round_down
from kernfed.privacy.roc import Attack
from kernfed.promise import Guarantee, delta_words, round_up
from kernfed.report.content import SHARE, Assumption, Bars, Claim, Fact, Figure, PageTable, ReportData, Section
from kernfed.report.evidence import check_traffic
from kernfed.report.pages import render_markdown
from kernfed.report.sections import traffic_section

_COLUMNS = ("site", "task", "information", "messages", "bytes_up", "scalars_up")
_UNITS = {"element": "One element (a single number of a row)", "record": "One record (a whole row, a person)"}
_NOT_PRIVATE = (
    "The release is marked not private (its noise came from a seed, or a step looked at the raw rows): neither "
    "guarantee holds."
)


def officer_page(report: AuditReport, traffic: Iterable[Mapping[str, Any]] | None = None) -> str:
    """An audit as a page of Markdown in plain words.

    ``traffic``: what left each site, one mapping per site and task with the keys site, task, information, messages,
    bytes_up and scalars_up, as a federation's ``traffic.to_json()`` gives it.
    """
    sections = officer_sections(report, traffic)  # also checks that it is an audit
    return render_markdown(ReportData("audit", f"Privacy of {report.subject}", report.verdict, sections=sections))


def officer_sections(audit: AuditReport, traffic: Iterable[Mapping[str, Any]] | None = None) -> tuple[Section, ...]:
    """The officer's page of an audit; ``traffic`` as in ``officer_page``."""
    if not isinstance(audit, AuditReport):
        raise InputError(f"report must be an AuditReport, got {type(audit).__name__}")
    return (
        _what_left(audit.released, traffic),
        Section(
            "Under which guarantee",
            () if audit.private else (_NOT_PRIVATE,),
            claims=_claims(audit),
        ),
        _attacks(audit),
        _agreement(audit),
        Section(
            "What is not promised",
            points=not_promised(audit.element, audit.record, attacked=bool(audit.attacks or audit.bounds)),
        ),
    )


# Guarantees -------------------------------------------------------------------------------------------------------


def guarantee_claims(element: Guarantee, record: Guarantee, *, private: bool = True) -> tuple[Claim, Claim]:
    """What is promised for one element and for one record, and whether it can be relied on."""
    return _guarantee_claim(element, private), _guarantee_claim(record, private)


def _claims(audit: AuditReport) -> tuple[Claim, ...]:
    """What all releases together leave a person with, where that is known, before what this one promises by itself.

    An attacker has all of them, so that how often one is right is said of the total and of nothing less.
    """
    single = guarantee_claims(audit.element, audit.record, private=audit.private)
    if audit.total is None:
        return single
    total = replace(_guarantee_claim(audit.total, audit.private), title="All releases of a site together")
    words = "Of this release alone: "
    pairs = zip(single, (audit.element, audit.record), strict=True)
    return (total, *(replace(claim, statement=words + _pair_words(guarantee)) for claim, guarantee in pairs))


def _guarantee_claim(guarantee: Guarantee, private: bool) -> Claim:
    holds, worth = private and math.isfinite(guarantee.epsilon), protection(guarantee)
    status = "no guarantee"
    if holds:
        status = f"holds, and is {worth}" if worth else "differential privacy"
    given = () if holds else (Assumption("the noise is secret, and no step looked at the raw rows", private),)
    return Claim(_UNITS[guarantee.unit], _promised(guarantee), status, holds and not worth, assumptions=given)


def _pair_words(guarantee: Guarantee) -> str:
    """Epsilon, delta and for whom they are, in a sentence."""
    if math.isinf(guarantee.epsilon):
        return f"No guarantee at delta {delta_words(guarantee.delta)} for {guarantee.adjacency}."
    return (
        f"Differential privacy with epsilon {stated_epsilon(guarantee)} and delta {delta_words(guarantee.delta)} for "
        f"{guarantee.adjacency}."
    )


def _promised(guarantee: Guarantee) -> str:
    if math.isinf(guarantee.epsilon):
        return _pair_words(guarantee)
    worth = protection(guarantee)
    return (
        f"{_pair_words(guarantee)} An attacker who knows everything else, and to whom both cases are equally "
        f"likely, tells which is true in at most {told_apart(guarantee)} of cases; guessing is right in 50 %."
        + (f" That is {worth}." if worth else "")
    )


def told_apart(guarantee: Guarantee) -> str:
    """Per cent of cases, at most, in which an attacker tells two equally likely neighbours apart, rounded up.

    >>> told_apart(Guarantee(1.0, 0.0, "record", "one row replaced by any other"))
    '73.11 %'
    """
    return f"{min(round_up(100 * _right(guarantee)), 100.0):g} %"


def protection(guarantee: Guarantee) -> str:
    """The verdict on an epsilon that is too large to protect; empty for others."""
    right = _right(guarantee)
    return "no protection" if right > 0.9999 else "little protection" if right > 0.99 else ""


def _right(guarantee: Guarantee) -> float:
    """The best test of two equally likely cases is right with probability (e^epsilon + delta)/(e^epsilon + 1)."""
    return (1.0 + guarantee.delta * math.exp(-guarantee.epsilon)) / (1.0 + math.exp(-guarantee.epsilon))


def not_promised(element: Guarantee, record: Guarantee, *, attacked: bool = False) -> tuple[str, ...]:
    """What no guarantee says; ``attacked`` where figures of attacks stand beside."""
    weaker = (
        "The guarantee for one element is not one for a person: a whole row has the weaker guarantee for one record "
        "above.",
    )
    figures = (
        "The attacks are those listed; that none worked does not mean that none can. Their figures come from the raw "
        "rows and are not protected by the guarantee: give this page only to those who may know them.",
    )
    return (
        *(weaker if record.epsilon > element.epsilon else ()),
        "Labels, names of classes and how many rows each has are public unless they were randomised too.",
        "What can be learned about a group of people, also about somebody who is not in the data, is not hidden.",
        "People with several rows are protected less: each row counts.",
        "A second release from the same rows adds to the first; a ledger keeps the sum.",
        "A site is not protected against its own staff, who see the rows.",
        *(figures if attacked else ()),
    )


# What left --------------------------------------------------------------------------------------------------------


def release_words(released: str, *, counted: bool) -> tuple[str, ...]:
    """The release, whose numbers everyone may have, and whether messages were ``counted`` beside it."""
    if not released:
        return ()
    words = (
        f"The release is {released}. The guarantee is for all of them together, and the attacks see all: count "
        "them as having left. Where machines stay at the sites, only what is computed from the release leaves; a model "
        "that holds its machines contains rows of the release, or fabricated from it."
    )
    return (words, "Messages while a model was made of the release, before any query:") if counted else (words,)


def _what_left(released: str, traffic: Iterable[Mapping[str, Any]] | None) -> Section:
    title, entries = "What left", None if traffic is None else check_traffic(list(traffic), _COLUMNS)
    words = release_words(released, counted=bool(entries))
    if entries:
        total = f"In all {sum(entry['bytes_up'] for entry in entries):,} bytes left the sites."
        return Section(title, (*words, total), tables=(_messages_table(title, entries),))
    if not words:
        none = "No record of traffic was given with this audit. What left is what the title names."
        words = (none if entries is None else "Nothing left any site.",)
    return Section(title, words)


def _messages_table(title: str, entries: Sequence[Mapping[str, Any]]) -> PageTable:
    head = ("site", "question asked", "kind of answer", "messages", "bytes", "numbers")
    rows = (
        (*(str(entry[name]) for name in _COLUMNS[:3]), *(f"{entry[name]:,}" for name in _COLUMNS[3:]))
        for entry in entries
    )
    return PageTable(head, tuple(rows), title)


# Attacks and bounds -----------------------------------------------------------------------------------------------


def _attacks(audit: AuditReport) -> Section:
    title = "What attacks achieved"
    if not audit.attacks:
        return Section(title, ("No attack was tried.",))
    rates = sorted({point.rate for attack in audit.attacks for point in attack.roc.points})
    head = ("attack", "the attacker knows", "score", *(f"found at {100 * rate:g} % false alarms" for rate in rates))
    rows = tuple(_attack_row(attack, rates) for attack in audit.attacks)
    words = [
        "An attack tells people who are in the data from people who are not. A score (area under the curve) of 0.5 is "
        "guessing, 1 is certainty. The last columns say what share of the people in the data is found when that share "
        "of all others is wrongly named. Brackets hold the true value with "
        f"{100 * audit.attacks[0].roc.confidence:g} % confidence."
    ]
    if audit.membership is not None:
        chance = "no more than chance gives" if audit.membership.p_value > 0.05 else "more than chance gives"
        words.append(
            f"Membership score of the published method, for comparison: {audit.membership.value:.3g}, which is "
            f"{chance} (p = {audit.membership.p_value:.3g}). It does not see a small group of exposed people."
        )
    return Section(title, tuple(words), tables=(PageTable(head, rows, title),))


def attack_score(attack: Attack) -> str:
    """Area under the curve of an attack, with its interval."""
    low, high = attack.roc.auc_interval
    return f"{attack.roc.auc:.3f} [{low:.3f}, {high:.3f}]"


def _attack_row(attack: Attack, rates: Sequence[float]) -> tuple[str, ...]:
    shares = {
        point.rate: f"{100 * point.tpr:.3g} % [{100 * point.interval[0]:.3g}, {100 * point.interval[1]:.3g}]"
        for point in attack.roc.points
    }
    return attack.name, attack.knows, attack_score(attack), *(shares.get(rate, "not measured") for rate in rates)


def _agreement(audit: AuditReport) -> Section:
    title = "Does the audit agree with the guarantee?"
    if not audit.bounds:
        return Section(title, (_untested(audit),))
    rows = tuple(
        (
            bound.unit,
            bound.method,
            f"{round_down(bound.value):g}",
            stated_epsilon(getattr(audit, bound.unit)),
            f"{bound.ceiling:.3g}",
            "none" if bound.detects is None else f"{bound.detects:.3g}",
            f"{bound.trials:,}",
        )
        for bound in audit.bounds
    )
    head = (
        "unit",
        "judged by",
        "audited epsilon is at least",
        "stated epsilon",
        "most that could show",
        "refuted from",
        "trials",
    )
    words = (
        "An audited epsilon above the stated one would prove the guarantee wrong. One below does not prove it right: "
        "the guarantee rests on mathematics, the audit looks for mistakes in carrying it out. A true epsilon as large "
        "as the column 'refuted from' says, or larger, would most likely have been found out by so many trials; a "
        "smaller one may pass."
    )
    return Section(title, (words,), tables=(PageTable(head, rows, title),))


def _untested(audit: AuditReport) -> str:
    """What cannot be concluded without a bound, and who can."""
    if math.isinf(audit.record.epsilon):
        return (
            "No guarantee for a record is claimed, so there is none to agree with. The attacks above succeed to the "
            "degree shown; others may do better, and nothing bounds by how much."
        )
    return (
        "This was not tested. A bound on epsilon needs many draws of the noise with and without a row, and here it was "
        "drawn once. The stated guarantee allows attacks on a record an area under the curve of "
        f"{attack_limit(audit.worst):.3f} on average over the noise; figures above that are a reason to audit the "
        "mechanism itself, figures below it prove nothing."
    )


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
    return ReportData("audit", f"Privacy of {audit.subject}", _sentence(audit.verdict), _audit_facts(audit), sections)


def _sentence(verdict: str) -> str:
    return f"{verdict[:1].upper()}{verdict[1:]}."


def _audit_facts(audit: AuditReport) -> tuple[Fact, ...]:
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
