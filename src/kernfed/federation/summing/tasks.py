"""What sites and members answer for a masked sum: keys, a masked vector, a signature under a set, sums of masks."""

import logging

import numpy as np

from kernfed.base.checks import check_count
from kernfed.errors import FileFormatError, InputError, Refused
from kernfed.federation.summing.party import (
    TERMS,
    generation_of,
    identity_at,
    member_of,
    read_own_terms,
    read_terms,
    refusing,
    send,
)
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.keys import SIGNATURE
from kernfed.secure.committee.reports import Bytes, Reports, as_bytes
from kernfed.secure.committee.terms import RunTerms
from kernfed.site.authorise import check_privacy
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import Task, find_task, task
from kernfed.site.site import Site

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
