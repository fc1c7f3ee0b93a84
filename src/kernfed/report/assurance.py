"""What can be relied on: privacy in plain words, bounds with their assumptions, coverage, and which sites fit."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kernfed.abstain import BINS, Coverage
from kernfed.base.model import Model
from kernfed.guarantees import STATUSES, Bound, HeldOutBounds, conformal_miscoverage
from kernfed.guarantees.bound import grouped_theorems
from kernfed.promise import Terms, round_up
from kernfed.report.content import SHARE, Assumption, Claim, Fact, PageTable, Section, listed, site_table, written
from kernfed.report.evidence import CONFIDENCE, Evidence, all_bounds
from kernfed.report.officer import guarantee_claims, not_promised
from kernfed.testing.harm import LEVEL, Influence, Influences
from kernfed.testing.outcomes import Evaluation


def privacy_section(terms: Terms | None, words: Sequence[str]) -> Section:
    """The promise for one element and for one record, in the officer's words; without noise, that there is none.

    It holds: a model has terms only for what a ledger was charged with, and no ledger accepts what is not private.
    """
    if terms is None:
        none = "no noise was added, so differential privacy promises nothing"
        claims = tuple(
            Claim(f"One {unit}", f"For one {unit} ({meaning}) {none}.", "no guarantee", False)
            for unit, meaning in (("element", "a single number of a row"), ("record", "a whole row, a person"))
        )
        return Section("Privacy", tuple(words), claims=claims)
    labels = terms.labels_line()
    return Section(
        "Privacy",
        (*words, f"{labels[:1].upper()}{labels[1:]}."),
        claims=guarantee_claims(terms.element, terms.record),
        points=not_promised(terms.element, terms.record),
        tables=spent_tables(terms.spent),
    )


def spent_tables(spent: Mapping[str, tuple[float, float]]) -> tuple[PageTable, ...]:
    """What the ledger of each site has come to; no table where none is known."""
    rows = tuple(
        (site, f"{round_up(epsilon):g}", f"{round_up(delta):g}") for site, (epsilon, delta) in sorted(spent.items())
    )
    head = ("site", "epsilon of one record", "delta")
    return (site_table(head, rows, "What each site's ledger has come to, all releases together"),) if rows else ()


def bounds_section(known: Evidence, further: Iterable[Claim] = (), papers: Sequence[str] = ()) -> Section | None:
    """Held-out bounds, further claims, and what the theorems of these ``papers`` are worth."""
    claims = list(further)
    words: list[str] = []
    tables: list[PageTable] = []
    evaluation = known.evaluation
    if evaluation is not None and evaluation.pooled.rows:
        bounds = all_bounds(evaluation)
        claims.insert(0, bound_claim("Error over all sites", "The error on what comes later is", bounds.pooled))
        words.append(_heldout_words(evaluation.pooled.rows, bounds))
        if len(bounds.sites) > 1:
            tables.append(_bounds_table(evaluation, bounds))
    if known.checked:
        claims.append(_bounded_images(known.unbounded, known.checked))
    if papers:
        tables.append(_theorems_table(papers))
    return Section("Guarantees", tuple(words), claims=tuple(claims), tables=tuple(tables)) if claims or tables else None


def _heldout_words(rows: int, bounds: HeldOutBounds) -> str:
    """What is assumed, and why each bound is surer than all are together."""
    several = f"the {len(bounds.sites)} bounds for sites and the one for all" if len(bounds.sites) > 1 else "the bounds"
    return (
        f"From {rows:,} held-out rows. Whatever the model and the kind of data, {several} are true together with "
        f"{CONFIDENCE:.0%} confidence if the conditions under them hold, which nobody can check from here. So that "
        "all are true at once each has to be surer than that: probability "
        f"{bounds.pooled.confidence:.4g}."
    )


def _bounded_images(unbounded: int, checked: int) -> Claim:
    """The condition on which the theorems about images and distances rest, as seen on the tested rows."""
    given = Assumption(
        f"the memberships of every machine have a positive sum, checked on {checked:,} queries"
        + (f": {unbounded:,} times they do not" if unbounded else ""),
        not unbounded,
    )
    statement = "Images are bounded by the rows of a machine, and distances compare as the papers say."
    return Claim(
        "Images and distances",
        statement,
        STATUSES["holds where sum(h) > 0"],
        not unbounded,
        "DP-KAHM Theorems 2-5, GIKM Theorems 1, 2 and 8, SFM Theorems 8-9",
        (given,),
    )


def _theorems_table(papers: Sequence[str]) -> PageTable:
    """Statements of these papers with their status; those of one kind share a row."""
    rows = tuple(
        (statement, function, STATUSES[status], remark)
        for statement, function, status, remark in grouped_theorems(papers)
    )
    head = ("statement", "function in kernfed.guarantees", "status", "remark")
    return PageTable(head, rows, "What the published theorems are worth", folded=True)


def bound_claim(title: str, beginning: str, bound: Bound, checks: Mapping[str, bool | None] | None = None) -> Claim:
    """A bound as a claim; ``checks`` says of an assumption whether it holds, where that is known, or adds one."""
    known = dict(checks or {})
    given = [Assumption(text, known.pop(text, None)) for text in bound.assumptions]
    given += [Assumption(text, holds) for text, holds in known.items()]
    chance = "" if bound.confidence == 1 else f", with probability {bound.confidence:.4g}"
    remark = bound.status.partition(":")[2].strip()
    status = STATUSES[bound.kind] + (f" ({remark})" if remark else "")
    return Claim(title, f"{beginning} {bound.statement}{chance}.", status, bound.reliable, bound.source, tuple(given))


def _bounds_table(evaluation: Evaluation, bounds: HeldOutBounds) -> PageTable:
    rows = [
        (
            site,
            f"{evaluation.sites[site].rows:,}",
            written(evaluation.sites[site].accuracy, SHARE),
            written(1 - bound.value, SHARE),
        )
        for site, bound in bounds.sites.items()
    ]
    return site_table(
        ("site", "rows", "accuracy", "accuracy is at least"),
        rows,
        "What each site can rely on, if the conditions above hold",
    )


#: Coverages that the page lists.
_COVERAGES = (0.8, 0.9, 0.95, 0.99)


def coverage_section(model: Model) -> Section | None:
    """Coverages and for whom they hold; None for a model that states none."""
    record = model.conformal_
    if record is None:
        return None
    words = [
        f"From {record.rows:,} rows of {record.sites} site(s) that were not trained on: a set of classes that it "
        "gives for a coverage has the true class of a new row with at least that probability, if the new row is drawn "
        "as these were and the model was fixed before they were counted. Nobody can check that from here."
    ]
    words += _noise_words(record, model)
    if record.unknown:
        words.append(
            f"{record.unknown:,} of the rows have labels that the model does not know. No set has them, so that the "
            "sets of the others are larger."
        )
    if record.nearest is not None:
        smallest = 1 / (1 + int(record.nearest.sum()))
        if record.privacy is not None:
            smallest = float(record.p_values(np.array([np.inf]))[0])
        words.append(
            "Queries that are stranger to all classes than these rows get a small p-value, at least "
            f"{smallest:.2g}; of rows drawn as these at most 1 in 100 has one of 0.01 or less."
        )
    if record.missing:
        words.append(f"Not counted: {', '.join(sorted(record.missing)[:20])}.")
    rows = tuple(
        (
            f"{coverage:.0%}",
            _surely(record, coverage),
            "yes, too few rows" if _full(record, model, coverage) else "no",
        )
        for coverage in _COVERAGES
    )
    head = ("coverage", f"with {CONFIDENCE:.0%} confidence at least", "are all classes in every set?")
    tables = [PageTable(head, rows, "Coverage")]
    claims: tuple[Claim, ...] = ()
    if record.privacy is not None:
        claims = guarantee_claims(record.privacy.element, record.privacy.record)
        tables += spent_tables(record.privacy.spent)
    return Section("What it says when it does not know", tuple(words), claims=claims, tables=tuple(tables))


def _noise_words(record: Coverage, model: Model) -> list[str]:
    """What noise on the counts means, and what a person has paid in all who is in training and in the counts."""
    if record.privacy is None:
        return []
    words = [
        "The counts have noise, so that they tell little of any row; what they promise is stated below. Thresholds are "
        "rounded to the safe side: the coverage holds with the noise, and sets are larger for it."
    ]
    if model.privacy is not None:
        epsilon, delta = record.privacy.with_row_in(model.privacy)
        words.append(
            "A row is either learned from or kept aside, and has the guarantee of the one release it is in. A person "
            f"with a row in each has epsilon {round_up(epsilon):g} at delta {round_up(delta * (1 - 1e-12)):g}."
        )
    return words


def _surely(record: Coverage, coverage: float) -> str:
    """The coverage that the threshold at hand has, but for an unlucky draw of the rows kept aside, or of noise."""
    risk = record.risk(coverage)
    return f"{1 - conformal_miscoverage(record.rows, coverage + risk, CONFIDENCE + risk).value:.1%}"


def _full(record: Coverage, model: Model, coverage: float) -> bool:
    return bool((record.thresholds(model.classes_, coverage) == BINS - 1).all())


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
    named = listed(measured.named, 3) or "none"
    return (Fact("Sites that do not fit", named, f"of {len(measured.sites)}, by leaving each out"),)


def influence_section(evidence: Evidence) -> Section | None:
    """The sites that harm others most first, with what was done and what it cannot show."""
    measured = influence_of(evidence)
    if measured is None:
        return None
    words = [
        f"{measured.words()[:1].upper()}{measured.words()[1:]}.",
        "Every site was left out of the model once, and the answers for rows of all others were compared: a site is "
        f"named where these are better without it by more than chance ({LEVEL:.0%} for any honest one, if rows were "
        "independent) and by more than sites differ anyway. Rows of a site say nothing of "
        f"itself{_not_counted(measured)}.",
        "A site that is named may lie, or its labels, units or patients differ: look before you leave it out. One that "
        "is not named may still lie, as long as that harms nobody whose rows were tested.",
    ]
    if not measured.head:
        words.append("The head of the model was left as it is: only sites can tell the sums without one of them.")
    rows = tuple(map(_influence_row, (*(pair for pair in measured.together if pair.named), *measured.sites)))
    tables = [PageTable(_COLUMNS, rows, "Sites left out")]
    if len(rows) > 2 * _WORST:
        worst = PageTable(_COLUMNS, rows[:_WORST], f"The {_WORST} without which the others would be best off")
        tables = [worst, site_table(_COLUMNS, rows, "Sites left out")]
    return Section("Who fits, and who does not", tuple(words), tables=tuple(tables))


def _not_counted(measured: Influences) -> str:
    """How many testers at either end do not count, as a clause."""
    if not measured.liars:
        return ""
    if measured.liars == 1:
        return ", and the tester that speaks most against it is not heard, nor the one that speaks most for it"
    return f", and the {measured.liars} testers that speak most against it are not heard, nor those most for it"


def _influence_row(left_out: Influence) -> tuple[str, ...]:
    points = "" if math.isnan(left_out.points) else f"{round(100 * left_out.points, 2) + 0.0:+.2f}"
    chance = (
        "too few rows"
        if left_out.p_value is None
        else "above 10 %"
        if left_out.p_value > 0.1
        else f"{left_out.p_value:.2g}"
    )
    verdict = "does not fit" if left_out.named else "."
    return (" with ".join(left_out.sites), points, f"{left_out.moved:.1%}", f"{left_out.gain:+.4f}", chance, verdict)
