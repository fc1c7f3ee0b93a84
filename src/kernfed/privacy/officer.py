"""One page for a privacy officer: what left, under which guarantee, what attacks achieved, what is not promised."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kernfed.errors import InputError
from kernfed.privacy.audit import AuditReport, attack_limit, stated_epsilon
from kernfed.privacy.lower_bound import round_down
from kernfed.privacy.roc import Attack
from kernfed.promise import Guarantee, delta_words, round_up

_COLUMNS = ("site", "task", "information", "messages", "bytes_up", "scalars_up")
_UNITS = {"element": "One element (a single number of a row)", "record": "One record (a whole row, a person)"}


def officer_page(report: AuditReport, traffic: Iterable[Mapping[str, Any]] | None = None) -> str:
    """The report as a page of Markdown in plain words.

    ``traffic``: what left each site, one mapping per site and task with the keys site, task, information, messages,
    bytes_up and scalars_up, as a federation's ``traffic.to_json()`` gives it.
    """
    if not isinstance(report, AuditReport):
        raise InputError(f"report must be an AuditReport, got {type(report).__name__}")
    parts = (
        f"# Privacy of {_cell(report.subject)}",
        f"**In one line.** {_cell(report.verdict)}",
        "## What left",
        _what_left(report.released, traffic),
        "## Under which guarantee",
        _guarantees(report),
        "## What attacks achieved",
        _attacks(report),
        "## Does the audit agree with the guarantee?",
        _bounds(report),
        "## What is not promised",
        _not_promised(report),
    )
    return "\n\n".join(parts) + "\n"


def _what_left(released: str, traffic: Iterable[Mapping[str, Any]] | None) -> str:
    """The release, whose numbers everyone may have, and the messages that were counted."""
    if not released:
        return _messages(traffic)
    words = (
        f"The release is {_cell(released)}. The guarantee is for all of them together, and the attacks see all: count "
        "them as having left. Where machines stay at the sites, only what is computed from the release leaves; a model "
        "that holds its machines contains rows of the release, or fabricated from it."
    )
    if not traffic:
        return words
    return f"{words}\n\nMessages while a model was made of the release, before any query:\n\n{_messages(traffic)}"


def _messages(traffic: Iterable[Mapping[str, Any]] | None) -> str:
    if traffic is None:
        return "No record of traffic was given with this audit. What left is what the title names."
    entries = list(traffic)
    for entry in entries:
        if not isinstance(entry, Mapping) or not set(_COLUMNS) <= set(entry):
            raise InputError(f"traffic must be mappings with the keys {', '.join(_COLUMNS)}, got {entry!r}")
    if not entries:
        return "Nothing left any site."
    head = ("site", "question asked", "kind of answer", "messages", "bytes", "numbers")
    rows = [[_cell(entry[column]) for column in _COLUMNS] for entry in entries]
    total = f"In all {sum(int(entry['bytes_up']) for entry in entries):,} bytes left the sites."
    return f"{_table(head, rows)}\n\n{total}"


def _guarantees(report: AuditReport) -> str:
    lines = [f"- **{_UNITS[g.unit]}.** {_promise(g)}" for g in (report.element, report.record)]
    if not report.private:
        lines.append(
            "- **The release is marked not private (its noise came from a seed, or a step looked at the raw "
            "rows): neither guarantee holds.**"
        )
    return "\n".join(lines)


def _promise(guarantee: Guarantee) -> str:
    if math.isinf(guarantee.epsilon):
        return f"No guarantee at delta {delta_words(guarantee.delta)} for {_cell(guarantee.adjacency)}."
    worth = protection(guarantee)
    return (
        f"Differential privacy with epsilon {stated_epsilon(guarantee)} and delta {delta_words(guarantee.delta)} for "
        f"{_cell(guarantee.adjacency)}. An attacker who knows everything else, and to whom both cases are equally "
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


def _attacks(report: AuditReport) -> str:
    if not report.attacks:
        return "No attack was tried."
    rates = sorted({point.rate for attack in report.attacks for point in attack.roc.points})
    head = ("attack", "the attacker knows", "score", *(f"found at {100 * rate:g} % false alarms" for rate in rates))
    rows = [_attack_row(attack, rates) for attack in report.attacks]
    words = (
        "An attack tells people who are in the data from people who are not. A score (area under the curve) of 0.5 is "
        "guessing, 1 is certainty. The last columns say what share of the people in the data is found when that share "
        "of all others is wrongly named. Brackets hold the true value with "
        f"{100 * report.attacks[0].roc.confidence:g} % confidence."
    )
    text = f"{_table(head, rows)}\n\n{words}"
    if report.membership is not None:
        chance = "no more than chance gives" if report.membership.p_value > 0.05 else "more than chance gives"
        text += (
            f"\n\nMembership score of the published method, for comparison: {report.membership.value:.3g}, which is "
            f"{chance} (p = {report.membership.p_value:.3g}). It does not see a small group of exposed people."
        )
    return text


def _attack_row(attack: Attack, rates: list[float]) -> list[str]:
    low, high = attack.roc.auc_interval
    found = {
        point.rate: f"{100 * point.tpr:.3g} % [{100 * point.interval[0]:.3g}, {100 * point.interval[1]:.3g}]"
        for point in attack.roc.points
    }
    score = f"{attack.roc.auc:.3f} [{low:.3f}, {high:.3f}]"
    return [_cell(attack.name), _cell(attack.knows), score, *(found.get(rate, "not measured") for rate in rates)]


def _bounds(report: AuditReport) -> str:
    if not report.bounds:
        return _untested(report)
    rows = [
        [
            bound.unit,
            _cell(bound.method),
            f"{round_down(bound.value):g}",
            stated_epsilon(getattr(report, bound.unit)),
            f"{bound.ceiling:.3g}",
            f"{bound.trials:,}",
        ]
        for bound in report.bounds
    ]
    head = ("unit", "judged by", "audited epsilon is at least", "stated epsilon", "most that could show", "trials")
    words = (
        "An audited epsilon above the stated one would prove the guarantee wrong. One below does not prove it right: "
        "the guarantee rests on mathematics, the audit looks for mistakes in carrying it out."
    )
    return f"{_table(head, rows)}\n\n{words}"


def _untested(report: AuditReport) -> str:
    """What cannot be concluded without a bound, and who can."""
    if math.isinf(report.record.epsilon):
        return (
            "No guarantee for a record is claimed, so there is none to agree with. The attacks above succeed to the "
            "degree shown; others may do better, and nothing bounds by how much."
        )
    return (
        "This was not tested. A bound on epsilon needs many draws of the noise with and without a row, and here it was "
        "drawn once. The stated guarantee allows attacks on a record an area under the curve of "
        f"{attack_limit(report.record):.3f} on average over the noise; figures above that are a reason to audit the "
        "mechanism itself, figures below it prove nothing."
    )


def _not_promised(report: AuditReport) -> str:
    lines = [
        "Labels, names of classes and how many rows each has are public unless they were randomised too.",
        "What can be learned about a group of people, also about somebody who is not in the data, is not hidden.",
        "People with several rows are protected less: each row counts.",
        "A second release from the same rows adds to the first; a ledger keeps the sum.",
        "A site is not protected against its own staff, who see the rows.",
    ]
    if report.attacks or report.bounds:
        lines.append(
            "The attacks are those listed; that none worked does not mean that none can. Their figures come "
            "from the raw rows and are not protected by the guarantee: give this page only to those who may "
            "know them."
        )
    if report.record.epsilon > report.element.epsilon:
        lines.insert(
            0,
            "The guarantee for one element is not one for a person: a whole row has the weaker guarantee "
            "for one record above.",
        )
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    """Text that stays in its place on a page: on one line, with nothing that Markdown or HTML would read as its own."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    text = " ".join(text.split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(sign, safe)
    return text
