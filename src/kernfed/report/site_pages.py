"""Pages about a site: what an inspection made it tell, and what it has forgotten."""

from collections.abc import Mapping, Sequence
from typing import Any

from kernfed.privacy.roc import Attack
from kernfed.report.content import Fact, PageTable, ReportData, Section
from kernfed.report.officer import attack_score
from kernfed.site.verification import BY_HASH, NOT_COMPARABLE, Verification
from kernfed.testing.verify.inspection import REMAINING, Inspection, TaskLine, policy_lines

#: How the outcome of an attack is written.
_HELD = {True: "held", False: "LEAKS", None: "does not apply"}


def site_report(inspection: Inspection) -> ReportData:
    """The page of an inspection, which an officer signs."""
    policy, check = inspection.policy, inspection.check
    cap = "none" if policy.max_record_epsilon is None else f"{policy.max_record_epsilon:g}"
    facts = (
        Fact("verdict", "holds" if inspection.holds else "leaks", f"{len(inspection.leaks)} findings"),
        Fact("epsilon of a person", cap, f"at delta {policy.record_delta:g}, over all releases"),
        Fact("pairs of sites", f"{check.pairs:,}", f"{check.questions:,} questions each"),
        Fact("attacks", str(len(inspection.outcomes)), f"{sum(o.held is False for o in inspection.outcomes)} worked"),
    )
    return ReportData(
        "site",
        f"What site {inspection.site!r} can be made to tell",
        inspection.verdict,
        facts,
        _inspection_sections(inspection),
    )


def _inspection_sections(inspection: Inspection) -> tuple[Section, ...]:
    nothing = "Of all that was tried, nothing that left depended on rows other than through a release."
    tasks = _task_rows(_ordered(inspection))
    attacks = tuple((outcome.attack, _HELD[outcome.held], outcome.told) for outcome in inspection.outcomes)
    valid = "Valid for this policy, this version of kernfed and these columns; inspect again when one of them changes."
    return (
        Section("What was found", () if inspection.leaks else (nothing,), points=inspection.leaks),
        Section("What each question tells", tables=(PageTable(("question", "what it tells", "why"), tasks),)),
        Section(
            "The policy", tables=(PageTable(("setting", "value"), tuple(policy_lines(inspection.policy).items())),)
        ),
        _noninterference(inspection),
        Section("Attacks", tables=(PageTable(("attack", "outcome", "what happened"), attacks),)),
        Section("What remains", points=REMAINING),
        Section("Signed", (valid,), points=("Name and date: ______________________________",)),
    )


def _noninterference(inspection: Inspection) -> Section:
    check = inspection.check
    tested = f"{inspection.tested_rows:,} of {inspection.rows:,}" if inspection.tested_rows < inspection.rows else "all"
    words = (
        f"{check.pairs:,} pairs of sites were asked the same {check.questions:,} questions, honest and crafted. One "
        f"has the rows of this site ({tested} rows, {inspection.columns:,} columns), the other one rows with the same "
        "public facts: huge, constant, equal, far away, nearly singular, or a trillionth off. What mechanisms release "
        "came from a tape, the same for both. Every reply has to be the same bytes, and every charge to the ledger the "
        "same."
    )
    asked = tuple(
        (task, f"{check.asked[task]:,}", f"{check.entered[task]:,}", f"{check.followed[task]:,}")
        for task in sorted(check.asked)
    )
    counts = PageTable(("question", "asked", "run", "followed"), asked, "Questions to each pair", folded=True)
    return Section("Noninterference", (words,), tables=(counts,))


def _task_rows(lines: list[TaskLine]) -> tuple[tuple[str, str, str], ...]:
    """A row for each question that is answered, and one for all that are refused for the same reason."""
    rows = [(line.task, line.verdict, line.why) for line in lines if line.verdict != "refused"]
    reasons = dict.fromkeys(line.why for line in lines if line.verdict == "refused")
    for why in reasons:
        names = [line.task for line in lines if (line.verdict, line.why) == ("refused", why)]
        rows.append((", ".join(names), "refused", why))
    return tuple(rows)


def _ordered(inspection: Inspection) -> list[TaskLine]:
    """Questions of the inspection, those that tell most first."""
    order = {"rows as they are": 0, "released": 1, "public": 2, "refused": 3}
    return sorted(inspection.tasks, key=lambda line: (order[line.verdict], line.task))


#: Receipts that a page lists, the newest.
_LISTED = 50
_REMAINING = (
    "Whoever was sent machines, scores or released rows before a row was forgotten still has them: a receipt is about "
    "what the site keeps. A model file that holds machines is checked with --model.",
    "What was released under differential privacy stays released, and stays paid; the ledger has it.",
    "Choices that had seen a row stay as they were unless the table says that they were made anew: a division into "
    "batches, a unit or a weight carries a little of all rows it was chosen by.",
    "The site itself signs. A receipt shows that it has said so, and that it can be held to it; nobody outside can see "
    "whether it keeps a copy of its rows elsewhere.",
)


