"""What a model promises of its sets of classes, and of telling strangers, from the rows that were kept aside."""

from typing import Any

import numpy as np

from kernfed.abstain import BINS, Coverage
from kernfed.guarantees import conformal_miscoverage
from kernfed.promise import round_up
from kernfed.report.assurance import spent_tables
from kernfed.report.content import Claim, PageTable, Section
from kernfed.report.officer import guarantee_claims

#: Coverages that the page lists.
_COVERAGES = (0.8, 0.9, 0.95, 0.99)
_CONFIDENCE = 0.95


def coverage_section(model: Any) -> Section | None:
    """Coverages and for whom they hold; None for a model that states none."""
    record: Coverage | None = getattr(model, "conformal_", None)
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
    head = ("coverage", f"with {_CONFIDENCE:.0%} confidence at least", "are all classes in every set?")
    tables = [PageTable(head, rows, "Coverage")]
    claims: tuple[Claim, ...] = ()
    if record.privacy is not None:
        claims = guarantee_claims(record.privacy.element, record.privacy.record)
        tables += spent_tables(record.privacy.spent)
    return Section("What it says when it does not know", tuple(words), claims=claims, tables=tuple(tables))


def _noise_words(record: Coverage, model: Any) -> list[str]:
    """What noise on the counts means, and what a person has paid in all who is in training and in the counts."""
    if record.privacy is None:
        return []
    words = [
        "The counts have noise, so that they tell little of any row; what they promise is stated below. Thresholds are "
        "rounded to the safe side: the coverage holds with the noise, and sets are larger for it."
    ]
    trained = getattr(model, "privacy", None)
    if trained is not None:
        epsilon, delta = record.privacy.with_row_in(trained)
        words.append(
            "A row is either learned from or kept aside, and has the guarantee of the one release it is in. A person "
            f"with a row in each has epsilon {round_up(epsilon):g} at delta {round_up(delta * (1 - 1e-12)):g}."
        )
    return words


def _surely(record: Coverage, coverage: float) -> str:
    """The coverage that the threshold at hand has, but for an unlucky draw of the rows kept aside, or of noise."""
    risk = record.risk(coverage)
    return f"{1 - conformal_miscoverage(record.rows, coverage + risk, _CONFIDENCE + risk).value:.1%}"


def _full(record: Coverage, model: Any, coverage: float) -> bool:
    return bool((record.thresholds(model.classes_, coverage) == BINS - 1).all())
