"""The page of an inspected site: what it can be made to tell, to whom, at which epsilon. An officer signs it."""

from kernfed.report.content import Fact, PageTable, ReportData, Section
from kernfed.report.markdown import render_markdown
from kernfed.testing.verify.inspection import REMAINING, Inspection, TaskLine, policy_lines

#: How the outcome of an attack is written.
_HELD = {True: "held", False: "LEAKS", None: "does not apply"}


def site_report(inspection: Inspection) -> ReportData:
    """The page of an inspection."""
    policy, check = inspection.policy, inspection.check
    cap = "none" if policy.max_record_epsilon is None else f"{policy.max_record_epsilon:g}"
    facts = (
        Fact("verdict", "holds" if inspection.holds else "leaks", f"{len(inspection.leaks)} findings"),
        Fact("epsilon of a person", cap, f"at delta {policy.record_delta:g}, over all releases"),
        Fact("pairs of sites", f"{check.pairs:,}", f"{check.questions:,} questions each"),
        Fact("attacks", str(len(inspection.outcomes)), f"{sum(o.held is False for o in inspection.outcomes)} worked"),
    )
    return ReportData(
        "site", f"What site {inspection.site!r} can be made to tell", inspection.verdict, facts, _sections(inspection)
    )


def site_page(inspection: Inspection) -> str:
    """The page as Markdown."""
    page = site_report(inspection)
    return render_markdown(page.title, page.lead, page.sections)


def _sections(inspection: Inspection) -> tuple[Section, ...]:
    nothing = "Of all that was tried, nothing that left depended on rows other than through a release."
    told = _told(_ordered(inspection))
    attacks = tuple((outcome.attack, _HELD[outcome.held], outcome.told) for outcome in inspection.outcomes)
    valid = "Valid for this policy, this version of kernfed and these columns; inspect again when one of them changes."
    return (
        Section("What was found", () if inspection.leaks else (nothing,), points=inspection.leaks),
        Section("What each question tells", tables=(PageTable(("question", "what it tells", "why"), told),)),
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


def _told(lines: list[TaskLine]) -> tuple[tuple[str, str, str], ...]:
    """A row for each question that is answered, and one for all that are refused for the same reason."""
    rows = [(line.task, line.verdict, line.why) for line in lines if line.verdict != "refused"]
    reasons = dict.fromkeys(line.why for line in lines if line.verdict == "refused")
    for why in reasons:
        names = [line.task for line in lines if (line.verdict, line.why) == ("refused", why)]
        rows.append((", ".join(names), "refused", why))
    return tuple(rows)


def _ordered(inspection: Inspection) -> list[TaskLine]:
    """What tells most comes first."""
    order = {"rows as they are": 0, "released": 1, "public": 2, "refused": 3}
    return sorted(inspection.tasks, key=lambda line: (order[line.verdict], line.task))
