"""A site as a party of masked sums: its keys, its masked vector, its signature, and its sums of masks as a member."""

import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kernfed.base.checks import check_count
from kernfed.errors import FileFormatError, InputError, Refused
from kernfed.files import Record
from kernfed.secure.committee.contribution import contribute
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.keys import SIGNATURE, Identity, keep_identity
from kernfed.secure.committee.member import Member, Pins
from kernfed.secure.committee.reports import GENERATION, UNPREPARED, UNTOLD, Bytes, Reports, as_bytes
from kernfed.secure.committee.terms import RunTerms
from kernfed.site.authorise import check_privacy
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import Task, find_task, task
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


#: Keys for one run that a member gives out at once, at most.
MOST_KEYS = 32
_QUORUM = "quorum."
#: What a reply must not tell is written here, for whoever runs the site.
_log = logging.getLogger("kernfed.site")


@task("sum_open", leaves="none", under_privacy="public", reason="public keys tell nothing of rows")
def open_sums(site: Site, payload: Payload) -> Payload:
    """The site's public key and, where it is to be a member of a committee, ``count`` keys for one run each."""
    with refusing():
        count = check_count(payload.values.get("count"), "count", at_least=0, at_most=MOST_KEYS)
    once = [[key.public, key.signature] for key in member_of(site).open(count)]
    return Payload(values={"key": identity_at(site.store.path).public, "once": once})


@task("sum_masked", leaves="masked")
def masked_sum(site: Site, payload: Payload) -> Payload:
    """The site's part of the sum of an additive task, masked; it is sent whatever values the site's rows have."""
    asked = str(read_terms(payload).task)
    known = _additive_task(site, asked, payload)
    terms = read_own_terms(site, asked, payload)
    if terms.noise is not None:
        raise Refused("bad question", f"{asked!r} is answered without noise, and the terms of the run speak of some")
    generation = generation_of(site)  # a table that cannot be read is refused here, whatever is asked
    question = {name: array for name, array in payload.arrays.items() if name != TERMS}
    return send(site, terms, _own_vector(site, known, terms, Payload(question, payload.values)), generation)


def _own_vector(site: Site, known: Task, terms: RunTerms, question: Payload) -> Words:
    """The task's answer as a vector (d,), entries cut to their bounds; zeros where the task fails on these rows.

    A question can be made so that a task fails for some rows and not for others (weights that overflow), and a refusal
    would tell which. The same holds for an answer of other arrays than the layout has: it is noticed after the task has
    run. Refusals of the task itself follow from columns, kinds of labels and the question, as does an unreadable model.
    """
    try:
        with np.errstate(all="ignore"):
            return terms.layout.encode(known.run(site, question).arrays)
    except (Refused, FileFormatError, MemoryError):
        raise
    except Exception:
        _log.warning("site %s adds zeros to a masked sum: %r failed", site.name, known.name, exc_info=True)
        return np.zeros(terms.layout.size, dtype=np.uint64)


def _additive_task(site: Site, name: str, payload: Payload) -> Task:
    """The additive task of this name, where the site answers what is asked of it, be it masked only."""
    known, policy = find_task(name), site.policy
    parts = () if known is None else known.asked(payload)
    if known is None or not all(part.additive for part in parts):
        raise Refused("bad question", f"{name!r} is no task whose answers can be added")
    for part in parts:
        if not policy.masks(part.name) and not policy.allows(part.name):
            raise Refused("policy", f"the policy of site {site.name!r} does not allow {part.name!r}, masked or not")
        if policy.holds(part.name):
            wait = f"lets {part.name!r} wait; let 'sum_masked' wait instead"
            raise Refused("policy", f"the policy of site {site.name!r} {wait}")
    check_privacy(policy, site.name, known, payload)
    return known


@task("sum_sign", leaves="none", under_privacy="public", reason="a signature tells nothing of rows")
def sign_set(site: Site, payload: Payload) -> Payload:
    """The member's signature under the set of sites that have reported in a run."""
    terms = read_terms(payload)
    with refusing():
        reports = Reports.from_arrays(terms, payload.arrays)
        return Payload({"signature": as_bytes(member_of(site).sign(reports, _own_boxes(payload)))})


def _own_boxes(payload: Payload) -> Bytes:
    if "own" not in payload.arrays:
        raise InputError("the boxes for the member are missing")
    return payload.arrays["own"]


@task("sum_answer", leaves="masked", under_privacy="public", reason="sums of random masks tell nothing of rows")
def answer_set(site: Site, payload: Payload) -> Payload:
    """Sums of the streams that the member holds, over the set of sites that have reported in a run; once."""
    terms = read_terms(payload)
    site.allow(numbers=len(terms.committee) * terms.layout.size)
    with refusing():
        quorum = {
            name.removeprefix(_QUORUM): array.tobytes()
            for name, array in payload.arrays.items()
            if name.startswith(_QUORUM) and array.shape == (SIGNATURE,) and array.dtype == np.uint8
        }
        reports = Reports.from_arrays(terms, payload.arrays)
        return Payload(member_of(site).answer(reports, _own_boxes(payload), quorum).to_arrays())
