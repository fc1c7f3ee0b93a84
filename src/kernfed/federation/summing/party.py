"""A site as a party of masked sums: its keys, whom it knows, and what it has sent."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kernfed.errors import InputError, Refused
from kernfed.files import Record
from kernfed.secure.committee.contribution import contribute
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.keys import Identity, keep_identity
from kernfed.secure.committee.member import Member, Pins
from kernfed.secure.committee.reports import GENERATION, UNPREPARED, UNTOLD
from kernfed.secure.committee.terms import RunTerms
from kernfed.site.protocol.message import Payload
from kernfed.site.site import Site
from kernfed.site.store import KEY_FILE, SiteStore

#: Files of a site's store, beside its long-lived key: the folder of its keys for one run, and the runs it has sent to.
ONCE, SENT = "sum-keys", "sum-sent"
#: The array of a question that holds the terms of its run.
TERMS = "terms"
_KEPT_RUNS = 1000


def identity_at(store: Path) -> Identity:
    """The long-lived key in a site's store, made where there is none."""
    return keep_identity(store / KEY_FILE)


def pins_of(site: Site) -> Pins:
    """Whom a site knows, by its policy; who is not pinned there is taken as a question names them."""
    policy = site.policy
    return Pins(policy.committee or None, policy.roster or None, policy.min_sum_sites, policy.corrupt_sites)


def member_of(site: Site) -> Member:
    """A site in its part as a member of a committee."""
    folder = site.store.path / ONCE
    return Member(site.name, identity_at(site.store.path), site.store, folder, pins_of(site))


def question_hash(task: str, payload: Payload) -> str:
    """SHA-256 of what is asked, without the terms of the run."""
    whole = hashlib.sha256(json.dumps([task, dict(payload.values)], sort_keys=True, allow_nan=False).encode())
    for name, array in sorted(payload.arrays.items()):
        if name != TERMS:
            whole.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what is wrong with a run; it follows from the question, the policy and earlier runs, never from a row."""
    try:
        yield
    except InputError as error:
        raise Refused("bad run", str(error), public=True) from None


def read_terms(payload: Payload) -> RunTerms:
    """The terms in a question."""
    if TERMS not in payload.arrays:
        raise Refused("bad question", "a masked sum needs the terms of its run", public=True)
    with refusing():
        return RunTerms.from_bytes(payload.arrays[TERMS].tobytes())


def read_own_terms(site: Site, task: str, payload: Payload) -> RunTerms:
    """The terms in a question to a site for its part of a sum, as far as its policy agrees with them."""
    terms = read_terms(payload)
    with refusing():
        pins_of(site).check(terms)
        if terms.task != task or terms.question != question_hash(task, payload):
            raise InputError("the terms of the run are of another question than the one that is asked")
    return terms


def generation_of(site: Site) -> bytes:
    """Stands for the rows of the site as they came: the same while they are, and random without the site's key.

    Nothing of a preparation is in it. Under two of them prepared rows are the same only where no cell holds what they
    differ in, and members would take another preparation for a change of rows at every site.
    """
    key = hashlib.sha256(b"kernfed generation of data\0" + identity_at(site.store.path).private).digest()
    token = hmac.digest(key, site.data.digest().encode(), "sha256")[:GENERATION]
    return token if token != UNTOLD else bytes([1]) * GENERATION


def preparation_of(site: Site) -> bytes:
    """Digest of the preparation in use, or zeros: members add up only what was prepared in one way."""
    known = site.store.read_state().get("preparation")
    return UNPREPARED if known is None else hashlib.sha256(str(known).encode()).digest()


def check_unsent(site: Site, terms: RunTerms) -> None:
    """Refuse a run that the site has sent its part of, or that does not know it by its key."""
    if site.store.read(SENT, terms.id) is not None:
        raise Refused("repeated run", f"site {site.name!r} has sent its part of this run already", public=True)
    if terms.roster.get(site.name) != identity_at(site.store.path).public:
        raise Refused("bad run", f"the roster of the run has another key for site {site.name!r}", public=True)


def send(site: Site, terms: RunTerms, vector: Words, generation: bytes) -> Payload:
    """The site's contribution to a run, once; that it was made is on disk before it leaves."""
    check_unsent(site, terms)
    with refusing():
        sent = contribute(terms, site.name, vector, identity_at(site.store.path), generation, preparation_of(site))
    site.store.write(Record({}, {"task": terms.task}), SENT, terms.id)
    for old in site.store.newest(SENT)[_KEPT_RUNS:]:
        site.store.delete(SENT, old)
    return Payload(sent.to_arrays())


def helper_site(name: str, store: str | Path | None = None, **options: object) -> Site:
    """A site without data, to serve in committees; name it among the ``helpers`` of its federation."""
    return Site(name, _no_rows, store=None if store is None else SiteStore(store), **options)  # type: ignore[arg-type]


def _no_rows() -> None:
    raise Refused("empty", "a helper has no rows")
