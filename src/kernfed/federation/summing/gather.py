"""What asks for a sum: sites for their masked vectors, members for their signatures and for the sums of the masks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import check_count
from kernfed.errors import InputError, KernfedError
from kernfed.federation.asking import Federation
from kernfed.federation.summing.opening import seats_and_roster
from kernfed.federation.summing.party import TERMS, question_hash
from kernfed.secure.committee.contribution import Contribution
from kernfed.secure.committee.coordinator import MaskedTotal
from kernfed.secure.committee.fixed import Layout, Words, fit_layout
from kernfed.secure.committee.keys import SIGNATURE
from kernfed.secure.committee.member import MaskSums
from kernfed.secure.committee.reports import as_bytes
from kernfed.secure.committee.setting import Committee, read_setting
from kernfed.secure.committee.terms import ANSWERS, QUORUM, RunTerms
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.replies import Replies, Total
from kernfed.site.protocol.task import find_task

Check = Callable[[str, Payload], None] | None


@dataclass(frozen=True)
class Noise:
    """What of a sum is noise: its description as plain values, how neighbours differ, and t, who adds it."""

    about: Mapping[str, Any]
    adjacency: str
    honest: int


def gather_sum(
    federation: Federation,
    task: str,
    payload: Payload,
    arrays: Mapping[str, tuple[tuple[int, ...], float]],
    *,
    committee: Any,
    sites: Sequence[str],
    min_replies: int | None,
    timeout: float,
    check: Check,
) -> Total:
    """The sum of what an additive task answers; see ``Federation.sum``."""
    known = find_task(task)
    if known is None or not all(part.additive for part in known.asked(payload)):
        raise InputError(f"{task!r} is no task whose answers can be added; declare it with @task(..., additive=True)")
    setting, asked = read_setting(committee), sorted(set(sites))
    layout = fit_layout(arrays, max(1, len(asked)))
    if setting is None:
        return _gather_clear(federation, task, payload, layout, asked, min_replies, timeout, check)
    if check is not None:
        raise InputError("nobody sees a masked answer, so that none can be checked; leave check out")
    return gather_masked(federation, "sum_masked", task, payload, layout, setting, asked, min_replies, timeout)


def _gather_clear(
    federation: Federation,
    task: str,
    payload: Payload,
    layout: Layout,
    sites: Sequence[str],
    min_replies: int | None,
    timeout: float,
    check: Check,
) -> Total:
    """The sum of answers that are seen, as the integers that masked ones are."""
    total: Words = np.zeros(layout.size, dtype=np.uint64)

    def take(site: str, answer: Payload) -> None:
        if check is not None:
            check(site, answer)
        layout.check_bounds(answer.arrays)
        np.add(total, layout.encode(answer.arrays), out=total)

    replies = federation.ask(
        task, payload, sites=sites, min_replies=min_replies, timeout=timeout, check=take, keep=False
    )
    return Total(layout.decode(total), layout.integers(total), tuple(replies.payloads), replies.missing, masked=False)


def gather_masked(
    federation: Federation,
    ask: str,
    task: str,
    payload: Payload,
    layout: Layout,
    setting: Committee,
    sites: Sequence[str],
    min_replies: int | None,
    timeout: float,
    noise: Noise | None = None,
    hear: Check = None,
) -> Total:
    """The sum of vectors that sites send masked to the question ``ask``, about ``task``.

    Without ``min_replies`` all sites must report. ``hear(site, answer)`` reads what a site says beside its vector.
    """
    needed = len(sites) if min_replies is None else check_count(min_replies, "min_replies")
    enough = needed if noise is None else max(needed, noise.honest + setting.corrupt_sites)
    seats, roster, missing, opened = seats_and_roster(federation, setting, sites, enough, timeout)
    terms = RunTerms(
        task,
        question_hash(task, payload),
        roster,
        seats,
        setting.corrupt,
        needed,
        layout,
        0 if noise is None else noise.honest,
        setting.corrupt_sites,
        None if noise is None else noise.about,
        "" if noise is None else noise.adjacency,
    )
    total = MaskedTotal(terms)

    def take(site: str, answer: Payload) -> None:
        if hear is not None:
            hear(site, answer)
        total.add(site, Contribution.from_arrays(terms, answer.arrays))

    question = Payload({**payload.arrays, TERMS: as_bytes(terms.to_bytes())}, payload.values)
    try:
        replies = federation.ask(
            ask, question, sites=sorted(roster), min_replies=terms.needed, timeout=timeout, check=take, keep=False
        )
        vector = _unmasked(federation, total, timeout)
    except KernfedError:
        federation.sum_keys.clear()  # perhaps somebody has others now: they are asked for again
        raise
    return Total(
        layout.decode(vector),
        layout.integers(vector),
        total.reports.sites,
        {**missing, **replies.missing},
        True,
        terms.id,
        setting.exchanges + opened,
    )


def _unmasked(federation: Federation, total: MaskedTotal, timeout: float) -> Words:
    """The sum without its masks, from the members: one exchange, or two where one of them may be corrupt."""
    terms, reports = total.terms, total.reports
    members = [seat.name for seat in terms.committee]
    told = {TERMS: as_bytes(terms.to_bytes()), **reports.to_arrays()}
    own = {member: {**told, "own": total.boxes_for(member)} for member in members}
    quorum: dict[str, Any] = {}
    if terms.corrupt:
        asked = {member: Payload(arrays) for member, arrays in own.items()}
        signed = federation.ask("sum_sign", asked, min_replies=QUORUM, timeout=timeout, check=_check_signature)
        quorum = {f"quorum.{member}": answer.arrays["signature"] for member, answer in signed}
    questions = {member: Payload({**arrays, **quorum}) for member, arrays in own.items()}
    needed = QUORUM if terms.corrupt else ANSWERS

    def check(member: str, answer: Payload) -> None:
        MaskSums.from_arrays(terms, member, answer.arrays)

    answers: Replies = federation.ask("sum_answer", questions, min_replies=needed, timeout=timeout, check=check)
    return total.unmask({member: MaskSums.from_arrays(terms, member, answer.arrays) for member, answer in answers})


def _check_signature(_: str, answer: Payload) -> None:
    if answer.arrays["signature"].shape != (SIGNATURE,):
        raise InputError("a signature was expected")
