"""A site's ledger in its store: opened, held against what the site remembers of it, and never begun twice.

The state of the site and every release carry the number of charges and the hash of the last one. A ledger that was
deleted, shortened or replaced by an older copy does not fit them, and nothing is released until it is restored. Setting
the *whole* store back to an earlier day cannot be noticed from inside; replies carry the number of charges for that.

While the store is locked, as it is for a whole question, the file is locked and read once: checks, charge and statement
see the same lines.
"""

import hashlib
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kernfed.base.chain import ChainFile
from kernfed.errors import InputError, Refused
from kernfed.files import sync_folder
from kernfed.privacy.ledger import Ledger, open_file
from kernfed.site.release.kept import FOLDER, ledger_mark, read_release
from kernfed.site.rows import Rows
from kernfed.site.site import Site

#: Files of a site's store: its ledger, and the key of the names in it.
LEDGER, SECRET = "ledger.jsonl", "secret.key"
_SECRET_BYTES = 32
# The budget that the ledger of a site without one is begun with. It is not used: spending is recorded, never too much.
_NO_LIMIT = 1e9


def open_ledger(site: Site, rows: Rows | None = None, *, thorough: bool = False) -> Ledger:
    """The site's ledger, in its store, under the budget that its policy has today.

    ``rows`` are those that a charge will be about. ``thorough`` holds it against every release in the store as well.
    """
    policy, place = site.policy, site.store.path / LEDGER
    limit = policy.max_record_epsilon
    with site.store.locked():
        mark = ledger_mark(site)
        begun = place.exists() and place.stat().st_size > 0
        if not begun and (mark is not None or site.store.names(FOLDER)):
            raise Refused(
                "ledger",
                f"site {site.name!r} has released data, but its ledger {place} is missing: what was "
                "spent is not known. Restore it; nothing is released until then",
            )
        secret = _secret(site, mark, begun=begun)
        budget = () if begun else (limit or _NO_LIMIT, policy.record_delta)
        try:
            ledger = Ledger(
                place, *budget, secret=secret, by=_known_by(rows), leave_out=True, file=partial(_file, site)
            )
        except InputError as error:  # it is damaged
            raise Refused("ledger", str(error)) from None
        _check_marks(site, ledger, mark, thorough=thorough)

    def remember(count: int, head: str) -> None:
        """Called when a charge is on disk, and before any noise is drawn."""
        state = site.store.read_state()
        state["ledger"] = {"count": count, "head": head, "key": _fingerprint(secret)}
        site.store.write_state(state)

    ledger.anchor = remember
    # The file has the numbers of the day it was begun; the policy's are those of today.
    ledger.epsilon, ledger.delta = math.inf if limit is None else limit, policy.record_delta
    return ledger


@contextmanager
def _file(site: Site) -> Iterator[ChainFile]:
    """The ledger's file, locked and read once while the store is locked. Always the store's lock first."""
    with site.store.locked():
        yield site.store.keep_open(LEDGER, lambda: open_file(site.store.path / LEDGER))


def _known_by(rows: Rows | None) -> str:
    """Whether persons are known by a name of their own, or by the id of their one row."""
    return "row" if rows is None or rows.persons is None else "person"


def _check_marks(site: Site, ledger: Ledger, mark: Any, *, thorough: bool) -> None:
    """Refuse a ledger that is not a continuation of what state and releases know of it."""
    chain = ledger.chain()
    marks = [mark]
    if thorough:
        releases = (read_release(site, name) for name in site.store.names(FOLDER))
        marks += [release.values.get("ledger") for release in releases if release is not None]
    for known in filter(None, marks):
        if known["count"] >= len(chain) or chain[known["count"]] != known["head"]:
            raise Refused(
                "ledger",
                f"site {site.name!r} remembers a ledger of {known['count']} charge(s), and {ledger.path} with "
                f"{len(chain) - 1} is not that one or an older copy: what was spent is not known. Restore the newest; "
                "nothing is released until then",
            )


def spent(site: Site) -> tuple[float, float]:
    """(epsilon, delta) that the person who paid most has paid at this site; (0, delta) before any release.

    Where the site names persons it is what somebody with one row in every release has paid: how many rows somebody has,
    and who came back under another id, is nobody's business.
    """
    if not _has_ledger(site):
        return 0.0, site.policy.record_delta
    with site.store.locked():
        ledger = open_ledger(site)
        tally = ledger.tally()
        if tally is not None:
            return tally, ledger.delta
        by = {entry.by for entry in ledger.entries()}
        ledger.by = by.pop() if len(by) == 1 else ledger.by
        paid = ledger.spent()
    return paid.epsilon, paid.delta


def charges(site: Site) -> int:
    """How many releases the site's ledger was charged with."""
    with site.store.locked():
        return len(open_ledger(site).chain()) - 1 if _has_ledger(site) else 0


def _has_ledger(site: Site) -> bool:
    return (site.store.path / LEDGER).exists() or ledger_mark(site) is not None


# The key of the names ---------------------------------------------------------------------------------------------


def _secret(site: Site, mark: dict[str, Any] | None, *, begun: bool) -> bytes:
    """The key of the hashes of persons, made once, before the ledger is begun, and kept for the site's own eyes."""
    place = site.store.path / SECRET
    secret = place.read_bytes() if place.exists() else b""
    if mark is None and (not secret or (len(secret) != _SECRET_BYTES and not begun)):  # none, or one of a killed write
        place.unlink(missing_ok=True)
        _write_secret(place)
        secret = place.read_bytes()
    if len(secret) != _SECRET_BYTES or (mark is not None and _fingerprint(secret) != mark["key"]):
        raise Refused(
            "ledger",
            f"the key {place} of site {site.name!r} is missing or another one: who has paid is not known. Restore it; "
            "nothing is released until then",
        )
    return secret


def _write_secret(place: Path) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_SECRET_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(place.parent)


def _fingerprint(secret: bytes) -> str:
    return hashlib.sha256(b"kernfed ledger key" + secret).hexdigest()[:16]
