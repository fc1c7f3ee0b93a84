"""What a site releases under differential privacy: allowed by its policy, charged, kept.

A release happens once. Its charge is on disk before the noise is drawn, and what was released stays in the store of the
site: the same mechanism on the same rows is answered from there and costs nothing, anything else is a second release. A
crash in between loses budget, never privacy.

A task asks for a permit with ``releasing``, which checks the policy before anything looks at a row. Where privacy is
required there is no other way to the site's rows.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed._validation import FloatArray
from kernfed.errors import BudgetExceeded, InputError, Refused
from kernfed.federation.protocol.message import digest
from kernfed.federation.release.kept import FOLDER, read_release, row_marks, rows_of, write_rows
from kernfed.federation.site.authorise import check_mechanism, check_record
from kernfed.federation.site.rows import Rows
from kernfed.federation.site.site import Site
from kernfed.files import Record
from kernfed.privacy import Guarantee, Ledger, RandomizedLabels
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_to_values, with_labels

#: File of a site's ledger in its store.
LEDGER = "ledger.jsonl"
# The budget that the ledger of a site without one is begun with. It is not used: spending is recorded, never too much.
_NO_LIMIT = 1e9


@dataclass(frozen=True)
class Permit:
    """A release that the site's policy allows: the way to its rows, and from them to what may leave."""

    site: Site
    mechanism: Mechanism
    labels: RandomizedLabels | None = None

    def rows(self) -> Rows:
        """The site's rows as a learner sees them: with public labels, or with all classes where labels are randomised.

        Which classes are too small to speak of is then decided by the randomised labels.
        """
        return self.site.rows(every_class=self.labels is not None)

    def once(self, rows: Rows, compute: Callable[[Ledger], Record], *, key: str = "") -> Record:
        """What ``compute(ledger)`` once released of these ``rows``: from the store ever after.

        ``compute`` calls the mechanism's ``release(..., ledger=ledger, ids=rows.ids)``, which charges before it draws,
        and returns what is to be kept. ``key`` tells apart releases of one mechanism, such as two features of the same
        rows.
        """
        name = digest({"mechanism": mechanism_to_values(self.mechanism), "key": key, "data": rows.digest})
        with self.site.store.locked():
            record = read_release(self.site, name)
            if record is None:
                made = self._charged(compute)
                record = Record(made.arrays, {**made.values, "by": "site", "people": rows.ids.tolist()})
                self.site.store.write(record, FOLDER, name)
        return record

    def row_by_row(
        self, rows: Rows, compute: Callable[[Rows, Ledger], FloatArray], *, mechanism: Mechanism | None = None
    ) -> FloatArray:
        """Noisy rows (n, k) of ``rows``, for mechanisms that treat each row by itself (default: that of the permit).

        ``compute(rows, ledger)`` releases and charges; it gets only rows that were not released before, or that have
        changed since.
        """
        used = self.mechanism if mechanism is None else mechanism
        name = digest({"mechanism": mechanism_to_values(used), "key": ""})
        marks = row_marks(rows.X)
        with self.site.store.locked():
            known = rows_of(read_release(self.site, name))
            pairs = enumerate(zip(rows.ids.tolist(), marks.tolist(), strict=True))
            new = np.array(
                [place for place, (number, mark) in pairs if known.get(number, (None,))[0] != mark], dtype=np.intp
            )
            if len(new):
                made = self._charged(lambda ledger: compute(rows.take(new), ledger))
                known |= dict(zip(rows.ids[new].tolist(), zip(marks[new].tolist(), made, strict=True), strict=True))
                write_rows(self.site, name, known)
        return np.stack([known[number][1] for number in rows.ids.tolist()])

    def _charged(self, compute: Callable[[Ledger], Any]) -> Any:
        try:
            return compute(open_ledger(self.site))
        except BudgetExceeded as error:
            raise Refused("budget", f"site {self.site.name!r} does not release this: {error}") from None


@contextmanager
def releasing(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> Iterator[Permit]:
    """A permit for one release, or a refusal before anything is computed; rows can be read inside."""
    check_release(site, mechanism, labels)
    with site.releasing():
        yield Permit(site, mechanism, labels)


def check_release(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> None:
    """Refuse a release that the site's policy does not allow."""
    policy = site.policy
    check_mechanism(policy, site.name, mechanism_name(mechanism), private_labels=labels is not None)
    if policy.max_record_epsilon is not None:
        check_record(policy, site.name, *record_promise(site, mechanism, labels))


def record_promise(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> tuple[float, float]:
    """(epsilon, delta) of a record in a release of the site's columns, at the delta of its policy."""
    try:
        _, record = with_labels(mechanism.guarantees(site.width, record_delta=site.policy.record_delta), labels)
    except InputError as error:  # parameters that do not fit the site's columns
        raise Refused("bad question", f"site {site.name!r} cannot release its columns: {error}") from None
    return record.epsilon, record.delta


def open_ledger(site: Site) -> Ledger:
    """The site's ledger, in its store, under the budget that its policy has today."""
    policy, place = site.policy, site.store.path / LEDGER
    limit = policy.max_record_epsilon
    begun = place.exists() and place.stat().st_size > 0
    if not begun and site.store.names(FOLDER):
        raise Refused(
            "ledger",
            f"site {site.name!r} has released data, but its ledger {place} is missing: what was "
            "spent is not known. Restore it; nothing is released until then",
        )
    try:
        ledger = Ledger(place) if begun else Ledger(place, limit or _NO_LIMIT, policy.record_delta)
    except InputError as error:  # it is damaged
        raise Refused("ledger", str(error)) from None
    # The file has the numbers of the day it was begun; the policy's are those of today.
    ledger.epsilon, ledger.delta = math.inf if limit is None else limit, policy.record_delta
    return ledger


def spent(site: Site) -> tuple[float, float]:
    """(epsilon, delta) that the person who paid most has paid at this site; (0, delta) before any release."""
    if not (site.store.path / LEDGER).exists():
        return 0.0, site.policy.record_delta
    paid = open_ledger(site).spent()
    return paid.epsilon, paid.delta


def statement(site: Site, element: Guarantee, record: Guarantee) -> dict[str, list[str]]:
    """What a release promises and what the site's ledger has come to, (epsilon, delta) as text of one length."""
    pairs = {
        "element": (element.epsilon, element.delta),
        "record": (record.epsilon, record.delta),
        "spent": spent(site),
    }
    return {name: [f"{number:.16e}" for number in pair] for name, pair in pairs.items()}
