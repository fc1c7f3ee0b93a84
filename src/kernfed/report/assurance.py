"""What can be relied on: privacy in plain words, bounds with their assumptions, what the theorems are worth."""

from collections.abc import Iterable, Mapping, Sequence

from kernfed.guarantees import STATUSES, Bound, HeldOutBounds, heldout_bounds
from kernfed.guarantees.bound import grouped_theorems
from kernfed.promise import Terms, round_up
from kernfed.report.content import SHARE, Assumption, Claim, PageTable, Section, site_table, written
from kernfed.report.evidence import Evidence
from kernfed.report.officer import guarantee_claims, not_promised
from kernfed.testing.outcomes import Evaluation

#: Of all held-out bounds of a report together.
CONFIDENCE = 0.95


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
    """What the ledger of each site has come to; no table where none is told."""
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


def all_bounds(evaluation: Evaluation) -> HeldOutBounds:
    """Bounds of every site and of all together, which hold at once with ``CONFIDENCE``."""
    counts = {site: (outcome.rows - outcome.correct, outcome.rows) for site, outcome in evaluation.sites.items()}
    return heldout_bounds(counts, CONFIDENCE, simultaneous=True)


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
