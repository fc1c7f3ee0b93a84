"""Releases that a site has made: what was asked for, what is kept, and what receipts say of it."""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.warn import warn
from kernfed.errors import FileFormatError, InputError, LedgerNotKept, Refused
from kernfed.files import Record, content_digest
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values, of_public_class
from kernfed.promise import Terms
from kernfed.site.protocol.message import digest
from kernfed.site.receipts import Kept, ReceiptBook
from kernfed.site.rows import Rows
from kernfed.site.site import Site

Kind = TypeVar("Kind", bound=Mechanism)


def check_kind(privacy: Any, kind: str, shown: str) -> None:
    """Refuse a setting ``privacy`` that is not the mechanism of this name, which is ``shown`` in the error."""
    try:
        name = mechanism_name(privacy)
    except InputError:
        name = ""
    if name != kind:
        raise InputError(f"privacy must be None or kernfed.privacy.{shown}, got {privacy!r:.80}")


def read_mechanism(values: Any, kind: type[Kind]) -> Kind:
    """The mechanism in a question, or a refusal where it is of another kind."""
    try:
        mechanism = mechanism_from_values(values)
        if not isinstance(mechanism, kind):
            raise InputError(f"this learner takes {kind.__name__}, got {values['kind']!r}")
    except (ValueError, RecursionError) as error:
        raise Refused("bad question", f"the privacy asked for cannot be followed: {error}") from None
    return mechanism


def check_task(site: Site, task: str) -> None:
    """Refuse, where privacy is required, to take as classes what the site declares to be targets.

    Whether targets are among given classes would tell of them, so this is decided before any of them is looked at.
    """
    if task == "classify":
        site.check_labels_are_classes()


def terms_of(mechanism: Mechanism, width: int, task: str) -> Terms:
    """What sites are asked to promise for a release of ``width`` columns, with targets where ``task`` is to regress.

    To classify, classes and their numbers of rows are public: what is hidden is which row of its class one is.
    """
    asked, promised = mechanism_to_values(mechanism), mechanism.guarantees(width)
    protects = "rows and targets" if task == "regress" else "rows"
    if task == "classify":
        promised = of_public_class(promised)
    return Terms(asked, None, protects, *promised, request={"mechanism": asked, "labels": None})


_log = logging.getLogger("kernfed.site")

FOLDER = "releases"
#: Released rows by the id of the row: its mark (``row_marks``) and the noisy row.
ByRow = Mapping[int, tuple[int, FloatArray]]


def warn_if_forgotten(engine: Any) -> None:
    """Warn where sites of an engine in this process keep their ledger in a temporary store; called by ``fit``."""
    lost = sorted(set(getattr(engine, "temporary_sites", ())) & set(engine.sites))
    if lost:
        warn(
            f"{len(lost)} site(s), such as {lost[0]!r}, release under differential privacy from a temporary "
            "store: nobody will know later what was released and spent, and the same fit on another "
            "federation is a second draw, whose epsilon adds to this one's. Use Federation.local(..., "
            "store=DIR) and name the same folder every time",
            LedgerNotKept,
        )


# The store --------------------------------------------------------------------------------------------------------


def public_identity(site: Site, rows: Rows, *, prepared: bool = True) -> dict[str, Any]:
    """Preparation, edition and width of the data that ``rows`` are of: two releases that agree in them are one.

    None of it follows from the cells: an edition lasts from one ``SiteData.publish`` to the next. Labels are the same
    under every preparation, and what is released of them alone is not ``prepared``.
    """
    state = site.store.read_state()
    return {
        "preparation": state.get("preparation") if prepared else None,
        "edition": state.get("edition", 0),
        "width": int(rows.X.shape[1]),
    }


def members(site: Site, rows: Rows) -> str:
    """Digest of which rows take part: their ids, and which of them were forgotten and left a blank row.

    It changes where rows are added, forgotten or published, and not with what they hold.
    """
    blank = {number for number, _ in site.store.read_state().get("blank", [])}
    numbers = sorted(rows.ids.tolist())
    return digest({"ids": numbers, "blank": [number for number in numbers if number in blank]})


def warn_if_changed(site: Site, *, changed: bool) -> None:
    """Write to the site's log that what was released is of rows which have changed since; nobody else notices."""
    if changed:
        _log.warning(
            "site %s answers with what it released before its rows were changed in place: the number of charges must "
            "not tell of the change. `kernfed site publish` has the rows released, and charged, as they are now",
            site.name,
        )


def row_marks(X: FloatArray) -> npt.NDArray[np.int64]:
    """A number (n,) for the content of each row, by which the site's log notes a changed one."""
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
    site.store.write(Record(arrays, {"by": "row", "ledger": ledger_mark(site)}), FOLDER, name)


def ledger_mark(site: Site) -> dict[str, Any] | None:
    """Charges, head and key of the site's ledger as its state has them; None where no ledger was begun."""
    mark: dict[str, Any] | None = site.store.read_state().get("ledger")
    return mark


def read_release(site: Site, name: str) -> Record | None:
    """A release from the store. A damaged one is lost: nobody may guess what was released, so another is charged."""
    try:
        return site.store.read(FOLDER, name)
    except FileFormatError:
        return None


def drop_releases(site: Site, leaving: frozenset[int]) -> None:
    """Rows that are forgotten lose their noisy row; what was released of all rows together goes as a whole."""
    for name in site.store.names(FOLDER):
        release = read_release(site, name)
        if release is not None and release.values["by"] == "site" and leaving.isdisjoint(release.values["people"]):
            continue
        known = rows_of(release) if release is not None and release.values["by"] == "row" else {}
        kept = {number: entry for number, entry in known.items() if number not in leaving}
        if not kept:
            site.store.delete(FOLDER, name)
        elif len(kept) < len(known):
            write_rows(site, name, kept)


def describe(name: str, record: Record) -> Kept:
    """A release: rows by themselves, or all together. The id of a forgotten row may be in it, of a blank one."""
    return Kept(name, 0, content_digest(dict(record.values), record.arrays))


BOOK = ReceiptBook(FOLDER, describe)
