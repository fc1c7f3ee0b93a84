"""What a site releases under differential privacy: allowed by its policy, charged, kept.

A release happens once. Its charge is on disk before the noise is drawn, and what was released stays in the store of the
site: the same question about the same data is answered from there and costs nothing, anything else is a second release.
A crash in between loses budget, never privacy.

Whether data are the same is decided by public things: the preparation in use, the edition that the site published, and
which rows there are (``public_identity``, ``members``). What the rows hold decides nothing, or the number of charges,
which every reply tells, would say whether two preparations make the same of them. Rows that are changed in place are
therefore released anew when the site publishes, and not before.

A task asks for a permit with ``releasing``, which checks the policy before anything looks at a row. Where privacy is
required there is no other way to the site's rows.

A person whose budget is spent is left out of a release without a word: a fixed public row stands in for theirs, and
sizes, sentences and the number of charges are as if they were in it. Only where nobody can pay is a release refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import BudgetExceeded, InputError, Refused
from kernfed.files import Record
from kernfed.privacy import Guarantee, Ledger, RandomizedLabels
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_to_values, with_labels
from kernfed.site.authorise import check_mechanism, check_record
from kernfed.site.protocol.message import digest
from kernfed.site.release.books import LEDGER, charges, open_ledger, spent
from kernfed.site.release.kept import (
    FOLDER,
    ledger_mark,
    members,
    public_identity,
    read_release,
    row_marks,
    rows_of,
    warn_if_changed,
    write_rows,
)
from kernfed.site.rows import Rows
from kernfed.site.site import Site

__all__ = [
    "LEDGER",
    "Permit",
    "charges",
    "check_release",
    "open_ledger",
    "record_promise",
    "releasing",
    "spent",
    "statement",
]


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

        ``compute`` calls the mechanism's ``release(..., ledger=ledger, ids=rows.people)``, which charges before it
        draws, and returns what is to be kept. ``key`` tells apart releases of one mechanism, such as two features of
        the same rows.
        """
        name = name_of_once(self.site, self.mechanism, rows, key)
        with self.site.store.locked():
            record = read_release(self.site, name)
            if record is None:
                made = self._charged(rows, compute)
                about = {"by": "site", "people": rows.ids.tolist(), "ledger": ledger_mark(self.site)}
                record = Record(made.arrays, {**made.values, **about, "data": rows.digest})
                self.site.store.write(record, FOLDER, name)
            warn_if_changed(self.site, changed=record.values["data"] != rows.digest)
        return record

    def row_by_row(
        self, rows: Rows, compute: Callable[[Rows, Ledger], FloatArray], *, mechanism: Mechanism | None = None
    ) -> FloatArray:
        """Noisy rows (n, k) of ``rows``, for mechanisms that treat each row by itself (default: that of the permit).

        ``compute(rows, ledger)`` releases and charges; it gets only rows whose ids were not released before.
        """
        name = name_by_row(self.site, self.mechanism if mechanism is None else mechanism, rows)
        marks = row_marks(rows.X)
        with self.site.store.locked():
            known = rows_of(read_release(self.site, name))
            new = np.flatnonzero([number not in known for number in rows.ids.tolist()])
            if len(new):
                made = self._charged(rows, lambda ledger: compute(rows.take(new), ledger))
                known |= dict(zip(rows.ids[new].tolist(), zip(marks[new].tolist(), made, strict=True), strict=True))
                write_rows(self.site, name, known)
            released = [known[number] for number in rows.ids.tolist()]
            warn_if_changed(self.site, changed=[mark for mark, _ in released] != marks.tolist())
        return np.stack([row for _, row in released])

    def anew(self, rows: Rows, compute: Callable[[Ledger], Any]) -> Any:
        """What ``compute(ledger)`` releases of these ``rows`` now; it is not kept, and the next time costs again."""
        with self.site.store.locked():
            return self._charged(rows, compute)

    def _charged(self, rows: Rows, compute: Callable[[Ledger], Any]) -> Any:
        if charges(self.site) >= self.site.policy.max_charges:
            raise Refused(
                "limit",
                f"the policy of site {self.site.name!r} allows {self.site.policy.max_charges:,} releases",
                public=True,
            )
        try:
            return compute(open_ledger(self.site, rows, thorough=True))
        except BudgetExceeded as error:
            raise Refused("budget", f"site {self.site.name!r} does not release this: {error}") from None


def name_of_once(site: Site, mechanism: Mechanism, rows: Rows, key: str = "") -> str:
    """Name in the store of what was released of all ``rows`` together; it follows from public things and ids."""
    about = {"data": public_identity(site, rows), "members": members(site, rows)}
    return digest({"mechanism": mechanism_to_values(mechanism), "key": key, **about})


def name_by_row(site: Site, mechanism: Mechanism, rows: Rows) -> str:
    """Name in the store of ``rows`` that were released by themselves; it follows from public things."""
    about = {"data": public_identity(site, rows, prepared=not isinstance(mechanism, RandomizedLabels))}
    return digest({"mechanism": mechanism_to_values(mechanism), "key": "", **about})


@contextmanager
def releasing(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> Iterator[Permit]:
    """A permit for one release, or a refusal before anything is computed; rows can be read inside."""
    check_release(site, mechanism, labels)
    with site.releasing():
        yield Permit(site, mechanism, labels)


def check_release(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> None:
    """Refuse a release that the site's policy does not allow."""
    policy = site.policy
    private_labels = labels is not None or mechanism.protects_labels
    check_mechanism(policy, site.name, mechanism_name(mechanism), private_labels=private_labels)
    if policy.require_privacy and mechanism.publishes_values and not policy.atoms:
        raise Refused(
            "policy",
            f"the policy of site {site.name!r} does not allow atoms: this mechanism releases values as they are with "
            "some probability; ask with delta 0, or have the site say atoms = true",
            public=True,
        )
    if policy.max_record_epsilon is not None:
        check_record(policy, site.name, *record_promise(site, mechanism, labels))


def record_promise(site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None) -> tuple[float, float]:
    """(epsilon, delta) of a record in a release of the site's columns, at the delta of its policy."""
    try:
        _, record = with_labels(mechanism.guarantees(site.width, record_delta=site.policy.record_delta), labels)
    except InputError as error:  # parameters that do not fit the site's columns
        raise Refused("bad question", f"site {site.name!r} cannot release its columns: {error}") from None
    return record.epsilon, record.delta


def statement(site: Site, element: Guarantee, record: Guarantee) -> dict[str, list[str]]:
    """What a release promises and what the site's ledger has come to, as text of one length.

    (epsilon, delta) of element, record and ledger, and how many charges the ledger has: who keeps the number notices
    a site whose whole store was set back to an earlier day.
    """
    with site.store.locked():
        pairs = {
            "element": (element.epsilon, element.delta),
            "record": (record.epsilon, record.delta),
            "spent": spent(site),
        }
        told = {name: [f"{number:.16e}" for number in pair] for name, pair in pairs.items()}
        return {**told, "charges": [f"{charges(site):016d}"]}