def forgetting_report(verification: Verification, attacks: Mapping[str, tuple[Attack, Attack]]) -> ReportData:
    """The page of a verification; ``attacks`` before and after forgetting, by the name of what was attacked."""
    counts = verification.to_json()
    facts = (
        Fact("verdict", "holds" if verification.holds else "does not hold", f"{len(verification.problems)} findings"),
        Fact("rows forgotten", f"{counts['forgotten']:,}", "as receipts say"),
        Fact("receipts", f"{counts['receipts']:,}", "signed and chained"),
    )
    lead = (
        "Every receipt is signed and follows from the one before, and what the site keeps is what they say."
        if verification.holds
        else "Something is not as the receipts say; see the findings."
    )
    title = f"What site {verification.site!r} has forgotten"
    return ReportData("forgetting", title, lead, facts, _sections(verification, attacks))


def _sections(verification: Verification, attacks: Mapping[str, tuple[Attack, Attack]]) -> tuple[Section, ...]:
    nothing = "Of all that was checked, nothing is otherwise than the receipts say."
    return (
        Section("What was found", () if verification.problems else (nothing,), points=tuple(verification.problems)),
        _receipts(verification.check.receipts),
        _made_again(verification),
        _attacked(attacks),
        _choices(verification.check.receipts),
        Section("What remains", points=_REMAINING),
        Section("Notes", (f"Head of the receipts: {verification.check.head or 'none'}",), points=_notes(verification)),
    )


def _notes(verification: Verification) -> tuple[str, ...]:
    keys = tuple(f"Key that signs: {key}" for key in verification.check.keys)
    return (*keys, *dict.fromkeys([*verification.notes, *([verification.model] if verification.model else [])]))


def _receipts(receipts: Sequence[Mapping[str, Any]]) -> Section:
    rows = tuple(
        (
            str(receipt["n"]),
            str(receipt["time"])[:19].replace("T", " "),
            str(receipt["event"]),
            f"{len(receipt['ids']):,}",
            f"{sum(entry['fitted'] or 0 for entry in receipt['touched']):,}",
            f"{sum(entry['after'] is None for entry in receipt['touched']):,}",
            str(receipt["after"]["state"])[:12],
        )
        for receipt in receipts[-_LISTED:]
    )
    head = ("line", "time (UTC)", "what", "rows", "machines fitted again", "things deleted", "state after")
    words = f"The newest {_LISTED} of {len(receipts):,}." if len(receipts) > _LISTED else ""
    return Section("Receipts", (words,) if words else (), tables=(PageTable(head, rows, "Receipts"),))


def _made_again(verification: Verification) -> Section:
    title = "Made again from the rows that are left"
    if not verification.remade:
        return Section(title, ("Nothing was made again: the site's rows were not given, or it keeps nothing.",))
    rows = tuple((entry.name, str(entry.generation), entry.verdict, entry.why) for entry in verification.remade)
    words = (
        "What the site keeps was made again from the rows that it still holds, by the choices that it records: "
        f"'same' means every bit. '{NOT_COMPARABLE}' is no finding: it was computed on another machine. "
        f"'{BY_HASH}' was held against its receipt only."
    )
    head = ("what", "generation", "outcome", "why")
    return Section(title, (words,), tables=(PageTable(head, rows, title),))


def _attacked(attacks: Mapping[str, tuple[Attack, Attack]]) -> Section:
    title = "A membership attack before and after"
    if not attacks:
        return Section(title, ("No attack was tried: there are too few rows, or no machines of rows as they are.",))
    rows = tuple(
        (name, attack.name, attack_score(attack), f"{attack.roc.members:,}", attack.knows)
        for name, pair in attacks.items()
        for attack in pair
    )
    words = (
        "Rows of the site were forgotten on trial, in memory, by the same steps as a person's row is. The attack tells "
        "them from rows that were never in. A score (area under the curve) of 0.5 is guessing, 1 is certainty; "
        f"brackets hold the true value with {100 * next(iter(attacks.values()))[0].roc.confidence:g} % confidence."
    )
    head = ("what", "forgetting", "score", "rows", "the attacker knows")
    return Section(title, (words,), tables=(PageTable(head, rows, title),))


def _choices(receipts: Sequence[Mapping[str, Any]]) -> Section:
    """Choices of the newest receipt that has some."""
    title = "Choices that had seen the rows"
    newest = next((receipt for receipt in reversed(receipts) if receipt["choices"]), None)
    if newest is None:
        return Section(title, ("Receipts name none.",))
    words = {True: "made anew", False: "as before", None: "with the model, or when next asked"}
    rows = tuple(
        (str(entry["choice"]), str(entry["of"]), str(entry.get("value") or ""), words.get(entry["anew"], "?"))
        for entry in newest["choices"]
    )
    head = ("choice", "of", "value", "made anew?")
    return Section(title, (f"As of line {newest['n']}.",), tables=(PageTable(head, rows, title),))
