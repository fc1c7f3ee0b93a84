"""Which sites fit together: what each does to the answers for rows of the others, by leaving it out."""

import math

from kernfed.report.content import Fact, PageTable, Section, site_table
from kernfed.report.evidence import Evidence
from kernfed.testing.harm import LEVEL, Influence, Influences

#: Sites that stand open where there are many.
_WORST = 10
_COLUMNS = ("site left out", "accuracy for the others, points", "labels that change", "loss saved", "chance", "verdict")


def influence_of(evidence: Evidence) -> Influences | None:
    """What was measured, of a classifier or a regressor."""
    tested = evidence.evaluation if evidence.evaluation is not None else evidence.regression
    return None if tested is None else tested.influence


def influence_fact(evidence: Evidence) -> tuple[Fact, ...]:
    """Who was named, for the top of the page."""
    measured = influence_of(evidence)
    if measured is None:
        return ()
    named = measured.named
    listed = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return (Fact("Sites that do not fit", listed or "none", f"of {len(measured.sites)}, by leaving each out"),)


def influence_section(evidence: Evidence) -> Section | None:
    """The sites that harm others most first, with what was done and what it cannot show."""
    measured = influence_of(evidence)
    if measured is None:
        return None
    words = [
        f"{measured.words()[:1].upper()}{measured.words()[1:]}.",
        "Every site was left out of the model once, and the answers for rows of all others were compared: a site is "
        f"named where these are better without it by more than chance ({LEVEL:.0%} for any honest one, if rows were "
        f"independent) and by more than sites differ anyway. Rows of a site say nothing of itself{_unheard(measured)}.",
        "A site that is named may lie, or its labels, units or patients differ: look before you leave it out. One that "
        "is not named may still lie, as long as that harms nobody whose rows were tested.",
    ]
    if not measured.head:
        words.append("The head of the model was left as it is: only sites can tell the sums without one of them.")
    hidden = tuple(own for own in measured.together if own.named)
    listed = (*hidden, *measured.sites)
    tables: tuple[PageTable, ...]
    if len(listed) > 2 * _WORST:
        open_rows = tuple(_row(own) for own in listed[:_WORST])
        tables = (
            PageTable(_COLUMNS, open_rows, f"The {_WORST} without which the others would be best off"),
            site_table(_COLUMNS, [_row(own) for own in listed], "Sites left out"),
        )
    else:
        tables = (PageTable(_COLUMNS, tuple(_row(own) for own in listed), "Sites left out"),)
    return Section("Who fits, and who does not", tuple(words), tables=tables)


def _unheard(measured: Influences) -> str:
    """Which of those who count are not heard."""
    if not measured.liars:
        return ""
    if measured.liars == 1:
        return ", and the tester that speaks most against it is not heard, nor the one that speaks most for it"
    return f", and the {measured.liars} testers that speak most against it are not heard, nor those most for it"


def _row(own: Influence) -> tuple[str, ...]:
    points = "" if math.isnan(own.points) else f"{round(100 * own.points, 2) + 0.0:+.2f}"
    chance = "too few rows" if own.p_value is None else "above 10 %" if own.p_value > 0.1 else f"{own.p_value:.2g}"
    verdict = "does not fit" if own.named else "."
    return (" with ".join(own.sites), points, f"{own.moved:.1%}", f"{own.gain:+.4f}", chance, verdict)
