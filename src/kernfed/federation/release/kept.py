"""What a site's store keeps of releases under differential privacy, and what has to be known without making one.

Learners without privacy import this and nothing heavier. ``private`` makes releases.
"""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray
from kernfed.errors import FileFormatError, LedgerNotKept, Refused
from kernfed.federation.protocol.message import digest
from kernfed.federation.protocol.task import when_forgetting
from kernfed.federation.site.site import Rows, Site, data_digest
from kernfed.files import Record
from kernfed.kahm.model import FoldingParameters

FOLDER = "releases"
#: Released rows by the id of the row: its mark (``row_marks``) and the noisy row.
ByRow = Mapping[int, tuple[int, FloatArray]]


def warn_if_forgotten(engine: Any) -> None:
    """Warn where sites of an engine in this process keep their ledger in a temporary store; called by ``fit``."""
    lost = sorted(set(getattr(engine, "temporary_sites", ())) & set(engine.sites))
    if lost:
        warnings.warn(
            f"{len(lost)} site(s), such as {lost[0]!r}, release under differential privacy from a temporary "
            "store: nobody will know later what was released and spent, and the same fit on another "
            "federation is a second draw, whose epsilon adds to this one's. Use Federation.local(..., "
            "store=DIR) and name the same folder every time",
            LedgerNotKept,
            stacklevel=3,
        )


def folding_handle(parameters: FoldingParameters, recipe: Mapping[str, Any] | None) -> str:
    """Name of machines made with these parameters, from rows as they are or as a recipe's values say."""
    values = parameters.to_values()
    return digest(values if recipe is None else {**values, "privacy": recipe})


def require_private(site: Site) -> None:
    """Refuse a learner without privacy where the site's policy requires some."""
    if site.policy.require_privacy:
        raise Refused("policy", f"the policy of site {site.name!r} requires privacy, and this learner offers none")


@dataclass(frozen=True)
class Source:
    """Rows that machines or a release are made of, and their fingerprint ``data``."""

    rows: Rows
    data: str


def source_rows(site: Site, *, randomized: bool) -> Source:
    """The site's rows as a learner sees them that takes labels as public, or has them randomised.

    Which classes are too small to speak of is then decided by the randomised labels.
    """
    rows = site.rows(every_class=randomized)
    data = data_digest(rows)
    return Source(rows, f"{data}/{site.policy.min_rows_per_class}" if randomized else data)


# The store --------------------------------------------------------------------------------------------------------


def row_marks(X: FloatArray) -> npt.NDArray[np.int64]:
    """A number (n,) for the content of each row, by which a changed one is noticed."""
    whole = np.ascontiguousarray(X, dtype="<f8")
    marks = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in whole)
    return np.frombuffer(marks, dtype="<i8")


def rows_of(record: Record | None) -> dict[int, tuple[int, FloatArray]]:
    """Released rows of a record."""
    if record is None:
        return {}
    arrays = record.arrays
    return dict(zip(arrays["ids"].tolist(), zip(arrays["marks"].tolist(), arrays["rows"], strict=True), strict=True))


def write_rows(site: Site, name: str, known: ByRow) -> None:
    """Keep released rows."""
    numbers = list(known)
    arrays = {
        "ids": np.array(numbers, dtype=np.int64),
        "marks": np.array([known[number][0] for number in numbers], dtype=np.int64),
        "rows": np.stack([known[number][1] for number in numbers]),
    }
    site.store.write(Record(arrays, {"by": "row"}), FOLDER, name)


def read_release(site: Site, name: str) -> Record | None:
    """A release from the store. A damaged one is lost: nobody may guess what was released, so another is charged."""
    try:
        return site.store.read(FOLDER, name)
    except FileFormatError:
        return None


@when_forgetting
def drop_releases(site: Site) -> None:
    """Rows that are forgotten lose their noisy row; what was released of all rows together goes as a whole."""
    leaving = set(site.leaving)
    for name in site.store.names(FOLDER):
        found = read_release(site, name)
        if found is not None and found.values["by"] == "site" and leaving.isdisjoint(found.values["people"]):
            continue
        known = rows_of(found) if found is not None and found.values["by"] == "row" else {}
        kept = {number: entry for number, entry in known.items() if number not in leaving}
        if not kept:
            site.store.delete(FOLDER, name)
        elif len(kept) < len(known):
            write_rows(site, name, kept)
