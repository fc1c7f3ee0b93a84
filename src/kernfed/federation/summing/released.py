"""Sums with noise in shares: what a site sends of its rows under differential privacy, and who gathers it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.program import Program
from kernfed.federation.summing.gather import Noise, gather_masked
from kernfed.federation.summing.tasks import check_unsent, read_own_terms, send
from kernfed.privacy.generator import Ints, NoiseGenerator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.moments import RecordMoments
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.noisy_sum import WORDS, sum_deviation
from kernfed.privacy.release import RecordMechanism, charge
from kernfed.privacy.shared import SharedMoments, SharedRidge, SharedSum
from kernfed.promise import Guarantee
from kernfed.secure.committee.fixed import Block, Layout
from kernfed.secure.committee.reports import UNTOLD
from kernfed.secure.committee.terms import Committee, RunTerms, read_setting
from kernfed.site.authorise import check_mechanism, check_record
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.traffic import Total
from kernfed.site.release.permit import Permit, statement
from kernfed.site.rows import Rows
from kernfed.site.site import Site

#: Sums of the largest integers stay below this, whatever the number of sites.
_ROOM = 2.0**60


def guarantees(shared: SharedSum) -> tuple[Guarantee, Guarantee]:
    """What a shared sum promises an element and a record: an element is protected as part of its record."""
    record = Guarantee(shared.epsilon, shared.delta, "record", shared.words)
    return replace(
        record, unit="element", adjacency=f"one element changing by any amount, as part of {shared.words}"
    ), record


def promised(shared: SharedSum, *, public_labels: bool) -> tuple[Guarantee, Guarantee]:
    """What a model made of a shared sum promises: less of labels, where sites told them and their counts before."""
    if not public_labels:
        return guarantees(shared)
    both, row = f"{WORDS[shared.adjacency]},", "one row replaced by any other of its public class,"
    element, record = guarantees(shared)
    return (
        replace(element, adjacency=element.adjacency.replace(both, row)),
        replace(record, adjacency=record.adjacency.replace(both, row)),
    )


def noise_values(shared: SharedSum, part: str) -> dict[str, Any]:
    """The noise of a run, as its terms have it."""
    about = {"epsilon": float(shared.epsilon), "delta": float(shared.delta), "honest": shared.honest}
    return {"kind": type(shared).__name__, "part": part, "adjacency": shared.adjacency, **about}


# At a site ---------------------------------------------------------------------------------------------------------


def send_share(
    site: Site,
    task: str,
    payload: Payload,
    mechanism: RecordMechanism,
    shared: SharedSum,
    part: str,
    integers: Callable[[Rows, Any], Mapping[str, Ints]],
    *,
    protects_labels: bool,
    aside: bool = False,
) -> Payload:
    """The site's share of a sum, masked, where its policy allows the release.

    ``integers(rows, pays)`` makes the exact sums; rows of persons who cannot pay, where ``pays`` (n,) is False, are
    replaced there by a fixed public row and label. ``protects_labels``: whether sums can be made of any labels, so that
    nothing of them is told. ``aside``: the sum is over the rows that the site keeps aside.
    """
    terms = read_own_terms(site, task, payload)
    _check_terms(site, terms, shared, part)
    _check_layout(terms, shared, part)
    check_mechanism(site.policy, site.name, mechanism_name(mechanism), private_labels=protects_labels)
    check_record(site.policy, site.name, shared.epsilon, shared.delta)
    check_unsent(site, terms)
    with site.releasing():
        rows = site.held_out() if aside else site.rows(every_class=True)
        if not len(rows.y):
            lacks = "keeps no rows aside" if aside else "has no rows that it may speak of"
            raise Refused("empty", f"site {site.name!r} {lacks}")
        source = NoiseGenerator()

        def compute(ledger: Ledger) -> dict[str, Ints]:
            note = f"{type(shared).__name__}({shared.epsilon:g}, {shared.delta:g}) {part}, of {shared.honest} shares"
            events = (shared.event(part),)
            pays = charge(ledger, events, rows.X, rows.people, source, note, together=True)
            exact = {name: terms.layout.blocks[name].clipped(own) for name, own in integers(rows, pays).items()}
            return shared.share(part, exact, source)

        try:
            noisy = Permit(site, mechanism).anew(rows, compute)
        except InputError as error:  # parameters that do not fit the site's columns
            raise Refused("bad question", f"site {site.name!r} cannot take part: {error}") from None
    sent = send(site, terms, terms.layout.pack(noisy), UNTOLD)
    told = {"privacy": statement(site, *guarantees(shared)), "schema": site.data.schema(None).to_values()}
    return Payload(sent.arrays, told)


def _check_terms(site: Site, terms: RunTerms, shared: SharedSum, part: str) -> None:
    """Refuse terms of other noise than this, or with parties that a site which requires privacy does not know."""
    if (terms.noise, terms.adjacency, terms.honest) != (noise_values(shared, part), shared.words, shared.honest):
        raise Refused("bad run", "the terms of the run speak of other noise than what is asked", public=True)
    policy = site.policy
    if policy.require_privacy and not (policy.committee and policy.roster):
        raise Refused(
            "policy",
            f"the policy of site {site.name!r} requires privacy, and noise in shares protects where committee and "
            "roster are known: pin them in site.toml",
            public=True,
        )


def _check_layout(terms: RunTerms, shared: SharedSum, part: str) -> None:
    """Refuse a vector of other blocks than the sum has. How large its entries may be is no reason, see ``Block``.

    Sums are cut to the bounds before noise is added, which takes no two of them further apart.
    """
    known, blocks = shared.arrays(part), terms.layout.blocks
    if {name: (array.shape, 0) for name, array in known.items()} != {
        name: (block.shape, block.exponent) for name, block in blocks.items()
    }:
        raise Refused(
            "bad run", f"the terms of the run must have the arrays {', '.join(known)} in steps of 1", public=True
        )


# At the coordinator --------------------------------------------------------------------------------------------------


def gather_shares(
    federation: Federation,
    task: str,
    payload: Payload,
    shared: SharedSum,
    part: str,
    setting: Committee,
    sites: Sequence[str],
    *,
    min_replies: int | None,
    hear: Callable[[str, Payload], None],
) -> Program[Total]:
    """One part of a shared sum over ``sites``; ``hear(site, answer)`` reads what they say beside their shares."""
    layout = share_layout(shared, part, len(sites))
    noise = Noise(noise_values(shared, part), shared.words, shared.honest)
    return gather_masked(federation, task, task, payload, layout, setting, sites, min_replies, noise=noise, hear=hear)


def share_layout(shared: SharedSum, part: str, sites: int) -> Layout:
    """Blocks of integers with as much room for rows as so many sites can have."""
    arrays = shared.arrays(part)
    rows = np.floor(_ROOM / max(array.per_row for array in arrays.values()) / sites)
    return Layout(
        {
            name: Block(array.shape, rows * array.per_row, 0, sum_deviation(array.deviation, shared.honest, sites))
            for name, array in arrays.items()
        }
    )


def honest_sites(setting: Committee, sites: int, min_replies: int | None) -> int:
    """T: how many honest sites add the noise, of those that must report and may be corrupt."""
    needed = sites if min_replies is None else min_replies
    honest = needed - setting.corrupt_sites if setting.honest is None else setting.honest
    if honest < 1 or honest + setting.corrupt_sites > sites:
        raise InputError(
            f"{honest} honest and {setting.corrupt_sites} corrupt sites were assumed, and {sites} take part; lower "
            "honest or corrupt_sites of the Committee"
        )
    return honest


def promised_line(learner: Any, sites: int) -> str:
    """The guarantee of a record, where so many sites take part and all must report."""
    setting = read_setting(learner.sum) or Committee()
    honest = honest_sites(setting, sites, None)
    shared: SharedSum
    if isinstance(learner.privacy, RecordMoments):
        shared = SharedMoments.of(learner.privacy, ("any",), honest)
    else:
        shared = SharedRidge.of(learner.privacy, 1, 1, honest)
    public = getattr(learner, "classes", None) is None and getattr(learner, "task", "classify") == "classify"
    return f"  {promised(shared, public_labels=public)[1]}"
