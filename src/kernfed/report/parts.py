"""What a kind of model adds to a report, and the words that several kinds share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.report.content import Claim, Fact, PageTable, Section, site_table

#: Columns of the table of sites that took no part.
MISSING_COLUMNS = ("site", "why it took no part")


@dataclass(frozen=True)
class Parts:
    """What a kind of model adds to a report.

    privacy : words on what its sites send and its file holds. papers : those whose theorems speak of it.
    """

    title: str
    lead: str
    facts: tuple[Fact, ...] = ()
    privacy: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[PageTable, ...] = ()
    papers: tuple[str, ...] = ()


#: What the sites send and what the file holds, in words.
SENT = {
    "sites": "Rows stay at their sites, and so do the machines made from them. This file holds a handle, names and "
    "numbers of rows. What leaves a site are its scores of queries; who may ask many learns something of the rows, and "
    "a site's own policy decides who may ask, and how often.",
    "machines": "The file of this model contains the rows it was trained on, in another form. Whoever has the file has "
    "the rows: keep it as you keep them.",
    "released": "The machines are made of rows to which noise was added. What is computed from these rows, this file "
    "included, keeps the promise below.",
    "ridge": "The file holds weights of features, no rows. In training the sites sent sums over their rows (gradients, "
    "products or second moments).",
    "released sums": "The file holds weights of features, no rows. The sites released noisy sums over their rows once, "
    "and what is computed from these keeps the promise below.",
    "averaging": "The file holds weights, no rows. In training the sites sent weights fitted to their rows.",
    "personal": "In training the sites sent means and second moments of their features. The file holds no rows.",
    "released embeddings": "The sites released noisy mean embeddings of their rows once. What is computed from these, "
    "the weights in this file, keeps the promise below. The file holds no rows.",
}


def missing_note(missing: Mapping[str, str]) -> str:
    """How many sites took no part."""
    return f"{len(missing)} took no part" if missing else "all took part"


def missing_tables(missing: Mapping[str, str]) -> tuple[PageTable, ...]:
    """Which sites took no part, and why; nothing where all did."""
    rows = tuple((str(site), str(reason)) for site, reason in missing.items())
    return (site_table(MISSING_COLUMNS, rows, "Missing sites"),) if rows else ()
